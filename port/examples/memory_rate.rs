// SPDX-License-Identifier: Apache-2.0
//! How many frames a second the memory port takes on one core: the ceiling for everything in front of it.
//!
//! In: nothing. Out: stage + commit + reap of 64-octet frames, in thousands a second, singly and in batches.

use std::time::Instant;

use ktsn_port::memory::Memory;
use ktsn_port::{AnyPort, Port};

const FRAME_COUNT: usize = 10_000_000;
const FRAME_OCTETS: usize = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for batch in [1, 32] {
        let mut port = AnyPort::from(Memory::new(256, 1500)?);
        let frame = [0x5a_u8; FRAME_OCTETS];
        let mut stages = Vec::with_capacity(batch);
        let start = Instant::now();
        for _ in 0..FRAME_COUNT / batch {
            stages.clear();
            for _ in 0..batch {
                stages.push(port.stage(&mut |buffer| {
                    buffer[..FRAME_OCTETS].copy_from_slice(&frame);
                    Some(FRAME_OCTETS)
                })?);
            }
            port.commit_many(&stages);
            port.reap();
        }
        let taken = start.elapsed();
        let committed = u128::from(port.counters().committed_count);
        println!("batch {batch:>2}: {} thousand frames/s", committed * 1_000_000 / taken.as_nanos());
    }
    Ok(())
}
