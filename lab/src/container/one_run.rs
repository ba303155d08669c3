// SPDX-License-Identifier: Apache-2.0
//! One run: one path, payload and round. In: the testbed and a daemon or none. Out: joined records and their figures.
//!
//! ```text
//!  tap ready ── listener ready ── counters ── talker ─────── listener ends ── tap ends ── counters ── join
//! ```

use super::{DEADLINE, LEAD, Path, Plan, bars};
use crate::daemon::{Counters, Daemon};
use crate::error::LabError;
use crate::process::{Process, Program};
use crate::testbed::{Testbed, UPLINK};
use ktsn_measure::environment::CpuUse;
use ktsn_measure::records::{self, ArrivalRecord, RunRecords, TalkRecord};
use ktsn_measure::results::Series;
use ktsn_measure::series::{Facts, WireSource, untapped};
use ktsn_measure::{listener, talker, tap};
use serde::de::DeserializeOwned;
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

/// The listener's port.
const PORT: u16 = 7000;
/// SO_PRIORITY of every talker, and so the traffic class.
const PRIORITY: u8 = 6;
/// Longest wait for a process to be ready.
const READY_MAX: Duration = Duration::from_secs(5);
/// What a talker needs beyond its frames.
const TALK_EXTRA: Duration = Duration::from_secs(5);
/// A frame that has not arrived this long after the last one was sent is lost.
const LINGER: Duration = Duration::from_millis(300);
/// Longest wait for a process that was asked to end.
const END_MAX: Duration = Duration::from_secs(5);
/// Exit statuses of an observer that has written its files: 1 says that something was missing, and the files what.
const MEASURED: &[i32] = &[0, 1];

/// What all runs share.
pub(super) struct Bench<'a> {
    pub(super) plan: &'a Plan,
    pub(super) testbed: &'a Testbed,
    pub(super) daemon: Option<Daemon>,
    pub(super) directory: &'a FilePath,
}

/// What one run gave.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    pub(super) series: Series,
    pub(super) run: RunRecords,
    /// Why the observation, not the path, is at fault.
    pub(super) broken: Option<String>,
}

/// What the three observers wrote.
struct Told {
    talk: talker::Summary,
    talked: Vec<TalkRecord>,
    listen: listener::Summary,
    listened: Vec<ArrivalRecord>,
    tap: tap::Summary,
    tapped: Vec<ArrivalRecord>,
}

impl Bench<'_> {
    fn file(&self, observer: &str, ending: &str) -> PathBuf {
        self.directory.join(format!("{observer}.{ending}"))
    }

    /// `ktsn VERB …` with its files.
    fn observer(&self, verb: &str) -> Program {
        let (records, json) = (self.file(verb, "csv"), self.file(verb, "json"));
        Program::new(verb, &self.plan.tools.ktsn)
            .args([
                verb.as_ref(),
                "--records".as_ref(),
                records.as_os_str(),
                "--json".as_ref(),
                json.as_os_str(),
            ])
            .args(["--count".to_owned(), self.plan.frames.to_string()])
            .says_ready()
    }

    fn placed(&self, program: Program, cpu: u8, fifo: Option<u8>) -> Program {
        if self.plan.functional {
            return program;
        }
        let program = program.args(["--cpu".to_owned(), cpu.to_string()]);
        fifo.map_or(program.clone(), |fifo| program.args(["--fifo".to_owned(), fifo.to_string()]))
    }

    fn tap(&self) -> Program {
        let port = PORT.to_string();
        self.observer("tap").args([UPLINK, "--port", &port]).within(&self.testbed.b.namespace)
    }

    fn listener(&self, path: Path) -> Program {
        let b = &self.testbed.b;
        let (address, namespace) =
            if path.in_pods() { (b.pod_address, &b.pod_namespace) } else { (b.address, &b.namespace) };
        let program = self.observer("listen").args([format!("{address}:{PORT}")]).within(namespace);
        self.placed(program, 0, Some(40))
    }

    fn talker(&self, path: Path, payload: usize, first_sequence: u64) -> Program {
        let (a, b) = (&self.testbed.a, &self.testbed.b);
        let (to, namespace) =
            if path.in_pods() { (b.pod_address, &a.pod_namespace) } else { (b.address, &a.namespace) };
        let program = self.observer("talk").args([
            format!("{to}:{PORT}"),
            format!("--payload={payload}"),
            format!("--period={}ns", self.plan.period.get()),
            format!("--first-sequence={first_sequence}"),
            format!("--priority={PRIORITY}"),
            format!("--mode={}", path.mode()),
            format!("--lead={}ns", LEAD.get()),
            "--clock=tai".to_owned(),
        ]);
        let program = self.placed(program, 1, path.fifo());
        match &self.daemon {
            Some(daemon) if path == Path::Ktsn => daemon.serve(program, &self.plan.tools, self.testbed),
            _ => program.within(namespace),
        }
    }

    /// Carries one run out.
    pub(super) fn run(
        &self,
        path: Path,
        payload: usize,
        round: u32,
        first_sequence: u64,
    ) -> Result<Observed, LabError> {
        let daemon = self.daemon.as_ref().filter(|_| path == Path::Ktsn);
        self.forget()?;
        let mut tap = self.tap().start(self.directory)?;
        let mut listener = self.listener(path).start(self.directory)?;
        tap.wait_ready(READY_MAX)?;
        listener.wait_ready(READY_MAX)?;
        let counted = daemon.map(Daemon::statistics).transpose()?;
        let (machine, begun) = (CpuUse::now(), std::time::Instant::now());
        let mut talker = self.talker(path, payload, first_sequence).start(self.directory)?;
        let period = u64::try_from(self.plan.period.get()).unwrap_or(0);
        talker.wait(Duration::from_nanos(period * self.plan.frames) + TALK_EXTRA, MEASURED)?;
        let disturbance = CpuUse::now().since(&machine);
        let elapsed = begun.elapsed();
        finish(&mut listener)?;
        // The listener's end means that the last frame has passed the tap as well.
        let counted = match (daemon, counted) {
            (Some(daemon), Some(before)) => {
                Some((daemon.statistics()?.since(&before), daemon.resident_octets()?))
            }
            _ => None,
        };
        finish(&mut tap)?;
        let told = self.told()?;
        let mut observed =
            observed(path, payload, round, &told, counted.as_ref().map(|(counters, _)| counters));
        let series = &mut observed.series;
        series.steal_ratio = Some(disturbance.steal_ratio);
        series.cpu_pressure_some_ratio = disturbance.cpu_pressure_some_ratio;
        if let Some((counters, resident_octets)) = counted {
            series.daemon_cpu_ratio = Some(counters.cpu.as_secs_f64() / elapsed.as_secs_f64());
            series.daemon_rss_octets = Some(resident_octets);
            series.overrun = Some(counters.overrun);
            series.dropped = counters.dropped;
            series.bypassed = counters.bypassed;
        }
        Ok(observed)
    }

    /// Removes the files of the run before: what is read afterwards is of this one.
    fn forget(&self) -> Result<(), LabError> {
        for observer in ["talk", "listen", "tap"] {
            for path in ["csv", "json"].map(|ending| self.file(observer, ending)) {
                match std::fs::remove_file(&path) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        return Err(LabError::file(path)(error));
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn told(&self) -> Result<Told, LabError> {
        Ok(Told {
            talk: self.json("talk")?,
            talked: self.records("talk", records::load_talk)?,
            listen: self.json("listen")?,
            listened: self.records("listen", records::load_arrivals)?,
            tap: self.json("tap")?,
            tapped: self.records("tap", records::load_arrivals)?,
        })
    }

    fn json<T: DeserializeOwned>(&self, observer: &str) -> Result<T, LabError> {
        let path = self.file(observer, "json");
        let text = std::fs::read_to_string(&path).map_err(LabError::file(&path))?;
        serde_json::from_str(&text).map_err(|error| LabError::Contents { path, problem: error.to_string() })
    }

    fn records<T>(
        &self,
        observer: &str,
        load: fn(&FilePath) -> Result<Vec<T>, records::RecordsError>,
    ) -> Result<Vec<T>, LabError> {
        let path = self.file(observer, "csv");
        load(&path).map_err(|error| LabError::Contents { path, problem: error.to_string() })
    }
}

/// Lets an observer see what is still under way, then ends it; it writes its files at its end.
fn finish(observer: &mut Process) -> Result<(), LabError> {
    if observer.wait_any(LINGER)?.is_none() {
        observer.ask_to_end()?;
    }
    observer.wait(END_MAX, MEASURED).map(drop)
}

fn observed(path: Path, payload: usize, round: u32, told: &Told, counted: Option<&Counters>) -> Observed {
    // Under KTSN the hand-over to the port is the daemon's, not the talker's call.
    let handed = path != Path::Ktsn;
    let (joined, counts) = records::join(&told.talked, &told.tapped, &told.listened, handed);
    let run = RunRecords { path: path.name().to_owned(), payload_octets: payload, round, records: joined };
    let facts = Facts {
        frames_intended: told.talk.frames_intended,
        counts,
        wire: WireSource::Tap,
        deadline: Some(DEADLINE),
        transmit: counted.and_then(Counters::transmit_figures),
    };
    let overlay = path.in_pods().then(|| "vxlan-routed".to_owned());
    let series = Series {
        load: Some(bars::LOAD.to_owned()),
        class: Some(PRIORITY),
        egress: Some(if path == Path::Ktsn { "uplink" } else { "kernel" }.to_owned()),
        overlay,
        ingress: Some("kernel".to_owned()),
        talker_cpu_ratio: Some(told.talk.cpu_ratio),
        listener_cpu_ratio: Some(told.listen.cpu_ratio),
        ..Series::of_run(&run, &facts)
    };
    let broken = broken(told, &run);
    Observed { series, run, broken }
}

/// Whether an observer failed, by the void rule.
fn broken(told: &Told, run: &RunRecords) -> Option<String> {
    if told.talk.clock_stepped || told.listen.clock_stepped || told.tap.clock_stepped {
        return Some("a clock was stepped".to_owned());
    }
    if told.tap.kernel_drops > 0 {
        return Some(format!("the tap's buffer lost {} frames", told.tap.kernel_drops));
    }
    match untapped(&run.records) {
        0 => None,
        count => Some(format!("the tap did not see {count} frames that the listener received")),
    }
}
