// SPDX-License-Identifier: Apache-2.0
//! The ingress fast path and the kernel's path by turns of 150 ms, under one stream. In: the testbed's plan. Out:
//! series of the frames that came by either way, and what the ratio of their latencies is held against.
//!
//! Two paths that are measured one after the other differ by what the machine did meanwhile: the listener's wake-up, which both
//! have, swings by more than the fast path saves (`docs/design/ingress.md`). Here the talker, its ktsnd, the tap and the
//! listener stay, and only the receiving node's attachment comes and goes. What is sent while it does belongs to neither way, and
//! must arrive like the rest.
//!
//! ```text
//!            attach         detach        attach
//!  kernel ─────┤╌╌╌                ╌╌╌┌─────────┤╌╌╌
//!  short       ╌╌╌┌───────────────┤╌╌╌          ╌╌╌┌──── …      ╌ neither: the change, and SETTLE after it
//! ```

use crate::carry_out::{Measured, Session};
use crate::container::{self, Bench, Load, Path, bars, receiving_daemon};
use crate::daemon::{Daemon, configuration, without_attachment};
use crate::error::LabError;
use crate::observations::{Observations, RunLabel};
use crate::observers::{MEASURED, READY_MAX, TALK_EXTRA, finish};
use crate::testbed::{
    Host, POD_INTERFACE, Testbed, UPLINK, VXLAN_DEVICE, VXLAN_PORT, VXLAN_VNI, namespace_path,
};
use ktsn_measure::clock;
use ktsn_measure::records::RunRecords;
use ktsn_measure::results::{Check, CheckOutcome, Document, Question, Series};
use ktsn_proto::attachment::{AttachmentConfig, OverlayConfig, PeerConfig, VxlanConfig};
use ktsn_proto::v1;
use ktsn_time::{Nanos, Tai};
use std::time::{Duration, Instant};

/// The counts that must be 0, idle and loaded.
pub(super) const COUNTS: [&str; 4] = ["lost", "duplicates", "early", "reordered"];
/// Time between two changes.
const TURN: Duration = Duration::from_millis(150);
/// Changes of one round; each way has half of the turns.
const TURNS: u32 = 40;
/// Changes of one round of a functional run.
const TURNS_FUNCTIONAL: u32 = 4;
/// Frames that leave so soon after a change belong to neither way: ktsnd and the kernel may be tidying up.
const SETTLE: Nanos = Nanos::from_millis(30);
/// A frame that left so long before a change has arrived before it.
const ARRIVES_WITHIN: Nanos = Nanos::from_millis(5);
/// Longest wait for the fast path to be open or shut.
const CHANGE_MAX: Duration = Duration::from_secs(3);
/// Greatest part of the latency of the kernel's path that the fast path may have.
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
fn describe() -> String {
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
    if plan.setup.functional { TURNS_FUNCTIONAL } else { TURNS }
}

/// Measures both ways by turns.
pub(super) fn measure(plan: &container::Plan, session: &mut Session<'_>) -> Result<(), LabError> {
    let directory = crate::carry_out::directory()?;
    let testbed = Testbed::new()?;
    // Its talker sends until it is asked to end: how long a change takes is the machine's affair.
    let plan = container::Plan { frames: 0, ..plan.clone() };
    let tools = &plan.setup.tools;
    let near = Daemon::start(tools, &testbed.a, directory.path(), &configuration(&testbed))?;
    let far = receiving_daemon::start_with(tools, &testbed, directory.path(), &without_attachment())?;
    let bench = Bench {
        plan: &plan,
        testbed: &testbed,
        daemon: Some(&near),
        directory: directory.path(),
        switch: None,
    };
    session.document.parameters.insert("turns".to_owned(), describe().into());
    let both = Turns { bench, far };
    session.repeat(
        "the short way in and the kernel's by turns",
        plan.rounds,
        |turn| both.run(turn.round),
        |rounds, document| document.checks.push(arrived(&rounds)),
    )
}

/// Pod B's interface, with the ingress fast path.
fn attachment(b: &Host, a: &Host) -> AttachmentConfig {
    let peer = PeerConfig {
        prefix: Some(a.pod_prefix.clone()),
        vtep: Some(a.address.to_string()),
        mac: Some(a.vxlan_mac.clone()),
    };
    let vxlan = VxlanConfig {
        mode: Some("routed".to_owned()),
        vni: Some(VXLAN_VNI),
        port: Some(VXLAN_PORT),
        local: Some(b.address.to_string()),
        device: Some(VXLAN_DEVICE.to_owned()),
        peers: Some(vec![peer]),
        ..VxlanConfig::default()
    };
    AttachmentConfig {
        name: Some(NAME.to_owned()),
        netns: Some(namespace_path(&b.pod_namespace)),
        interface: Some(POD_INTERFACE.to_owned()),
        uplink: Some(UPLINK.to_owned()),
        ingress: Some(Way::Short.ingress().to_owned()),
        overlay: Some(OverlayConfig::Vxlan(Box::new(vxlan))),
        ..AttachmentConfig::default()
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
    observations: Observations,
}

impl Turns<'_> {
    /// Opens and shuts the fast path: the spans between, and how many frames it took.
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
        let attachment = attachment(&self.bench.testbed.b, &self.bench.testbed.a).json();
        let request = v1::AttachRequest { attachment, check_only: false };
        self.far.ask(|mut client| async move { client.attach(request).await })?;
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
        let request = v1::DetachRequest { name: NAME.to_owned() };
        self.far.ask(|mut client| async move { client.detach(request).await })?;
        Ok(taken)
    }

    fn far_ingress(&self) -> Result<v1::IngressStatistics, LabError> {
        let request = v1::StatisticsRequest { attachment: NAME.to_owned() };
        let reply = self.far.ask(|mut client| async move { client.statistics(request).await })?;
        let of = reply.attachments.into_iter().find(|of| of.name == NAME).and_then(|of| of.ingress);
        of.ok_or_else(|| LabError::Control(format!("no ingress statistics of the attachment {NAME:?}")))
    }

    fn run(&self, number: u32) -> Result<Measured<Round>, LabError> {
        let Bench { plan, directory, .. } = &self.bench;
        let files = self.bench.observers();
        files.forget(&["talk", "listen", "tap"])?;
        let mut tap = self.bench.tap().start(directory)?;
        let mut listener = self.bench.listener(Path::Ktsn).start(directory)?;
        tap.wait_ready(READY_MAX)?;
        listener.wait_ready(READY_MAX)?;
        let first_sequence = u64::from(number) << 32;
        let talker = self.bench.talker(Path::Ktsn, bars::PAYLOAD_OCTETS, first_sequence, Nanos::ZERO);
        let mut talker = talker.start(directory)?;
        let (spans, taken) = self.change_ways(turns(plan))?;
        talker.ask_to_end()?;
        talker.wait(TALK_EXTRA, MEASURED)?;
        finish(&mut listener)?;
        finish(&mut tap)?;
        let observations = Observations::read(&files, &files, &files)?;
        let round = Round { number, spans, observations };
        // Void by the observers' fault; ways that did not change are no fault of an observation.
        let fault = round.observations.fault(&RunRecords::default());
        if let (None, Some(problem)) = (&fault, round.contradiction(taken)) {
            return Err(LabError::Process { name: "turns".to_owned(), problem, stderr: String::new() });
        }
        let (series, runs) = Way::ALL.map(|way| round.series(Some(way))).into_iter().unzip();
        Ok(Measured { series, runs, fault, ..Measured::default() }.with(round))
    }
}

impl Round {
    /// The frames that came by a way, or all of them.
    fn series(&self, way: Option<Way>) -> (Series, RunRecords) {
        let label = RunLabel {
            path: way.map_or("all", Way::path),
            is_kept: true,
            egress: Path::Ktsn.egress(),
            is_overlay: true,
            ingress: way.map_or("both", Way::ingress),
            payload: bars::PAYLOAD_OCTETS,
            load: Load::Idle.word(),
            round: self.number,
        };
        let is_in = |at| way.is_none() || way_of(&self.spans, at) == way;
        let (run, series) = self.observations.part(is_in).figures(&label, None);
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
        let known: Vec<&str> = COUNTS.into_iter().filter(|metric| all.metric(metric).is_some()).collect();
        wrong.extend(all.nonzero(&known).map(|fault| format!("round {}: {fault}", round.number)));
    }
    let holds = wrong.is_empty();
    wrong.insert(0, format!("{sent} frames"));
    Check::of(ARRIVED, holds, Some(wrong.join("; ")))
}

/// Adds what is judged.
pub(super) fn compare(document: &mut Document) {
    let [to, of] = Way::ALL.map(Way::path);
    let load = Some(Load::Idle.word());
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
