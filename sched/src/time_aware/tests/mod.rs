// SPDX-License-Identifier: Apache-2.0
//! The rules of transmission selection under gates by example, on a whole port.

mod changes;
mod guard;
mod selection;
mod shaped;

use super::*;
use crate::frame::FrameId;
use crate::gate::tests::program;
use alloc::vec::Vec;
use ktsn_model::{AdminPort, GateStates, LatePolicy};
use ktsn_time::Monotonic;

/// MONOTONIC is this far behind TAI.
const BEHIND: u64 = 37_000;
/// 1 Gbit/s: 8 ns an octet.
const GIGABIT: Option<u64> = Some(1_000_000_000);

/// The instant `nanos` of TAI.
fn at(nanos: u64) -> Now {
    Now { tai: Tai::from_nanos(nanos), monotonic: Monotonic::from_nanos(nanos - BEHIND) }
}

fn tai(nanos: u64) -> TxTime {
    TxTime::Tai(Tai::from_nanos(nanos))
}

/// The instant `nanos` of TAI on the other clock.
fn mono(nanos: u64) -> TxTime {
    TxTime::Monotonic(Monotonic::from_nanos(nanos - BEHIND))
}

fn class(value: u8) -> TrafficClass {
    TrafficClass::new(value).unwrap()
}

/// 125 octets: 1,000 ns at 1 Gbit/s.
fn frame(id: u64, of_class: u8, tx_time: Option<TxTime>) -> Frame {
    Frame {
        id: FrameId(id),
        attachment: 0,
        class: class(of_class),
        tx_time,
        pushed_at: Monotonic::ZERO,
        wire_octets: 125,
        sdu_octets: 83,
        late: LatePolicy::ByClock,
        overrun_limit: Nanos::new(5_000),
        horizon: Nanos::MAX,
    }
}

fn port(base_time: u64, cycle_time: i64, entries: &[(u8, i64)]) -> AdminPort {
    crate::gate::tests::port(base_time, cycle_time, 0, entries)
}

fn selection(link_speed: Option<u64>, hand_over: i64, class: ClassOptions) -> TimeAware {
    let hand_over = Nanos::new(hand_over);
    TimeAware::new(TimeAwareOptions {
        link_speed,
        hand_over,
        classes: [class; 8],
        ..TimeAwareOptions::gates(64, 4)
    })
}

/// Class 7 alone in the first 20 µs of a 100 µs cycle, the others after that; cycles begin at 100 µs. 1 Gbit/s, H = 500 ns.
fn gated() -> TimeAware {
    let mut selection = selection(GIGABIT, 500, ClassOptions::default());
    let port = port(100_000, 100_000, &[(0x80, 20_000), (0x7f, 80_000)]);
    assert!(selection.set_admin(program(&port), at(100_000)).is_none());
    selection
}

/// The class 7 window that begins at `begin`, for a frame of 125 octets.
fn window(begin: u64) -> Option<Window> {
    Some(Window { opens_at: Tai::from_nanos(begin), latest: Tai::from_nanos(begin + 20_000 - 1_500) })
}

fn sent(frame: Frame, overrun: i64, window: Option<Window>) -> Decision {
    Decision::Transmit { frame, overrun: Nanos::new(overrun), late: false, window }
}

fn wake(at: TxTime, next: u64) -> Decision {
    Decision::WakeAt { at, next: FrameId(next) }
}

/// (instant, id) of what is transmitted until nothing is queued or `until`, jumping from one `WakeAt` to the next.
fn run(selection: &mut TimeAware, from: u64, until: u64) -> Vec<(u64, u64)> {
    let (mut now, mut out) = (from, Vec::new());
    loop {
        match selection.decide(at(now)) {
            Decision::Transmit { frame, .. } => out.push((now, frame.id.0)),
            Decision::Drop { .. } => {}
            Decision::WakeAt { at, .. } => {
                let next = match at {
                    TxTime::Tai(at) => at.as_nanos(),
                    TxTime::Monotonic(at) => at.as_nanos() + BEHIND,
                };
                assert!(next > now, "no progress at {now}");
                now = next;
            }
            Decision::Idle => return out,
        }
        if now >= until {
            return out;
        }
    }
}
