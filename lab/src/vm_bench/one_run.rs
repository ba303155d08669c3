// SPDX-License-Identifier: Apache-2.0
//! One row, once. In: the row, the other machine if there is one. Out: its figures. Both scripts run: the publisher's once the subscriber
//! listens.

use super::counters::{self, Reasons};
use super::ends::{Progress, SCRIPT_EXTRA};
use super::far::{End, Other, Question, Served, check_programs};
use super::figures::{Left, figures};
use super::places::{end, place};
use super::plan::{Datapath, Load, Plan, Row};
use super::script;
use super::site::{Host, Which};
use super::spikes::{Sampler, Spikes};
use super::subscriber::{Heard, Subscriber};
use super::tap;
use crate::carry_out::Measured;
use crate::datapaths::host::Sample;
use crate::error::LabError;
use crate::observers::finish;
use crate::process::Process;
use crate::remote::hosts::{Passage, impossible as odd_answer};
use ktsn_measure::clock::{stop_requested, tai_now};
use ktsn_measure::environment::CpuUse;
use ktsn_time::{Nanos, Tai};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// So much before its transmit time a frame may arrive: etf sends by its delta earlier, and guests' clocks follow within less.
const EARLY_MAX: Nanos = Nanos::from_millis(2);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// One row, once.
///
/// # Errors
/// [`LabError::Impossible`]: a machine cannot have the row; else what failed. Nothing is left behind.
pub(super) fn one_run(
    plan: &Plan,
    row: Row,
    round: u32,
    directory: &Path,
    apart: Option<(&mut End, u16)>,
) -> Result<Measured<Spikes>, LabError> {
    let directory = tempfile::tempdir_in(directory).map_err(LabError::system("temporary directory"))?;
    let directory = directory.path();
    check_programs(row)?;
    let (begun, window, sampler) = (CpuUse::now(), tai_now(), Sampler::start());
    // The subscriber's side ends before the publisher's host.
    let (mut host, mut here);
    let mut other = if let (Some(hosts), Some((end, number))) = (&plan.hosts, apart) {
        let uplink = (hosts.uplinks[0].as_str(), number);
        host = Host::apart(Which::Publisher, row.datapath, uplink, directory)?;
        Other::there(end, plan, row)?
    } else {
        let far;
        [host, far] = Host::pair(row.datapath, directory)?;
        let subscriber = Subscriber::begin(plan, row, far, directory, false)?;
        here = Served::here(&plan.setup, subscriber, directory);
        Other::of(&mut here, plan)
    };
    let mut left = carry_out(plan, row, &mut host, &mut other, directory)?;
    left.samples = sampler.end();
    let (ended, window) = (CpuUse::now(), [window, tai_now()]);
    let mut figures = figures(plan, row, round, &left, directory)?;
    if let Some(hosts) = &plan.hosts
        && let Some(problem) =
            odd(&figures, &left, window, hosts.within, super::figures::has_own_clocks(plan, row))
    {
        return Err(other.refuse(problem));
    }
    for series in &mut figures.series {
        crate::observations::put_disturbance(series, &begun, &ended);
    }
    Ok(figures)
}

/// Why what the other machine saw cannot be of this run, if so. Guests with clocks of their own say nothing of the hosts'.
fn odd(
    figures: &Measured<Spikes>,
    left: &Left,
    run: [Tai; 2],
    within: Nanos,
    has_own_clocks: bool,
) -> Option<String> {
    let records = || figures.runs.iter().flat_map(|run| &run.records).filter(|_| !has_own_clocks);
    let [near, far] = left.taps.as_ref().map_or([&[][..]; 2], |taps| [&taps[0][..], &taps[1][..]]);
    let samples = left.samples_there.iter().flat_map(|(_, samples)| samples).map(Sample::at);
    let arrivals = records().map(|record| [record.kernel_at, record.received_at]);
    let taps = far.iter().map(|frame| [frame.kernel_at, frame.received_at]);
    let instants = arrivals.chain(taps).flatten().flatten().chain(samples);
    let sent: BTreeMap<u64, Tai> =
        near.iter().filter_map(|frame| Some((frame.probe.sequence, frame.kernel_at?))).collect();
    let to_programs = records().filter_map(|record| {
        let arrived = record.kernel_at.or(record.received_at)?;
        let early_max = within.saturating_add(EARLY_MAX);
        Some(Passage { sequence: record.sequence, sent: record.tx_time, arrived, early_max })
    });
    let between_taps = far.iter().filter_map(|frame| {
        let sequence = frame.probe.sequence;
        let arrived = frame.kernel_at.or(frame.received_at)?;
        Some(Passage { sequence, sent: *sent.get(&sequence)?, arrived, early_max: within })
    });
    odd_answer(run, within, instants, to_programs.chain(between_taps))
}

/// Runs both scripts.
fn carry_out(
    plan: &Plan,
    row: Row,
    host: &mut Host,
    other: &mut Other<'_>,
    directory: &Path,
) -> Result<Left, LabError> {
    let mut left = Left::default();
    let done = publish(plan, row, host, other, directory, &mut left);
    // A subscriber that has ended by now was not ended for the publisher's sake.
    let is_far_first = done.is_err() && other.state().is_ok_and(|state| state.has_ended);
    if done.is_err() && !is_far_first {
        // The run's error counts. A connection that has ended has ended the subscriber, too.
        let _may_fail: Result<(), LabError> = other.ask(Question::Stop);
    }
    let heard = match (done, other.finish(plan, row, directory)) {
        (Err(first), Err(second)) => Err(if is_far_first { second } else { first }),
        (Err(first), Ok(_)) => Err(first),
        (Ok(()), heard) => heard,
    };
    let Heard { files, dropped, samples } = heard.map_err(|error| impossible(row, error))?;
    left.far = files;
    counters::add(&mut left.dropped, dropped);
    left.samples_there = plan.hosts.as_ref().map(|hosts| (hosts.remote.target.to_string(), samples));
    left.taps = (row.datapath == Datapath::Bridge).then(|| tap::seen(plan, directory)).transpose()?;
    Ok(left)
}

/// Runs the publisher's script once the subscriber listens.
fn publish(
    plan: &Plan,
    row: Row,
    host: &mut Host,
    other: &mut Other<'_>,
    directory: &Path,
    left: &mut Left,
) -> Result<(), LabError> {
    let script = script::publisher(plan, &end(plan, host, directory), row.keeper);
    let (place, progress) = (place(plan, row, host), Progress::default());
    wait_until_ready(plan, other)?;
    let load = start_load(plan, row, host, other)?;
    let (octets, begun) =
        (if row.load == Load::Idle { 0 } else { other.ask::<u64>(Question::Octets)? }, Instant::now());
    let () = other.ask(Question::Count)?;
    let before: Reasons = host.dropped()?;
    let mut tap = None;
    std::thread::scope(|scope| {
        let runs = scope.spawn(|| place.run("publisher", plan, &script, &progress));
        let mut ended = Ok(());
        if row.datapath == Datapath::Bridge {
            ended =
                tap::start(plan, host, directory, || runs.is_finished()).map(|started| tap = Some(started));
        }
        while !runs.is_finished() {
            ended = ended.and(host.check_switch()).and(other.end.check());
            // The subscriber ends after the publisher's last frames; before them only if it failed.
            let is_alone = other.state().map(|state| state.has_failed);
            if ended.is_err() || !matches!(is_alone, Ok(false)) {
                progress.end();
                ended = ended.and(is_alone.map(drop));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        let published = runs.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        ended.and(published)
    })?;
    if row.load != Load::Idle {
        let bits = other.ask::<u64>(Question::Octets)?.saturating_sub(octets) as f64 * 8.0;
        left.load_bit_rate = Some(bits / begun.elapsed().as_secs_f64());
    }
    drop(load);
    left.near = progress.take_files();
    left.dropped = counters::since(&host.dropped()?, &before);
    tap.as_mut().map_or(Ok(()), finish)
}

/// Starts the load, and waits until it flows.
fn start_load(
    plan: &Plan,
    row: Row,
    host: &Host,
    other: &mut Other<'_>,
) -> Result<Option<Process>, LabError> {
    if row.load == Load::Idle {
        return Ok(None);
    }
    let () = other.ask(Question::Load)?;
    let before = other.ask::<u64>(Question::Octets)?;
    let has_come = |octets| Ok(other.ask::<u64>(Question::Octets)? >= before.saturating_add(octets));
    host.start_load_sender(plan.load_mbit, has_come).map(Some)
}

/// What the set-up of a host's own device refuses is no failure of the row: a kernel without etf, a device without queues.
fn impossible(row: Row, error: LabError) -> LabError {
    match error {
        LabError::Process { problem, stderr, .. }
            if row.datapath == Datapath::NoVm && problem.contains("exit status: 3") =>
        {
            let refused = stderr.lines().rev().find_map(|line| line.split_once("not possible here: "));
            let words = refused.map_or(stderr.trim(), |(_, words)| words);
            let (what, remedy) =
                words.split_once("; remedy: ").unwrap_or((words, "leave the schedule out with --schedule"));
            LabError::Impossible { what: what.to_owned(), remedy: remedy.to_owned() }
        }
        error => error,
    }
}

/// Waits until the subscriber listens.
fn wait_until_ready(plan: &Plan, other: &mut Other<'_>) -> Result<(), LabError> {
    let longest = plan.boot_within + SCRIPT_EXTRA;
    let until = Instant::now() + longest;
    loop {
        let state = other.state()?;
        if state.is_ready {
            return Ok(());
        }
        if stop_requested() {
            return Err(LabError::Stopped);
        }
        if state.has_ended || Instant::now() > until {
            let problem = if state.has_ended {
                "ended before it listened".to_owned()
            } else {
                format!("did not listen within {longest:?}")
            };
            return Err(LabError::Process {
                name: "the subscriber".to_owned(),
                problem,
                stderr: String::new(),
            });
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Keeper;
    use super::*;

    #[test]
    fn a_device_of_the_host_that_cannot_have_a_schedule_is_a_row_that_is_left_out() {
        let row = |datapath| Row { datapath, keeper: Keeper::Etf, load: Load::Idle };
        let failed = |status: &str| LabError::Process {
            name: "publisher".to_owned(),
            problem: format!("ended (exit status: {status})"),
            stderr:
                "; it said:\nktsn guest: not possible here: device uplink: 1 queue pair(s); remedy: another"
                    .to_owned(),
        };
        let left_out = impossible(row(Datapath::NoVm), failed("3"));
        assert_eq!(
            left_out.to_string(),
            "not possible here: device uplink: 1 queue pair(s); remedy: another"
        );
        for (datapath, status) in [(Datapath::NoVm, "1"), (Datapath::Bridge, "3")] {
            let error = impossible(row(datapath), failed(status));
            assert!(matches!(error, LabError::Process { .. }), "{error}");
        }
    }
}
