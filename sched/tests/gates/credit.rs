// SPDX-License-Identifier: Apache-2.0
//! The credit of one class (802.1Q-2022 8.6.8.2), one nanosecond at a time.
//!
//! In: slopes in bit/s, instants of MONOTONIC in ns. Out: whether the class may transmit. One bit/s for one ns is
//! 10^-9 bit, the unit counted here: nothing is rounded.

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Credit {
    credit: i128,
    /// From when until when a frame of this class is transmitted.
    sending: Option<(i128, i128)>,
}

impl Credit {
    pub(crate) fn is_enough(&self) -> bool {
        self.credit >= 0
    }

    /// A frame of `bits` is handed over at `at` and takes `duration`: what is sent is paid at once, and gained as
    /// time goes by. Nobody asks in between.
    pub(crate) fn spend(&mut self, at: i128, duration: i128, bits: i128) {
        self.credit -= bits * 1_000_000_000;
        self.sending = Some((at, at + duration));
    }

    /// The nanosecond that begins at `at`.
    pub(crate) fn tick(&mut self, at: i128, idle_slope: i128, waits: bool, open: bool) {
        let gains = if open || self.sends(at) { idle_slope } else { 0 };
        self.reset(at, waits);
        self.credit += gains;
        self.reset(at, waits);
    }

    /// At any time, `at` for one: without a frame that waits or is transmitted, credit above 0 is set to 0.
    pub(crate) fn reset(&mut self, at: i128, waits: bool) {
        if !waits && !self.sends(at) {
            self.credit = self.credit.min(0);
        }
    }

    fn sends(&self, at: i128) -> bool {
        self.sending.is_some_and(|(from, until)| from <= at && at < until)
    }
}
