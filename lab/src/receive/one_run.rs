// SPDX-License-Identifier: Apache-2.0
//! One run: one path, scene and round. In: the testbed and the talkers' daemon or none. Out: joined records, figures.
//!
//! ```text
//!  far daemon ── listener ready ── counters ── talkers ─────── listener ends ── counters ── join by stream
//! ```

use super::path::{Path, Receiver};
use super::plan::{PAYLOAD_OCTETS, Plan};
use super::scene::{Listener, Scene};
use crate::carry_out::{Experiment, Measured, Turn};
use crate::container::{LEAD, PRIORITY, Path as Way, receiving_daemon};
use crate::daemon::{Daemon, configuration_of, cpu_share, cpu_time_of};
use crate::error::LabError;
use crate::observations::{DaemonUse, put_disturbance};
use crate::observers::{MEASURED, Observers, READY_MAX, TALK_EXTRA, finish};
use crate::process::Program;
use crate::testbed::Testbed;
use ktsn_measure::environment::CpuUse;
use ktsn_measure::records::{self, ArrivalRecord, JoinCounts, RunRecords, TalkRecord};
use ktsn_measure::results::Series;
use ktsn_measure::series::{Facts, WireSource};
use ktsn_measure::{clock, listener, talker};
use ktsn_time::{Nanos, Tai};
use std::path::Path as FilePath;
use std::time::Duration;

/// The listener's first port.
const PORT: u16 = 7000;
/// Distance of the phases of several streams: no two of them then have one instant, as all periods are whole milliseconds.
const PHASE: Nanos = Nanos::from_micros(120);
/// From the start of the first of several talkers to the first transmit time.
const START: Nanos = Nanos::from_millis(400);
/// Sequence numbers of stream `i` begin with `i` in these bits.
const STREAM_BITS: u32 = 48;
/// The Python listener.
const SCRIPT: &str = include_str!("listener.py");

/// Listeners of every kind in one testbed.
pub(super) struct Listeners<'a> {
    pub(super) plan: &'a Plan,
    pub(super) testbed: &'a Testbed,
    /// The ktsnd of the talkers' node.
    pub(super) near: Option<Daemon>,
    pub(super) directory: &'a FilePath,
}

/// What one run has.
#[derive(Clone, Copy)]
pub(super) struct Row {
    path: Path,
    scene: Scene,
}

/// The configuration of the receiving node's ktsnd on this path.
pub(super) fn far_configuration(testbed: &Testbed, path: Path) -> String {
    receiving_daemon::with_keys(
        &configuration_of(&testbed.b, &testbed.a),
        path.way == Way::KtsnShort,
        path.receiver == Receiver::Expect,
    )
}

/// One stream of a run.
struct Stream {
    name: String,
    period: Nanos,
    frames: u64,
    first_sequence: u64,
    port: u16,
    start_at: Option<Tai>,
}

/// What was recorded of a run.
struct Recorded {
    /// By stream.
    talked: Vec<(talker::Summary, Vec<TalkRecord>)>,
    listen: listener::Summary,
    listened: Vec<ArrivalRecord>,
}

impl Listeners<'_> {
    fn observers(&self) -> Observers<'_> {
        Observers::new(&self.plan.setup, self.directory)
    }

    fn streams(&self, scene: Scene, first_sequence: u64) -> Vec<Stream> {
        let periods = scene.periods();
        // What counts is one base for all phases. A functional run judges no times, and no talker's start can be too late.
        let base = (periods.len() > 1 && !self.plan.setup.functional).then(|| {
            let earliest = clock::tai_now().saturating_add(START).as_nanos();
            Tai::from_nanos(earliest.next_multiple_of(1_000_000))
        });
        let stream = |(index, period): (usize, Nanos)| {
            let place = i64::try_from(index).unwrap_or(0);
            Stream {
                name: if index == 0 { "talk".to_owned() } else { format!("talk{index}") },
                period,
                frames: self.plan.frames(scene, period),
                first_sequence: ((index as u64) << STREAM_BITS) + first_sequence,
                port: PORT + u16::try_from(index).unwrap_or(0),
                start_at: base.map(|base| base.saturating_add(PHASE.saturating_mul(place))),
            }
        };
        periods.into_iter().enumerate().map(stream).collect()
    }

    fn listener(&self, row: Row, streams: &[Stream]) -> Result<Program, LabError> {
        let b = &self.testbed.b;
        let way = row.path.way;
        let (address, namespace) =
            if way.in_pods() { (b.pod_address, &b.pod_namespace) } else { (b.address, &b.namespace) };
        // One more than come: it is there until its daemon has been asked what it counted of it.
        let frames = streams.iter().map(|stream| stream.frames).sum::<u64>() + 1;
        let observers = self.observers();
        let program = match (row.path.receiver, row.scene.listener()) {
            (Receiver::Spin, _) => observers.program("listen", "listen", frames).args(["--wait", "spin"]),
            (_, Listener::Compiled(wait)) => {
                observers.program("listen", "listen", frames).args(["--wait", wait])
            }
            (_, Listener::Python(wait)) => {
                let script = self.directory.join("listener.py");
                std::fs::write(&script, SCRIPT).map_err(LabError::file(&script))?;
                observers.script("listen", &script, frames).args(["--wait", wait])
            }
        };
        let program = program.args([format!("{address}:{PORT}")]).within(namespace);
        let program =
            if streams.len() > 1 { program.args([format!("--ports={}", streams.len())]) } else { program };
        // One that spins under SCHED_FIFO would keep every other thread from its CPU.
        let fifo = (row.path.receiver != Receiver::Spin).then_some(40);
        Ok(observers.placed(program, 0, fifo))
    }

    fn talker(&self, path: Path, scene: Scene, stream: &Stream) -> Program {
        let (a, b, way) = (&self.testbed.a, &self.testbed.b, path.way);
        let (to, namespace) =
            if way.in_pods() { (b.pod_address, &a.pod_namespace) } else { (b.address, &a.namespace) };
        let program = self.observers().program(&stream.name, "talk", stream.frames).args([
            format!("{to}:{}", stream.port),
            format!("--payload={PAYLOAD_OCTETS}"),
            format!("--period={}ns", stream.period.get()),
            format!("--first-sequence={}", stream.first_sequence),
            format!("--priority={PRIORITY}"),
            format!("--mode={}", way.mode()),
            format!("--lead={}ns", LEAD.get()),
            "--clock=tai".to_owned(),
        ]);
        let program = if scene.is_random() { program.args(["--random-gaps"]) } else { program };
        let program = match stream.start_at {
            Some(at) => program.args([format!("--start-at={}", at.as_nanos())]),
            None => program,
        };
        let program = self.observers().placed(program, 1, way.fifo());
        match &self.near {
            Some(near) if way.is_preloaded() => near.serve(program, &self.plan.setup.tools, self.testbed),
            _ => program.within(namespace),
        }
    }

    /// Starts the talkers and waits for their end.
    fn talk(&self, row: Row, streams: &[Stream]) -> Result<(), LabError> {
        let start = |stream| self.talker(row.path, row.scene, stream).start(self.directory);
        let mut talkers = streams.iter().map(start).collect::<Result<Vec<_>, _>>()?;
        for (talker, stream) in talkers.iter_mut().zip(streams) {
            let period = u64::try_from(stream.period.get()).unwrap_or(0);
            // Random gaps are the period on average only.
            let longest = Duration::from_nanos(period * stream.frames * 2) + TALK_EXTRA;
            talker.wait(longest, MEASURED)?;
        }
        Ok(())
    }

    fn recorded(&self, streams: &[Stream]) -> Result<Recorded, LabError> {
        let files = self.observers();
        let talk = |stream: &Stream| {
            Ok((files.json(&stream.name)?, files.records(&stream.name, records::load_talk)?))
        };
        Ok(Recorded {
            talked: streams.iter().map(talk).collect::<Result<_, LabError>>()?,
            listen: files.json("listen")?,
            listened: files.records("listen", records::load_arrivals)?,
        })
    }
}

impl Experiment for Listeners<'_> {
    type Row = Row;
    type Extra = ();

    fn rows(&self) -> Vec<Row> {
        let of = |&scene: &Scene| self.plan.paths_of(scene).into_iter().map(move |path| Row { path, scene });
        self.plan.scenes.iter().flat_map(of).collect()
    }

    fn name(&self, row: &Row) -> String {
        format!("{}, {}", row.path, row.scene)
    }

    fn run(&mut self, &row: &Row, turn: &mut Turn<'_>) -> Result<Measured, LabError> {
        let path = row.path;
        let near = self.near.as_ref().filter(|_| path.way.is_served());
        let names: Vec<String> = self
            .streams(row.scene, 0)
            .into_iter()
            .map(|stream| stream.name)
            .chain(["listen".to_owned()])
            .collect();
        self.observers().forget(&names.iter().map(String::as_str).collect::<Vec<_>>())?;
        let tools = &self.plan.setup.tools;
        // Only now: the load rule judges what others do.
        let load = row.scene.load().start(self.testbed, self.directory, self.plan.setup.functional)?;
        let far = path.has_far_daemon().then(|| {
            receiving_daemon::start_with(
                tools,
                self.testbed,
                self.directory,
                &far_configuration(self.testbed, path),
            )
        });
        let far = far.transpose()?;
        // Streams of one run differ in the upper half.
        let streams = self.streams(row.scene, (turn.number + 1) << 16);
        let program = self.listener(row, &streams)?;
        let program = match &far {
            Some(far) if path.receiver == Receiver::Expect => far.expect(program, tools),
            _ => program,
        };
        let mut listener = program.start(self.directory)?;
        listener.wait_ready(READY_MAX)?;
        let counted = near.map(Daemon::statistics).transpose()?;
        let expecting = far.as_ref().filter(|_| path.receiver == Receiver::Expect);
        let expected = expecting.map(Daemon::receive_counters).transpose()?;
        let far_cpu = cpu_time_of(far.as_ref())?;
        let loaded = load.octets(self.testbed)?;
        let (machine, begun) = (CpuUse::now(), std::time::Instant::now());
        self.talk(row, &streams)?;
        let (ended, elapsed) = (CpuUse::now(), begun.elapsed().as_secs_f64());
        let loaded = load.octets(self.testbed)?.zip(loaded).map(|(now, then)| now.saturating_sub(then));
        let expected = match (expecting, expected) {
            (Some(far), Some(before)) => Some(far.receive_counters()?.since(before)),
            _ => None,
        };
        finish(&mut listener)?;
        let counted = match (near, counted) {
            (Some(near), Some(before)) => Some(DaemonUse::since(near, &near.statistics()?, &before)?),
            _ => None,
        };
        let far_cpu = cpu_share(far_cpu, cpu_time_of(far.as_ref())?, elapsed);
        far.map_or(Ok(()), Daemon::stop)?;
        let recorded = self.recorded(&streams)?;
        let (run, mut series) = figures(row, turn.round, &streams, &recorded, counted.as_ref());
        put_disturbance(&mut series, &machine, &ended);
        series.load_bit_rate = loaded.map(|octets| octets as f64 * 8.0 / elapsed);
        series.far_daemon_cpu_ratio = far_cpu;
        if let Some(counted) = counted {
            counted.fill_in(&mut series, elapsed);
        }
        if let Some(expected) = expected {
            expected.fill_in(&mut series, elapsed);
        }
        Ok(Measured::one((series, run), None))
    }
}

/// The run's records and figures. Streams are joined one by one: order and copies are a stream's own.
fn figures(
    row: Row,
    round: u32,
    streams: &[Stream],
    recorded: &Recorded,
    counted: Option<&DaemonUse>,
) -> (RunRecords, Series) {
    let way = row.path.way;
    let (mut joined, mut counts, mut intended, mut talker_cpu) = (Vec::new(), JoinCounts::default(), 0, 0.0);
    for (stream, (talk, talked)) in streams.iter().zip(&recorded.talked) {
        let is_own = |record: &&ArrivalRecord| {
            record.probe.sequence >> STREAM_BITS == stream.first_sequence >> STREAM_BITS
        };
        let own: Vec<ArrivalRecord> = recorded.listened.iter().filter(is_own).copied().collect();
        let (records, found) = records::join(talked, &[], &own, !way.is_served());
        joined.extend(records);
        counts.listener_duplicates += found.listener_duplicates;
        counts.reordered += found.reordered;
        counts.strangers += found.strangers;
        counts.unsent += found.unsent;
        intended += talk.frames_intended;
        talker_cpu += talk.cpu_ratio;
    }
    let run = RunRecords {
        path: row.path.to_string(),
        payload_octets: PAYLOAD_OCTETS,
        load: Some(row.scene.word().to_owned()),
        round,
        records: joined,
    };
    let facts = Facts {
        frames_intended: intended,
        counts,
        wire: WireSource::Tap,
        deadline: None,
        transmit: counted.and_then(|counted| counted.counters.transmit_figures()),
    };
    let mut series = Series {
        load: run.load.clone(),
        class: Some(PRIORITY),
        egress: Some(if way.is_served() { "uplink" } else { "kernel" }.to_owned()),
        overlay: way.in_pods().then(|| "vxlan-routed".to_owned()),
        ingress: Some(way.ingress().to_owned()),
        talker_cpu_ratio: Some(talker_cpu),
        listener_cpu_ratio: Some(recorded.listen.cpu_ratio),
        ..Series::of_run(&run, &facts)
    };
    if streams.len() > 1 {
        // Neighbours among the records are frames of one stream but for the borders.
        (series.jitter_ns, series.jitter_left_out) = (None, None);
    }
    (run, series)
}
