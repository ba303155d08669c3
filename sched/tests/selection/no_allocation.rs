// SPDX-License-Identifier: Apache-2.0
//! Nothing allocates once the strategy is made, full and flooded included.

use crate::sys;
use crate::world::{class, frame, mono, now, tai};
use ktsn_sched::{Decision, EarliestTxTime, Frame, Strategy};
use std::hint::black_box;

#[test]
fn the_counter_counts() {
    let before = sys::allocations();
    drop(black_box(Box::new(1)));
    assert_eq!(sys::allocations(), before + 1);
}

#[test]
fn nothing_allocates_after_new() {
    const CAPACITY: usize = 512;
    let mut s = EarliestTxTime::new(CAPACITY);
    let before = sys::allocations();
    let (mut sent, mut refused, mut removed) = (0u64, 0u64, 0u64);
    let mut seed = 1u64;
    for round in 0..40u64 {
        let start = 10_000 * (round + 1);
        for id in 0..CAPACITY as u64 + 40 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = start + (seed >> 33) % 5_000;
            let tx_time = if seed >> 63 == 0 { tai(at) } else { mono(at) };
            let f = Frame {
                class: class((seed >> 40) as u8 % 8),
                tenant: id as u32 % 5,
                ..frame(id, Some(tx_time))
            };
            refused += u64::from(s.offer(f, now(start, start)).is_err());
        }
        s.remove(&mut |f| f.tenant == 3, &mut |_| removed += 1);
        let mut at = start;
        loop {
            match s.decide(now(at, at)) {
                Decision::Transmit { .. } => sent += 1,
                Decision::Drop { .. } => unreachable!("the limit is the longest span"),
                Decision::WakeAt { .. } => at += 7,
                Decision::Idle => break,
            }
        }
    }
    let after = sys::allocations();
    assert_eq!(after, before);
    assert_eq!(sent + refused + removed, 40 * (CAPACITY as u64 + 40));
    assert!(refused > 0 && removed > 0 && sent > 0);
}
