// SPDX-License-Identifier: Apache-2.0
//! Arrivals as they are met, and what the receiver must make of them.

use super::{BUSY, Machine, QUIET, Random};

/// A pattern of arrivals, and its bars.
pub(crate) struct Pattern {
    pub(crate) name: &'static str,
    pub(crate) machine: Machine,
    /// Makes the arrivals, in nanoseconds and in order.
    pub(crate) make: fn(&mut Random) -> Vec<u64>,
    /// Least hit rate, in per cent.
    pub(crate) hit_min: f64,
    /// Greatest spin for each arrival, in µs.
    pub(crate) spun_max: f64,
    /// Most spins in vain for 100 arrivals.
    pub(crate) missed_max: f64,
}

const START: f64 = 1e12;
const MILLI: f64 = 1e6;
const SECOND: f64 = 1e9;

/// Jitter of a path through a quiet kernel.
fn path(random: &mut Random) -> f64 {
    let slow = if random.between(0, 200) == 0 { 15_000.0 * random.share() } else { 0.0 };
    3_000.0 * random.share() + slow
}

fn ordered(mut arrivals: Vec<f64>) -> Vec<u64> {
    arrivals.sort_by(f64::total_cmp);
    let mut arrivals: Vec<u64> = arrivals.into_iter().map(|at| at as u64).collect();
    arrivals.dedup();
    arrivals
}

/// A stream on a grid of `period`, which begins at `phase`.
fn grid(random: &mut Random, period: f64, phase: f64, span: f64, jitter: fn(&mut Random) -> f64) -> Vec<f64> {
    let count = ((span - phase) / period) as u64;
    (0..count).map(|slot| START + phase + slot as f64 * period + jitter(random)).collect()
}

fn quiet(random: &mut Random, period: f64, span: f64) -> Vec<u64> {
    ordered(grid(random, period, 0.0, span, path))
}

fn thinned(random: &mut Random, lost: f64) -> Vec<u64> {
    quiet(random, MILLI, 20.0 * SECOND).into_iter().filter(|_| random.share() >= lost).collect()
}

/// Steps through `span`: `next` gives the gap to the next arrival.
fn walk(random: &mut Random, span: f64, mut next: impl FnMut(f64, &mut Random) -> f64) -> Vec<u64> {
    let (mut at, mut arrivals) = (0.0, Vec::new());
    while at < span {
        arrivals.push(START + at + path(random));
        at += next(at, random);
    }
    ordered(arrivals)
}

/// The talker's clock wanders between −100 and +100 ppm, once in 20 s.
fn wandering(random: &mut Random) -> Vec<u64> {
    walk(random, 20.0 * SECOND, |at, _| {
        MILLI * (1.0 + 1e-4 * (at / SECOND * std::f64::consts::TAU / 20.0).sin())
    })
}

fn poisson(random: &mut Random, mean: f64, count: u64) -> Vec<u64> {
    let mut at = START;
    ordered(
        (0..count)
            .map(|_| {
                at += random.exponential(mean);
                at
            })
            .collect(),
    )
}

fn together(random: &mut Random, periods: &[f64], span: f64) -> Vec<u64> {
    let phases: Vec<f64> = periods.iter().map(|period| random.share() * period).collect();
    let mut all = Vec::new();
    for (period, phase) in periods.iter().zip(phases) {
        all.extend(grid(random, *period, phase, span, path));
    }
    ordered(all)
}

fn bursts(random: &mut Random) -> Vec<u64> {
    let firsts = quiet(random, MILLI, 10.0 * SECOND);
    firsts.into_iter().flat_map(|at| (0..4).map(move |place| at + place * 8_000)).collect()
}

/// Half a second of the stream, half a second of silence, then another phase.
fn pauses(random: &mut Random) -> Vec<u64> {
    let parts = (0..20).flat_map(|part| {
        let phase = f64::from(part) * SECOND + random.share() * MILLI;
        let mut part = grid(random, MILLI, phase, phase + SECOND / 2.0, path);
        part.truncate(500);
        part
    });
    ordered(parts.collect())
}

fn phase_steps(random: &mut Random, step: f64) -> Vec<u64> {
    let mut count = 0;
    walk(random, 20.0 * SECOND, |_, _| {
        count += 1;
        if count % 500 == 0 { MILLI + step } else { MILLI }
    })
}

/// Gaps that were recorded, one a line.
fn recorded(gaps: &str) -> Vec<u64> {
    let mut at = START as u64;
    let gaps = gaps.lines().filter(|line| !line.starts_with('#'));
    gaps.map(|gap| {
        at += gap.parse::<u64>().expect("a gap in nanoseconds");
        at
    })
    .collect()
}

const fn pattern(name: &'static str, make: fn(&mut Random) -> Vec<u64>, bars: (f64, f64, f64)) -> Pattern {
    Pattern { name, machine: QUIET, make, hit_min: bars.0, spun_max: bars.1, missed_max: bars.2 }
}

const fn busy(name: &'static str, make: fn(&mut Random) -> Vec<u64>, bars: (f64, f64, f64)) -> Pattern {
    Pattern { machine: BUSY, ..pattern(name, make, bars) }
}

fn beside_poisson(random: &mut Random) -> Vec<u64> {
    let noise = poisson(random, 5.0 * MILLI, 4_000);
    let mut all = [quiet(random, MILLI, 20.0 * SECOND), noise].concat();
    all.sort_unstable();
    all
}

fn by_turns(random: &mut Random, seconds: f64, periods: &'static [f64]) -> Vec<u64> {
    walk(random, 30.0 * SECOND, |at, _| MILLI * periods[(at / SECOND / seconds) as usize % periods.len()])
}

fn jitter_on_grid(random: &mut Random) -> Vec<u64> {
    ordered(grid(random, MILLI, 0.0, 20.0 * SECOND, |random| 5e3 + 45e3 * random.share()))
}

fn quarter_apart(random: &mut Random) -> Vec<u64> {
    let first = grid(random, MILLI, 0.0, 10.0 * SECOND, path);
    ordered([first, grid(random, MILLI, 0.25 * MILLI, 10.0 * SECOND, path)].concat())
}

/// Every pattern, with its least hit rate, its greatest spin for each arrival and its most spins in vain.
pub(crate) const ALL: &[Pattern] = &[
    pattern("1 kHz", |r| quiet(r, MILLI, 20.0 * SECOND), (97.0, 28.0, 2.0)),
    pattern("100 Hz", |r| quiet(r, 10.0 * MILLI, 60.0 * SECOND), (97.0, 28.0, 2.0)),
    pattern("1 Hz", |r| quiet(r, SECOND, 1000.0 * SECOND), (96.0, 32.0, 2.5)),
    pattern("5 kHz", |r| quiet(r, 0.2 * MILLI, 5.0 * SECOND), (97.0, 28.0, 2.0)),
    pattern("1 kHz, clock + 100 ppm", |r| quiet(r, 1.0001 * MILLI, 20.0 * SECOND), (97.0, 28.0, 2.0)),
    pattern("1 kHz, clock − 100 ppm", |r| quiet(r, 0.9999 * MILLI, 20.0 * SECOND), (97.0, 28.0, 2.0)),
    pattern("1 kHz, clock wanders ± 100 ppm in 20 s", wandering, (97.0, 28.0, 2.0)),
    pattern("1 kHz, jitter 5 to 50 µs on a grid", jitter_on_grid, (97.0, 62.0, 3.0)),
    pattern(
        "1 kHz, jitter 5 to 50 µs that adds up",
        |r| walk(r, 20.0 * SECOND, |_, r| MILLI + 5e3 + 45e3 * r.share()),
        (97.0, 78.0, 3.0),
    ),
    pattern("1 kHz, 1 % lost", |r| thinned(r, 0.01), (97.0, 28.0, 3.5)),
    pattern("1 kHz, 10 % lost", |r| thinned(r, 0.1), (97.0, 32.0, 14.0)),
    pattern("bursts of 4 at 1 kHz, 8 µs apart", bursts, (45.0, 8.0, 1.0)),
    pattern(
        "1 and 1.37 ms at once",
        |r| together(r, &[MILLI, 1.37 * MILLI], 20.0 * SECOND),
        (97.0, 29.0, 2.0),
    ),
    pattern(
        "1, 1.5, 2.2 and 10 ms at once",
        |r| together(r, &[MILLI, 1.5 * MILLI, 2.2 * MILLI, 10.0 * MILLI], 20.0 * SECOND),
        (96.0, 36.0, 3.0),
    ),
    pattern("two of 1 ms, 250 µs apart", quarter_apart, (97.0, 28.0, 2.0)),
    pattern("1, 1.3, 0.7 ms for 2 s each", |r| by_turns(r, 2.0, &[1.0, 1.3, 0.7]), (97.0, 29.0, 2.0)),
    pattern("1 and 2 kHz for 1 s each", |r| by_turns(r, 1.0, &[1.0, 0.5]), (96.5, 30.0, 2.0)),
    pattern("1 kHz, a step of 300 µs after 500", |r| phase_steps(r, 0.3 * MILLI), (96.0, 32.0, 2.5)),
    pattern("1 kHz, a step of 30 µs after 500", |r| phase_steps(r, 30e3), (95.5, 33.0, 2.0)),
    pattern("1 kHz, every second: pause, other phase", pauses, (96.0, 34.0, 2.5)),
    pattern("Poisson, 1 kHz", |r| poisson(r, MILLI, 200_000), (0.0, 0.01, 0.01)),
    pattern("Poisson, 100 Hz", |r| poisson(r, 10.0 * MILLI, 200_000), (0.0, 0.01, 0.01)),
    pattern("1 kHz beside Poisson of 200 Hz", beside_poisson, (78.0, 24.0, 3.0)),
    pattern(
        "recorded: sleep until a grid of 1 ms",
        |_| recorded(include_str!("../recorded/grid.txt")),
        (87.0, 85.0, 6.5),
    ),
    pattern(
        "recorded: sleep for 1 ms",
        |_| recorded(include_str!("../recorded/sleep.txt")),
        (83.0, 125.0, 7.5),
    ),
    busy("busy: 1 kHz", |r| quiet(r, MILLI, 20.0 * SECOND), (97.0, 82.0, 2.0)),
    busy("busy: jitter 5 to 50 µs on a grid", jitter_on_grid, (97.0, 115.0, 3.0)),
    busy(
        "busy: 1 and 1.37 ms at once",
        |r| together(r, &[MILLI, 1.37 * MILLI], 20.0 * SECOND),
        (90.0, 88.0, 2.5),
    ),
    busy("busy: Poisson, 1 kHz", |r| poisson(r, MILLI, 200_000), (0.0, 0.01, 0.01)),
];
