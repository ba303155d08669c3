// SPDX-License-Identifier: Apache-2.0
//! The experiment `loop`: a controller's pod asks at T, the device's pod answers at once, the controller needs the answer by
//! its deadline.
//!
//! In: a [`Plan`]. Out: a document `ktsn.results/1` with its raw records. Rounds and paths are interleaved; nothing is
//! repeated for what it shows. `latency` is the round trip: from T to the answer in the controller.
//!
//! ```text
//!  CPU 1, pod A  controller (FIFO 40) ── request at T ──►  device (FIFO 40)   CPU 0, pod B
//!                worker of ktsnd (50)  ◄───── answer ────  worker of ktsnd: idle
//! ```
//!
//! On KTSN's paths the request has a transmit time and is sent 300 µs ahead. The answer has none: the kernel sends it.

pub mod bars;
mod device;
pub mod far;

use crate::carry_out::{Experiment, Measured, Session, Turn, carry_out};
use crate::container::receiving_daemon::with_keys;
use crate::container::{LEAD, PRIORITY, Path as Way};
use crate::daemon::{Daemon, configuration_of, cpu_share, cpu_time_of};
use crate::error::LabError;
use crate::experiment::{Outcome, Setup, Watch};
use crate::observations::put_disturbance;
use crate::observers::{MEASURED, Observers, READY_MAX, TALK_EXTRA};
use crate::process::Program;
use crate::receive::{PAYLOAD_OCTETS, Path, Receiver};
use crate::remote::hosts::{ANSWER_MAX, Hosts, Known, impossible};
use crate::testbed::{Host, Testbed};
use device::Device;
use far::{End, Question};
use ktsn_measure::clock::tai_now;
use ktsn_measure::control::{DeviceSummary, Summary};
use ktsn_measure::environment::CpuUse;
use ktsn_measure::records::{self, ArrivalRecord, RunRecords, TalkRecord};
use ktsn_measure::results::{Check, Document, Series};
use ktsn_measure::series::{Facts, WireSource};
use ktsn_measure::stats::Statistics;
use ktsn_time::Nanos;
use std::path::Path as FilePath;
use std::time::{Duration, Instant};

/// The device's port.
const PORT: u16 = 7100;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The paths, in the order of each round.
    pub paths: Vec<Path>,
    /// Rounds.
    pub rounds: u32,
    /// Cycles of one run: one path and round.
    pub cycles: u64,
    /// Length of a cycle.
    pub period: Nanos,
    /// The device's host, if it is another machine.
    pub hosts: Option<Hosts>,
    /// Programs, lock, command.
    pub setup: Setup,
}

impl Plan {
    /// The paths that are measured unless some are named, in the order of tables.
    pub const PATHS: [Path; 7] = [
        Path::FLANNEL,
        Path::FLANNEL_EXPECT,
        Path { way: Way::Bare, receiver: Receiver::Kernel },
        Path { way: Way::Ktsn, receiver: Receiver::Kernel },
        Path::KTSN_EXPECT,
        Path::SHORT,
        Path::SHORT_EXPECT,
    ];

    /// # Errors
    /// [`LabError::Usage`] names what cannot be measured.
    pub fn check(&self) -> Result<(), LabError> {
        let usage = |text: String| Err(LabError::Usage(text));
        if self.paths.is_empty() || self.rounds == 0 || self.cycles == 0 {
            return usage("nothing to measure: expected a path, a round and a cycle at least".to_owned());
        }
        if !(Nanos::from_micros(500)..=Nanos::from_seconds(1)).contains(&self.period) {
            return usage(format!("period: {}: expected 500 us to 1 s", self.period));
        }
        match self.paths.iter().find(|path| path.receiver == Receiver::Spin) {
            Some(path) => usage(format!("path: {path}: no end of the loop spins; {}", known())),
            None => Ok(()),
        }
    }
}

fn known() -> String {
    format!("expected {}", Plan::PATHS.map(|path| path.to_string()).join(", "))
}

/// Measures, and holds the results against the bars of `loop`.
///
/// # Errors
/// [`LabError`]; everything that was set up is removed then, too.
pub fn run(plan: &Plan, watch: &mut Watch<'_>) -> Result<Outcome, LabError> {
    plan.check()?;
    if plan.paths.iter().any(|path| path.way.is_served() || path.has_far_daemon()) {
        plan.setup.tools.check_daemon()?;
    }
    let measure = |session: &mut Session<'_>| {
        let directory = crate::carry_out::directory()?;
        let directory = directory.path();
        let (testbed, mut end, known) = set_up(plan, directory)?;
        for path in plan.paths.iter().filter(|path| path.has_far_daemon()) {
            let () = end.ask(Question::Check(path.to_string()), ANSWER_MAX)?;
        }
        describe(plan, &mut session.document);
        let mut loops = Loops { plan, testbed: &testbed, directory, end };
        session.measure_between(&mut loops, plan.rounds, plan.hosts.as_ref().zip(known))
    };
    carry_out(&plan.setup.terms("loop"), watch, measure, bars::compare)
}

/// The testbed, or this machine's half of it, and the device's end.
fn set_up(plan: &Plan, directory: &FilePath) -> Result<(Testbed, End, Option<Known>), LabError> {
    if let Some(hosts) = &plan.hosts {
        let (testbed, end, known) = far::begin(hosts, plan.setup.functional)?;
        return Ok((testbed, end, Some(known)));
    }
    let testbed = Testbed::new()?;
    let device = Device::new(&plan.setup, &testbed.b, &testbed.a, directory.to_owned());
    Ok((testbed, far::here(device), None))
}

/// The configuration of `host`'s ktsnd on this path.
fn configure(host: &Host, peer: &Host, path: Path) -> String {
    let plain = configuration_of(host, peer);
    with_keys(&plain, path.way == Way::KtsnShort, path.receiver == Receiver::Expect)
}

fn describe(plan: &Plan, document: &mut Document) {
    let functional = plan.setup.functional;
    document.set_parameters(&serde_json::json!({
        "period_ns": plan.period.get(),
        "payload_octets": [PAYLOAD_OCTETS],
        "cycles": plan.cycles * u64::from(plan.rounds),
        "lead_ns": LEAD.get(),
        "latency": "the round trip: from T to the answer in the controller",
        "answer": "sent at once, without a transmit time: the kernel's on every path",
        "placement": if functional {
            "none: a functional run, its times mean nothing"
        } else {
            "controller SCHED_FIFO 40 and the worker of its ktsnd SCHED_FIFO 50 on CPU 1; device SCHED_FIFO 40 on CPU 0"
        },
    }));
}

/// Controller and device in their testbed.
struct Loops<'a> {
    plan: &'a Plan,
    testbed: &'a Testbed,
    directory: &'a FilePath,
    end: End,
}

/// What both ends recorded of a run.
struct Recorded {
    control: Summary,
    requests: Vec<TalkRecord>,
    answers: Vec<ArrivalRecord>,
    device: DeviceSummary,
    at_device: Vec<ArrivalRecord>,
}

impl Loops<'_> {
    fn observers(&self) -> Observers<'_> {
        Observers::new(&self.plan.setup, self.directory)
    }

    /// The daemon of the controller's node, if the path has one.
    fn daemon(&self, path: Path) -> Result<Option<Daemon>, LabError> {
        if !path.way.is_served() && !path.has_far_daemon() {
            return Ok(None);
        }
        let directory = self.directory.join("near");
        std::fs::create_dir_all(&directory).map_err(LabError::file(&directory))?;
        let (a, b) = (&self.testbed.a, &self.testbed.b);
        Daemon::start(&self.plan.setup.tools, a, &directory, &configure(a, b, path)).map(Some)
    }

    fn controller(&self, path: Path, near: Option<&Daemon>, first_sequence: u64) -> Program {
        let (a, b) = (&self.testbed.a, &self.testbed.b);
        let (to, namespace) =
            if path.way.in_pods() { (b.pod_address, &a.pod_namespace) } else { (b.address, &a.namespace) };
        let program = self.observers().program("control", "control", self.plan.cycles).args([
            format!("{to}:{PORT}"),
            format!("--payload={PAYLOAD_OCTETS}"),
            format!("--period={}ns", self.plan.period.get()),
            format!("--first-sequence={first_sequence}"),
            format!("--priority={PRIORITY}"),
        ]);
        let answers = self.observers().file("answers", "csv");
        let program = program.args(["--answers".as_ref(), answers.as_os_str()]).within(namespace);
        let program = self.observers().placed(program, 1, Some(40));
        let tools = &self.plan.setup.tools;
        let program = match near {
            Some(near) if path.way.is_served() => {
                near.serve(program, tools, self.testbed).args([format!("--lead={}ns", LEAD.get())])
            }
            _ => program,
        };
        match near {
            Some(near) if path.receiver == Receiver::Expect => near.expect(program, tools),
            _ => program,
        }
    }
}

impl Experiment for Loops<'_> {
    type Row = Path;
    type Extra = ();

    fn rows(&self) -> Vec<Path> {
        self.plan.paths.clone()
    }

    fn name(&self, path: &Path) -> String {
        path.to_string()
    }

    fn prepare(&mut self, _: &Path, watch: &mut Watch<'_>) -> Result<u32, LabError> {
        self.end.wait_until_quiet(watch)
    }

    fn run(&mut self, &path: &Path, turn: &mut Turn<'_>) -> Result<Measured, LabError> {
        let cycles = self.plan.cycles;
        self.observers().forget(&["control", "answers"])?;
        let near = self.daemon(path)?;
        let begin = Question::Begin { path: path.to_string(), cycles };
        let () = self.end.ask(begin, ANSWER_MAX + READY_MAX)?;
        let (before, machine, begun) = (cpu_time_of(near.as_ref())?, CpuUse::now(), Instant::now());
        let window = tai_now();
        let mut controller =
            self.controller(path, near.as_ref(), turn.number * cycles).start(self.directory)?;
        let period = u64::try_from(self.plan.period.get()).unwrap_or(0);
        controller.wait(Duration::from_nanos(period * cycles) + TALK_EXTRA, MEASURED)?;
        let after = cpu_time_of(near.as_ref())?;
        let (ended, elapsed) = (CpuUse::now(), begun.elapsed().as_secs_f64());
        let far_share: Option<f64> = self.end.ask(Question::End, ANSWER_MAX)?;
        for ending in ["csv", "json"] {
            self.end.fetch(&format!("{}.{ending}", device::NAME), self.directory, cycles)?;
        }
        near.map_or(Ok(()), Daemon::stop)?;
        let files = self.observers();
        let recorded = Recorded {
            control: files.json("control")?,
            requests: files.records("control", records::load_talk)?,
            answers: files.records("answers", records::load_arrivals)?,
            device: files.json(device::NAME)?,
            at_device: files.records(device::NAME, records::load_arrivals)?,
        };
        let mut checks = Vec::new();
        if let (Some(hosts), Some(far)) = (&self.plan.hosts, self.end.far()) {
            let of = |arrival: &ArrivalRecord| [arrival.kernel_at, arrival.received_at].into_iter().flatten();
            let instants = recorded.at_device.iter().flat_map(of);
            let odd = impossible([window, tai_now()], hosts.within, instants, []);
            odd.map_or(Ok(()), |problem| Err(far.refuse(problem)))?;
            checks.push(account(path, turn.round, &recorded));
        }
        let (run, mut series) = figures(path, turn.round, &recorded);
        series.daemon_cpu_ratio = cpu_share(before, after, elapsed);
        series.far_daemon_cpu_ratio = far_share;
        put_disturbance(&mut series, &machine, &ended);
        Ok(Measured { checks, ..Measured::one((series, run), None) })
    }
}

/// Where requests and answers of a run between two machines were counted, and where they were lost.
fn account(path: Path, round: u32, Recorded { control, device, .. }: &Recorded) -> Check {
    let counts = [
        ("sent", control.frames_sent),
        ("arrived at the device", device.answered + device.refused),
        ("answered", device.answered),
        ("answers arrived", control.answers),
    ];
    let shown = counts.map(|(what, count)| format!("{count} {what}")).join(", ");
    let is_whole = counts.iter().all(|(_, count)| *count == control.frames_sent);
    Check::of(format!("{path}, round {round}: counts of both hosts"), is_whole, Some(shown))
}

/// The run's records and figures.
fn figures(path: Path, round: u32, recorded: &Recorded) -> (RunRecords, Series) {
    let is_served = path.way.is_served();
    let (joined, counts) = records::join(&recorded.requests, &[], &recorded.answers, !is_served);
    let run = RunRecords {
        path: path.to_string(),
        payload_octets: PAYLOAD_OCTETS,
        load: Some("idle".to_owned()),
        round,
        records: joined,
    };
    let facts = Facts {
        frames_intended: recorded.control.cycles,
        counts,
        wire: WireSource::Tap,
        deadline: None,
        transmit: None,
    };
    let requests = recorded
        .at_device
        .iter()
        .filter_map(|request| Some(request.received_at?.since(request.probe.tx_time)));
    let missed = |deadline| Some(bars::missed_ratio(&run, recorded.control.cycles, deadline));
    let series = Series {
        load: run.load.clone(),
        egress: Some(if is_served { "uplink" } else { "kernel" }.to_owned()),
        overlay: path.way.in_pods().then(|| "vxlan-routed".to_owned()),
        ingress: Some(path.way.ingress().to_owned()),
        request_ns: Statistics::of(requests),
        missed_250us_ratio: missed(Nanos::from_micros(250)),
        missed_500us_ratio: missed(Nanos::from_micros(500)),
        missed_1ms_ratio: missed(Nanos::from_millis(1)),
        talker_cpu_ratio: Some(recorded.control.cpu_ratio),
        listener_cpu_ratio: Some(recorded.device.cpu_ratio),
        ..Series::of_run(&run, &facts)
    };
    (run, series)
}

#[cfg(test)]
mod tests;
