// SPDX-License-Identifier: Apache-2.0
//! One run: one path, payload and round. In: the site and its ktsnd. Out: joined records and their figures.
//!
//! ```text
//!  tap ready ── listener ready ── counters ── talker ─────── listener ends ── tap ends ── counters ── join
//! ```

use super::plan::Plan;
use super::site::{End, Way};
use crate::carry_out::{Experiment, Measured, Turn};
use crate::container::{LEAD, PRIORITY};
use crate::daemon::Daemon;
use crate::error::LabError;
use crate::observations::{DaemonUse, Observations, RunLabel, put_disturbance};
use crate::observers::{MEASURED, Observers, READY_MAX, finish};
use crate::process::{Process, Program};
use ktsn_measure::environment::CpuUse;
use std::path::Path;
use std::time::{Duration, Instant};

/// The listener's port.
const PORT: u16 = 7000;
/// A command takes this long into a pod on a busy machine.
const INTO_A_POD: Duration = Duration::from_secs(15);
/// A listener in a pod cannot be asked to end: it ends this long after its last frame when some are missing. It has to
/// outlast the talker's way into its own pod.
const SILENCE: &str = "8s";

/// The ways between the site's pods.
pub(super) struct Ways<'a> {
    pub(super) plan: &'a Plan,
    pub(super) daemon: Daemon,
    pub(super) directory: &'a Path,
}

/// `ktsn`, behind the words of `enter` that run it at another place.
fn entered(name: &str, enter: &[String], ktsn: &Path) -> Program {
    match enter.split_first() {
        None => Program::new(name, ktsn),
        Some((first, rest)) => {
            Program::new(name, Path::new(first)).args(rest.iter().cloned()).args([ktsn.as_os_str()])
        }
    }
}

/// `ktsn VERB` in a pod; says on its standard output that it is ready.
fn in_pod(end: &End, verb: &str, cpu: u8, fifo: u8, frames: u64) -> Program {
    let at = |ending: &str| end.inside.join(format!("{verb}.{ending}")).into_os_string();
    entered(verb, &end.enter, &end.ktsn)
        .args([verb, "--count", &frames.to_string(), "--cpu", &cpu.to_string(), "--fifo", &fifo.to_string()])
        .args(["--records".into(), at("csv"), "--json".into(), at("json")])
        .says_ready_on_stdout()
}

impl Ways<'_> {
    /// The observers that write into `directory`.
    fn observers<'a>(&'a self, directory: &'a Path) -> Observers<'a> {
        Observers::new(&self.plan.setup, directory)
    }

    fn tap(&self, way: &Way) -> Result<Process, LabError> {
        let site = &self.plan.site;
        let at = |ending: &str| self.directory.join(format!("tap.{ending}")).into_os_string();
        let program = entered("tap", &site.tap_enter, &self.plan.setup.tools.ktsn);
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
}

impl<'a> Experiment for Ways<'a> {
    type Row = (&'a Way, usize);
    type Extra = ();

    fn rows(&self) -> Vec<Self::Row> {
        let plan = self.plan;
        plan.payloads.iter().flat_map(|&octets| plan.site.ways.iter().map(move |way| (way, octets))).collect()
    }

    fn name(&self, (way, payload): &Self::Row) -> String {
        format!("{}, {payload} octets", way.path.word())
    }

    fn run(&mut self, &(way, payload): &Self::Row, turn: &mut Turn<'_>) -> Result<Measured, LabError> {
        let (talks, listens) = (self.observers(&way.talker.outside), self.observers(&way.listener.outside));
        let taps = self.observers(self.directory);
        for (files, name) in [(talks, "talk"), (listens, "listen"), (taps, "tap")] {
            files.forget(&[name])?;
        }
        let mut tap = self.tap(way)?;
        let listen = in_pod(&way.listener, "listen", 0, 40, self.plan.frames);
        let mut listener = listen
            .args([format!("{}:{PORT}", way.to), format!("--timeout={SILENCE}")])
            .start(self.directory)?;
        tap.wait_ready(READY_MAX)?;
        listener.wait_ready(INTO_A_POD)?;
        let before = way.path.is_served().then(|| self.daemon.sums()).transpose()?;
        let mut talker = self.talker(way, payload, turn.number * self.plan.frames).start(self.directory)?;
        talker.wait_ready(INTO_A_POD)?;
        let (machine, begun) = (CpuUse::now(), Instant::now());
        let period = u64::try_from(self.plan.period.get()).unwrap_or(0);
        let longest = Duration::from_nanos(period * self.plan.frames) + INTO_A_POD;
        talker.wait(longest, MEASURED)?;
        let (ended, elapsed) = (CpuUse::now(), begun.elapsed().as_secs_f64());
        // It ends by itself: with its last frame, or after a silence.
        listener.wait(INTO_A_POD, MEASURED)?;
        let counted = match before {
            Some(before) => Some(DaemonUse::since(&self.daemon, &self.daemon.sums()?, &before)?),
            None => None,
        };
        finish(&mut tap)?;
        let observations = Observations::read(&talks, &listens, &taps)?;
        let label = RunLabel {
            path: way.path.word(),
            is_kept: way.path.is_served(),
            egress: if way.path.is_served() { "uplink" } else { "kernel" },
            is_overlay: way.vxlan_port != 0,
            ingress: "kernel",
            payload,
            load: "idle",
            round: turn.round,
        };
        let (run, mut series) = observations.figures(&label, counted.as_ref());
        put_disturbance(&mut series, &machine, &ended);
        if let Some(counted) = counted {
            counted.fill_in(&mut series, elapsed);
        }
        let fault = observations.fault(&run);
        Ok(Measured::one((series, run), fault))
    }
}
