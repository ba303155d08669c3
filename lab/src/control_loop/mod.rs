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

use crate::container::{LEAD, PRIORITY, Path as Way, far};
use crate::daemon::{Daemon, configuration_of, cpu_share, cpu_time_of};
use crate::error::LabError;
use crate::exclusive::VOID_RULE;
use crate::experiment::{Event, Outcome, Setup, Watch, repeat_void};
use crate::observations::put_disturbance;
use crate::observers::{MEASURED, Observers, READY_MAX, TALK_EXTRA, finish};
use crate::process::Program;
use crate::receive::{PAYLOAD_OCTETS, Path, Receiver};
use crate::testbed::{Host, Testbed};
use ktsn_measure::control::{DeviceSummary, Summary};
use ktsn_measure::environment::CpuUse;
use ktsn_measure::records::{self, ArrivalRecord, RunRecords, TalkRecord};
use ktsn_measure::results::{Document, Series};
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

    /// How many runs it has.
    #[must_use]
    pub fn runs(&self) -> u64 {
        u64::from(self.rounds) * self.paths.len() as u64
    }

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
    let (_lock, directory) = plan.setup.begin(watch)?;
    let testbed = Testbed::new()?;
    for &path in plan.paths.iter().filter(|path| path.has_far_daemon()) {
        let configuration = configure(&testbed.b, &testbed.a, path);
        far::check(&plan.setup.tools, &testbed, directory.path(), &path.to_string(), &configuration)?;
    }
    let bench = Bench { plan, testbed: &testbed, directory: directory.path() };
    let mut document = Document::new("loop", plan.setup.command.clone());
    describe(plan, &mut document);
    let (mut all, mut runs, mut sequence) = (Vec::new(), Vec::new(), 0);
    for round in 1..=plan.rounds {
        let refusals = plan.setup.wait_until_quiet(watch)?;
        for &path in &plan.paths {
            watch(Event::Step(&format!("round {round}, {path}")));
            let ((mut series, run), voided) = repeat_void(&path.to_string(), watch, || {
                sequence += plan.cycles;
                bench.run(path, round, sequence - plan.cycles)
            })?;
            series.voided_rounds = Some(voided + u64::from(refusals));
            all.push(series);
            runs.push(run);
            watch(Event::Done);
        }
    }
    document.add_series(all);
    bars::compare(&mut document, &runs);
    Ok(Outcome { document, runs })
}

/// The configuration of `host`'s ktsnd on this path.
fn configure(host: &Host, peer: &Host, path: Path) -> String {
    let plain = configuration_of(host, peer);
    far::with_keys(&plain, path.way == Way::KtsnShort, path.receiver == Receiver::Expect)
}

fn describe(plan: &Plan, document: &mut Document) {
    let functional = plan.setup.functional;
    document.set_parameters(&serde_json::json!({
        "period_ns": plan.period.get(),
        "payload_octets": [PAYLOAD_OCTETS],
        "cycles": plan.cycles * u64::from(plan.rounds),
        "rounds": plan.rounds,
        "interleaved": true,
        "lead_ns": LEAD.get(),
        "void_rule": VOID_RULE,
        "latency": "the round trip: from T to the answer in the controller",
        "answer": "sent at once, without a transmit time: the kernel's on every path",
        "placement": if functional {
            "none: a functional run, its times mean nothing"
        } else {
            "controller SCHED_FIFO 40 and the worker of its ktsnd SCHED_FIFO 50 on CPU 1; device SCHED_FIFO 40 on CPU 0"
        },
    }));
}

/// What all runs share.
struct Bench<'a> {
    plan: &'a Plan,
    testbed: &'a Testbed,
    directory: &'a FilePath,
}

/// What both ends recorded of a run.
struct Recorded {
    control: Summary,
    requests: Vec<TalkRecord>,
    answers: Vec<ArrivalRecord>,
    device: DeviceSummary,
    at_device: Vec<ArrivalRecord>,
}

impl Bench<'_> {
    fn observers(&self) -> Observers<'_> {
        Observers::new(&self.plan.setup, self.directory)
    }

    /// The daemons of both nodes that the path has.
    fn daemons(&self, path: Path) -> Result<[Option<Daemon>; 2], LabError> {
        let (a, b) = (&self.testbed.a, &self.testbed.b);
        let start = |is_needed: bool, name: &str, host: &Host, peer: &Host| {
            let directory = self.directory.join(name);
            std::fs::create_dir_all(&directory).map_err(LabError::file(&directory))?;
            let start =
                || Daemon::start(&self.plan.setup.tools, host, &directory, &configure(host, peer, path));
            is_needed.then(start).transpose()
        };
        Ok([
            start(path.way.is_served() || path.has_far_daemon(), "near", a, b)?,
            start(path.has_far_daemon(), "far", b, a)?,
        ])
    }

    fn device(&self, path: Path, far: Option<&Daemon>) -> Program {
        let b = &self.testbed.b;
        let (address, namespace) =
            if path.way.in_pods() { (b.pod_address, &b.pod_namespace) } else { (b.address, &b.namespace) };
        // One more than come: it ends when it is asked to.
        let program = self.observers().program("answer", "answer", self.plan.cycles + 1);
        let program = program.args([format!("{address}:{PORT}")]).within(namespace);
        let program = self.observers().placed(program, 0, Some(40));
        match far {
            Some(far) if path.receiver == Receiver::Expect => far.expect(program, &self.plan.setup.tools),
            _ => program,
        }
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

    /// Carries one run out. The second value says why the observation, not the path, is at fault, if it is.
    fn run(
        &self,
        path: Path,
        round: u32,
        first_sequence: u64,
    ) -> Result<((Series, RunRecords), Option<String>), LabError> {
        let files = self.observers();
        files.forget(&["control", "answers", "answer"])?;
        let [near, far] = self.daemons(path)?;
        let mut device = self.device(path, far.as_ref()).start(self.directory)?;
        device.wait_ready(READY_MAX)?;
        let cpu_times = || Ok::<_, LabError>([cpu_time_of(near.as_ref())?, cpu_time_of(far.as_ref())?]);
        let (before, machine, begun) = (cpu_times()?, CpuUse::now(), Instant::now());
        let mut controller = self.controller(path, near.as_ref(), first_sequence).start(self.directory)?;
        let period = u64::try_from(self.plan.period.get()).unwrap_or(0);
        controller.wait(Duration::from_nanos(period * self.plan.cycles) + TALK_EXTRA, MEASURED)?;
        let (after, ended, elapsed) = (cpu_times()?, CpuUse::now(), begun.elapsed().as_secs_f64());
        finish(&mut device)?;
        for daemon in [near, far].into_iter().flatten() {
            daemon.stop()?;
        }
        let recorded = Recorded {
            control: files.json("control")?,
            requests: files.records("control", records::load_talk)?,
            answers: files.records("answers", records::load_arrivals)?,
            device: files.json("answer")?,
            at_device: files.records("answer", records::load_arrivals)?,
        };
        let (run, mut series) = figures(path, round, &recorded);
        let share = |index: usize| cpu_share(before[index], after[index], elapsed);
        (series.daemon_cpu_ratio, series.far_daemon_cpu_ratio) = (share(0), share(1));
        put_disturbance(&mut series, &machine, &ended);
        let stepped = recorded.control.clock_stepped.then(|| "a clock was stepped".to_owned());
        Ok(((series, run), stepped))
    }
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
