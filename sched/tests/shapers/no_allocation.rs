// SPDX-License-Identifier: Apache-2.0
//! Nothing allocates once a strategy is made, full and flooded included.

use crate::sys;
use crate::world::{class, frame, mono, now, tai};
use ktsn_sched::{CreditBased, CreditBasedOptions, CreditOptions, Decision, Frame, Strategy, StrictPriority};

const CAPACITY: usize = 256;

fn flood(s: &mut dyn Strategy) {
    let before = sys::allocations();
    let (mut sent, mut refused, mut removed) = (0u64, 0u64, 0u64);
    let mut seed = 1u64;
    for round in 0..20u64 {
        let start = 10_000_000 * (round + 1);
        for id in 0..CAPACITY as u64 + 40 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = start + (seed >> 33) % 5_000;
            let tx_time = if seed >> 63 == 0 { tai(at) } else { mono(at) };
            let class = class((seed >> 40) as u8 % 8);
            let f = Frame { class, tenant: id as u32 % 5, ..frame(id, Some(tx_time)) };
            refused += u64::from(s.offer(f, now(start, start)).is_err());
        }
        s.remove(&mut |f| f.tenant == 3, &mut |_| removed += 1);
        let mut at = start;
        loop {
            match s.decide(now(at, at)) {
                Decision::Transmit { .. } => sent += 1,
                Decision::Drop { .. } => unreachable!("the limit is the longest span"),
                Decision::WakeAt { .. } => at += 97,
                Decision::Idle => break,
            }
        }
    }
    let after = sys::allocations();
    assert_eq!(after, before);
    assert_eq!(sent + refused + removed, 20 * (CAPACITY as u64 + 40));
    assert!(refused > 0 && removed > 0 && sent > 0);
}

#[test]
fn strict_priority_allocates_nothing_after_new() {
    flood(&mut StrictPriority::new(CAPACITY));
}

#[test]
fn credit_based_allocates_nothing_after_new() {
    let mut classes = [None; 8];
    classes[6] = Some(CreditOptions::new(200_000_000));
    classes[5] = Some(CreditOptions::with_limits(100_000_000, 1_000_000_000, 1_542, 1_542));
    let options = CreditBasedOptions { capacity: CAPACITY, link_speed: Some(1_000_000_000), classes };
    flood(&mut CreditBased::new(options));
}
