// SPDX-License-Identifier: Apache-2.0
//! `ktsnd` in a guest against mqprio with etf in the same guest, by turns, seen at the tap device on the host.
//!
//! In: a [`Plan`]. Out: a document `ktsn.results/1` and the frames. The guest's clock follows the host's (vPTP), so an offset on the wire is
//! a difference of two readings of one clock. etf has a turn for each of its deltas, because a small one loses frames and a large one
//! sends early. The bar holds ktsnd against the delta that loses the fewest frames.

use super::network::TAP;
use crate::carry_out::{Measured, Session, carry_out};
use crate::error::LabError;
use crate::experiment::{Outcome, Setup, Watch, none_twice};
use crate::process::{Process, Program};
use ktsn_measure::records::{ArrivalRecord, Record, RunRecords, load_arrivals};
use ktsn_measure::results::{Comparison, Document, Round, Series};
use ktsn_measure::stats::Statistics;
use ktsn_time::Nanos;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// The path of frames whose time a ktsnd in the guest keeps.
pub const KTSND: &str = "guest-ktsnd";
/// The most of etf's median offset, early or late, that ktsnd's may be.
pub(crate) const OFFSET_MAX: f64 = 0.5;
const PORT: u16 = 7000;
/// Sequence numbers of a turn begin at a multiple of this.
const TURN: u64 = 1_000_000_000;
/// Longest wait until QEMU has made the tap device: a first run looks for KVM and makes the image.
const DEVICE_MAX: Duration = Duration::from_secs(300);
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// What a turn takes beside its frames, in a guest without KVM.
const TURN_EXTRA: Duration = Duration::from_secs(30);
/// Frames at the begin of a turn that are left out: the program registers its stream, and an interpreted guest translates its code.
const STARTING: u64 = 100;
/// The metric of the bar: how far from its transmit time a frame was on the wire, early or late.
pub(crate) const MAGNITUDE: &str = "wire_offset_magnitude_ns.p50";
/// What the metric means.
pub(crate) const MAGNITUDE_MEANS: &str =
    "the wire offset without its sign: too early is as wrong as too late";
/// What the script says at its end.
const ENDED: &str = "all turns have ended";

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Rounds; in each ktsnd and each of etf's deltas have one turn.
    pub rounds: u32,
    /// Frames of a turn.
    pub frames: u64,
    /// Distance of two transmit times.
    pub period: Nanos,
    /// How far ahead the program sends. On one CPU a whole number of periods lets each send run when an earlier frame has to leave.
    pub lead: Nanos,
    /// etf's deltas.
    pub deltas: Vec<Nanos>,
    /// Octets of payload.
    pub payload_octets: usize,
    /// `auto`, `kvm` or `tcg`.
    pub accelerator: String,
    /// Programs, lock, command.
    pub setup: Setup,
}

impl Plan {
    /// # Errors
    /// [`LabError::Usage`] names what cannot be measured.
    pub fn check(&self) -> Result<(), LabError> {
        let within = |name: &str, value: i64, least: i64, most: i64| match (least..=most).contains(&value) {
            true => Ok(()),
            false => Err(LabError::Usage(format!("{name}: {value}: expected {least} to {most}"))),
        };
        within("rounds", self.rounds.into(), 1, 1000)?;
        within("period", self.period.get(), 100_000, 1_000_000_000)?;
        let least = i64::try_from(STARTING + self.ending()).unwrap_or(i64::MAX) + 1;
        within("frames", i64::try_from(self.frames).unwrap_or(i64::MAX), least, 10_000_000)?;
        within("payload", i64::try_from(self.payload_octets).unwrap_or(i64::MAX), 16, 1472)?;
        for delta in &self.deltas {
            within("delta", delta.get(), 1_000, 1_000_000_000)?;
            within("lead", self.lead.get(), delta.get(), 1_000_000_000)?;
        }
        none_twice("delta", &self.deltas)
    }

    fn turn(&self) -> Duration {
        let nanos = u64::try_from(self.period.get()).unwrap_or(0).saturating_mul(self.frames);
        Duration::from_nanos(nanos).saturating_add(TURN_EXTRA)
    }

    /// Frames at the end of a turn that are left out: they were queued when the program ended.
    const fn ending(&self) -> u64 {
        (self.lead.get() / self.period.get()).unsigned_abs() + 1
    }

    /// The path of etf with this delta.
    fn etf(delta: Nanos) -> String {
        format!("guest-etf-{}us", delta.get() / 1000)
    }

    /// All paths, each with the mode of its set-up.
    fn paths(&self) -> Vec<(String, String)> {
        let etf = |&delta: &Nanos| (Self::etf(delta), format!("etf --delta {}ns", delta.get()));
        let ktsnd = std::iter::once((KTSND.to_owned(), "ktsnd".to_owned()));
        self.deltas.iter().map(etf).chain(ktsnd).collect()
    }

    /// Turns of a round in their order, each with its number: every other round the other way round.
    fn turns(&self, round: u32) -> Vec<(u64, String, String)> {
        let paths = self.paths();
        let first = u64::from(round - 1) * paths.len() as u64;
        let turns = (first..).zip(paths).map(|(turn, (path, mode))| (turn, path, mode));
        if round % 2 == 1 { turns.collect() } else { turns.collect::<Vec<_>>().into_iter().rev().collect() }
    }

    /// What the guest runs.
    fn script(&self) -> String {
        let nanos = |span: Nanos| format!("{}ns", span.get());
        let mut script = String::from(
            "set -ef\necho clocks $(cat /sys/devices/system/clocksource/clocksource0/available_clocksource)\n\
             ip addr add 10.0.0.1/24 dev eth0\nip link set eth0 up\n\
             ip neigh add 10.0.0.2 lladdr 02:00:00:00:00:02 dev eth0 nud permanent\n",
        );
        for (turn, path, mode) in (1..=self.rounds).flat_map(|round| self.turns(round)) {
            let run = if path == KTSND { "ktsn run --policy strict -- " } else { "" };
            script.push_str(&format!(
                "ktsn guest setup --mode {mode} --verify 0 >&2\n\
                 echo turn {turn}\n\
                 {run}ktsn talk 10.0.0.2:{PORT} --count {frames} --period {period} --lead {lead} --payload {payload} \
                 --first-sequence {first} --fifo 60 --json - 2>/dev/null || true\n\
                 echo clock $(ktsn clock status --json)\n\
                 ktsn guest undo >/dev/null\n",
                frames = self.frames,
                period = nanos(self.period),
                lead = nanos(self.lead),
                payload = self.payload_octets,
                first = turn * TURN,
            ));
        }
        // The device goes with QEMU, and the tap has to end before.
        script.push_str(&format!("echo {ENDED}\nsleep 3600\n"));
        script
    }
}

/// Measures, and holds ktsnd against etf.
///
/// # Errors
/// [`LabError`]; the guest has ended then, too.
pub fn run(plan: &Plan, watch: &mut Watch<'_>) -> Result<Outcome, LabError> {
    plan.check()?;
    let measure = |session: &mut Session<'_>| {
        let directory = crate::carry_out::directory()?;
        let directory = directory.path();
        let name = "a guest sends by turns with etf and with ktsnd";
        session.repeat(
            name,
            1,
            |_| scene(plan, directory),
            |guests, document| {
                guests.iter().for_each(|(said, tap)| describe(plan, said, tap, document));
            },
        )
    };
    carry_out(&plan.setup.terms("vm-sender"), watch, measure, |document, runs| compare(plan, runs, document))
}

/// One guest, in which the paths take turns: what it said, and the tap's figures.
fn scene(plan: &Plan, directory: &Path) -> Result<Measured<(Said, Value)>, LabError> {
    let (said, arrivals, tap) = one_guest(plan, directory)?;
    let (said, mut measured) = (Said::read(&said)?, Measured::default());
    for round in 1..=plan.rounds {
        for (turn, path, _) in plan.turns(round) {
            let records = records_of(plan, &arrivals, turn);
            let run = RunRecords { path, payload_octets: plan.payload_octets, load: None, round, records };
            measured.series.push(series(plan, &run, said.talks.get(&turn)));
            measured.runs.push(run);
        }
    }
    Ok(measured.with((said, tap)))
}

/// Boots the guest, watches its tap device, and returns what the guest said, the frames, and the tap's figures.
fn one_guest(plan: &Plan, directory: &Path) -> Result<(String, Vec<ArrivalRecord>, Value), LabError> {
    let tools = &plan.setup.tools;
    let turns = plan.rounds.saturating_mul(u32::try_from(plan.paths().len()).unwrap_or(u32::MAX));
    let longest = plan.turn().saturating_mul(turns);
    let mut guest = Program::new("guest", &tools.bench)
        .args([
            "vm",
            "run",
            "--datapath",
            "tap",
            "--queues",
            "4",
            "--clock",
            "vptp",
            "--accelerator",
            &plan.accelerator,
        ])
        .args(["--timeout", &format!("{}s", longest.as_secs())])
        .args(["--", "sh", "-c", &plan.script()])
        .env("KTSN_LIB", tools.libktsn.as_os_str())
        .start(directory)?;
    let qemu = wait_for_device(&mut guest)?;
    let network = format!("--net=/proc/{qemu}/ns/net");
    let (records, figures) = (directory.join("tap.csv"), directory.join("tap.json"));
    let mut tap = Program::new("tap", Path::new("nsenter"))
        .args([network.as_str(), "--"])
        .args([tools.ktsn.as_os_str()])
        .args(["tap", TAP, "--port", &PORT.to_string()])
        .args(["--records".as_ref(), records.as_os_str(), "--json".as_ref(), figures.as_os_str()])
        .says_ready()
        .start(directory)?;
    tap.wait_ready(Duration::from_secs(10))?;
    let log = directory.join("guest.log");
    let until = Instant::now() + longest + DEVICE_MAX;
    let said = loop {
        let said = std::fs::read_to_string(&log).map_err(LabError::file(&log))?;
        if said.contains(ENDED) {
            break said;
        }
        if guest.wait_any(LOOK_AGAIN)?.is_some() || Instant::now() >= until {
            return Err(guest.failed("ended before its turns did".to_owned()));
        }
    };
    tap.ask_to_end()?;
    tap.wait(Duration::from_secs(10), &[0, 1])?;
    let contents = |problem: String| LabError::Contents { path: records.clone(), problem };
    let arrivals = load_arrivals(&records).map_err(|error| contents(error.to_string()))?;
    let text = std::fs::read_to_string(&figures).map_err(LabError::file(&figures))?;
    let figures = serde_json::from_str(&text).map_err(|error| contents(error.to_string()))?;
    // By SIGTERM the guest ends like any run that is stopped.
    guest.ask_to_end()?;
    guest.wait(Duration::from_secs(10), &[1])?;
    Ok((said, arrivals, figures))
}

/// Waits until a child of `ktsn vm run` is a QEMU with a tap device, and takes the device up. The process number of QEMU.
fn wait_for_device(guest: &mut Process) -> Result<u32, LabError> {
    let until = Instant::now() + DEVICE_MAX;
    let children = format!("/proc/{0}/task/{0}/children", guest.pid());
    while Instant::now() < until {
        let text = std::fs::read_to_string(&children).unwrap_or_default();
        for child in text.split_whitespace() {
            let up = format!("nsenter --net=/proc/{child}/ns/net ip link set dev {TAP} up");
            if let (Ok(()), Ok(pid)) = (crate::command::run(None, &up), child.parse()) {
                return Ok(pid);
            }
        }
        if guest.wait_any(LOOK_AGAIN)?.is_some() {
            return Err(guest.failed("ended before it had a network device".to_owned()));
        }
    }
    Err(guest.failed(format!("has no network device within {DEVICE_MAX:?}")))
}

/// What the guest's script said.
#[derive(Debug, Default)]
struct Said {
    /// How the guest ran: a kernel under KVM has KVM's clock.
    accelerator: Option<&'static str>,
    /// The programs' figures, by turn.
    talks: BTreeMap<u64, Value>,
    /// The largest bound of the error of the guest's clock.
    clock_bound_ns: Option<u64>,
}

impl Said {
    /// # Errors
    /// The guest's clock did not follow at the end of a turn: then its offsets are none.
    fn read(text: &str) -> Result<Self, LabError> {
        let (mut said, mut turn) = (Self::default(), None);
        for line in text.lines() {
            match line.split_once(' ') {
                Some(("clocks", clocks)) => {
                    let has_kvm = clocks.split_whitespace().any(|clock| clock == "kvm-clock");
                    said.accelerator = Some(if has_kvm { "kvm" } else { "tcg" });
                }
                Some(("turn", number)) => turn = number.parse().ok(),
                Some(("clock", status)) => {
                    let status: Value = serde_json::from_str(status).unwrap_or_default();
                    if status["state"] != "following" {
                        return Err(LabError::Process {
                            name: "the guest's clock".to_owned(),
                            problem: format!("did not follow the host's after turn {turn:?}"),
                            stderr: format!("; its state: {status}"),
                        });
                    }
                    said.clock_bound_ns = said.clock_bound_ns.max(status["error_bound_ns"].as_u64());
                }
                _ => {
                    if let (Some(turn), Ok(Value::Object(figures))) = (turn, serde_json::from_str(line)) {
                        said.talks.insert(turn, Value::Object(figures));
                    }
                }
            }
        }
        Ok(said)
    }
}

/// The frames of a turn, without those of its begin and its end.
fn records_of(plan: &Plan, arrivals: &[ArrivalRecord], turn: u64) -> Vec<Record> {
    let (first, ended) = (turn * TURN + STARTING, turn * TURN + plan.frames.saturating_sub(plan.ending()));
    let of_turn = arrivals.iter().filter(|arrival| (first..ended).contains(&arrival.probe.sequence));
    let record = |arrival: &ArrivalRecord| Record {
        sequence: arrival.probe.sequence,
        tx_time: arrival.probe.tx_time,
        handed_at: None,
        wire_at: arrival.kernel_at,
        kernel_at: None,
        received_at: None,
    };
    let mut records: Vec<Record> = of_turn.map(record).collect();
    records.sort_unstable_by_key(|record| record.sequence);
    records.dedup_by_key(|record| record.sequence);
    records
}

fn offsets(records: &[Record]) -> impl Iterator<Item = Nanos> {
    records.iter().filter_map(|record| Some(record.wire_at?.since(record.tx_time)))
}

fn series(plan: &Plan, run: &RunRecords, talk: Option<&Value>) -> Series {
    let left_out = STARTING + plan.ending();
    let number = |field: &str| talk?[field].as_u64().map(|count| count.saturating_sub(left_out));
    let received = run.records.len() as u64;
    let least = offsets(&run.records).min().unwrap_or(Nanos::ZERO);
    Series {
        path: run.path.clone(),
        payload_octets: plan.payload_octets,
        round: Round::Number(run.round),
        frames_intended: number("frames_intended"),
        frames_sent: number("frames_sent"),
        frames_received: Some(received),
        lost: number("frames_intended").map(|intended| intended.saturating_sub(received)),
        wire_offset_ns: Statistics::of(offsets(&run.records)),
        above_fastest_ns: Statistics::of(offsets(&run.records).map(|offset| offset.saturating_sub(least))),
        clock: Some("vptp".to_owned()),
        ..Series::default()
    }
}

fn describe(plan: &Plan, said: &Said, tap: &Value, document: &mut Document) {
    let described = json!({
        "rounds": plan.rounds,
        "interleaved": true,
        "frames": plan.frames,
        "frames_left_out": format!("the first {STARTING} and the last {} of each turn", plan.ending()),
        "period_ns": plan.period.get(),
        "lead_ns": plan.lead.get(),
        "etf_deltas_ns": plan.deltas.iter().map(|delta| delta.get()).collect::<Vec<_>>(),
        "payload_octets": [plan.payload_octets],
        "accelerator": said.accelerator,
        "clock_error_bound_ns": said.clock_bound_ns,
        "wire_at": "the kernel's stamp at the guest's tap device on the host, whose clock the guest's follows",
        "wire_offset_magnitude": MAGNITUDE_MEANS,
        "lost": "frames of the program that did not come to the tap",
        "bar": "against etf with the delta that lost the fewest frames; the other deltas are shown without a bar",
        "tap_kernel_drops": tap["kernel_drops"],
    });
    document.parameters.extend(described.as_object().cloned().unwrap_or_default());
}

/// A path's frames in all rounds: lost, and the median distance from their transmit times, nanoseconds.
fn whole(plan: &Plan, runs: &[RunRecords], document: &Document, path: &str) -> Option<(u64, f64)> {
    let records = runs.iter().filter(|run| run.path == path).flat_map(|run| offsets(&run.records));
    let statistics = Statistics::of(records.map(Nanos::abs))?;
    Some((document.all_rounds(path, plan.payload_octets, None)?.lost?, statistics.p50 as f64))
}

/// ktsnd against etf with each delta. The one that lost the fewest frames has the bars: the median, and frames lost.
fn compare(plan: &Plan, runs: &[RunRecords], document: &mut Document) {
    let Some((own_lost, own)) = whole(plan, runs, document, KTSND) else { return };
    let etf = plan.deltas.iter().map(|&delta| Plan::etf(delta));
    let mut etf: Vec<(u64, f64, String)> = etf
        .filter_map(|path| whole(plan, runs, document, &path).map(|(lost, offset)| (lost, offset, path)))
        .collect();
    etf.sort_by(|one, other| one.0.cmp(&other.0).then(one.1.total_cmp(&other.1)));
    for (rank, (lost, offset, path)) in etf.iter().enumerate() {
        let entry = |metric, ratio: Option<f64>, bar, holds| Comparison {
            payload_octets: Some(plan.payload_octets),
            bar: (rank == 0).then_some(bar),
            holds: (rank == 0).then_some(holds),
            ..Comparison::held(metric, KTSND, Some(path.as_str()), ratio, bar)
        };
        let ratio = (*offset > 0.0).then(|| own / offset);
        document.comparisons.push(entry(
            MAGNITUDE,
            ratio,
            OFFSET_MAX,
            ratio.is_some_and(|ratio| ratio <= OFFSET_MAX),
        ));
        // The bar is "fewer": as many miss it.
        let ratio = (*lost > 0).then(|| own_lost as f64 / *lost as f64);
        document.comparisons.push(entry("lost", ratio, 1.0, own_lost < *lost));
    }
}

#[cfg(test)]
mod tests;
