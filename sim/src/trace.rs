// SPDX-License-Identifier: Apache-2.0
//! What happened, in order: the last notes for a report, a hash of all of them for "the same run bit for bit".

use std::collections::VecDeque;
use std::fmt;
use std::hash::{Hash, Hasher};

/// One thing that happened. Numbers are tenants, frames and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the fields are named as what they are
pub enum Note {
    /// A program published a frame.
    Pushed { tenant: u16, id: u64, tx_time: u64 },
    /// A program found no free slot.
    NoSlot { tenant: u16 },
    /// A program's thread was held up, or killed, between claim and publish.
    Claimed { tenant: u16, id: u64 },
    /// A program rang.
    Rang { tenant: u16 },
    /// A program wrote a shared word that is not its own.
    Poked { tenant: u16, at: u64, value: u64 },
    /// A process ended.
    Killed { tenant: u16, key: u64 },
    /// A process attached.
    Spawned { tenant: u16, key: u64 },
    /// A frame was handed to the port and its bits leave in this span.
    Wire { id: u64, from: u64, until: u64 },
    /// The port refused a frame at its commit.
    Refused { id: u64, error: u8 },
    /// TAI was set.
    Stepped { span: i64 },
    /// The worker's thread did not run.
    Stalled { span: u64 },
    /// The link came or went.
    Link { up: bool },
    /// The device went away and will come back.
    DeviceGone,
    /// The port refuses so many of a thousand commits.
    PortErrors { permille: u32 },
    /// The kernel's best effort fills the link, or stops.
    BestEffort { on: bool },
    /// The control plane sent a command (its name's first letters).
    Command { name: [u8; 8] },
    /// A gate schedule was sent.
    Schedule { index: u16, base_time: u64 },
    /// The worker slept.
    Slept { until: u64, news: bool },
    /// All faults end here.
    Healed,
    /// A counter at the end of the run.
    Counter { tenant: u16, number: u16, value: u64 },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command { name } => write!(f, "Command {}", String::from_utf8_lossy(name).trim_end()),
            other => write!(f, "{other:?}"),
        }
    }
}

/// FNV-1a: simple, and the same everywhere.
struct Fnv(u64);

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, octets: &[u8]) {
        for octet in octets {
            self.0 = (self.0 ^ u64::from(*octet)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// The record of a run.
#[derive(Debug)]
pub struct Trace {
    hash: u64,
    count: u64,
    last: VecDeque<(u64, Note)>,
    kept_max: usize,
}

impl Trace {
    /// A record that keeps the last `kept_max` notes.
    #[must_use]
    pub fn new(kept_max: usize) -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, count: 0, last: VecDeque::new(), kept_max }
    }

    /// Adds what happened at `at`.
    pub fn note(&mut self, at: u64, note: Note) {
        let mut hasher = Fnv(self.hash);
        at.hash(&mut hasher);
        note.hash(&mut hasher);
        self.hash = hasher.finish();
        self.count += 1;
        if matches!(note, Note::Counter { .. }) {
            return;
        }
        if self.last.len() >= self.kept_max {
            self.last.pop_front();
        }
        self.last.push_back((at, note));
    }

    /// The hash of everything so far.
    #[must_use]
    pub const fn hash(&self) -> u64 {
        self.hash
    }

    /// How many notes there were.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The last notes, oldest first, one line each, with milliseconds since `began`.
    #[must_use]
    pub fn lines(&self, began: u64) -> Vec<String> {
        let line = |(at, note): &(u64, Note)| {
            let since = at.saturating_sub(began);
            format!("{:>6}.{:06} ms  {note}", since / 1_000_000, since % 1_000_000)
        };
        self.last.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_changes_the_hash_and_only_the_last_are_kept() {
        let run = |value: u64, at: u64| {
            let mut trace = Trace::new(2);
            for _ in 0..5 {
                trace.note(at, Note::Stalled { span: value });
            }
            assert_eq!((trace.lines(0).len(), trace.count()), (2, 5));
            trace.hash()
        };
        assert_eq!(run(1, 1), run(1, 1));
        assert_ne!(run(1, 1), run(2, 1));
        assert_ne!(run(1, 1), run(1, 2));
    }
}
