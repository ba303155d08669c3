// SPDX-License-Identifier: Apache-2.0
//! What a decision of the shipped selection costs, and whether it ever asks for memory.
//!
//! In: how long, which CPU. Out: JSON on standard output: nanoseconds per decision and per frame, batch by batch, and the
//! count of allocations after arming. It is a program of its own, so that its allocator can count. The worlds take turns,
//! round after round, warm; a decision or a frame is timed within a batch, so a reading of the clock (some 30 ns) weighs
//! less than 1 ns.

#[allow(unsafe_code)]
mod sys;
mod world;

use ktsn_measure::clock::{RealTime, monotonic_now};
use ktsn_measure::results::Micro;
use ktsn_measure::stats::Statistics;
use ktsn_time::Nanos;
use std::process::ExitCode;
use world::World;

/// Decisions or frames of one batch.
const BATCH: u64 = 64;
/// Batches of one turn.
const TURN: u64 = 200;
/// Turns that warm up caches and predictors, uncounted.
const WARM_UP: u32 = 20;
/// Samples are kept in picoseconds per decision, so that nothing is lost by rounding.
const PICOS: i64 = 1_000;

/// What one entry times.
#[derive(Clone, Copy)]
enum Timed {
    Decisions,
    Frames,
}

struct Subject {
    name: &'static str,
    timed: Timed,
    world: World,
    left: Vec<(u64, ktsn_time::Tai)>,
    samples: Vec<Nanos>,
}

impl Subject {
    fn new(
        name: &'static str,
        timed: Timed,
        entries: usize,
        streams: u64,
        batches: usize,
    ) -> Result<Self, String> {
        let world = World::new(entries, streams).map_err(|fault| format!("{name}: {fault}"))?;
        let (left, samples) = (Vec::with_capacity(BATCH as usize), Vec::with_capacity(batches));
        Ok(Self { name, timed, world, left, samples })
    }

    /// One turn; `counted` decides whether its samples are kept.
    fn turn(&mut self, counted: bool) {
        for _ in 0..TURN {
            let before = monotonic_now();
            let (done, per) = match self.timed {
                Timed::Decisions => {
                    let done = self.world.decide(BATCH, &mut self.left);
                    (done, done.decisions)
                }
                Timed::Frames => {
                    let done = self.world.frames(BATCH);
                    (done, done.frames)
                }
            };
            let took = monotonic_now().since(before);
            if counted && per > 0 && done.decisions > 0 && self.samples.len() < self.samples.capacity() {
                self.samples.push(Nanos::new(took.get() * PICOS / per as i64));
            }
            self.world.refill(&mut self.left);
        }
    }

    fn figure(&self) -> Result<Micro, String> {
        let statistics = Statistics::of(self.samples.iter().copied())
            .ok_or_else(|| format!("{}: no samples", self.name))?;
        Ok(Micro {
            name: self.name.to_owned(),
            unit: "ns".to_owned(),
            p50: statistics.p50 as f64 / PICOS as f64,
            p90: Some(statistics.p90 as f64 / PICOS as f64),
            samples: self.samples.len() as u64,
        })
    }
}

/// `--turns N --cpu N`.
fn arguments() -> Result<(u32, Option<usize>), String> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (mut turns, mut cpu) = (100, None);
    for pair in words.chunks(2) {
        let wrong = || format!("{pair:?}: expected --turns N or --cpu N");
        let [name, value] = pair else { return Err(wrong()) };
        match name.as_str() {
            "--turns" => turns = value.parse().map_err(|_| wrong())?,
            "--cpu" => cpu = Some(value.parse().map_err(|_| wrong())?),
            _ => return Err(wrong()),
        }
    }
    Ok((turns, cpu))
}

fn measure() -> Result<String, String> {
    let (turns, cpu) = arguments()?;
    RealTime { cpu, ..RealTime::default() }.apply().map_err(|error| error.to_string())?;
    let batches = turns as usize * TURN as usize;
    let mut subjects = [
        Subject::new("sched.decide.8x64", Timed::Decisions, 64, 1024, batches)?,
        Subject::new("sched.decide.8x1024", Timed::Decisions, 1024, 1024, batches)?,
        Subject::new("sched.frame.streams10", Timed::Frames, 64, 10, batches)?,
        Subject::new("sched.frame.streams10000", Timed::Frames, 64, 10_000, batches)?,
    ];
    let armed = sys::allocations();
    for turn in 0..WARM_UP + turns {
        for subject in &mut subjects {
            subject.turn(turn >= WARM_UP);
        }
        if turn == WARM_UP / 2 || turn == WARM_UP {
            subjects.iter_mut().for_each(|subject| subject.world.change());
        }
    }
    let allocations = sys::allocations() - armed;
    let micro = subjects.iter().map(Subject::figure).collect::<Result<Vec<_>, _>>()?;
    let result =
        serde_json::json!({ "micro": micro, "allocations": allocations, "allocations_before": armed });
    Ok(result.to_string())
}

fn main() -> ExitCode {
    match measure() {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("sched_cost: {problem}");
            ExitCode::FAILURE
        }
    }
}
