// SPDX-License-Identifier: Apache-2.0
//! Policies that an attachment or a port chooses by a word.

/// What happens to a frame whose transmit time had passed when it was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LatePolicy {
    /// The kernel's rules: TAI like etf (dropped), MONOTONIC like fq (sent at once).
    #[default]
    ByClock,
    /// Dropped as `missed`.
    Drop,
    /// Sent at once.
    Send,
    /// The transmit time is a deadline (etf's deadline mode): the frame leaves as soon as it may, and is dropped as
    /// `missed` once the time has passed.
    Deadline,
}

/// What a port does while the schedule's clock is unsynchronised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnsynchronisedPolicy {
    /// Send, with a warning.
    #[default]
    Send,
    /// Keep frames until the clock is synchronised.
    Hold,
    /// Drop frames as `unsynchronised`.
    Drop,
}

macro_rules! words {
    ($name:ident { $($variant:ident = $word:literal),+ }) => {
        impl $name {
            /// The word used in configuration.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
            /// The policy with this word.
            #[must_use]
            pub fn from_word(word: &str) -> Option<Self> {
                match word { $($word => Some(Self::$variant),)+ _ => None }
            }
            /// Every word, for error messages.
            pub const WORDS: &'static [&'static str] = &[$($word,)+];
        }
    };
}
words!(LatePolicy { ByClock = "by-clock", Drop = "drop", Send = "send", Deadline = "deadline" });
words!(UnsynchronisedPolicy { Send = "send", Hold = "hold", Drop = "drop" });
