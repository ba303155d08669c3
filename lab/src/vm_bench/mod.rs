// SPDX-License-Identifier: Apache-2.0
//! The experiment `vm`: a publisher and a subscriber in guests on two hosts.
//!
//! In: a [`Plan`]. Out: a document `ktsn.results/1` with its raw records. Each row is one run: publisher and subscriber boot (or start in
//! the hosts' namespaces), the frames of all payloads follow each other, both say what they saw. Rows are interleaved in a round. Where
//! nothing keeps the guests' clocks together, the latency of a frame is known above the fastest one only (`align.rs`).

mod align;
pub mod bars;
mod counters;
mod ends;
mod figures;
mod plan;
mod script;
mod site;
mod spikes;

pub use plan::{Datapath, Keeper, Load, Plan, Row};

use crate::error::LabError;
use crate::exclusive::VOID_RULE;
use crate::experiment::{Event, Outcome, Watch, repeat_void};
use crate::observations::DEADLINE;
use crate::observers::{Observers, READY_MAX, finish};
use crate::process::Process;
use crate::vm::schedule_scene::MAGNITUDE_MEANS;
use crate::vm::{self, Machine};
use ends::{Place, Progress, SCRIPT_EXTRA};
use figures::{Figures, Left, figures};
use ktsn_measure::datapaths::SPIKES;
use ktsn_measure::environment::CpuUse;
use ktsn_measure::records;
use ktsn_measure::results::{Check, Document};
use script::{End, READY};
use site::Site;
use spikes::{Sampler, Spikes};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the publication measured each row.
const PUBLISHED_SECONDS: f64 = 100.0;
/// SCHED_FIFO priorities of publisher and subscriber. The publisher's is above that of ktsnd's worker, which spins on the same CPU.
const FIFO: [u8; 2] = [60, 40];
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Measures.
///
/// # Errors
/// [`LabError`]; everything that was set up is removed then, too.
pub fn run(plan: &Plan, watch: &mut Watch<'_>) -> Result<Outcome, LabError> {
    plan.check()?;
    plan.setup.tools.check_daemon()?;
    let (_lock, directory) = plan.setup.begin(watch)?;
    let mut document = Document::new("vm", plan.setup.command.clone());
    describe(plan, &mut document);
    let (mut all, mut runs) = (Vec::new(), Vec::new());
    let (mut impossible, mut spikes): (Vec<Row>, _) = (Vec::new(), Spikes::default());
    for round in 1..=plan.rounds {
        let refusals = plan.setup.wait_until_quiet(watch)?;
        for row in plan.rows() {
            if impossible.contains(&row) {
                watch(Event::Done);
                continue;
            }
            let name = format!("{} ({})", row.path(), row.load);
            watch(Event::Step(&format!("round {round}, {name}")));
            let measured = repeat_void(&name, watch, || {
                let figures = one_run(plan, row, round, directory.path())?;
                let fault = figures.fault.clone();
                Ok((figures, fault))
            });
            match measured {
                Ok((figures, voided)) => {
                    let Figures { series, runs: records, account, spikes: found, .. } = figures;
                    spikes.append(found);
                    let voided_rounds = Some(voided + u64::from(refusals));
                    all.extend(
                        series.into_iter().map(|one| ktsn_measure::results::Series { voided_rounds, ..one }),
                    );
                    runs.extend(records);
                    document.checks.push(account);
                }
                Err(LabError::Impossible { what, remedy }) => {
                    document.checks.push(Check::skipped(name, format!("{what}; remedy: {remedy}")));
                    impossible.push(row);
                }
                Err(error) => return Err(error),
            }
            watch(Event::Done);
        }
    }
    document.add_series(all);
    let account = serde_json::to_value(spikes.account()).unwrap_or_default();
    document.parameters.insert(SPIKES.to_owned(), account);
    bars::compare(&mut document);
    Ok(Outcome { document, runs })
}

fn describe(plan: &Plan, document: &mut Document) {
    let seconds = plan.frames as f64 * plan.period.get() as f64 / 1e9;
    let words = |words: &[&str]| words.join(",");
    document.set_parameters(&serde_json::json!({
        "period_ns": plan.period.get(),
        "frames": plan.frames,
        "payload_octets": plan.payloads,
        "rounds": plan.rounds,
        "interleaved": true,
        "seconds_of_a_row": seconds * f64::from(plan.rounds),
        "published_seconds_of_a_row": PUBLISHED_SECONDS,
        "scale": seconds * f64::from(plan.rounds) / PUBLISHED_SECONDS,
        "deadline_ns": DEADLINE.get(),
        "datapaths": words(&plan.datapaths.iter().map(|one| one.word()).collect::<Vec<_>>()),
        "schedules": words(&plan.keepers.iter().map(|one| one.word()).collect::<Vec<_>>()),
        "accelerator": plan.choice.accelerator.to_string(),
        "accelerator_reason": plan.choice.reason,
        "load": match plan.load_mbit {
            0 => "udp: iperf3, as much as its sender can, nice 19, on the hosts' CPUs".to_owned(),
            mbit => format!("udp: iperf3, {mbit} Mbit/s, nice 19, on the hosts' CPUs"),
        },
        "clock": "host: both ends read one clock; vptp, kvm: the guests' clocks follow their hosts', which is one clock here; in both \
                  cases latency is received_at - tx_time; own: guests have clocks of their own, and a frame's latency is known \
                  above the fastest frame of its row only, an offset and a constant drift removed",
        "taps": "bridge: from the publisher's tap device to the subscriber's, by the host's clock",
        "wire_at": "bridge: the kernel's stamp at the publisher's tap device, by the host's clock, which the guests' clocks follow",
        "wire_offset_magnitude": MAGNITUDE_MEANS,
        "void_rule": VOID_RULE,
    }));
}

/// One row, once.
fn one_run(plan: &Plan, row: Row, round: u32, directory: &Path) -> Result<Figures, LabError> {
    let directory = tempfile::tempdir_in(directory).map_err(LabError::system("temporary directory"))?;
    let mut site = Site::new(row.datapath, directory.path())?;
    let places = [0, 1].map(|number| place(plan, row, &site, number));
    let (begun, sampler) = (CpuUse::now(), Sampler::start());
    let mut left = carry_out(plan, row, &mut site, &places, directory.path())?;
    left.samples = sampler.end();
    let ended = CpuUse::now();
    let mut figures = figures(plan, row, round, &left, directory.path())?;
    for series in &mut figures.series {
        crate::observations::put_disturbance(series, &begun, &ended);
    }
    Ok(figures)
}

/// Where publisher (0) and subscriber (1) run.
fn place(plan: &Plan, row: Row, site: &Site, number: usize) -> Place {
    let host = &site.hosts[number];
    let datapath = match row.datapath {
        Datapath::NoVm => return Place::Namespace(host.namespace.clone()),
        Datapath::Bridge => vm::Datapath::Bridge(vm::Bridge {
            tap: site::GUEST.to_owned(),
            ..vm::Bridge::new(site::BRIDGE, Some(&host.namespace))
        }),
        Datapath::OvsDpdk => vm::Datapath::VhostUser(site.socket(number)),
    };
    let address = format!("{}/{}", site::ADDRESSES[number], site::PREFIX);
    Place::Guest(Box::new(Machine {
        datapath,
        // mqprio needs a queue for each class.
        queues: if row.keeper == Keeper::Etf { 2 } else { 1 },
        address: address.parse().ok(),
        pin: (!plan.setup.functional).then(|| vm::Cpus::one(host.cpu)),
        ..Machine::default()
    }))
}

/// The end of this number, as its script names it.
fn end(plan: &Plan, row: Row, site: &Site, number: usize, directory: &Path) -> End {
    let is_host = row.datapath == Datapath::NoVm;
    let peer = site::ADDRESSES[1 - number];
    let has_rights = !plan.setup.functional || !is_host;
    End {
        device: if is_host { site::UPLINK } else { "eth0" },
        peer,
        peer_mac: site::mac_of(peer),
        directory: if is_host {
            directory.join(format!("end-{number}")).display().to_string()
        } else {
            "/tmp/end".to_owned()
        },
        fifo: has_rights.then_some(FIFO[number]),
        cpu: (has_rights && is_host).then_some(site.hosts[number].cpu),
    }
}

/// Runs both scripts: the publisher's once the subscriber listens.
fn carry_out(
    plan: &Plan,
    row: Row,
    site: &mut Site,
    places: &[Place; 2],
    directory: &Path,
) -> Result<Left, LabError> {
    let publisher = script::publisher(plan, &end(plan, row, site, 0, directory), row.keeper);
    let subscriber = script::subscriber(plan, &end(plan, row, site, 1, directory));
    let (near, far) = (Progress::default(), Progress::default());
    let mut taps = Vec::new();
    let (mut before, mut after) = (counters::Reasons::new(), counters::Reasons::new());
    let mut load_bit_rate = None;
    std::thread::scope(|scope| {
        let far_runs = scope.spawn(|| places[1].run("subscriber", plan, &subscriber, &far));
        let done = (|| {
            wait_for(READY, &far, &far_runs, plan)?;
            let load = site.start_load(row.load, plan.load_mbit)?;
            let (octets, begun) = (site.load_octets()?, Instant::now());
            before = site.dropped()?;
            let near_runs = scope.spawn(|| places[0].run("publisher", plan, &publisher, &near));
            if row.datapath == Datapath::Bridge {
                taps = start_taps(plan, site, directory, || near_runs.is_finished())?;
            }
            let mut ended = Ok(());
            while !near_runs.is_finished() {
                ended = ended.and(site.check_switches());
                // The subscriber ends after the publisher's last frames; before them only if it failed.
                if ended.is_err() || (far_runs.is_finished() && !far.has("far-after")) {
                    near.end();
                }
                std::thread::sleep(LOOK_AGAIN);
            }
            let published = joined(near_runs.join());
            if row.load != Load::Idle {
                let bits = (site.load_octets()? - octets) as f64 * 8.0;
                load_bit_rate = Some(bits / begun.elapsed().as_secs_f64());
            }
            drop(load);
            ended.and(published)
        })();
        // A subscriber that has ended by now was not ended for the publisher's sake.
        let is_far_first = far_runs.is_finished();
        if done.is_err() {
            far.end();
            near.end();
        }
        let subscribed = joined(far_runs.join());
        match (done, subscribed) {
            (Err(first), Err(second)) => Err(if is_far_first { second } else { first }),
            (first, second) => first.and(second),
        }
    })
    .map_err(|error| impossible(row, error))?;
    after.extend(site.dropped()?);
    taps.iter_mut().try_for_each(finish)?;
    let taps = if taps.is_empty() { None } else { Some(tapped(plan, directory)?) };
    let dropped = counters::since(&after, &before);
    Ok(Left {
        near: near.into_files(),
        far: far.into_files(),
        taps,
        dropped,
        load_bit_rate,
        samples: Vec::new(),
    })
}

fn joined(ended: std::thread::Result<Result<(), LabError>>) -> Result<(), LabError> {
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
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

/// Waits until the subscriber has written a file.
fn wait_for(
    file: &str,
    far: &Progress,
    far_runs: &std::thread::ScopedJoinHandle<'_, Result<(), LabError>>,
    plan: &Plan,
) -> Result<(), LabError> {
    let until = Instant::now() + plan.boot_within + SCRIPT_EXTRA;
    while !far.has(file) {
        if ktsn_measure::clock::stop_requested() {
            return Err(LabError::Stopped);
        }
        if far_runs.is_finished() || Instant::now() > until {
            let problem = "was not ready".to_owned();
            return Err(LabError::Process {
                name: "the subscriber".to_owned(),
                problem,
                stderr: String::new(),
            });
        }
    }
    Ok(())
}

const TAPS: [&str; 2] = ["tap-near", "tap-far"];

/// Observers at both guests' tap devices.
fn start_taps(
    plan: &Plan,
    site: &Site,
    directory: &Path,
    has_ended: impl Fn() -> bool,
) -> Result<Vec<Process>, LabError> {
    let observers = Observers::new(&plan.setup, directory);
    let mut taps = Vec::new();
    for (host, name) in site.hosts.iter().zip(TAPS) {
        let shown = format!("/run/netns/{}", host.namespace);
        let line = format!("ip -n {} link show dev {}", host.namespace, site::GUEST);
        // The device comes with the guest.
        let until = Instant::now() + READY_MAX;
        while crate::command::output(None, &line).is_err() {
            if has_ended() || Instant::now() > until {
                let problem = format!("the device {} did not come", site::GUEST);
                return Err(LabError::Contents { path: shown.into(), problem });
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        let frames = plan.frames * plan.payloads.len() as u64;
        let program = observers.program(name, "tap", frames);
        let program = program.args([site::GUEST, "--outgoing", "--port", &script::PORT.to_string()]);
        let mut tap = program.within(&host.namespace).start(directory)?;
        tap.wait_ready(READY_MAX)?;
        taps.push(tap);
    }
    Ok(taps)
}

fn tapped(plan: &Plan, directory: &Path) -> Result<[Vec<records::ArrivalRecord>; 2], LabError> {
    let observers = Observers::new(&plan.setup, directory);
    let [near, far] = TAPS.map(|name| observers.records(name, records::load_arrivals));
    Ok([near?, far?])
}

#[cfg(test)]
mod tests;
