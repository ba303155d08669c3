// SPDX-License-Identifier: Apache-2.0
//! One round: the three talkers at once. In: testbed, daemon, windows. Out: for each class its records and figures.
//!
//! ```text
//!  tap, listener ready ── trace, counters ── talkers, watchdog ── listener ends ── tap ends ── join ── judge
//! ```
//! `handed_at` is the worker thread's system call that the far end's stamp lies in, by the kernel's trace.

use super::evidence::Evidence;
use super::plan::{DEADLINE, PATH, Plan};
use super::traffic::{self, CYCLE_TIME, STREAMS, Stream};
use crate::calls::{Timeline, Trace, thread_named};
use crate::carry_out::Measured;
use crate::daemon::{Counters, Daemon};
use crate::error::LabError;
use crate::observations::put_disturbance;
use crate::observers::{MEASURED, Observers, READY_MAX, TALK_EXTRA, finish};
use crate::process::{Process, Program};
use crate::testbed::{Testbed, UPLINK};
use ktsn_measure::clock::{RealTime, both_now, stop_requested, tai_now};
use ktsn_measure::environment::CpuUse;
use ktsn_measure::gates::{self, Figures, Windows};
use ktsn_measure::records::{self, ArrivalRecord, RunRecords};
use ktsn_measure::results::Series;
use ktsn_measure::series::{Facts, WireSource, untapped};
use ktsn_measure::{listener, talker, tap, watchdog};
use ktsn_proto::v1;
use ktsn_time::{Nanos, Offset, Tai};
use std::path::Path;
use std::time::Duration;

/// The listener's port.
const PORT: u16 = 7000;
/// From now to the first cycle: the talkers start, and attach.
const START_AHEAD: Nanos = Nanos::from_millis(1_200);
/// The worker's thread.
const WORKER: &str = "ktsn-worker";
/// Sequence numbers of the classes lie this far apart.
const SEQUENCES: u64 = 1 << 40;

/// Rounds under one daemon.
pub(super) struct Rounds<'a> {
    pub(super) plan: &'a Plan,
    pub(super) testbed: &'a Testbed,
    pub(super) daemon: Daemon,
    pub(super) windows: &'a Windows,
    pub(super) directory: &'a Path,
}

/// The verdicts of one class of one round.
#[derive(Clone, Debug)]
pub(super) struct Class {
    pub(super) class: u8,
    pub(super) figures: Figures,
}

/// One round.
#[derive(Clone, Debug)]
pub(super) struct RoundResult {
    /// In the order of [`STREAMS`].
    pub(super) classes: Vec<Class>,
    pub(super) watchdog: watchdog::Outcome,
    /// What the daemon says of its port; shown beside the verdicts, never used for them.
    pub(super) port: v1::PortStatistics,
    /// How long the kernel took to put each frame on the wire.
    pub(super) to_wire: Vec<Nanos>,
    /// How long a hand-over took: the worker's system calls.
    pub(super) calls: Vec<Nanos>,
}

/// What was seen, before anything is computed.
struct Seen {
    tapped: Vec<ArrivalRecord>,
    listened: Vec<ArrivalRecord>,
    line: Timeline,
    offset: Offset,
    listen: listener::Summary,
    tap: tap::Summary,
}

impl Rounds<'_> {
    fn observers(&self) -> Observers<'_> {
        Observers::new(&self.plan.setup, self.directory)
    }

    fn talker(&self, stream: &Stream, frames: u64, start_at: Tai, first_sequence: u64) -> Program {
        let to = self.testbed.b.pod_address;
        let program = self.observers().program(&name(stream), "talk", frames).args([
            format!("{to}:{PORT}"),
            format!("--payload={}", stream.payload_octets),
            format!("--period={}ns", stream.period.get()),
            format!("--first-sequence={first_sequence}"),
            format!("--start-at={}", start_at.saturating_add(stream.phase).as_nanos()),
            format!("--priority={}", stream.class),
            format!("--lead={}ns", stream.lead.get()),
            format!("--clock={}", stream.clock),
            "--mode=txtime".to_owned(),
        ]);
        let program = self.observers().placed(program, 1, Some(stream.fifo));
        self.daemon.serve(program, &self.plan.setup.tools, self.testbed)
    }

    fn watchdog(&self, until: Tai) -> watchdog::Plan {
        let place = RealTime { cpu: Some(1), fifo: Some(51), ..RealTime::default() };
        let real_time = if self.plan.setup.functional { RealTime::default() } else { place };
        watchdog::Plan {
            base_time: self.windows.base_time(),
            cycle_time: self.windows.cycle_time(),
            offsets: traffic::looks(self.windows),
            until,
            real_time,
        }
    }

    /// Carries one round of `cycles` cycles out.
    pub(super) fn run(&self, round: u32, cycles: u64) -> Result<Measured<RoundResult>, LabError> {
        let observers = self.observers();
        let b = &self.testbed.b;
        let frames: Vec<u64> = STREAMS.iter().map(|stream| stream.frames(cycles)).collect();
        let all: u64 = frames.iter().sum();
        let names: Vec<String> = STREAMS.iter().map(name).collect();
        observers.forget(&["listen", "tap"])?;
        observers.forget(&names.iter().map(String::as_str).collect::<Vec<_>>())?;
        let port = PORT.to_string();
        let tap = observers.program("tap", "tap", all).args([UPLINK, "--port", &port]).within(&b.namespace);
        let listener = observers.program("listen", "listen", all);
        let listener = listener.args([format!("{}:{PORT}", b.pod_address)]).within(&b.pod_namespace);
        let mut tap = tap.start(self.directory)?;
        let mut listener = observers.placed(listener, 0, Some(40)).start(self.directory)?;
        tap.wait_ready(READY_MAX)?;
        listener.wait_ready(READY_MAX)?;
        let trace = Trace::start(self.directory, thread_named(self.daemon.pid(), WORKER)?, 2 * all + 1_000)?;
        let (counted, machine, begun) = (self.daemon.statistics()?, CpuUse::now(), std::time::Instant::now());
        let watchdog = self.talk(&frames, cycles)?;
        let (ended, elapsed) = (CpuUse::now(), begun.elapsed());
        finish(&mut listener)?;
        let counted = self.daemon.statistics()?.since(&counted);
        finish(&mut tap)?;
        let now = both_now();
        let seen = Seen {
            tapped: observers.records("tap", records::load_arrivals)?,
            listened: observers.records("listen", records::load_arrivals)?,
            line: trace.finish()?,
            offset: Offset::between(now.tai, now.monotonic),
            listen: observers.json("listen")?,
            tap: observers.json("tap")?,
        };
        let mut measured = self.judge(round, &seen, watchdog)?;
        for series in &mut measured.series {
            put_disturbance(series, &machine, &ended);
        }
        // The daemon and the listener serve all classes; their figures stand in the first row.
        let first = &mut measured.series[0];
        first.daemon_cpu_ratio = Some(counted.cpu.as_secs_f64() / elapsed.as_secs_f64());
        first.daemon_rss_octets = Some(self.daemon.resident_octets()?);
        first.listener_cpu_ratio = Some(seen.listen.cpu_ratio);
        let Counters {
            attachment: v1::AttachmentStatistics { overrun, dropped, bypassed, .. }, port, ..
        } = counted;
        (first.overrun, first.dropped, first.bypassed) = (Some(overrun), dropped, bypassed);
        measured.extra.port = port;
        Ok(measured)
    }

    /// Starts the talkers and the watchdog, and waits for their end.
    fn talk(&self, frames: &[u64], cycles: u64) -> Result<watchdog::Outcome, LabError> {
        let cycle = CYCLE_TIME.get();
        let ahead = tai_now().saturating_add(START_AHEAD).since(self.windows.base_time()).get();
        let start_at =
            self.windows.base_time().saturating_add(CYCLE_TIME.saturating_mul(ahead.div_euclid(cycle) + 1));
        let span = CYCLE_TIME.saturating_mul(i64::try_from(cycles).unwrap_or(i64::MAX));
        let longest = Duration::from_nanos(span.get().unsigned_abs()) + TALK_EXTRA;
        let mut talkers: Vec<Process> = Vec::new();
        for (index, stream) in STREAMS.iter().enumerate() {
            let program = self.talker(stream, frames[index], start_at, index as u64 * SEQUENCES);
            talkers.push(program.start(self.directory)?);
        }
        for talker in &mut talkers {
            talker.wait_ready(READY_MAX)?;
        }
        let plan = self.watchdog(start_at.saturating_add(span));
        let is_watched = self.plan.watchdog;
        std::thread::scope(|scope| {
            let watchdog = is_watched.then(|| scope.spawn(|| watchdog::run(&plan, || (), &stop_requested)));
            for talker in &mut talkers {
                talker.wait(longest, MEASURED)?;
            }
            let Some(watchdog) = watchdog else { return Ok(watchdog::Outcome::default()) };
            let outcome = watchdog.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            outcome.map_err(|refusal| LabError::Impossible {
                what: refusal.to_string(),
                remedy: "run as root".to_owned(),
            })
        })
    }

    fn judge(
        &self,
        round: u32,
        seen: &Seen,
        watchdog: watchdog::Outcome,
    ) -> Result<Measured<RoundResult>, LabError> {
        let observers = self.observers();
        let evidence = Evidence::new(&seen.line, seen.offset, &seen.tapped);
        let gaps = watchdog.gaps();
        let mut measured = Measured { fault: broken(seen), ..Measured::default() };
        let mut classes = Vec::new();
        for (index, stream) in STREAMS.iter().enumerate() {
            let summary: talker::Summary = observers.json(&name(stream))?;
            let talked = observers.records(&name(stream), records::load_talk)?;
            let (tapped, listened) = (of_class(&seen.tapped, index), of_class(&seen.listened, index));
            let (mut joined, counts) = records::join(&talked, &tapped, &listened, false);
            for record in &mut joined {
                record.handed_at = record.wire_at.and_then(|at| evidence.handed_at(at));
            }
            if summary.clock_stepped {
                measured.fault = Some("a clock was stepped".to_owned());
            }
            let sent =
                joined.iter().filter(|record| record.wire_at.is_some() || record.received_at.is_some());
            let figures = gates::judge_all(
                self.windows,
                &gaps,
                sent.map(|record| gates::Facts {
                    class: stream.traffic_class(),
                    handed_at: record.handed_at,
                    wire_at: record.wire_at,
                    on_link: stream.on_link(),
                    carried_since: record.wire_at.and_then(|at| evidence.carried_since(at)),
                }),
            );
            let run = RunRecords {
                path: PATH.to_owned(),
                payload_octets: stream.payload_octets,
                load: None,
                round,
                records: joined,
            };
            if untapped(&run.records) > 0 {
                measured.fault = Some("the tap did not see what the listener received".to_owned());
            }
            let facts = Facts {
                frames_intended: summary.frames_intended,
                counts,
                wire: WireSource::Tap,
                deadline: (stream.class == STREAMS[0].class).then_some(DEADLINE),
                transmit: None,
            };
            let series = Series {
                class: Some(stream.class),
                egress: Some("uplink".to_owned()),
                overlay: Some("vxlan-routed".to_owned()),
                ingress: Some("kernel".to_owned()),
                talker_cpu_ratio: Some(summary.cpu_ratio),
                ..gated(Series::of_run(&run, &facts), &figures)
            };
            measured.series.push(series);
            measured.runs.push(run);
            classes.push(Class { class: stream.class, figures });
        }
        let result = RoundResult {
            classes,
            port: v1::PortStatistics::default(),
            to_wire: evidence.to_wire().to_vec(),
            calls: seen.line.calls().iter().map(|call| call.ended_at.since(call.began_at)).collect(),
            watchdog,
        };
        Ok(measured.with(result))
    }
}

/// The figures of `series` with the verdicts. Without a trace nothing is said about hand-overs.
fn gated(series: Series, figures: &Figures) -> Series {
    let judged = figures.unseen < figures.wire_seen;
    let share = |count: u64| count as f64 / figures.wire_seen as f64;
    Series {
        outside_window: judged.then_some(figures.outside_window),
        transmission_overrun: judged.then_some(figures.overruns),
        transmission_overrun_unproven: judged.then_some(figures.overruns_unproven),
        wire_outside_window_ratio: (figures.wire_seen > 0).then(|| share(figures.wire_outside)),
        after_opening_ns: figures.after_opening,
        ..series
    }
}

/// The talker's name, and its files'.
fn name(stream: &Stream) -> String {
    format!("talk{}", stream.class)
}

/// The arrivals of the stream with this index.
fn of_class(arrivals: &[ArrivalRecord], index: usize) -> Vec<ArrivalRecord> {
    let is = |arrival: &&ArrivalRecord| arrival.probe.sequence / SEQUENCES == index as u64;
    arrivals.iter().filter(is).copied().collect()
}

/// Whether an observer failed, by the void rule.
fn broken(seen: &Seen) -> Option<String> {
    if seen.listen.clock_stepped || seen.tap.clock_stepped {
        return Some("a clock was stepped".to_owned());
    }
    (seen.tap.kernel_drops > 0).then(|| format!("the tap's buffer lost {} frames", seen.tap.kernel_drops))
}
