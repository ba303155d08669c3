// SPDX-License-Identifier: Apache-2.0
//! Nothing allocates once the selection and its programs are made: changes, floods and retired programs included.

use crate::sys;
use crate::world::{class, frame, now};
use ktsn_model::{AdminPort, GateControlEntry, GateOperation, GateStates};
use ktsn_sched::{
    ClassOptions, CreditOptions, Decision, Frame, GateProgram, Order, Shaper, TimeAware, TimeAwareOptions,
};
use ktsn_time::{Nanos, Tai};

const CAPACITY: usize = 256;

fn program(seed: u64, base_time: u64) -> Box<GateProgram> {
    let entry = |index: u64| GateControlEntry {
        operation: GateOperation::SetGateStates,
        states: GateStates::from_bits((seed * 37 + index * 101) as u8 | 1 << (index % 8)),
        interval: Nanos::new(20 + (index * seed % 13) as i64),
    };
    let control_list: Vec<GateControlEntry> = (0..64).map(entry).collect();
    let cycle_time = Nanos::new(control_list.iter().map(|entry| entry.interval.get()).sum());
    let cycle_time_extension = Nanos::new(40);
    let base_time = Tai::from_nanos(base_time);
    let admin = AdminPort {
        gate_enabled: true,
        base_time,
        cycle_time,
        cycle_time_extension,
        control_list,
        ..AdminPort::default()
    };
    Box::new(GateProgram::new(&admin).unwrap())
}

#[test]
fn nothing_allocates_after_new_whatever_changes() {
    let mut classes = [ClassOptions::default(); 8];
    let mut s = TimeAware::new(TimeAwareOptions {
        link_speed: Some(10_000_000_000),
        hand_over: Nanos::new(3),
        classes,
        ..TimeAwareOptions::gates(CAPACITY, 4)
    });
    let mut programs: Vec<_> = (1..40u64).map(|seed| program(seed, seed * 5_000 + 700)).collect();
    let mut freed_elsewhere = Vec::with_capacity(programs.len());
    let before = sys::allocations();
    let (mut sent, mut refused, mut dropped) = (0u64, 0u64, 0u64);
    let mut seed = 1u64;
    for round in 1..40u64 {
        let start = round * 5_000;
        classes[(round % 8) as usize].order = if round % 3 == 0 { Order::Fifo } else { Order::TxTime };
        classes[(round % 5) as usize].shaper = Shaper::CreditBased(CreditOptions::new(2_000_000_000));
        s.set_classes(classes);
        freed_elsewhere.extend(programs.pop().and_then(|program| s.set_admin(program, now(start, start))));
        for id in 0..CAPACITY as u64 + 20 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = start + (seed >> 33) % 4_000;
            let f = Frame {
                class: class((seed >> 40) as u8 % 8),
                wire_octets: (seed >> 45) as u32 % 40,
                ..frame(id, Some(crate::world::tai(at)))
            };
            refused += u64::from(s.offer(f, now(start, start)).is_err());
        }
        for at in (start..start + 5_000).step_by(3) {
            match s.decide(now(at, at)) {
                Decision::Transmit { .. } => sent += 1,
                Decision::Drop { .. } => dropped += 1,
                Decision::WakeAt { .. } | Decision::Idle => {}
            }
        }
        // Every other round the retired program is not taken.
        if round % 2 == 0 {
            freed_elsewhere.extend(s.take_retired());
        }
        assert!(s.status(now(start, start)).admin.is_some());
    }
    assert_eq!(sys::allocations(), before);
    assert_eq!(sent + refused + dropped + s.len() as u64, 39 * (CAPACITY as u64 + 20));
    assert!(sent > 1_000 && refused > 0 && freed_elsewhere.len() > 30);
}
