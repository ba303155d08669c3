// SPDX-License-Identifier: Apache-2.0
//! Parts that are broken on purpose, to show that the checkers find them. A checker that never failed proves nothing.

use std::fmt;

/// What is broken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Broken {
    /// Nothing.
    #[default]
    Nothing,
    /// The port puts some frames onto the wire twice.
    Duplicate,
    /// The worker's clocks run 3 µs ahead, so frames leave early.
    EarlyClock,
    /// The port says that it sent a frame and does not.
    Lose,
    /// The port changes an octet.
    Corrupt,
    /// The port lets a tenant's next frame overtake.
    Reorder,
    /// The counter of sent frames is one too high.
    Count,
    /// A drop is not counted.
    ForgetDrop,
    /// The worker oversleeps by 400 µs now and then, on a machine that was not disturbed.
    Oversleep,
    /// Doorbells are not heard and timed wake-ups come a second late: nothing goes on.
    Deaf,
    /// The gate schedule that the worker gets is 90 µs off.
    WrongGates,
    /// The gate schedule that the worker gets has no cycle-time extension.
    NoExtension,
    /// The device begins a frame 400 µs after it was handed over.
    SlowDevice,
}

impl Broken {
    /// All faults, each with its word and the rules of which one must find it.
    pub const ALL: [(Self, &'static str, &'static [&'static str]); 12] = [
        (Self::Duplicate, "duplicate", &["once"]),
        (Self::EarlyClock, "early-clock", &["never-early"]),
        (Self::Lose, "lose", &["conservation"]),
        (Self::Corrupt, "corrupt", &["intact"]),
        (Self::Reorder, "reorder", &["order"]),
        (Self::Count, "count", &["counters"]),
        (Self::ForgetDrop, "forget-drop", &["conservation"]),
        (Self::Oversleep, "oversleep", &["isolation"]),
        (Self::Deaf, "deaf", &["progress"]),
        (Self::WrongGates, "wrong-gates", &["window"]),
        (Self::NoExtension, "no-extension", &["window"]),
        (Self::SlowDevice, "slow-device", &["wire"]),
    ];

    /// The one with this word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, its, _)| *its == word).map(|(broken, ..)| *broken)
    }

    /// How far ahead the worker's clocks are, in nanoseconds.
    #[must_use]
    pub const fn clock_ahead(self) -> u64 {
        match self {
            Self::EarlyClock => 3_000,
            _ => 0,
        }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word =
            Self::ALL.iter().find(|(broken, ..)| broken == self).map_or("nothing", |(_, word, _)| *word);
        f.write_str(word)
    }
}
