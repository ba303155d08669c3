// SPDX-License-Identifier: Apache-2.0
//! Which class was held back for a frame on time of a higher one, and whether it has waited for that.
//!
//! In: what is held back, what is chosen. Out: whether a class may be held back now. Once is enough: the span of a hand-over is an upper
//! bound, and a higher class whose frames come closer together than that would stop the lower ones, with the link mostly free.

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
