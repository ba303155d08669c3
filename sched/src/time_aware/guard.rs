// SPDX-License-Identifier: Apache-2.0
//! The class that was held back for a frame on time of a higher class, and whether such a frame has left since.
//!
//! In: the classes that are held back or chosen. Out: whether a class may be held back now. A class is held back once at a time: the span
//! of a hand-over is an upper bound. A higher class with frames closer together than that would stop the lower classes, although the link
//! is mostly free.

/// The guard of a port.
#[derive(Debug, Default)]
pub(super) struct Guard {
    /// The highest class that was held back and had no turn since.
    held: Option<usize>,
    /// A frame of a higher class left since then.
    has_waited: bool,
}

impl Guard {
    pub(super) fn is_up(&self) -> bool {
        self.held.is_none() || !self.has_waited
    }

    pub(super) fn hold(&mut self, class: usize) {
        self.held = self.held.max(Some(class));
    }

    /// A frame of `class` leaves its queue.
    pub(super) fn chosen(&mut self, class: usize) {
        match self.held {
            Some(held) if class <= held => *self = Self::default(),
            Some(_) => self.has_waited = true,
            None => {}
        }
    }
}
