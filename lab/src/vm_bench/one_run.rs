// SPDX-License-Identifier: Apache-2.0
//! One row, once. In: the row, the other machine if there is one. Out: its figures. Both scripts run: the publisher's once the subscriber
//! listens.

use super::counters::{self, Reasons};
use super::ends::{Place, Progress, SCRIPT_EXTRA};
use super::far::{Apart, Other};
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
use ktsn_time::Tai;
use std::path::Path;
use std::time::{Duration, Instant};

/// SCHED_FIFO priorities of publisher and subscriber. The publisher's is above that of ktsnd's worker, which spins on the same CPU.
const FIFO: [u8; 2] = [60, 40];
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
        && !super::figures::has_own_clocks(plan, row)
        && let Some(problem) = untrue(&figures, &left, window, hosts.within)
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
    if let (Some(hosts), Some(apart)) = (&plan.hosts, apart) {
        let uplink = (hosts.uplinks[0].as_str(), apart.number);
        let host = Host::apart(Which::Publisher, row.datapath, uplink, directory)?;
        return Ok((host, Other::there(apart, plan, row)?));
    }
    let [host, far] = Host::pair(row.datapath, directory)?;
    let subscriber = Subscriber::begin(plan, row, far, directory, false)?;
    Ok((host, Other::Here(Box::new(subscriber))))
}

/// An arrival of another machine that cannot be of this run, if there is one.
fn untrue(figures: &Figures, left: &Left, run: [Tai; 2], within: ktsn_time::Nanos) -> Option<String> {
    let records = figures.runs.iter().flat_map(|run| &run.records);
    let mut arrivals: Vec<ArrivalRecord> = records
        .map(|record| ArrivalRecord {
            probe: Probe { sequence: record.sequence, tx_time: record.tx_time },
            kernel_at: record.kernel_at,
            received_at: record.received_at,
        })
        .collect();
    arrivals.extend(left.taps.iter().flat_map(|[_, far]| far));
    let samples = left.samples_there.iter().flat_map(|(_, samples)| samples).map(Sample::at);
    let odd = samples.into_iter().find(|at| !is_within(*at, run, within));
    let odd = odd.map(|at| format!("its sample is of {} ns, outside of the run", at.as_nanos()));
    outside(&arrivals, run, within).or(odd)
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
    left.dropped.extend(dropped);
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

/// The hosts' kernel may lack etf; that is no failure of the row.
fn impossible(row: Row, error: LabError) -> LabError {
    match error {
        LabError::Process { stderr, .. }
            if row.datapath == Datapath::NoVm && stderr.contains("this kernel has no qdisc") =>
        {
            LabError::Impossible {
                what: "this machine's kernel has no etf".to_owned(),
                remedy: "a kernel with sch_etf, or leave etf out with --schedule".to_owned(),
            }
        }
        error => error,
    }
}

/// Waits until the subscriber listens.
fn wait_until_ready(plan: &Plan, other: &mut Other<'_>) -> Result<(), LabError> {
    let until = Instant::now() + plan.boot_within + SCRIPT_EXTRA;
    loop {
        let state = other.state()?;
        if state.is_ready {
            return Ok(());
        }
        if stop_requested() {
            return Err(LabError::Stopped);
        }
        if state.has_ended || Instant::now() > until {
            let problem = "was not ready".to_owned();
            return Err(LabError::Process {
                name: "the subscriber".to_owned(),
                problem,
                stderr: String::new(),
            });
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}
