// SPDX-License-Identifier: Apache-2.0
//! The words of a command, and what was read of them so far.

use std::borrow::Cow;

use super::RULE;
use super::script::Word;
use crate::fault::{Fault, Position, Remark};
use crate::schedule::{Schedule, Taprio};

/// tc's own limit of classes and of the lists about them.
pub(super) const LIST_MAX: usize = 16;

pub(super) struct Reader<'a> {
    pub(super) words: Vec<Word<'a>>,
    pub(super) next: usize,
    /// Where the word taken last stands: where something is missing.
    pub(super) last: Position,
    pub(super) faults: Vec<Fault>,
    pub(super) remarks: Vec<Remark>,
    /// The list that ended last, and what its words are: the next word may be meant for it.
    pub(super) list: Option<(&'static str, &'static str)>,
    /// Where tc stopped reading: the option, and the value that is no number.
    pub(super) ended: Option<(Position, String, String)>,
    /// Options that were read, with their places.
    pub(super) seen: Vec<(&'static str, Position)>,
    /// Where each entry's interval stands.
    pub(super) entries: Vec<Position>,
    pub(super) base_time: i64,
    pub(super) cycle_time: i64,
    pub(super) extension: i64,
    pub(super) schedule: Schedule,
    pub(super) taprio: Taprio,
    pub(super) map: [u8; LIST_MAX],
    pub(super) max_sdu: Vec<u32>,
}

impl<'a> Reader<'a> {
    pub(super) fn fault(
        &mut self,
        at: Position,
        path: &str,
        value: impl std::fmt::Display,
        expected: impl Into<String>,
    ) {
        self.faults.push(Fault::new(at, path, value, expected, RULE));
    }

    pub(super) fn remark(&mut self, at: Position, text: String) {
        self.remarks.push(Remark { at, text });
    }

    pub(super) fn take(&mut self) -> Option<Word<'a>> {
        let word = self.words.get(self.next)?.clone();
        self.next += 1;
        self.last = word.at;
        Some(word)
    }

    pub(super) fn peek_text(&self) -> Option<Cow<'a, str>> {
        self.words.get(self.next).map(|word| word.text.clone())
    }

    /// The value of an option, or a fault that it is missing.
    pub(super) fn value(&mut self, path: &str, expected: &str) -> Option<Word<'a>> {
        let word = self.take();
        if word.is_none() {
            let at = self.last;
            self.fault(at, path, "the command's end", expected);
        }
        word
    }

    pub(super) fn is_seen(&self, option: &str) -> bool {
        self.seen.iter().any(|(seen, _)| *seen == option)
    }

    pub(super) fn place_of(&self, option: &str) -> Position {
        let seen = self.seen.iter().rev().find(|(seen, _)| *seen == option);
        seen.map_or(self.last, |(_, at)| *at)
    }
}
