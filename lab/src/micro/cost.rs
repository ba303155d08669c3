// SPDX-License-Identifier: Apache-2.0
//! The figures one by one. In: testbed and programs. Out: named entries.
//! Talkers run as in the experiment `container`, on the worker's CPU, below its priority, if nothing else is said. The sender of the timed
//! calls runs on CPU 0, so that no thread preempts it in the middle of a call.

use super::plan::Plan;
use super::sender::{BURST, Calls, Cost};
use super::sys;
use crate::container::receiving_daemon::with_keys;
use crate::daemon::{Counters, Daemon, configuration, without_attachment};
use crate::error::LabError;
use crate::process::{Process, Program};
use crate::sys::within;
use crate::testbed::{Testbed, UPLINK};
use crate::worker_example::WorkerExample;
use ktsn_measure::clock::tai_now;
use ktsn_measure::results::Micro;
use ktsn_measure::stats::Statistics;
use ktsn_time::{Nanos, Tai};
use std::path::Path;
use std::time::{Duration, Instant};

const PORT: u16 = 7000;
const READY_MAX: Duration = Duration::from_secs(10);
/// A daemon settles before its CPU time counts: start-up, tables, first frames.
const SETTLE: Duration = Duration::from_millis(500);
/// What a sender needs for one batch, pause included.
const BATCH_TIME: f64 = 0.026;
/// Turns of the comparison of sockets that are not ours, each way, and a turn's share of a figure's seconds.
const TURNS: usize = 5;
const TURN_SHARE: f64 = 0.2;
/// Readings of the daemon's CPU time over one figure's seconds.
const SLICES: u32 = 10;

/// Where talkers run.
#[derive(Clone, Copy)]
enum Cpu {
    OfWorker,
    Other,
}

impl Cpu {
    const fn argument(self) -> &'static str {
        match self {
            Self::OfWorker => "--cpu=1",
            Self::Other => "--cpu=0",
        }
    }
}

pub(super) struct Costs<'a> {
    pub(super) plan: &'a Plan,
    pub(super) testbed: &'a Testbed,
    pub(super) directory: &'a Path,
}

/// The worker's spin margin at the end of a run: what its CPU time depends on most.
fn margin(name: &str, run: &Counters) -> Micro {
    Micro::figure(name, "ns", run.worker.spin_margin_ns as f64, 1)
}

impl Costs<'_> {
    fn seconds(&self) -> Duration {
        Duration::from_secs_f64(self.plan.seconds)
    }

    fn daemon(&self, configuration: &str) -> Result<Daemon, LabError> {
        Daemon::start(&self.plan.setup.tools, &self.testbed.a, self.directory, configuration)
    }

    /// Carries the sender out as a process of its own.
    fn sender(
        &self,
        destination: &str,
        calls: Calls,
        share: f64,
        dress: impl FnOnce(Program) -> Program,
    ) -> Result<Cost, LabError> {
        let json = self.directory.join("sender.json");
        let batches = (self.plan.seconds * share / BATCH_TIME).ceil().max(4.0).to_string();
        let program = Program::new("sender", &self.plan.setup.tools.bench)
            .args(["bench", "send-cost", destination, "--calls", calls.word(), "--batches", &batches])
            .args(["--cpu", "0", "--fifo", "40", "--json"])
            .args([json.as_os_str()]);
        let mut process = dress(program).start(self.directory)?;
        process.wait(self.seconds() * 2 + READY_MAX, &[0])?;
        let text = std::fs::read_to_string(&json).map_err(LabError::file(&json))?;
        serde_json::from_str(&text)
            .map_err(|error| LabError::Contents { path: json, problem: error.to_string() })
    }

    /// The kernel's own sends, into a veth with a peer that drops at once.
    pub(super) fn kernel(&self) -> Result<Vec<Micro>, LabError> {
        let dropped = within(&self.testbed.b.namespace, || sys::drop_all(UPLINK))?;
        let destination = format!("{}:{PORT}", self.testbed.b.address);
        let cost = |calls| {
            self.sender(&destination, calls, 1.0, |program| program.within(&self.testbed.a.namespace))
        };
        let (timed, bursts, looped) = (cost(Calls::Timed)?, cost(Calls::Bursts)?, cost(Calls::Loop)?);
        drop(dropped);
        Ok(vec![
            Micro::distribution("sendmsg.kernel.64", &timed.rest_ns, timed.rest_count),
            Micro::distribution("sendmmsg64.kernel.64", &bursts.rest_ns, bursts.rest_count),
            Micro::distribution("sendmsg.kernel.loop.64", &looped.rest_ns, looped.rest_count),
            Micro::distribution("clock.reading", &timed.clock_ns, 256),
        ])
    }

    /// Sends of a socket that is not ours, with the library preloaded and without, by turns: the median rounds.
    pub(super) fn not_ours(&self) -> Result<Vec<Micro>, LabError> {
        let dropped = within(&self.testbed.b.namespace, || sys::drop_all(UPLINK))?;
        let destination = format!("{}:{PORT}", self.testbed.b.address);
        let namespace = &self.testbed.a.namespace;
        let (mut plain, mut hooked, mut samples) = (Vec::new(), Vec::new(), 0);
        for round in 0..2 * TURNS {
            let library = (round % 2 == 1).then_some(&self.plan.setup.tools.libktsn);
            let cost = self.sender(&destination, Calls::Untimed, TURN_SHARE, |program| {
                let program = program.within(namespace);
                match library {
                    Some(library) => program.env("LD_PRELOAD", library.as_os_str()),
                    None => program,
                }
            })?;
            samples += cost.rest_count / 2;
            if library.is_some() { hooked.push(cost.rest_ns) } else { plain.push(cost.rest_ns) }
        }
        drop(dropped);
        let of = |name: &str, rounds: &[Statistics]| {
            Micro::distribution(name, &Statistics::median_of(rounds).unwrap_or_default(), samples)
        };
        Ok(vec![of("sendmsg.untimed.kernel.64", &plain), of("sendmsg.untimed.hooked.64", &hooked)])
    }

    /// Receive and poll calls that find a datagram: by the kernel, with the library preloaded, and where it expects arrivals; by turns.
    pub(super) fn receives(&self) -> Result<Vec<Micro>, LabError> {
        let tools = &self.plan.setup.tools;
        let daemon = self.daemon(&with_keys(&configuration(self.testbed), false, true))?;
        let destination = format!("{}:{PORT}", self.testbed.b.pod_address);
        let mut figures = Vec::new();
        for (calls, word) in [(Calls::Receives, "recv"), (Calls::Polls, "poll")] {
            let (mut rounds, mut samples) = ([const { Vec::new() }; 3], 0);
            for _ in 0..TURNS {
                for (way, rounds) in rounds.iter_mut().enumerate() {
                    let cost = self.sender(&destination, calls, TURN_SHARE, |program| {
                        let program = program.within(&self.testbed.a.pod_namespace);
                        match way {
                            0 => program,
                            1 => program.env("LD_PRELOAD", tools.libktsn.as_os_str()),
                            _ => daemon.expect(program, tools),
                        }
                    })?;
                    samples += cost.rest_count / 3;
                    rounds.push(cost.rest_ns);
                }
            }
            // A few nanoseconds are compared: by the round of each that was disturbed least.
            let [kernel, off, expect] = rounds.each_ref().map(|rounds| {
                rounds.iter().map(|statistics| statistics.p50).min().unwrap_or_default() as f64
            });
            let medians = rounds.map(|rounds| Statistics::median_of(&rounds).unwrap_or_default());
            for (statistics, way) in medians.iter().zip(["kernel", "off", "expect"]) {
                figures.push(Micro::distribution(&format!("{word}.{way}.64"), statistics, samples));
            }
            figures.push(Micro::figure(&format!("{word}.off.added"), "ns", off - kernel, samples));
            figures.push(Micro::figure(&format!("{word}.expect.added"), "ns", expect - kernel, samples));
        }
        Ok(figures)
    }

    /// What the shipped worker passes through a port of memory.
    pub(super) fn throughput(&self) -> Result<Vec<Micro>, LabError> {
        self.worker(&[])
    }

    /// How long the shipped worker takes to hand over 32 frames for one instant.
    pub(super) fn burst(&self) -> Result<Vec<Micro>, LabError> {
        self.worker(&["--burst"])
    }

    fn worker(&self, arguments: &[&str]) -> Result<Vec<Micro>, LabError> {
        let missing = |what| LabError::Impossible { what, remedy: "build it".to_owned() };
        let example = WorkerExample::find(&self.plan.setup.tools).map_err(missing)?;
        let seconds = self.plan.seconds.ceil().clamp(1.0, 600.0) as u32;
        let read =
            |printed: &[u8]| serde_json::from_slice(printed).map_err(|error| format!("its output: {error}"));
        example.run(seconds, arguments, read).map(|micro| vec![micro])
    }

    /// The sends of the same program under libktsn.
    pub(super) fn intercepted(&self) -> Result<Vec<Micro>, LabError> {
        let daemon = self.daemon(&configuration(self.testbed))?;
        let _listener = self.listener()?;
        let destination = format!("{}:{PORT}", self.testbed.b.pod_address);
        let before = daemon.statistics()?;
        let cost = |calls| {
            self.sender(&destination, calls, 1.0, |program| {
                daemon.serve(program, &self.plan.setup.tools, self.testbed)
            })
        };
        let timed = cost(Calls::Timed)?;
        let between = daemon.statistics()?;
        let bursts = cost(Calls::Bursts)?;
        // Of these figures only those are true that every frame went this way for.
        let run = taken_all(between.since(&before), timed.first_count + timed.rest_count)?;
        let datagrams = (bursts.first_count + bursts.rest_count) * BURST as u64;
        let _ = taken_all(daemon.statistics()?.since(&between), datagrams)?;
        let doorbell = (timed.first_ns.p50 - timed.rest_ns.p50) as f64;
        let rung = run.attachment.doorbells as f64 / (timed.first_count + 2) as f64;
        Ok(vec![
            Micro::distribution("sendmsg.intercepted.64", &timed.rest_ns, timed.rest_count),
            Micro::distribution("sendmsg.intercepted.doorbell.64", &timed.first_ns, timed.first_count),
            Micro::distribution("sendmmsg64.intercepted.64", &bursts.rest_ns, bursts.rest_count),
            Micro::figure("doorbell.cost", "ns", doorbell, timed.first_count),
            Micro::figure("doorbell.per_batch", "1", rung, timed.first_count + 2),
        ])
    }

    /// The sends of a loop of 1 kHz, 300 µs ahead, and its doorbells: transmit times on a grid, and "now + lead".
    pub(super) fn loops(&self) -> Result<Vec<Micro>, LabError> {
        let daemon = self.daemon(&configuration(self.testbed))?;
        let _listener = self.listener()?;
        let destination = format!("{}:{PORT}", self.testbed.b.pod_address);
        let mut figures = Vec::new();
        let loops = [
            (Calls::Loop, "sendmsg.intercepted.loop.64", "doorbell.per_frame.loop"),
            (Calls::Following, "sendmsg.intercepted.now_plus_lead.64", "doorbell.per_frame.now_plus_lead"),
        ];
        for (calls, cost_name, doorbells_name) in loops {
            let before = daemon.statistics()?;
            let cost = self.sender(&destination, calls, 1.0, |program| {
                daemon.serve(program, &self.plan.setup.tools, self.testbed)
            })?;
            let run = taken_all(daemon.statistics()?.since(&before), cost.first_count + cost.rest_count)?;
            let per_frame = run.attachment.doorbells as f64 / run.attachment.taken.max(1) as f64;
            figures.push(Micro::distribution(cost_name, &cost.rest_ns, cost.rest_count));
            figures.push(Micro::figure(doorbells_name, "1", per_frame, run.attachment.taken));
        }
        Ok(figures)
    }

    /// A listener that takes what arrives, so that no ICMP answer disturbs the talkers.
    fn listener(&self) -> Result<Process, LabError> {
        let b = &self.testbed.b;
        let mut process = Program::new("listener", &self.plan.setup.tools.ktsn)
            .args(["listen".to_owned(), format!("{}:{PORT}", b.pod_address), "--cpu=0".to_owned()])
            .says_ready()
            .within(&b.pod_namespace)
            .start(self.directory)?;
        process.wait_ready(READY_MAX)?;
        Ok(process)
    }

    /// A talker of 1 kHz under libktsn that runs until its value is dropped.
    fn talker(
        &self,
        daemon: &Daemon,
        number: u32,
        start_at: Tai,
        period: &str,
        cpu: Cpu,
    ) -> Result<Process, LabError> {
        let destination = format!("{}:{PORT}", self.testbed.b.pod_address);
        let program = Program::new(&format!("talker{number}"), &self.plan.setup.tools.ktsn)
            .args(["talk", &destination, "--mode=txtime", "--clock=tai", "--fifo=40", cpu.argument()])
            .args([format!("--start-at={}", start_at.as_nanos()), format!("--period={period}")])
            .says_ready();
        daemon.serve(program, &self.plan.setup.tools, self.testbed).start(self.directory)
    }

    /// Daemon and worker with a port, and no attachment.
    pub(super) fn nothing_attached(&self) -> Result<Vec<Micro>, LabError> {
        let daemon = self.daemon(&without_attachment())?;
        Ok(vec![self.cpu("ktsnd.cpu.nothing_attached", &daemon)?])
    }

    /// A client with a stream: its first frame lies beyond the measurement.
    pub(super) fn armed_idle(&self) -> Result<Vec<Micro>, LabError> {
        let daemon = self.daemon(&configuration(self.testbed))?;
        let mut talker = self.talker(
            &daemon,
            0,
            tai_now().saturating_add(Nanos::from_seconds(3600)),
            "1ms",
            Cpu::OfWorker,
        )?;
        talker.wait_ready(READY_MAX)?;
        let resident = daemon.resident_octets()?;
        Ok(vec![
            self.cpu("ktsnd.cpu.armed_idle", &daemon)?,
            Micro::figure("ktsnd.rss.1_client", "octets", resident as f64, 1),
        ])
    }

    /// One stream of 1 kHz.
    pub(super) fn one_stream(&self) -> Result<Vec<Micro>, LabError> {
        self.busy(1, Cpu::OfWorker, "1_stream_1khz", "1khz")
    }

    /// Ten streams of 1 kHz with unrelated transmit times.
    pub(super) fn ten_streams(&self) -> Result<Vec<Micro>, LabError> {
        self.busy(10, Cpu::OfWorker, "10_streams_1khz", "10_streams")
    }

    /// The same ten, beside the worker and not behind it: on its CPU a program sends when the worker sleeps.
    pub(super) fn ten_streams_beside(&self) -> Result<Vec<Micro>, LabError> {
        self.busy(10, Cpu::Other, "10_streams_1khz.other_cpu", "10_streams.other_cpu")
    }

    fn busy(&self, streams: u32, cpu: Cpu, name: &str, doorbells_name: &str) -> Result<Vec<Micro>, LabError> {
        let (daemon, _listener, _talkers) = self.streams(streams, cpu)?;
        let before = daemon.statistics()?;
        let cpu = self.cpu(&format!("ktsnd.cpu.{name}"), &daemon)?;
        let run = daemon.statistics()?.since(&before);
        check_rate(&run, streams, self.seconds())?;
        let taken = run.attachment.taken;
        let per_frame = |name: String, unit: &str, value: u64| {
            Micro::figure(&name, unit, value as f64 / taken.max(1) as f64, taken)
        };
        Ok(vec![
            cpu,
            margin(&format!("ktsnd.spin_margin.{name}"), &run),
            per_frame(format!("ktsnd.spun.per_frame.{name}"), "ns", run.worker.spin_ns),
            per_frame(format!("ktsnd.wake_ups.per_frame.{name}"), "1", run.worker.wake_ups),
            per_frame(format!("ktsnd.overrun.per_frame.{name}"), "1", run.attachment.overrun),
            per_frame(format!("doorbell.per_frame.{doorbells_name}"), "1", run.attachment.doorbells),
        ])
    }

    fn streams(&self, count: u32, cpu: Cpu) -> Result<(Daemon, Process, Vec<Process>), LabError> {
        let daemon = self.daemon(&configuration(self.testbed))?;
        let listener = self.listener()?;
        // Clocks that are not synchronised: periods differ by up to 0.12 %, so within a second every phase of one stream
        // meets every phase of the others.
        let base = tai_now().saturating_add(Nanos::from_millis(500));
        let mut talkers = (0..count)
            .map(|number| {
                let begin = base.saturating_add(Nanos::new(97_300).saturating_mul(i64::from(number)));
                self.talker(&daemon, number, begin, &format!("{}ns", 1_000_000 + 1_300 * number), cpu)
            })
            .collect::<Result<Vec<_>, _>>()?;
        for talker in &mut talkers {
            talker.wait_ready(READY_MAX)?;
        }
        std::thread::sleep(SETTLE);
        Ok((daemon, listener, talkers))
    }

    /// The daemon's CPU time over elapsed time; the median of equal slices of the seconds.
    fn cpu(&self, name: &str, daemon: &Daemon) -> Result<Micro, LabError> {
        std::thread::sleep(SETTLE);
        let mut ratios = Vec::new();
        for _ in 0..SLICES {
            let (cpu, begun) = (daemon.cpu_time()?, Instant::now());
            std::thread::sleep(self.seconds() / SLICES);
            ratios.push((daemon.cpu_time()? - cpu).as_secs_f64() / begun.elapsed().as_secs_f64());
        }
        ratios.sort_by(f64::total_cmp);
        let at =
            |permille: usize| ratios[((ratios.len() * permille).div_ceil(1000) - 1).min(ratios.len() - 1)];
        Ok(Micro { p90: Some(at(900)), ..Micro::figure(name, "CPUs", at(500), u64::from(SLICES)) })
    }
}

/// The counters of a run, if the daemon took every frame of it.
fn taken_all(run: Counters, expected: u64) -> Result<Counters, LabError> {
    if run.attachment.taken >= expected && run.attachment.bypassed.is_empty() {
        return Ok(run);
    }
    let problem =
        format!("took {} of {expected} frames, bypassed {:?}", run.attachment.taken, run.attachment.bypassed);
    Err(LabError::Process { name: "ktsnd".to_owned(), problem, stderr: String::new() })
}

/// A daemon that was idle because its talkers failed must not look cheap.
fn check_rate(run: &Counters, streams: u32, elapsed: Duration) -> Result<(), LabError> {
    let expected = elapsed.as_secs_f64() * 1000.0 * f64::from(streams);
    if run.attachment.sent as f64 >= expected * 0.95 {
        return Ok(());
    }
    let problem = format!(
        "sent {} frames, expected {expected:.0}; dropped {:?}",
        run.attachment.sent, run.attachment.dropped
    );
    Err(LabError::Process { name: "ktsnd".to_owned(), problem, stderr: String::new() })
}
