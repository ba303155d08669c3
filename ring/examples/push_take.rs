// SPDX-License-Identifier: Apache-2.0
//! What a push and a take cost: one thread, one region, batches that fit it.
//!
//! In: payload octets as arguments (default 16, 64, 256, 1024). Out: one line each, nanoseconds per frame, the median
//! of the rounds. It pins nothing and changes no priority: run it on a quiet machine.

use std::hint::black_box;
use std::time::{Duration, Instant};

use ktsn_ring::{ClientMapping, ClockId, Consumer, Frame, Layout, SlotFlags, StreamCode, StreamStatus};

const ROUNDS: usize = 2001;
const BATCH: usize = 256;

struct Bench {
    consumer: Consumer,
    client: ClientMapping,
    buffer: Vec<u8>,
    slots: Vec<u16>,
}

impl Bench {
    fn new() -> Result<Self, Box<dyn std::error::Error>> {
        let (mut consumer, memfd) = Consumer::create(Layout::new(1024, 2048, 16, 64)?)?;
        let status =
            StreamStatus { token: 1, flags: 0, code: StreamCode::Registered, limit: 1400, bypass: 0 };
        consumer.set_stream(0, status)?;
        consumer.look_at(0, 0);
        let client = ClientMapping::open(&memfd)?;
        Ok(Self { consumer, client, buffer: vec![0; 2048], slots: Vec::with_capacity(BATCH) })
    }

    fn push(&self, payload: &[u8], with_doorbell_check: bool) -> Duration {
        let producer = self.client.producer();
        let mut frame =
            Frame { token: 1, clock: ClockId::Tai.id(), flags: SlotFlags::CONNECTED, ..Frame::default() };
        let begin = Instant::now();
        for number in 0..BATCH as u64 {
            let Some(claim) = producer.claim() else { break };
            frame.tx_time = number;
            if producer.fill(&claim, &frame, std::iter::once(payload)).is_err() {
                producer.cancel(claim);
                break;
            }
            producer.publish(claim);
            if with_doorbell_check {
                black_box(producer.bell(ClockId::Tai, number, 0));
            }
        }
        begin.elapsed()
    }

    /// Time of collect + take, time of release, and how many frames.
    fn take(&mut self) -> Result<(Duration, Duration, usize), Box<dyn std::error::Error>> {
        self.slots.clear();
        let begin = Instant::now();
        while self.consumer.collect(32)? == 0 {}
        while let Some(taken) = self.consumer.take(&mut self.buffer) {
            let taken = taken?;
            black_box(&self.buffer);
            self.slots.push(taken.slot);
        }
        let taken = begin.elapsed();
        let begin = Instant::now();
        for slot in &self.slots {
            self.consumer.release(*slot);
        }
        Ok((taken, begin.elapsed(), self.slots.len()))
    }
}

fn per_frame(mut rounds: Vec<Duration>) -> f64 {
    rounds.sort();
    rounds[rounds.len() / 2].as_nanos() as f64 / BATCH as f64
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut sizes = std::env::args().skip(1).map(|text| text.parse()).collect::<Result<Vec<usize>, _>>()?;
    if sizes.is_empty() {
        sizes = vec![16, 64, 256, 1024];
    }
    for octets in sizes {
        let mut bench = Bench::new()?;
        let payload = vec![0x5a; octets];
        let mut rounds: [Vec<Duration>; 4] = Default::default();
        for _ in 0..ROUNDS {
            for (with_check, pushes) in [(false, 0), (true, 1)] {
                rounds[pushes].push(bench.push(&payload, with_check));
                let (taken, released, count) = bench.take()?;
                if count != BATCH {
                    return Err(format!("{count} frames came out of {BATCH}").into());
                }
                rounds[2].push(taken);
                rounds[3].push(released);
            }
        }
        let [push, push_check, take, release] = rounds.map(per_frame);
        println!(
            "payload {octets:>5}: push {push:6.1} ns, push + doorbell check {push_check:6.1} ns, \
             collect + take {take:6.1} ns, release {release:6.1} ns"
        );
    }
    Ok(())
}
