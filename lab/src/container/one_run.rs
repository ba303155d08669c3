// SPDX-License-Identifier: Apache-2.0
//! One run: one path, payload and round. In: the testbed and a daemon or none. Out: joined records and their figures.
//!
//! ```text
//!  tap ready ── listener ready ── counters ── talker ─────── listener ends ── tap ends ── counters ── join
//! ```

use super::load::Load;
use super::path::Path;
use super::plan::Plan;
use super::qdisc::{Etf, Qdisc};
use super::switch::{SENDER_MAX, Switch, Switched};
use super::{capture, receiving_daemon};
use crate::carry_out::Measured;
use crate::daemon::{Daemon, cpu_share, cpu_time_of};
use crate::error::LabError;
use crate::observations::{DaemonUse, Observations, PRIORITY, RunLabel, put_disturbance};
use crate::observers::{MEASURED, Observers, READY_MAX, TALK_EXTRA, finish};
use crate::process::Program;
use crate::testbed::{Testbed, UPLINK};
use ktsn_measure::environment::CpuUse;
use ktsn_measure::records::TalkRecord;
use ktsn_time::Nanos;
use std::path::Path as FilePath;
use std::time::Duration;

/// The listener's port, and the source port of whole frames.
const PORT: u16 = 7000;
const SOURCE_PORT: u16 = 40_000;
/// What all runs share.
pub(crate) struct Bench<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) testbed: &'a Testbed,
    pub(crate) daemon: Option<&'a Daemon>,
    pub(crate) directory: &'a FilePath,
    /// Host A's switch; only the paths through it have one.
    pub(crate) switch: Option<&'a Switch>,
}

/// What one run has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) path: Path,
    pub(super) payload: usize,
    pub(super) load: Load,
    pub(super) etf: Option<Etf>,
}

impl Row {
    /// The path's name in the results.
    pub(super) fn series(&self) -> String {
        format!("{}{}", self.path, self.etf.map_or_else(String::new, Etf::suffix))
    }
}

/// The talker's send calls of one run.
#[derive(Clone, Debug)]
pub(super) struct SendCalls {
    /// Spans of the talker's calls, nanoseconds; of captured frames only.
    pub(super) spans: Vec<u64>,
    /// Time inside the talker's send calls over elapsed time; CPU time, unless the calls are interrupted.
    pub(super) share: f64,
}

impl Bench<'_> {
    /// Runs of the paths through the switch.
    pub(super) fn through<'b>(switched: &'b Switched, plan: &'b Plan) -> Bench<'b> {
        let Switched { daemon, switch, testbed } = switched;
        Bench { plan, testbed, daemon: Some(daemon), directory: &switch.directory, switch: Some(switch) }
    }

    pub(crate) fn observers(&self) -> Observers<'_> {
        Observers::new(&self.plan.setup, self.directory)
    }

    fn observer(&self, verb: &str) -> Program {
        self.observers().program(verb, verb, self.plan.frames)
    }

    pub(crate) fn tap(&self) -> Program {
        let port = PORT.to_string();
        self.observer("tap").args([UPLINK, "--port", &port]).within(&self.testbed.b.namespace)
    }

    pub(crate) fn listener(&self, path: Path) -> Program {
        let b = &self.testbed.b;
        let (address, namespace) =
            if path.in_pods() { (b.pod_address, &b.pod_namespace) } else { (b.address, &b.namespace) };
        let program = self.observer("listen").args([format!("{address}:{PORT}")]).within(namespace);
        self.observers().placed(program, 0, Some(40))
    }

    /// `margin`: how long a talker spins that sends whole frames.
    pub(crate) fn talker(&self, path: Path, payload: usize, first_sequence: u64, margin: Nanos) -> Program {
        let (a, b) = (&self.testbed.a, &self.testbed.b);
        let (to, namespace) =
            if path.in_pods() { (b.pod_address, &a.pod_namespace) } else { (b.address, &a.namespace) };
        let verb = if path.mode() == "poll" { "frames" } else { "talk" };
        let program = self.observers().program("talk", verb, self.plan.frames).args([
            format!("--payload={payload}"),
            format!("--period={}ns", self.plan.period.get()),
            format!("--first-sequence={first_sequence}"),
        ]);
        let program = self.observers().placed(program, 1, path.fifo());
        if verb == "frames" {
            let from = if path.in_pods() { a.pod_address } else { a.address };
            let ends = ["--ends".to_owned(), format!("{from}:{SOURCE_PORT}"), format!("{to}:{PORT}")];
            let margin = format!("--spin-margin={}ns", margin.get());
            let program = program.args(ends).args([margin]).within(namespace);
            return match self.switch.filter(|_| path.is_switched()) {
                Some(switch) => switch.sender(program, b),
                None => program.args(["--device", UPLINK, "--macs", &a.uplink_mac, &b.uplink_mac]),
            };
        }
        let program = program.args([
            format!("{to}:{PORT}"),
            format!("--priority={PRIORITY}"),
            format!("--mode={}", path.mode()),
            format!("--lead={}ns", self.plan.lead.get()),
            format!("--clock={}", path.clock()),
        ]);
        match self.daemon {
            Some(daemon) if path.is_preloaded() => {
                daemon.serve(program, &self.plan.setup.tools, self.testbed)
            }
            _ => program.within(namespace),
        }
    }

    /// Carries one run out.
    pub(super) fn run(
        &self,
        row: Row,
        round: u32,
        first_sequence: u64,
        margin: Nanos,
    ) -> Result<Measured<SendCalls>, LabError> {
        let path = row.path;
        let daemon = self.daemon.filter(|_| path.is_served());
        self.observers().forget(&["talk", "listen", "tap"])?;
        // Only now: the load rule judges what others do.
        let load = row.load.start(self.testbed, self.directory, self.plan.setup.functional)?;
        // And only now: what it takes in would be missing on every other path.
        let short = path == Path::KtsnShort;
        let far = short
            .then(|| receiving_daemon::start(&self.plan.setup.tools, self.testbed, self.directory))
            .transpose()?;
        let _qdisc = Qdisc::put(path, row.etf, &self.testbed.a)?;
        let _running = self.switch.map(Switch::go_on).transpose()?;
        let mut tap = self.tap().start(self.directory)?;
        let mut listener = self.listener(path).start(self.directory)?;
        tap.wait_ready(READY_MAX)?;
        listener.wait_ready(READY_MAX)?;
        let counted = daemon.map(Daemon::statistics).transpose()?;
        let far_cpu = cpu_time_of(far.as_ref())?;
        let loaded = load.octets(self.testbed)?;
        let (mut machine, mut begun) = (CpuUse::now(), std::time::Instant::now());
        let later = row.etf.filter(|etf| etf.is_asked_later);
        let later = later.map(|etf| format!("--ask-later={}ns", etf.delta.get()));
        let talker = self.talker(path, row.payload, first_sequence, margin).args(later);
        let mut talker = talker.start(self.directory)?;
        if path == Path::DpdkVirtioUser {
            // It makes its device first, and the switch finds it within seconds.
            talker.wait_ready(SENDER_MAX)?;
            (machine, begun) = (CpuUse::now(), std::time::Instant::now());
        }
        let period = u64::try_from(self.plan.period.get()).unwrap_or(0);
        talker.wait(Duration::from_nanos(period * self.plan.frames) + TALK_EXTRA, MEASURED)?;
        let (ended, elapsed) = (CpuUse::now(), begun.elapsed().as_secs_f64());
        let loaded = load.octets(self.testbed)?.zip(loaded).map(|(now, then)| now.saturating_sub(then));
        finish(&mut listener)?;
        // The listener's end means that the last frame has passed the tap as well.
        let counted = match (daemon, counted) {
            (Some(daemon), Some(before)) => Some(DaemonUse::since(daemon, &daemon.statistics()?, &before)?),
            _ => None,
        };
        let far_cpu = cpu_share(far_cpu, cpu_time_of(far.as_ref())?, elapsed);
        far.map_or(Ok(()), Daemon::stop)?;
        finish(&mut tap)?;
        let files = self.observers();
        let observations = Observations::read(&files, &files, &files)?;
        let (run, mut series) = observations.figures(&label(&row.series(), row, round), counted.as_ref());
        put_disturbance(&mut series, &machine, &ended);
        series.load_bit_rate = loaded.map(|octets| octets as f64 * 8.0 / elapsed);
        if let Some(counted) = counted {
            counted.fill_in(&mut series, elapsed);
            series.far_daemon_cpu_ratio = far_cpu;
        }
        let calls = if path == Path::KtsnCapture { capture::calls(&observations.talked) } else { Vec::new() };
        let share = in_calls(&observations.talked) / elapsed;
        let fault = observations.fault(&run);
        Ok(Measured::one((series, run), fault).with(SendCalls { spans: calls, share }))
    }
}

fn label(series: &str, row: Row, round: u32) -> RunLabel<'_> {
    let Row { path, payload, load, .. } = row;
    RunLabel {
        path: series,
        is_kept: path.is_served() || path.has_qdisc(),
        egress: path.egress(),
        is_overlay: path.in_pods(),
        ingress: path.ingress(),
        payload,
        load: load.word(),
        round,
    }
}

/// Seconds inside the talker's send calls.
fn in_calls(talked: &[TalkRecord]) -> f64 {
    talked.iter().map(|talk| talk.returned_at.since(talk.called_at).get() as f64 / 1e9).sum()
}
