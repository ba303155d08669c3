// SPDX-License-Identifier: Apache-2.0
//! A strategy full, flooded and emptied, over and over: nothing may allocate.
//!
//! In: a strategy and its capacity. Out: a panic where something allocated, or where a frame is not accounted for.

use crate::sys;
use crate::world::{class, frame, mono, now, tai};
use ktsn_sched::{Decision, Frame, TimeAware};

/// Frames beyond the capacity that every round offers.
const BEYOND: u64 = 40;

/// `rounds` times `capacity` frames and more; the wake-ups between two decisions are `step` nanoseconds apart.
pub(crate) fn flood(s: &mut TimeAware, rounds: u64, step: u64) {
    let offered = s.capacity() as u64 + BEYOND;
    let before = sys::allocations();
    let (mut sent, mut refused, mut removed) = (0u64, 0u64, 0u64);
    let mut seed = 1u64;
    for round in 0..rounds {
        let start = 10_000_000 * (round + 1);
        for id in 0..offered {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = start + (seed >> 33) % 5_000;
            let tx_time = if seed >> 63 == 0 { tai(at) } else { mono(at) };
            let class = class((seed >> 40) as u8 % 8);
            let f = Frame { class, attachment: id as u32 % 5, ..frame(id, Some(tx_time)) };
            refused += u64::from(s.offer(f, now(start, start)).is_err());
        }
        s.remove(&mut |f| f.attachment == 3, &mut |_| removed += 1);
        while s.remove_attachment(2, 7, &mut |_| removed += 1) {}
        let mut at = start;
        loop {
            match s.decide(now(at, at)) {
                Decision::Transmit { frame, .. } if at % 4 == 0 => {
                    at += 1;
                    s.put_back(frame, now(at, at)).unwrap();
                }
                Decision::Transmit { .. } => sent += 1,
                Decision::Drop { .. } => unreachable!("the limit is the longest span"),
                Decision::WakeAt { .. } => at += step,
                Decision::Idle => break,
            }
        }
    }
    let after = sys::allocations();
    assert_eq!(after, before);
    assert_eq!(sent + refused + removed, rounds * offered);
    assert!(refused > 0 && removed > 0 && sent > 0);
}
