// SPDX-License-Identifier: Apache-2.0
//! Policies that an attachment or a port chooses by a word.

crate::words! {
    /// What happens to a frame whose transmit time had passed when it was sent.
    #[derive(Default)]
    pub enum LatePolicy {
        /// The kernel's rules: TAI like etf (dropped), MONOTONIC like fq (sent at once).
        #[default]
        ByClock = "by-clock",
        /// Dropped as `missed`.
        Drop = "drop",
        /// Sent at once.
        Send = "send",
        /// The transmit time is a deadline (etf's deadline mode): the frame leaves as soon as it may, and is dropped as
        /// `missed` once the time has passed.
        Deadline = "deadline",
    }
}

crate::words! {
    /// What a port does while the schedule's clock is unsynchronised.
    #[derive(Default)]
    pub enum UnsynchronisedPolicy {
        /// Send, with a warning.
        #[default]
        Send = "send",
        /// Keep frames until the clock is synchronised.
        Hold = "hold",
        /// Drop frames as `unsynchronised`.
        Drop = "drop",
    }
}
