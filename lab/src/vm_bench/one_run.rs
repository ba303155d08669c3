// SPDX-License-Identifier: Apache-2.0
//! One row, once. In: the row, the other machine if there is one. Out: its figures. Both scripts run: the publisher's once the subscriber
//! listens.

use super::counters::{self, Reasons};
use super::ends::{Place, Progress, SCRIPT_EXTRA};
use super::far::{Apart, Other, check_programs};
use super::figures::{Figures, Left, figures};
use super::plan::{Datapath, Keeper, Load, Plan, Row};
use super::script::{self, End};
use super::site::{self, Host, Which};
use super::spikes::Sampler;
use super::subscriber::{Heard, Subscriber};
use super::tap;
use crate::datapaths::host::Sample;
use crate::error::LabError;
use crate::observers::finish;
use crate::process::Process;
use crate::remote::hosts::{is_within, outside};
use crate::vm::{self, Machine};
use ktsn_measure::clock::{stop_requested, tai_now};
use ktsn_measure::environment::CpuUse;
use ktsn_measure::payload::Probe;
use ktsn_measure::records::ArrivalRecord;
use ktsn_time::{Nanos, Tai};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// SCHED_FIFO priorities of publisher and subscriber. The publisher's is above that of ktsnd's worker, which spins on the same CPU.
const FIFO: [u8; 2] = [60, 40];
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
    apart: Option<&mut Apart>,
) -> Result<Figures, LabError> {
    let directory = tempfile::tempdir_in(directory).map_err(LabError::system("temporary directory"))?;
    let directory = directory.path();
    let (begun, window, sampler) = (CpuUse::now(), tai_now(), Sampler::start());
    // The subscriber's side ends before the publisher's host.
    let (mut host, mut other) = set_up(plan, row, directory, apart)?;
    let mut left = carry_out(plan, row, &mut host, &mut other, directory)?;
    left.samples = sampler.end();
    let (ended, window) = (CpuUse::now(), [window, tai_now()]);
    let mut figures = figures(plan, row, round, &left, directory)?;
    if let (Some(hosts), Other::There { apart, .. }) = (&plan.hosts, &other)
        && let Some(problem) =
            untrue(&figures, &left, window, hosts.within, super::figures::has_own_clocks(plan, row))
    {
        return Err(apart.refuse(problem));
    }
    for series in &mut figures.series {
        crate::observations::put_disturbance(series, &begun, &ended);
    }
    Ok(figures)
}

/// The publisher's host, and the subscriber's side; its script runs.
fn set_up<'a>(
    plan: &Plan,
    row: Row,
    directory: &Path,
    apart: Option<&'a mut Apart>,
) -> Result<(Host, Other<'a>), LabError> {
    check_programs(row)?;
    if let (Some(hosts), Some(apart)) = (&plan.hosts, apart) {
        let uplink = (hosts.uplinks[0].as_str(), apart.number);
        let host = Host::apart(Which::Publisher, row.datapath, uplink, directory)?;
        return Ok((host, Other::there(apart, plan, row)?));
    }
    let [host, far] = Host::pair(row.datapath, directory)?;
    let subscriber = Subscriber::begin(plan, row, far, directory, false)?;
    Ok((host, Other::Here(Box::new(subscriber))))
}

/// What another machine cannot have seen in this run, if there is something. Guests with clocks of their own say nothing of the hosts'.
fn untrue(
    figures: &Figures,
    left: &Left,
    run: [Tai; 2],
    within: Nanos,
    has_own_clocks: bool,
) -> Option<String> {
    let records = figures.runs.iter().flat_map(|run| &run.records).filter(|_| !has_own_clocks);
    let arrivals: Vec<ArrivalRecord> = records
        .map(|record| ArrivalRecord {
            probe: Probe { sequence: record.sequence, tx_time: record.tx_time },
            kernel_at: record.kernel_at,
            received_at: record.received_at,
        })
        .collect();
    let [near, far] = left.taps.as_ref().map_or([&[][..]; 2], |taps| [&taps[0][..], &taps[1][..]]);
    let samples = left.samples_there.iter().flat_map(|(_, samples)| samples).map(Sample::at);
    let odd = samples.into_iter().find(|at| !is_within(*at, run, within));
    let sent: BTreeMap<u64, Tai> =
        near.iter().filter_map(|frame| Some((frame.probe.sequence, frame.kernel_at?))).collect();
    outside(&arrivals, run, within)
        .or_else(|| outside(far, run, within))
        .or_else(|| odd.map(|at| format!("its sample is of {} ns, outside of the run", at.as_nanos())))
        .or_else(|| before(&arrivals, |frame| Some(frame.probe.tx_time), within.saturating_add(EARLY_MAX)))
        .or_else(|| before(far, |frame| sent.get(&frame.probe.sequence).copied(), within))
}

/// A frame that arrived before it was sent, by more than so much: the clocks do not agree.
fn before(
    arrivals: &[ArrivalRecord],
    sent: impl Fn(&ArrivalRecord) -> Option<Tai>,
    by: Nanos,
) -> Option<String> {
    arrivals.iter().find_map(|arrival| {
        let (sent, at) = (sent(arrival)?, arrival.kernel_at.or(arrival.received_at)?);
        let early = sent.since(at);
        let sequence = arrival.probe.sequence;
        (early > by).then(|| {
            format!(
                "frame {sequence} arrived {early} before it was sent: the clocks of both hosts do not agree"
            )
        })
    })
}

/// Where the end of a host runs.
pub(super) fn place(plan: &Plan, row: Row, host: &Host) -> Place {
    let datapath = match row.datapath {
        Datapath::NoVm => return Place::Namespace(host.namespace.clone()),
        Datapath::Bridge => vm::Datapath::Bridge(vm::Bridge {
            tap: site::GUEST.to_owned(),
            ..vm::Bridge::new(site::BRIDGE, Some(&host.namespace))
        }),
        Datapath::OvsDpdk => vm::Datapath::VhostUser(host.socket()),
    };
    let address = format!("{}/{}", host.address(), site::PREFIX);
    Place::Guest(Box::new(Machine {
        datapath,
        // mqprio needs a queue for each class.
        queues: if row.keeper == Keeper::Etf { 2 } else { 1 },
        address: address.parse().ok(),
        pin: (!plan.setup.functional).then(|| vm::Cpus::one(host.cpu)),
        ..Machine::default()
    }))
}

/// The end of a host, as its script names it.
pub(super) fn end(plan: &Plan, host: &Host, directory: &Path) -> End {
    let (is_host, index) = (host.datapath == Datapath::NoVm, host.which.index());
    let peer = host.addresses.ends[1 - index];
    let has_rights = !plan.setup.functional || !is_host;
    End {
        device: if is_host { site::UPLINK } else { "eth0" },
        peer,
        peer_mac: site::mac_of(peer),
        directory: if is_host {
            directory.join(format!("end-{index}")).display().to_string()
        } else {
            "/tmp/end".to_owned()
        },
        fifo: has_rights.then_some(FIFO[index]),
        cpu: (has_rights && is_host).then_some(host.cpu),
    }
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
        other.stop();
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
    let (octets, begun) = (if row.load == Load::Idle { 0 } else { other.load_octets()? }, Instant::now());
    other.count()?;
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
            ended = ended.and(host.check_switch()).and(other.check());
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
        let bits = other.load_octets()?.saturating_sub(octets) as f64 * 8.0;
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
    other.start_load()?;
    let before = other.load_octets()?;
    let has_come = |octets| Ok(other.load_octets()? >= before.saturating_add(octets));
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
    use super::*;

    fn arrived(sequence: u64, sent_ms: u64, at_ms: u64) -> ArrivalRecord {
        let at = |ms: u64| Tai::from_nanos(ms * 1_000_000);
        ArrivalRecord {
            probe: Probe { sequence, tx_time: at(sent_ms) },
            kernel_at: Some(at(at_ms)),
            received_at: Some(at(at_ms + 1)),
        }
    }

    #[test]
    fn an_arrival_before_the_transmit_time_says_that_the_clocks_do_not_agree() {
        let sent = |frame: &ArrivalRecord| Some(frame.probe.tx_time);
        let frames = [arrived(1, 100, 100), arrived(2, 101, 98)];
        let early = before(&frames, sent, Nanos::from_millis(2)).unwrap();
        assert!(early.contains("frame 2 arrived") && early.contains("do not agree"), "{early}");
        assert_eq!(before(&frames, sent, Nanos::from_millis(3)), None);
        assert_eq!(before(&frames, |_| None, Nanos::ZERO), None);
    }

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
