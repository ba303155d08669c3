// SPDX-License-Identifier: Apache-2.0
//! What the ring's tests share: frames with a payload that shows whether it arrived whole, and a small generator.
#![allow(dead_code, unreachable_pub)] // each test uses its part

use ktsn_ring::{ClockId, Consumer, SlotFlags, SlotFrame, StreamCode, StreamStatus};

/// Token of every registered stream in these tests.
pub const TOKEN: u32 = 0xfeed;

/// Registers streams 0..count.
pub fn register(consumer: &mut Consumer, count: u32) {
    for index in 0..count {
        let status = StreamStatus {
            token: TOKEN,
            flags: 0,
            code: StreamCode::Registered,
            limit: 1400,
            bypass: 0,
            is_asked: false,
        };
        consumer.set_stream(index, status).expect("the stream exists");
    }
}

/// Frame `number` of talker `talker` (its stream index).
pub fn frame(talker: u32, number: u64) -> SlotFrame {
    SlotFrame {
        stream_index: talker,
        token: TOKEN,
        flags: SlotFlags::CONNECTED,
        clock: ClockId::Monotonic.id(),
        tx_time: number,
        pushed_at: !number,
        address: [talker as u8; 16],
        scope: talker,
        port: number as u16,
        priority: 6,
        traffic_class: 0,
        has_waited: number & 1 != 0,
        marks: ktsn_ring::HeaderMarks::from_bits(number as u8),
        identification: number as u16,
        hop_limit: 0,
        report_id: 0,
        descriptor: 0,
    }
}

/// The payload of that frame: length and every octet follow from its number.
pub fn payload(talker: u32, number: u64, payload_max: usize) -> Vec<u8> {
    let mut random = Random::new(number << 8 | u64::from(talker));
    let octets = random.below(payload_max.min(300) as u64 + 1) as usize;
    let mut out = vec![0; octets];
    for chunk in out.chunks_mut(8) {
        let octets = chunk.len();
        chunk.copy_from_slice(&random.next().to_le_bytes()[..octets]);
    }
    out
}

/// splitmix64.
pub struct Random(u64);

impl Random {
    /// A generator; equal seeds give equal numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }
    /// Any u64.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
