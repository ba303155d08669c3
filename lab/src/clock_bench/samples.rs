// SPDX-License-Identifier: Apache-2.0
//! A guest's samples against the truth. In: what a guest and its host left. Out: the figures of a row. Pure.

use super::guest::{END, Left};
use super::{BACK_NS, Plan, path};
use crate::error::LabError;
use crate::vm::protocol::Clock;
use ktsn_clock::kernel::Pair;
use ktsn_measure::results::{Round, Series};
use ktsn_measure::stats::Statistics;
use ktsn_time::Nanos;
use serde_json::Value;

/// A sample with a wider bracket between its two readings of the counter, in ns, says too little.
const BRACKET_NS: f64 = 1000.0;

/// The guest's counter, the host's time by page and line (0: unknown), CLOCK_REALTIME, half the bracket in ticks, the stated bound (0:
/// unknown).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sample {
    counter: u64,
    page: i64,
    time: i64,
    bracket: u64,
    bound: i64,
}

/// A sample with its truth.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Judged {
    /// The host's counter.
    host: i128,
    is_after_pause: bool,
    /// CLOCK_REALTIME and the page's time against the host's clock.
    error: i64,
    page_error: Option<i64>,
    /// What is not known of both.
    doubt: f64,
    sample: Sample,
}

fn sample(line: &str) -> Option<Sample> {
    let fields: Vec<i128> = line.split(',').map(|field| field.parse().ok()).collect::<Option<_>>()?;
    let &[counter, page, time, bracket, bound] = &fields[..] else { return None };
    Some(Sample {
        counter: counter.try_into().ok()?,
        page: page.try_into().ok()?,
        time: time.try_into().ok()?,
        bracket: bracket.try_into().ok()?,
        bound: bound.try_into().ok()?,
    })
}

/// The host's clock at a value of its counter, between two readings; with nanoseconds per tick.
fn host_time(host: &[Pair], at: i128) -> Option<(f64, f64, u64)> {
    let after = host.partition_point(|pair| i128::from(pair.counter) <= at);
    let (from, to) = (host.get(after.checked_sub(1)?)?, host.get(after)?);
    let period = to.time.since(from.time).get() as f64 / (to.counter - from.counter) as f64;
    let since = (at - i128::from(from.counter)) as f64 * period;
    // Relative to the first reading: a double has no nanoseconds of 1970.
    let time = from.time.since(host[0].time).get() as f64 + since;
    Some((time, period, from.error.max(to.error)))
}

fn judge(left: &Left, sample: Sample) -> Option<Judged> {
    let with = |offset: i64| i128::from(sample.counter) - i128::from(offset);
    let (host, is_after_pause) = match left.pause {
        Some(pause) if with(pause.offset) >= i128::from(pause.resumed) => (with(pause.offset), true),
        _ => (with(left.offset), false),
    };
    let (time, period, error) = host_time(&left.host, host)?;
    let first = i128::from(left.host[0].time.0);
    let against = |value: i64| ((i128::from(value) - first) as f64 - time).round() as i64;
    Some(Judged {
        host,
        is_after_pause,
        error: against(sample.time),
        page_error: (sample.page != 0).then(|| against(sample.page)),
        doubt: (sample.bracket + error) as f64 * period,
        sample,
    })
}

/// How long after the pause the clock stays within [`BACK_NS`], in ns; `None`: it was never.
fn recovered(left: &Left, judged: &[Judged]) -> Option<f64> {
    let resumed = left.pause?.resumed;
    let after: Vec<&Judged> = judged.iter().filter(|one| one.is_after_pause).collect();
    let first = after.iter().rposition(|one| one.error.abs() > BACK_NS).map_or(0, |last| last + 1);
    // One second of samples in a row is no accident.
    let back = after.get(first).filter(|_| after.len() - first >= 100)?;
    let (_, period, _) = host_time(&left.host, back.host)?;
    Some((back.host - i128::from(resumed)) as f64 * period)
}

/// CPU that the guest's and the host's side used over elapsed time, from two states of the clock.
fn cpu(states: &[Value], pause_ns: f64) -> Option<(f64, f64)> {
    let [before, after] = states else { return None };
    let grown = |read: &dyn Fn(&Value) -> Option<f64>| Some(read(after)? - read(before)?);
    let elapsed = grown(&|state| state["updated_at_ns"].as_f64())?;
    let guest = grown(&|state| state["cpu_ns"].as_f64())?;
    let host = grown(&|state| state["host"]["publisher_cpu_ns"].as_f64())?;
    (elapsed > 0.0).then(|| (guest / elapsed, host / (elapsed + pause_ns)))
}

/// The figures of a row.
pub(super) fn figures(plan: &Plan, clock: Clock, round: u32, left: &Left) -> Result<Series, LabError> {
    let (lines, states) = left.said.split_once(END).unwrap_or((&left.said, ""));
    let judged: Vec<Judged> =
        lines.lines().filter_map(sample).filter_map(|sample| judge(left, sample)).collect();
    let Some(first) = judged.first() else {
        return Err(LabError::Process {
            name: "the guest".to_owned(),
            problem: "left no sample".to_owned(),
            stderr: String::new(),
        });
    };
    let (_, period, _) = host_time(&left.host, first.host).unwrap_or((0.0, 1.0, 0));
    let settled = first.host + (plan.settle.as_nanos() as f64 / period) as i128;
    let is_sharp = |one: &&Judged| one.doubt <= BRACKET_NS;
    let steady: Vec<&Judged> =
        judged.iter().filter(|one| one.host >= settled && !one.is_after_pause).filter(is_sharp).collect();
    let magnitude =
        |errors: Vec<i64>| Statistics::of(errors.into_iter().map(|error| Nanos::new(error.abs())));
    let backwards = judged.windows(2).filter(|two| two[1].sample.time < two[0].sample.time).count();
    let beyond = judged.iter().filter(|one| {
        let error = one.page_error.map_or(0.0, |error| error.abs() as f64);
        one.sample.bound != 0 && error > one.sample.bound as f64 + one.doubt + 1.0
    });
    let states: Vec<Value> = states.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let used = cpu(&states, plan.pause.as_nanos() as f64);
    Ok(Series {
        path: path(clock),
        round: Round::Number(round),
        accelerator: Some(plan.choice.accelerator.to_string()),
        clock: Some(path(clock)),
        clock_samples: Some(steady.len() as u64),
        clock_error_ns: magnitude(steady.iter().map(|one| one.error).collect()),
        page_error_ns: magnitude(steady.iter().filter_map(|one| one.page_error).collect()),
        clock_recovery_ns: recovered(left, &judged),
        clock_set_back: Some(backwards as u64),
        bound_missed: Some(beyond.count() as u64),
        clock_guest_cpu_ratio: used.map(|used| used.0),
        clock_host_cpu_ratio: used.map(|used| used.1),
        clock_cpu_ratio: used.map(|used| used.0 + used.1),
        ..Series::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock_bench::guest::Pause;
    use crate::experiment::Setup;
    use crate::vm::{Accelerator, Cache, Choice};
    use ktsn_clock::Utc;
    use std::fmt::Write as _;
    use std::time::Duration;

    const START: u64 = 1_790_000_000_000_000_000;
    const TICKS: u64 = 3;
    const OFFSET: i64 = -7_000_000;
    const PAUSE_NS: u64 = 5_000_000_000;

    fn plan() -> Plan {
        Plan {
            clocks: vec![Clock::Vptp],
            settle: Duration::from_secs(1),
            measured: Duration::from_secs(2),
            pause: Duration::from_nanos(PAUSE_NS),
            rounds: 1,
            boot_within: Duration::from_secs(1),
            choice: Choice { accelerator: Accelerator::Tcg, reason: String::new() },
            cache: Cache::find(Some(std::path::Path::new("/nowhere"))),
            setup: Setup::nowhere(),
        }
    }

    /// A guest that is 100 ns off, is paused after 3 s, and is back 1.5 s after it was resumed.
    fn left() -> Left {
        let ticks = |ns: u64| 1_000_000_000 + ns * TICKS;
        let host = (0..4000).map(|at| Pair {
            counter: ticks(at * 5_000_000),
            time: Utc(START + at * 5_000_000),
            error: 10,
        });
        let (stop, resume) = (3_000_000_000, 3_000_000_000 + PAUSE_NS);
        let after = OFFSET - (PAUSE_NS * TICKS).cast_signed();
        let mut said = "counter,page_ns,realtime_ns,bracket,bound_ns\n".to_owned();
        for at in (10_000_000..15_000_000_000_u64).step_by(10_000_000) {
            if (stop..resume).contains(&at) {
                continue;
            }
            let (offset, error) = match at {
                ..3_000_000_000 => (OFFSET, 100),
                at if at < resume + 1_500_000_000 => (after, -5_000_000_000),
                _ => (after, -200),
            };
            let counter = ticks(at).wrapping_add_signed(offset);
            let time = (START + at).wrapping_add_signed(error);
            writeln!(said, "{counter},{},{time},30,200", START + at + 50).unwrap();
        }
        said.push_str(END);
        for (at, cpu) in [(0, 0), (10_000_000_000_i64, 20_000_000)] {
            let host = serde_json::json!({ "publisher_cpu_ns": cpu });
            let state = serde_json::json!({ "updated_at_ns": at, "cpu_ns": cpu, "host": host });
            write!(said, "\n{state}").unwrap();
        }
        let pause = Pause { resumed: ticks(resume), offset: after };
        Left { said, host: host.collect(), offset: OFFSET, pause: Some(pause) }
    }

    #[test]
    fn known_errors_a_pause_and_cpu_are_found() {
        let series = figures(&plan(), Clock::Vptp, 1, &left()).unwrap();
        let error = series.clock_error_ns.unwrap();
        assert_eq!((error.min, error.p50, error.max), (100, 100, 100));
        assert_eq!(series.page_error_ns.unwrap().p50, 50);
        assert_eq!(series.clock_samples, Some(199));
        assert_eq!((series.clock_set_back, series.bound_missed), (Some(0), Some(0)));
        assert!((series.clock_recovery_ns.unwrap() - 1.5e9).abs() < 1e3, "{:?}", series.clock_recovery_ns);
        assert!((series.clock_guest_cpu_ratio.unwrap() - 0.002).abs() < 1e-9);
        assert!((series.clock_host_cpu_ratio.unwrap() - 0.02 / 15.0).abs() < 1e-9);
    }

    #[test]
    fn a_clock_that_does_not_come_back_and_an_error_beyond_the_bound_are_said() {
        let mut left = left();
        left.said = left.said.replace(",30,200\n", ",30,20\n");
        left.pause = left.pause.map(|pause| Pause { resumed: pause.resumed + 40_000_000_000, ..pause });
        let series = figures(&plan(), Clock::Vptp, 1, &left).unwrap();
        assert_eq!(series.clock_recovery_ns, None);
        assert!(series.bound_missed > Some(100), "{:?}", series.bound_missed);
    }
}
