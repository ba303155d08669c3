// SPDX-License-Identifier: Apache-2.0
//! The credit of one class (802.1Q-2022 8.6.8.2), one nanosecond at a time.
//!
//! In: slopes in bit/s, instants of MONOTONIC in ns. Out: whether the class may transmit. One bit/s for one ns is
//! 10^-9 bit, the unit counted here: nothing is rounded.

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Credit {
    credit: i128,
    /// From when until when a frame of this class is transmitted, and the link's speed then.
    sending: Option<(i128, i128, i128)>,
}

impl Credit {
    pub(crate) fn is_enough(&self) -> bool {
        self.credit >= 0
    }

    /// A frame is handed over at `at` and takes `duration`.
    pub(crate) fn spend(&mut self, at: i128, duration: i128, link_speed: i128) {
        self.sending = Some((at, at + duration, link_speed));
    }

    /// The nanosecond that begins at `at`.
    pub(crate) fn tick(&mut self, at: i128, idle_slope: i128, waits: bool) {
        match self.sending {
            Some((from, until, link_speed)) if from <= at && at < until => {
                self.credit += idle_slope - link_speed;
            }
            _ if waits => self.credit += idle_slope,
            _ if self.credit < 0 => self.credit = (self.credit + idle_slope).min(0),
            _ => self.credit = 0,
        }
    }
}
