// SPDX-License-Identifier: Apache-2.0
//! The short way in and the kernel's way by turns of 150 ms, under one stream. In: the testbed's plan. Out:
//! series of the frames that came by either way, and what the ratio of their latencies is held against.
//!
//! Two paths that are measured one after the other differ by what the machine did meanwhile: the listener's wake-up, which both
//! have, swings by more than the short way saves (`docs/design/ingress.md`). Here the talker, its ktsnd, the tap and the
//! listener stay, and only the receiving node's attachment comes and goes. What is sent while it does belongs to neither way, and
//! must arrive like the rest.
//!
//! ```text
//!            attach         detach        attach
//!  kernel ─────┤╌╌╌                ╌╌╌┌─────────┤╌╌╌
//!  short       ╌╌╌┌───────────────┤╌╌╌          ╌╌╌┌──── …      ╌ neither: the change, and SETTLE after it
//! ```

use super::bars::COUNTS;
use crate::container::{self, Bench, Event, Load, Path, bars, far};
use crate::daemon::{Daemon, without_attachment};
use crate::error::LabError;
use crate::exclusive::wait_until_quiet;
use crate::observers::{MEASURED, READY_MAX, TALK_EXTRA, finish};
use crate::testbed::{
    Host, POD_INTERFACE, Testbed, UPLINK, VXLAN_DEVICE, VXLAN_PORT, VXLAN_VNI, namespace_path,
};
use crate::told::{Of, Told};
use ktsn_measure::clock;
use ktsn_measure::records::RunRecords;
use ktsn_measure::results::{Check, CheckOutcome, Document, Question, Series};
use ktsn_proto::v1;
use ktsn_time::{Nanos, Tai};
use std::time::{Duration, Instant};

/// Time between two changes.
const TURN: Duration = Duration::from_millis(150);
/// Changes of one round; each way has half of the turns.
const TURNS: u32 = 40;
/// The same where times mean nothing.
const TURNS_FUNCTIONAL: u32 = 4;
/// Frames that leave so soon after a change belong to neither way: ktsnd and the kernel may be tidying up.
const SETTLE: Nanos = Nanos::from_millis(30);
/// A frame that left so long before a change has arrived before it.
const ARRIVES_WITHIN: Nanos = Nanos::from_millis(5);
/// Longest wait for the short way to be open or shut.
const CHANGE_MAX: Duration = Duration::from_secs(3);
/// Greatest part of the kernel way's latency that the short way's may be.
const LATENCY_MAX: f64 = 0.92;
/// The receiving node's attachment.
const NAME: &str = "far";
/// The check of a round's frames, those about a change among them.
const ARRIVED: &str = "no frame is lost, doubled or out of order while the way into the pod changes";

/// How a frame comes into the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Kernel,
    Short,
}

impl Way {
    const ALL: [Self; 2] = [Self::Kernel, Self::Short];

    /// The path's name in results.
    const fn path(self) -> &'static str {
        match self {
            Self::Kernel => "ktsn-turns",
            Self::Short => "ktsn-short-turns",
        }
    }

    const fn ingress(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Short => "short",
        }
    }

    const fn other(self) -> Self {
        match self {
            Self::Kernel => Self::Short,
            Self::Short => Self::Kernel,
        }
    }
}

/// Frames with a transmit time from `from` to `to` came by `way`.
#[derive(Clone, Copy, Debug)]
struct Span {
    way: Way,
    from: Tai,
    to: Tai,
}

/// The way of a frame; `None` about a change.
fn way_of(spans: &[Span], tx_time: Tai) -> Option<Way> {
    let found = spans.iter().find(|span| (span.from..=span.to).contains(&tx_time));
    found.map(|span| span.way)
}

/// What was measured, for the results.
pub(super) fn describe() -> String {
    format!(
        "ktsn-turns, ktsn-short-turns: one stream as of the path ktsn, whose receiving node takes the short way in for {} ms and leaves the frames to \
         the kernel for as long, {TURNS} turns a round. Frames that leave within {} ms after a change belong to neither; all of \
         them have to arrive, once and in order",
        TURN.as_millis(),
        SETTLE.get() / 1_000_000
    )
}

/// Whether the plan has both ways and what is judged.
pub(super) fn is_asked_for(plan: &container::Plan) -> bool {
    [Path::Ktsn, Path::KtsnShort].iter().all(|path| plan.paths.contains(path))
        && plan.payloads.contains(&bars::PAYLOAD_OCTETS)
        && plan.loads.contains(&Load::Idle)
}

/// Changes of a round.
const fn turns(plan: &container::Plan) -> u32 {
    if plan.functional { TURNS_FUNCTIONAL } else { TURNS }
}

/// Measures: of each way the rounds.
pub(super) fn measure(
    plan: &container::Plan,
    document: &mut Document,
    watch: &mut dyn FnMut(Event<'_>),
) -> Result<Vec<Vec<(Series, RunRecords)>>, LabError> {
    let directory = tempfile::tempdir().map_err(LabError::system("temporary directory"))?;
    let testbed = Testbed::new()?;
    // Its talker sends until it is asked to end: how long a change takes is the machine's affair.
    let plan = container::Plan { frames: 0, ..plan.clone() };
    let near = Daemon::start(&plan.tools, &testbed, directory.path())?;
    let far = far::start_with(&plan.tools, &testbed, directory.path(), &without_attachment())?;
    let bench = Bench { plan: &plan, testbed: &testbed, daemon: Some(near), directory: directory.path() };
    let both = Turns { bench, far };
    let mut rounds = Vec::new();
    for number in 1..=plan.rounds {
        watch(Event::Step(&format!("the short way in and the kernel's by turns, round {number}")));
        if !plan.functional {
            wait_until_quiet(|_| ())?;
        }
        rounds.push(both.run(number)?);
    }
    document.parameters.insert("turns".to_owned(), describe().into());
    document.checks.push(arrived(&rounds));
    let of = |way| rounds.iter().map(|round| round.series(Some(way))).collect();
    Ok(Way::ALL.map(of).into())
}

/// Pod B's interface, with the short way in.
fn attachment(b: &Host, a: &Host) -> v1::Attachment {
    let peer =
        v1::VxlanPeer { prefix: a.pod_prefix.clone(), vtep: a.address.to_string(), mac: a.vxlan_mac.clone() };
    v1::Attachment {
        name: NAME.to_owned(),
        netns: namespace_path(&b.pod_namespace),
        interface: POD_INTERFACE.to_owned(),
        uplink: UPLINK.to_owned(),
        ingress: Way::Short.ingress().to_owned(),
        vxlan: Some(v1::Vxlan {
            mode: "routed".to_owned(),
            vni: VXLAN_VNI,
            port: VXLAN_PORT.into(),
            local: b.address.to_string(),
            device: VXLAN_DEVICE.to_owned(),
            peers: vec![peer],
            ..v1::Vxlan::default()
        }),
        ..v1::Attachment::default()
    }
}

struct Turns<'a> {
    bench: Bench<'a>,
    far: Daemon,
}

/// One round.
struct Round {
    number: u32,
    spans: Vec<Span>,
    told: Told,
}

impl Turns<'_> {
    fn run(&self, number: u32) -> Result<Round, LabError> {
        let Bench { plan, directory, .. } = &self.bench;
        let files = self.bench.observers();
        files.forget(&["talk", "listen", "tap"])?;
        let mut tap = self.bench.tap().start(directory)?;
        let mut listener = self.bench.listener(Path::Ktsn).start(directory)?;
        tap.wait_ready(READY_MAX)?;
        listener.wait_ready(READY_MAX)?;
        let first_sequence = u64::from(number) << 32;
        let talker = self.bench.talker(Path::Ktsn, bars::PAYLOAD_OCTETS, first_sequence);
        let mut talker = talker.start(directory)?;
        let (spans, taken) = self.change_ways(turns(plan))?;
        talker.ask_to_end()?;
        talker.wait(TALK_EXTRA, MEASURED)?;
        finish(&mut listener)?;
        finish(&mut tap)?;
        let told = Told::read(&files, &files, &files)?;
        let round = Round { number, spans, told };
        let broken = round.told.broken(&RunRecords::default()).or_else(|| round.contradiction(taken));
        match broken {
            None => Ok(round),
            Some(problem) => {
                Err(LabError::Process { name: "turns".to_owned(), problem, stderr: String::new() })
            }
        }
    }

    /// Opens and shuts the short way: the spans between, and how many frames it took.
    fn change_ways(&self, turns: u32) -> Result<(Vec<Span>, u64), LabError> {
        let (mut spans, mut taken, mut way) = (Vec::new(), 0, Way::Kernel);
        let mut from = clock::tai_now();
        for _ in 0..turns {
            std::thread::sleep(TURN);
            let to = clock::tai_now().saturating_sub(ARRIVES_WITHIN);
            spans.push(Span { way, from, to });
            way = way.other();
            match way {
                Way::Short => self.open()?,
                Way::Kernel => taken += self.shut()?,
            }
            from = clock::tai_now().saturating_add(SETTLE);
        }
        if way == Way::Short {
            std::thread::sleep(TURN);
            let to = clock::tai_now().saturating_sub(ARRIVES_WITHIN);
            spans.push(Span { way, from, to });
            taken += self.shut()?;
        }
        Ok((spans, taken))
    }

    fn open(&self) -> Result<(), LabError> {
        let wish =
            v1::AttachRequest { attachment: Some(attachment(&self.bench.testbed.b, &self.bench.testbed.a)) };
        self.far.ask(|mut client| async move { client.attach(wish).await })?;
        let until = Instant::now() + CHANGE_MAX;
        loop {
            let now = self.far_ingress()?;
            if now.idle.is_empty() {
                return Ok(());
            }
            if Instant::now() > until {
                let problem = format!("the short way in is not open after {CHANGE_MAX:?}: {}", now.idle);
                return Err(LabError::Control(problem));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// How many frames it took.
    fn shut(&self) -> Result<u64, LabError> {
        let taken = self.far_ingress()?.taken;
        let wish = v1::DetachRequest { name: NAME.to_owned() };
        self.far.ask(|mut client| async move { client.detach(wish).await })?;
        Ok(taken)
    }

    fn far_ingress(&self) -> Result<v1::IngressStatistics, LabError> {
        let wish = v1::StatisticsRequest { attachment: NAME.to_owned() };
        let reply = self.far.ask(|mut client| async move { client.statistics(wish).await })?;
        let of = reply.attachments.into_iter().find(|of| of.name == NAME).and_then(|of| of.ingress);
        of.ok_or_else(|| LabError::Control(format!("no ingress statistics of the attachment {NAME:?}")))
    }
}

impl Round {
    /// The frames that came by a way, or all of them.
    fn series(&self, way: Option<Way>) -> (Series, RunRecords) {
        let of = Of {
            path: way.map_or("all", Way::path),
            is_served: true,
            is_overlay: true,
            ingress: way.map_or("both", Way::ingress),
            payload: bars::PAYLOAD_OCTETS,
            load: Load::Idle.name(),
            round: self.number,
        };
        let is_in = |at| way.is_none() || way_of(&self.spans, at) == way;
        let (run, series) = self.told.part(is_in).run(&of, None);
        (series, run)
    }

    /// What the receiving node counted against what is known of the frames' ways.
    fn contradiction(&self, taken: u64) -> Option<String> {
        let count = |way| self.series(way).0.frames_received.unwrap_or_default();
        let [all, kernel, short] = [None, Some(Way::Kernel), Some(Way::Short)].map(count);
        let expected = short..=all - kernel;
        (!expected.contains(&taken)).then(|| {
            let [least, most] = [expected.start(), expected.end()];
            format!("the short way took {taken} frames, expected {least} to {most}: the ways did not change when asked to")
        })
    }
}

/// Whether every frame arrived, once and in order.
fn arrived(rounds: &[Round]) -> Check {
    let (mut sent, mut wrong) = (0, Vec::new());
    for round in rounds {
        let all = round.series(None).0;
        sent += all.frames_sent.unwrap_or_default();
        for metric in COUNTS {
            if let Some(count) = all.metric(metric).filter(|&count| count != 0.0) {
                wrong.push(format!("round {}: {metric} is {count}", round.number));
            }
        }
    }
    let outcome = if wrong.is_empty() { CheckOutcome::Passed } else { CheckOutcome::Failed };
    wrong.insert(0, format!("{sent} frames"));
    Check { name: ARRIVED.to_owned(), outcome, reason: Some(wrong.join("; ")) }
}

/// Adds what is judged.
pub(super) fn compare(document: &mut Document) {
    let [to, of] = Way::ALL.map(Way::path);
    let load = Some(Load::Idle.name());
    let octets = bars::PAYLOAD_OCTETS;
    if [of, to].iter().all(|path| document.all_rounds(path, octets, load).is_some()) {
        let metric = "latency_ns.p50";
        document.compare(&Question {
            metric,
            payload_octets: octets,
            load,
            of,
            to: Some(to),
            bar: Some(LATENCY_MAX),
        });
    }
}

/// What must never be: one sentence each.
pub(super) fn violations(document: &Document) -> impl Iterator<Item = String> {
    let failed =
        document.checks.iter().filter(|check| check.name == ARRIVED && check.outcome == CheckOutcome::Failed);
    failed.map(|check| format!("{}: {}", check.name, check.reason.as_deref().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_about_a_change_belong_to_neither_way() {
        let at = Tai::from_nanos;
        let spans = [
            Span { way: Way::Kernel, from: at(100), to: at(200) },
            Span { way: Way::Short, from: at(260), to: at(400) },
        ];
        let ways = [99, 100, 200, 201, 259, 260, 400, 401].map(|nanos| way_of(&spans, at(nanos)));
        let (kernel, short) = (Some(Way::Kernel), Some(Way::Short));
        assert_eq!(ways, [None, kernel, kernel, None, None, short, short, None]);
    }
}
