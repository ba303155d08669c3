// SPDX-License-Identifier: Apache-2.0
//! One run: one path, payload and round. In: the site and its ktsnd. Out: joined records and their figures.
//!
//! ```text
//!  tap ready ── listener ready ── counters ── talker ─────── listener ends ── tap ends ── counters ── join
//! ```

use super::{End, Plan, Way};
use crate::container::{DEADLINE, LEAD, PRIORITY};
use crate::daemon::{Counters, Daemon};
use crate::error::LabError;
use crate::observers::{MEASURED, Observers, READY_MAX, finish};
use crate::process::{Process, Program};
use ktsn_measure::environment::CpuUse;
use ktsn_measure::records::{self, ArrivalRecord, RunRecords, TalkRecord};
use ktsn_measure::results::Series;
use ktsn_measure::series::{Facts, WireSource, untapped};
use ktsn_measure::{listener, talker, tap};
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The listener's port.
const PORT: u16 = 7000;
/// A command takes this long into a pod on a busy machine.
const INTO_A_POD: Duration = Duration::from_secs(15);
/// A listener in a pod cannot be told to end: it ends this long after its last frame when some are missing. It has to
/// outlast the talker's way into its own pod.
const SILENCE: &str = "8s";

pub(super) struct Bench<'a> {
    pub(super) plan: &'a Plan,
    pub(super) daemon: Daemon,
    pub(super) directory: &'a Path,
}

/// What one run gave.
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

/// `ktsn VERB` in a pod; says on its standard output that it is ready.
fn in_pod(end: &End, verb: &str, cpu: u8, fifo: u8, frames: u64) -> Program {
    let (first, rest) =
        end.enter.split_first().map_or((end.ktsn.as_path(), &[][..]), |(f, r)| (Path::new(f), r));
    let at = |ending: &str| end.inside.join(format!("{verb}.{ending}")).into_os_string();
    let mut program = Program::new(verb, first).args(rest.iter().cloned());
    if !end.enter.is_empty() {
        program = program.args([end.ktsn.as_os_str()]);
    }
    program
        .args([verb, "--count", &frames.to_string(), "--cpu", &cpu.to_string(), "--fifo", &fifo.to_string()])
        .args(["--records".into(), at("csv"), "--json".into(), at("json")])
        .says_ready_on_stdout()
}

/// Removes what the run before left: what is read afterwards is of this one.
fn forget(end: &End, verb: &str) -> Result<(), LabError> {
    for path in ["csv", "json"].map(|ending| end.outside.join(format!("{verb}.{ending}"))) {
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(LabError::file(path)(error));
            }
            _ => {}
        }
    }
    Ok(())
}

fn json<T: DeserializeOwned>(path: PathBuf) -> Result<T, LabError> {
    let text = std::fs::read_to_string(&path).map_err(LabError::file(&path))?;
    serde_json::from_str(&text).map_err(|error| LabError::Contents { path, problem: error.to_string() })
}

fn rows<T>(
    path: &Path,
    load: fn(&Path) -> Result<Vec<T>, records::RecordsError>,
) -> Result<Vec<T>, LabError> {
    load(path).map_err(|error| LabError::Contents { path: path.to_owned(), problem: error.to_string() })
}

impl Bench<'_> {
    fn observers(&self) -> Observers<'_> {
        Observers { tools: &self.plan.tools, directory: self.directory, functional: false }
    }

    fn tap(&self, way: &Way) -> Result<Process, LabError> {
        let site = &self.plan.site;
        let ktsn = &self.plan.tools.ktsn;
        let at = |ending: &str| self.directory.join(format!("tap.{ending}")).into_os_string();
        let (first, rest) = site
            .tap_enter
            .split_first()
            .map_or((ktsn.as_path(), &[][..]), |(first, rest)| (Path::new(first), rest));
        let mut program = Program::new("tap", first).args(rest.iter().cloned());
        if !site.tap_enter.is_empty() {
            program = program.args([ktsn.as_os_str()]);
        }
        let (port, vxlan_port) = (PORT.to_string(), way.vxlan_port.to_string());
        program
            .args(["tap", &site.tap_device, "--port", &port, "--vxlan-port", &vxlan_port])
            .args(["--count".to_owned(), self.plan.frames.to_string()])
            .args(["--records".into(), at("csv"), "--json".into(), at("json")])
            .says_ready()
            .start(self.directory)
    }

    fn talker(&self, way: &Way, payload: usize, first_sequence: u64) -> Program {
        in_pod(&way.talker, "talk", 1, way.path.fifo(), self.plan.frames).args([
            format!("{}:{PORT}", way.to),
            format!("--payload={payload}"),
            format!("--period={}ns", self.plan.period.get()),
            format!("--first-sequence={first_sequence}"),
            format!("--priority={PRIORITY}"),
            format!("--mode={}", way.path.mode()),
            format!("--lead={}ns", LEAD.get()),
            "--clock=tai".to_owned(),
        ])
    }

    /// Carries one run out.
    pub(super) fn run(
        &self,
        way: &Way,
        payload: usize,
        round: u32,
        first: u64,
    ) -> Result<Observed, LabError> {
        self.observers().forget(&["tap"])?;
        forget(&way.talker, "talk")?;
        forget(&way.listener, "listen")?;
        let mut tap = self.tap(way)?;
        let listen = in_pod(&way.listener, "listen", 0, 40, self.plan.frames);
        let mut listener = listen
            .args([format!("{}:{PORT}", way.to), format!("--timeout={SILENCE}")])
            .start(self.directory)?;
        tap.wait_ready(READY_MAX)?;
        listener.wait_ready(INTO_A_POD)?;
        let before = way.path.is_served().then(|| self.daemon.sums()).transpose()?;
        let mut talker = self.talker(way, payload, first).start(self.directory)?;
        talker.wait_ready(INTO_A_POD)?;
        let (machine, begun) = (CpuUse::now(), Instant::now());
        let period = u64::try_from(self.plan.period.get()).unwrap_or(0);
        let longest = Duration::from_nanos(period * self.plan.frames) + INTO_A_POD;
        talker.wait(longest, MEASURED)?;
        let (disturbance, elapsed) = (CpuUse::now().since(&machine), begun.elapsed().as_secs_f64());
        // It ends by itself: with its last frame, or after a silence.
        listener.wait(INTO_A_POD, MEASURED)?;
        let counted = match before {
            Some(before) => Some((self.daemon.sums()?.since(&before), self.daemon.resident_octets()?)),
            None => None,
        };
        finish(&mut tap)?;
        let mut observed =
            self.observed(way, payload, round, counted.as_ref().map(|(counters, _)| counters))?;
        let series = &mut observed.series;
        series.steal_ratio = Some(disturbance.steal_ratio);
        series.cpu_pressure_some_ratio = disturbance.cpu_pressure_some_ratio;
        if let Some((counters, resident_octets)) = counted {
            series.daemon_cpu_ratio = Some(counters.cpu.as_secs_f64() / elapsed);
            series.daemon_rss_octets = Some(resident_octets);
            series.overrun = Some(counters.overrun);
            series.dropped = counters.dropped;
            series.bypassed = counters.bypassed;
        }
        Ok(observed)
    }

    fn told(&self, way: &Way) -> Result<Told, LabError> {
        let (talker, listener) = (&way.talker.outside, &way.listener.outside);
        Ok(Told {
            talk: json(talker.join("talk.json"))?,
            talked: rows(&talker.join("talk.csv"), records::load_talk)?,
            listen: json(listener.join("listen.json"))?,
            listened: rows(&listener.join("listen.csv"), records::load_arrivals)?,
            tap: self.observers().json("tap")?,
            tapped: self.observers().records("tap", records::load_arrivals)?,
        })
    }

    fn observed(
        &self,
        way: &Way,
        payload: usize,
        round: u32,
        counted: Option<&Counters>,
    ) -> Result<Observed, LabError> {
        let told = self.told(way)?;
        let served = way.path.is_served();
        let (joined, counts) = records::join(&told.talked, &told.tapped, &told.listened, !served);
        let load = Some("idle".to_owned());
        let name = way.path.name().to_owned();
        let run =
            RunRecords { path: name, payload_octets: payload, load: load.clone(), round, records: joined };
        let facts = Facts {
            frames_intended: told.talk.frames_intended,
            counts,
            wire: WireSource::Tap,
            deadline: Some(DEADLINE),
            transmit: counted.and_then(Counters::transmit_figures),
        };
        let series = Series {
            load,
            class: Some(PRIORITY),
            egress: Some(if served { "uplink" } else { "kernel" }.to_owned()),
            overlay: (way.vxlan_port != 0).then(|| "vxlan-routed".to_owned()),
            ingress: Some("kernel".to_owned()),
            talker_cpu_ratio: Some(told.talk.cpu_ratio),
            listener_cpu_ratio: Some(told.listen.cpu_ratio),
            ..Series::of_run(&run, &facts)
        };
        let stepped = told.talk.clock_stepped || told.listen.clock_stepped || told.tap.clock_stepped;
        let broken = match (stepped, told.tap.kernel_drops, untapped(&run.records)) {
            (true, ..) => Some("a clock was stepped".to_owned()),
            (_, 1.., _) => Some(format!("the tap's buffer lost {} frames", told.tap.kernel_drops)),
            (_, _, 1..) => Some("the tap did not see frames that the listener received".to_owned()),
            _ => None,
        };
        Ok(Observed { series, run, broken })
    }
}
