// SPDX-License-Identifier: Apache-2.0
//! What a command on the other host writes, as lines.
//!
//! In: pieces of its outputs. Out: whole lines and words of bounded length, and the end of its words for errors. Of a line without end at most
//! one octet more than allowed and a message is held.

use super::frames::Ended;
use crate::vm::printable;
use std::collections::VecDeque;
use std::io::Read;

/// Most octets of a line that the command writes.
const LINE_OCTETS_MAX: usize = 1 << 20;
/// Most octets of its words that are kept for an error.
const KEPT_OCTETS_MAX: usize = 16 << 10;

/// What the command does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// It is ready.
    Ready,
    /// It wrote a line to standard output.
    Line(String),
    /// It wrote a line to standard error: progress, or what is wrong. Control characters are taken out.
    Word(String),
    /// It has ended; its files can be fetched.
    Ended(Ended),
}

/// Outputs as lines.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// Of standard output and standard error, without its end yet.
    open: [Vec<u8>; 2],
    pub(super) whole: VecDeque<Said>,
    /// The end of standard error, for errors.
    pub(super) last_words: Vec<u8>,
}

impl Lines {
    pub(super) fn take(&mut self, is_error: bool, octets: &[u8]) -> Result<(), String> {
        if is_error {
            keep_last(&mut self.last_words, octets);
        }
        let open = &mut self.open[usize::from(is_error)];
        for part in octets.split_inclusive(|&octet| octet == b'\n' || (is_error && octet == b'\r')) {
            open.extend_from_slice(part);
            if open.len() > LINE_OCTETS_MAX {
                return Err(format!("a line of more than {LINE_OCTETS_MAX} octets"));
            }
            if open.last().is_some_and(|last| b"\n\r".contains(last)) {
                let line = std::mem::take(open);
                self.whole.extend(said(is_error, &line));
            }
        }
        Ok(())
    }

    /// What has no end of line yet.
    pub(super) fn finish(&mut self) {
        for is_error in [false, true] {
            let line = std::mem::take(&mut self.open[usize::from(is_error)]);
            self.whole.extend(said(is_error, &line));
        }
    }
}

fn said(is_error: bool, line: &[u8]) -> Option<Said> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    if is_error {
        let word = printable(line);
        return (!word.trim().is_empty()).then_some(Said::Word(word));
    }
    (!line.is_empty()).then(|| Said::Line(String::from_utf8_lossy(line).into_owned()))
}

fn keep_last(kept: &mut Vec<u8>, octets: &[u8]) {
    kept.extend_from_slice(octets);
    let excess = kept.len().saturating_sub(KEPT_OCTETS_MAX);
    kept.drain(..excess);
}

/// The end of an output.
pub(super) fn last_of(mut pipe: impl Read) -> Vec<u8> {
    let (mut kept, mut buffer) = (Vec::new(), [0; 4096]);
    while let Ok(octets @ 1..) = pipe.read(&mut buffer) {
        keep_last(&mut kept, &buffer[..octets]);
    }
    kept
}
