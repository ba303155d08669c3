// SPDX-License-Identifier: Apache-2.0
//! Worlds for timing decisions. In: a count of entries or of streams. Out: a selection with frames, and steps through
//! it exactly as a worker takes them: decide, hand over, decide, jump to the instant it said.

use ktsn_model::{
    AdminPort, GateControlEntry, GateFault, GateOperation, GateStates, LatePolicy, TrafficClass,
};
use ktsn_sched::{Decision, Frame, FrameId, GateProgram, TimeAware, TimeAwareOptions};
use ktsn_time::{Monotonic, Nanos, Now, Offset, Tai, TxTime};
use std::hint::black_box;

/// How long each entry holds, whatever their count: the same decisions come up in the same mixture.
const INTERVAL: Nanos = Nanos::from_micros(16);
/// The TAI offset of the made-up clocks.
const TAI_OFFSET: Nanos = Nanos::from_seconds(37);
/// Frames are due this far apart on average.
const GAP: Nanos = Nanos::from_micros(2);
/// bit/s: a frame of 134 octets takes 1072 ns, about half of the link.
const LINK_SPEED: u64 = 1_000_000_000;

/// A full period of the 64-bit congruential generator; its upper half is random enough for gates and times.
fn random(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

/// A list of `entries` entries; every gate is open in some three of four.
fn program(entries: usize, base_time: Tai) -> Result<Box<GateProgram>, GateFault> {
    let mut seed = 11;
    let entry = |_| GateControlEntry {
        operation: GateOperation::SetGateStates,
        states: GateStates::from_bits((random(&mut seed) | random(&mut seed)) as u8),
        interval: INTERVAL,
    };
    let port = AdminPort {
        gate_enabled: true,
        base_time,
        cycle_time: INTERVAL.saturating_mul(entries as i64),
        control_list: (0..entries).map(entry).collect(),
        ..AdminPort::default()
    };
    GateProgram::new(&port).map(Box::new)
}

/// A selection with eight classes behind gates, and streams that send for ever.
pub(crate) struct World {
    selection: TimeAware,
    now: Now,
    offset: Offset,
    period: Nanos,
    /// Programs that replace each other while time is taken, made beforehand.
    spare: [Option<Box<GateProgram>>; 2],
    retired: [Option<Box<GateProgram>>; 4],
}

/// What a stretch of steps did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Done {
    pub(crate) decisions: u64,
    pub(crate) frames: u64,
}

impl World {
    /// `streams` streams with one frame queued each, behind a list of `entries` entries.
    pub(crate) fn new(entries: usize, streams: u64) -> Result<Self, GateFault> {
        let offset = Offset::between(Tai::ZERO.saturating_add(TAI_OFFSET), Monotonic::ZERO);
        let now = offset.now(Monotonic::from_nanos(1_000_000_000));
        let mut selection = TimeAware::new(TimeAwareOptions {
            link_speed: Some(LINK_SPEED),
            hand_over: Nanos::from_micros(1),
            ..TimeAwareOptions::gates(streams as usize, 1)
        });
        // The first program replaces none.
        drop(selection.set_admin(program(entries, now.tai)?, now));
        let spare = [Some(program(entries, now.tai)?), Some(program(entries, now.tai)?)];
        let period = GAP.saturating_mul(streams as i64);
        let mut world = Self { selection, now, offset, period, spare, retired: [const { None }; 4] };
        for id in 0..streams {
            let due = now.tai.saturating_add(GAP.saturating_mul(id as i64));
            world.offer(id, due);
        }
        Ok(world)
    }

    fn offer(&mut self, id: u64, due: Tai) {
        let frame = Frame {
            id: FrameId(id),
            attachment: 0,
            class: TrafficClass::new((id % 8) as u8).unwrap_or_default(),
            tx_time: Some(TxTime::Tai(due)),
            pushed_at: Monotonic::ZERO,
            wire_octets: 134,
            sdu_octets: 96,
            late: LatePolicy::Send,
            overrun_limit: Nanos::MAX,
            horizon: Nanos::MAX,
        };
        // There is room: a frame is offered when one has left.
        let refused = self.selection.offer(black_box(frame), self.now).is_err();
        assert!(!refused, "a periodic frame is never refused");
    }

    fn jump(&mut self, at: TxTime) {
        let ahead = at.ahead_of(self.now).max(Nanos::new(1));
        self.now = self.offset.now(self.now.monotonic.saturating_add(ahead));
    }

    /// Decisions alone, `count` of them: what leaves is noted in `left` and offered again by [`Self::refill`].
    pub(crate) fn decide(&mut self, count: u64, left: &mut Vec<(u64, Tai)>) -> Done {
        let mut done = Done::default();
        while done.decisions < count && left.len() < left.capacity() {
            done.decisions += 1;
            match black_box(self.selection.decide(black_box(self.now))) {
                Decision::Transmit { frame, .. } | Decision::Drop { frame, .. } => {
                    done.frames += 1;
                    left.push((frame.id.0, self.now.tai));
                }
                Decision::WakeAt { at, .. } => self.jump(at),
                Decision::Idle => break,
            }
        }
        done
    }

    /// Offers again what left.
    pub(crate) fn refill(&mut self, left: &mut Vec<(u64, Tai)>) {
        for (id, at) in left.drain(..) {
            self.offer(id, at.saturating_add(self.period));
        }
    }

    /// Everything that `count` frames need: offers, decisions, waits.
    pub(crate) fn frames(&mut self, count: u64) -> Done {
        let mut done = Done::default();
        while done.frames < count {
            done.decisions += 1;
            match black_box(self.selection.decide(black_box(self.now))) {
                Decision::Transmit { frame, .. } | Decision::Drop { frame, .. } => {
                    done.frames += 1;
                    let due = match frame.tx_time {
                        Some(TxTime::Tai(due)) => due,
                        _ => self.now.tai,
                    };
                    self.offer(frame.id.0, due.saturating_add(self.period));
                }
                Decision::WakeAt { at, .. } => self.jump(at),
                Decision::Idle => break,
            }
        }
        done
    }

    /// A schedule change, as a worker applies it: a program made elsewhere comes in, the old one goes out.
    pub(crate) fn change(&mut self) {
        if let Some(program) = self.spare.iter_mut().find_map(Option::take) {
            let displaced = self.selection.set_admin(program, self.now);
            self.keep(displaced);
        }
        let retired = self.selection.take_retired();
        self.keep(retired);
    }

    /// What came out is freed at the very end, as a worker leaves it to another thread.
    fn keep(&mut self, program: Option<Box<GateProgram>>) {
        if let Some(place) = self.retired.iter_mut().find(|place| place.is_none()) {
            *place = program;
        }
    }
}
