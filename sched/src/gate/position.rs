// SPDX-License-Identifier: Apache-2.0
//! A place in the gates' time, and the window that is seen from there.
//!
//! A window is a maximal span in which the gate of a class is open; a pending change ends it.

use ktsn_time::{Span, Tai};

/// The part of the gates' time in which an instant lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Region {
    /// No list: nothing configured, gates disabled, or an empty list.
    Constant,
    /// Oper's base time comes in `to_start`.
    Before { to_start: Span },
    /// At `offset` in a cycle, in `entry` of the repeated list.
    Cycle { offset: Span, entry: usize },
    /// At `offset` in the last cycle before a change, in `entry` of the list that is executed once.
    Last { offset: Span, entry: usize },
}

/// Where an instant lies. Good until a program changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    pub(super) now: Tai,
    pub(super) region: Region,
    /// Time until the pending change; `ENDLESS` if there is none.
    pub(super) to_change: Span,
    /// Time until the start of oper's last cycle; `ENDLESS` if no cycle to come is the last one.
    pub(super) to_last: Span,
}

impl Position {
    /// Time until the pending change; `ENDLESS` if there is none.
    pub(crate) fn to_change(self) -> Span {
        self.to_change
    }

    /// Time until the start of the last cycle; `ENDLESS` if no cycle to come is the last one.
    pub(super) fn to_last(self) -> Span {
        self.to_last
    }

    /// The start of the last cycle, as time after the first one's, which comes in `to_start`.
    pub(super) fn last_after(self, to_start: Span) -> Span {
        if self.to_last == Span::ENDLESS { Span::ENDLESS } else { self.to_last.saturating_sub(to_start) }
    }
}

/// Where the current instant was found last time: the search begins there.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Hint {
    pub(super) cycle_start: Tai,
    pub(super) entry: usize,
}

/// The window that holds at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remaining {
    /// When it opened; not before oper's start. 0 if it has no beginning.
    pub(crate) opens_at: Tai,
    /// How long it goes on; `ENDLESS` if it has no end.
    pub(crate) rest: Span,
}
