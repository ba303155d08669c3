// SPDX-License-Identifier: Apache-2.0
//! The sender's gates: the windows of the publication, from `examples/schedules/virtual-machine.yaml`.
//!
//! In: a base time. Out: which window a frame may leave in, and when that opens next. Pure.

use crate::error::LabError;
use ktsn_measure::gates::{GateSchedule, GateWindow, Windows};
use ktsn_model::TrafficClass;
use ktsn_schedule::{Format, parse};
use ktsn_time::{Nanos, Tai};
use std::num::NonZeroU64;

/// The schedule.
const SCHEDULE: &str = include_str!("../../../examples/schedules/virtual-machine.yaml");
/// The class of measured frames, and that of the load: their transmit queues.
const MEASURED: u8 = 0;
const LOAD: u8 = 3;
/// Distance of two measured frames: two cycles.
pub(super) const INTERVAL: Nanos = Nanos::from_micros(1_006);

/// The gates of a sender.
#[derive(Clone, Debug)]
pub(super) struct Gates {
    windows: Windows,
    measured: TrafficClass,
    load: TrafficClass,
    /// What the link takes for an octet.
    link_speed: u64,
}

impl Gates {
    /// The gates, with cycles that begin at `base_time`.
    ///
    /// # Errors
    /// The schedule in the tree is wrong.
    pub(super) fn from(base_time: Tai) -> Result<Self, LabError> {
        let wrong = |problem: String| LabError::Contents {
            path: "examples/schedules/virtual-machine.yaml".into(),
            problem,
        };
        let schedule = parse(SCHEDULE, Format::Yaml).map_err(|faults| wrong(faults.to_string()))?;
        let mut admin = schedule.admin;
        admin.base_time = base_time;
        let class = |class| TrafficClass::new(class).map_err(|_| wrong(format!("no class {class}")));
        Ok(Self {
            windows: Windows::of(&admin).map_err(|fault| wrong(fault.to_string()))?,
            measured: class(MEASURED)?,
            load: class(LOAD)?,
            link_speed: schedule.link_speed.unwrap_or(1_000_000_000),
        })
    }

    /// The first instant from `at` on at which a measured frame may leave.
    pub(super) fn measured_from(&self, at: Tai) -> Tai {
        self.opening(self.measured, at)
    }

    /// The first instant from `at` on at which a frame of the load may leave.
    pub(super) fn load_from(&self, at: Tai) -> Tai {
        self.opening(self.load, at)
    }

    /// Whether a measured frame may leave at `at`.
    pub(super) fn may_measure(&self, at: Tai) -> bool {
        self.windows.at(self.measured, at).is_some()
    }

    /// Whether a frame of the load of so many octets that begins at `at` has left before its gate closes.
    pub(super) fn has_room(&self, at: Tai, octets: usize) -> bool {
        // Preamble, frame check sequence and gap occupy the link as well.
        let bits = (octets as u64 + 24) * 8;
        let on_link = Nanos::new((bits * 1_000_000_000 / self.link_speed.max(1)) as i64);
        let window = self.windows.at(self.load, at);
        window.is_some_and(|window| at.saturating_add(on_link) <= window.closes_at)
    }

    fn opening(&self, class: TrafficClass, at: Tai) -> Tai {
        if self.windows.at(class, at).is_some() && at >= self.windows.base_time() {
            return at;
        }
        let phase = self.windows.phase(at);
        // Before the base time the phase is the (negative) distance to it.
        let begins = at.saturating_sub(phase);
        let cycle = self.windows.cycle_time();
        let openings = self.windows.spans(class).iter().flat_map(|&(offset, _)| {
            [begins.saturating_add(offset), begins.saturating_add(cycle).saturating_add(offset)]
        });
        openings.filter(|opening| *opening >= at).min().unwrap_or(Tai::MAX)
    }

    /// What a results document shows of them.
    pub(super) fn shown(&self) -> GateSchedule {
        let windows = [self.measured, self.load].into_iter().flat_map(|class| {
            self.windows.spans(class).iter().map(move |&(offset, length)| GateWindow {
                class: class.get(),
                opens_ns: offset.get().unsigned_abs(),
                closes_ns: offset.saturating_add(length).get().unsigned_abs(),
            })
        });
        let cycle_time = self.windows.cycle_time().get().unsigned_abs();
        GateSchedule {
            base_time: self.windows.base_time().as_nanos(),
            cycle_time: NonZeroU64::new(cycle_time).unwrap_or(NonZeroU64::MIN),
            windows: windows.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Tai {
        Tai::from_nanos(1_000_000_000 + micros * 1_000)
    }

    #[test]
    fn windows_are_those_of_the_publication() {
        let gates = Gates::from(at(0)).unwrap();
        let shown = gates.shown();
        assert_eq!(shown.cycle_time.get(), 503_000);
        let windows: Vec<_> = shown.windows.iter().map(|w| (w.class, w.opens_ns, w.closes_ns)).collect();
        assert_eq!(windows, [(0, 0, 101_000), (3, 313_000, 503_000)]);
        assert_eq!(INTERVAL.get(), 2 * 503_000);
    }

    #[test]
    fn a_frame_that_comes_late_waits_for_the_next_window() {
        let gates = Gates::from(at(0)).unwrap();
        for (from, measured, load) in [
            (0, 0, 313),
            (100, 100, 313),
            (101, 503, 313),
            (313, 503, 313),
            (502, 503, 502),
            (503, 503, 816),
            (1_006, 1_006, 1_319),
        ] {
            assert_eq!(gates.measured_from(at(from)), at(measured), "measured, from {from}");
            assert_eq!(gates.load_from(at(from)), at(load), "load, from {from}");
            assert_eq!(gates.may_measure(at(from)), from == measured);
        }
        let before = Tai::from_nanos(999_000_000);
        assert_eq!(gates.measured_from(before), at(0));
        assert_eq!(gates.load_from(before), at(313));
    }

    #[test]
    fn the_load_ends_before_its_gate_closes() {
        let gates = Gates::from(at(0)).unwrap();
        // 1,442 octets and 24 more take 11.7 µs.
        assert!(gates.has_room(at(313), 1_442) && gates.has_room(at(491), 1_442));
        assert!(!gates.has_room(at(492), 1_442) && !gates.has_room(at(50), 1_442));
    }
}
