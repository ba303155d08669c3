// SPDX-License-Identifier: Apache-2.0
//! What the kernel's trace says of the hand-overs. In: the worker's timeline, the far end's stamps. Out: for each frame, when its
//! call began and since when the kernel did nothing else.
//!
//! ```text
//!  call   ├──────────────────────────────┤
//!  wire         ▲1            ▲2              carried_since of frame 1: the call's beginning; of frame 2: frame 1's stamp
//! ```

use crate::calls::Timeline;
use ktsn_measure::records::ArrivalRecord;
use ktsn_measure::watchdog::{ACCIDENT_MAX_PERMILLE, STALL_MIN};
use ktsn_time::{Nanos, Offset, Tai};

/// The trace beside the far end's stamps.
pub(super) struct Evidence<'a> {
    line: &'a Timeline,
    offset: Offset,
    wires: Vec<Tai>,
    to_wire: Vec<Nanos>,
}

impl<'a> Evidence<'a> {
    pub(super) fn new(line: &'a Timeline, offset: Offset, tapped: &[ArrivalRecord]) -> Self {
        let mut wires: Vec<Tai> = tapped.iter().filter_map(|arrival| arrival.kernel_at).collect();
        wires.sort_unstable();
        let mut evidence = Self { line, offset, wires, to_wire: Vec::new() };
        evidence.to_wire =
            evidence.wires.iter().filter_map(|&at| Some(at.since(evidence.since(at)?))).collect();
        evidence
    }

    /// When the call began that put a frame on the wire at `wire_at`.
    pub(super) fn handed_at(&self, wire_at: Tai) -> Option<Tai> {
        let call = self.line.call_of(self.offset.monotonic(wire_at))?;
        Some(self.offset.tai(call.began_at))
    }

    /// Since when the kernel did nothing but hand that frame over, whether or not it slept on the way.
    fn since(&self, wire_at: Tai) -> Option<Tai> {
        let began_at = self.handed_at(wire_at)?;
        let before = self.wires.partition_point(|&at| at < wire_at).checked_sub(1);
        Some(before.map_or(began_at, |before| began_at.max(self.wires[before])))
    }

    /// Since when the kernel carried that frame on a CPU that it never left; `None` too where so many hand-overs take long that one
    /// of them proves nothing.
    pub(super) fn carried_since(&self, wire_at: Tai) -> Option<Tai> {
        let since = self.since(wire_at).filter(|_| self.long_is_unusual())?;
        let kept = self.line.kept_cpu(self.offset.monotonic(since), self.offset.monotonic(wire_at));
        kept.then_some(since)
    }

    fn long_is_unusual(&self) -> bool {
        let long = self.to_wire.iter().filter(|span| **span > STALL_MIN).count() as u64;
        long * 1_000 <= self.to_wire.len() as u64 * ACCIDENT_MAX_PERMILLE
    }

    /// How long the kernel took for each frame.
    pub(super) fn to_wire(&self) -> &[Nanos] {
        &self.to_wire
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::Mark;
    use ktsn_measure::payload::Probe;
    use ktsn_time::Monotonic;

    const SHIFT: u64 = 1_000_000_000;

    fn tai(nanos: u64) -> Tai {
        Tai::from_nanos(SHIFT + nanos)
    }

    fn offset() -> Offset {
        Offset::between(Tai::from_nanos(SHIFT), Monotonic::ZERO)
    }

    fn arrivals(wires: &[u64]) -> Vec<ArrivalRecord> {
        let arrival = |&at: &u64| ArrivalRecord {
            probe: Probe { sequence: at, tx_time: tai(at) },
            kernel_at: Some(tai(at)),
            received_at: None,
        };
        wires.iter().map(arrival).collect()
    }

    /// A worker that has the CPU from 1 to `end`, but for `away`, with these calls.
    fn line(calls: &[(u64, u64)], away: Option<(u64, u64)>, end: u64) -> Timeline {
        let mut marks = vec![(1, Mark::On), (end, Mark::Off)];
        marks.extend(calls.iter().flat_map(|&(from, to)| [(from, Mark::Enter), (to, Mark::Exit)]));
        marks.extend(away.into_iter().flat_map(|(from, to)| [(from, Mark::Off), (to, Mark::On)]));
        Timeline::of(marks)
    }

    #[test]
    fn a_frame_is_carried_since_its_call_or_the_frame_before() {
        let line = line(&[(100, 900), (1_000, 1_500)], None, 10_000);
        let evidence = Evidence::new(&line, offset(), &arrivals(&[400, 300, 1_200, 400]));
        assert_eq!(evidence.handed_at(tai(400)), Some(tai(100)));
        assert_eq!(evidence.carried_since(tai(300)), Some(tai(100)));
        assert_eq!(evidence.carried_since(tai(400)), Some(tai(300)));
        assert_eq!(evidence.carried_since(tai(1_200)), Some(tai(1_000)));
        assert_eq!(evidence.to_wire(), [200, 100, 100, 200].map(Nanos::new));
        assert_eq!(evidence.carried_since(tai(50)), None);
    }

    #[test]
    fn who_slept_on_the_way_was_not_held_up_by_the_machine() {
        let calls = [(100, 900)];
        let awake = line(&calls, None, 10_000);
        let asleep = line(&calls, Some((200, 250)), 10_000);
        let since = |line| Evidence::new(line, offset(), &arrivals(&[400])).carried_since(tai(400));
        assert_eq!((since(&awake), since(&asleep)), (Some(tai(100)), None));
    }

    #[test]
    fn what_every_twentieth_hand_over_does_proves_nothing() {
        let judged = |long: u64| {
            let stall = STALL_MIN.get().unsigned_abs() + 1;
            let calls: Vec<(u64, u64)> =
                (1..=1_000).map(|k| (k * 100_000, k * 100_000 + stall + 5)).collect();
            let wires: Vec<u64> = calls
                .iter()
                .enumerate()
                .map(|(k, call)| call.0 + if (k as u64) < long { stall } else { 9 })
                .collect();
            let line = line(&calls, None, 200_000_000);
            Evidence::new(&line, offset(), &arrivals(&wires)).carried_since(tai(wires[0]))
        };
        assert_eq!((judged(50), judged(51)), (Some(tai(100_000)), None));
    }
}
