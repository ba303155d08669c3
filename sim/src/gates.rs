// SPDX-License-Identifier: Apache-2.0
//! Gate schedules of a run, and the simplest possible answer to "which gates are open": adding up intervals.
//!
//! In: a seed's numbers. Out: what is sent to the worker as administrative parameters, and for the checkers the windows,
//! computed here without the engine.

use ktsn_model::{AdminPort, GateControlEntry, GateOperation, GateStates};
use ktsn_time::{Nanos, Tai};

use crate::clocks::US;
use crate::random::Random;

/// One gate control list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Gate states (bit n = class n open) and for how long, in nanoseconds.
    pub entries: Vec<(u8, u64)>,
    /// Cycle-time extension in nanoseconds (8.6.9.1): the last cycle before a change may be so much longer.
    pub extension: u64,
    /// Sent so long after the start.
    pub sent: u64,
    /// Base time, counted from TAI when it is sent.
    pub base_ahead: i64,
}

impl Schedule {
    /// A schedule with an own window for class 7 and for class 6 and one for all others, in some order.
    #[must_use]
    pub fn random(random: &mut Random, sent: u64) -> Self {
        let mut entries = vec![
            (0b1000_0000, random.between(200, 260) * US),
            (0b0100_0000, random.between(200, 260) * US),
            (random.of(&[0b0011_1111, 0b0111_1111, 0b1111_1111]), random.between(240, 320) * US),
        ];
        entries.rotate_left(random.between(0, 3) as usize);
        let soon = random.between(2_000, 20_000) * US;
        let base_ahead = random.of(&[-5_000_000_000, -1, soon as i64]);
        Self { entries, extension: 0, sent, base_ahead }
    }

    /// Cycle time in nanoseconds.
    #[must_use]
    pub fn cycle_time(&self) -> u64 {
        self.entries.iter().map(|(_, interval)| interval).sum()
    }

    /// This list as gate parameters that an administrator sets.
    #[must_use]
    pub fn admin(&self, base_time: u64) -> AdminPort {
        let entry = |(states, interval): &(u8, u64)| GateControlEntry {
            operation: GateOperation::SetGateStates,
            states: GateStates::from_bits(*states),
            interval: Nanos::new(*interval as i64),
        };
        AdminPort {
            gate_enabled: true,
            gate_states: GateStates::ALL_OPEN,
            base_time: Tai::from_nanos(base_time),
            cycle_time: Nanos::new(self.cycle_time() as i64),
            cycle_time_extension: Nanos::new(self.extension as i64),
            control_list: self.entries.iter().map(entry).collect(),
        }
    }
}

/// A schedule that was sent.
#[derive(Clone, Debug)]
pub struct Sent {
    /// The list.
    pub schedule: Schedule,
    /// Its base time, TAI.
    pub base_time: u64,
    /// When it was sent, MONOTONIC.
    pub at: u64,
    /// And TAI.
    pub at_tai: u64,
}

impl Sent {
    /// With its cycles one after the other.
    #[must_use]
    pub fn repeated(&self) -> Running<'_> {
        Running { sent: self, last: None }
    }

    /// This list while a change to another list is pending (8.6.9.1): from the last cycle's start on it runs once.
    #[must_use]
    pub fn up_to(&self, last: u64) -> Running<'_> {
        Running { sent: self, last: Some(last) }
    }

    /// The first start of a cycle at or after `tai`. Cycles are counted both ways from the base time, since a past base gives
    /// the same phase.
    fn start_from(&self, tai: u64) -> u64 {
        let cycle = i128::from(self.schedule.cycle_time());
        tai + (i128::from(self.base_time) - i128::from(tai)).rem_euclid(cycle) as u64
    }

    /// The start of the last cycle before a change at `change_at` that is known from `known_at` on: the first that reaches the
    /// change with the extension's help. `None`: there is none, and the change cuts what runs.
    #[must_use]
    pub fn last_start(&self, known_at: u64, change_at: u64) -> Option<u64> {
        let reach = self.schedule.cycle_time() + self.schedule.extension;
        let start = self.start_from(change_at.saturating_sub(reach).max(known_at));
        (start < change_at).then_some(start)
    }

    /// Starts of cycles which, if one of them was the last, are extended at `tai`.
    pub fn extended_at(&self, tai: u64) -> impl Iterator<Item = u64> {
        let (cycle, extension) = (self.schedule.cycle_time(), self.schedule.extension);
        let first = self.start_from(tai.saturating_sub(cycle + extension));
        (0..).map(move |n| first + n * cycle).take_while(move |start| start + cycle <= tai)
    }
}

/// A list that runs.
#[derive(Clone, Copy, Debug)]
pub struct Running<'a> {
    /// The list.
    pub sent: &'a Sent,
    /// Where its last cycle starts, TAI; its last entry holds for the extension, too. `None`: no change is near.
    last: Option<u64>,
}

impl Running<'_> {
    /// Whether the gate of `class` is open at `tai`, and how long that stays so.
    fn state(&self, class: u8, tai: u64) -> (bool, u64) {
        let schedule = &self.sent.schedule;
        let cycle = schedule.cycle_time();
        let is_open = |states: u8| states >> class & 1 == 1;
        let mut offset = match self.last.and_then(|last| tai.checked_sub(last)) {
            Some(since) if since >= cycle => {
                let (states, _) = schedule.entries.last().copied().unwrap_or_default();
                let left = (cycle + schedule.extension).saturating_sub(since);
                return (left > 0 && is_open(states), left.max(1));
            }
            Some(since) => since,
            None => {
                let phase = i128::from(tai) - i128::from(self.sent.base_time);
                phase.rem_euclid(i128::from(cycle)) as u64
            }
        };
        for (states, interval) in &schedule.entries {
            if offset < *interval {
                return (is_open(*states), interval - offset);
            }
            offset -= interval;
        }
        (false, 1)
    }

    /// Whether the gate of `class` is open at `tai`, and if so, for how long from there on (at most some cycles).
    #[must_use]
    pub fn open_for(&self, class: u8, tai: u64) -> Option<u64> {
        let mut span = 0;
        for _ in 0..=4 * self.sent.schedule.entries.len() {
            let (open, rest) = self.state(class, tai + span);
            if !open {
                break;
            }
            span += rest;
        }
        (span > 0).then_some(span)
    }

    /// The first instant from `tai` on at which the gate of `class` is open for at least `need`.
    #[must_use]
    pub fn fits_at(&self, class: u8, tai: u64, need: u64) -> Option<u64> {
        let mut at = tai;
        for _ in 0..=4 * self.sent.schedule.entries.len() {
            if self.open_for(class, at).is_some_and(|span| span >= need) {
                return Some(at);
            }
            at += self.state(class, at).1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_of_a_list_counted_by_hand() {
        let entries = vec![(0b1000_0000, 100), (0b0000_0001, 50), (0b1000_0001, 30)];
        let schedule = Schedule { entries, extension: 0, sent: 0, base_ahead: 0 };
        let sent = Sent { schedule, base_time: 1_000, at: 0, at_tai: 0 };
        let runs = sent.repeated();
        // Class 7: open from 150 of a cycle over its end to 100 of the next; class 0: 50 to 180 less the first 100.
        assert_eq!(runs.open_for(7, 1_000), Some(100));
        assert_eq!(runs.open_for(7, 1_150), Some(130));
        assert_eq!(runs.open_for(7, 1_100), None);
        assert_eq!(runs.open_for(0, 1_100), Some(80));
        assert_eq!(runs.open_for(0, 820 + 100), Some(80), "cycles before the base have the same phase");
        assert_eq!(runs.fits_at(7, 1_020, 100), Some(1_150));
        assert_eq!(runs.fits_at(0, 1_120, 81), None);
        assert_eq!(runs.fits_at(3, 1_000, 1), None);
    }

    #[test]
    fn the_last_cycle_before_a_change_counted_by_hand() {
        let entries = vec![(0b1000_0000, 100), (0b0000_0001, 80)];
        let schedule = Schedule { entries, extension: 60, sent: 0, base_ahead: 0 };
        let sent = Sent { schedule, base_time: 1_000, at: 0, at_tai: 0 };
        // Cycles start at 1,000, 1,180, 1,360, 1,540. A rest of 60 is added to the cycle before, one of 61 is cut short.
        assert_eq!(sent.last_start(900, 1_420), Some(1_180));
        assert_eq!(sent.last_start(900, 1_421), Some(1_360));
        assert_eq!(
            sent.last_start(1_181, 1_420),
            Some(1_360),
            "it was not known when the cycle before began"
        );
        assert_eq!(sent.last_start(1_361, 1_420), None);
        let runs = sent.up_to(1_180);
        assert_eq!(runs.open_for(0, 1_300), Some(120), "80 less 20, and the extension");
        assert_eq!(runs.open_for(7, 1_360), None, "no further cycle begins");
        assert_eq!(runs.open_for(0, 1_419), Some(1));
        assert_eq!(runs.open_for(0, 1_420), None);
        assert_eq!(runs.open_for(7, 1_190), Some(90));
        assert_eq!(sent.extended_at(1_419).collect::<Vec<_>>(), [1_180]);
        assert_eq!(sent.extended_at(1_421).collect::<Vec<_>>(), [0; 0]);
    }
}
