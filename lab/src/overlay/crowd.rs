// SPDX-License-Identifier: Apache-2.0
//! Many attachments of one ktsnd: a pod each, an unmodified talker in each. In: how many. Out: series of all of them
//! together: what the tap at the far end saw, and the worker's own transmit errors.
//!
//! ```text
//!  planned   |▮▮▮▮▮▮▮ (20 µs apart) .................... |▮▮▮▮▮▮▮   the offsets that a TSN planner gives its talkers: the
//!            0      4 ms                               10 ms       worker spins two fifths of the cycle
//!  random    |▮..▮....▮▮..▮...▮.▮....▮..▮..▮▮....▮...▮..|▮..▮....   no planner: the spin budget is spent, the rest comes
//!                                                                  from sleeping. For information
//! ```
//!
//! The talkers are ordinary processes on the listener's CPU. They send 10 to 20 ms ahead, spread over the period: programs do
//! not wake in the order of their transmit times, and 200 that did so at once would keep that CPU busy past them. They begin one after the other, a period
//! apart; lateness and CPU are those of the 2 s in which all of them talk, frames are counted from the first to the last:
//!
//! ```text
//!  talker 0    ├───────────────────────────────┤
//!  talker 1      ├─────────────────────────────┤
//!  talker 199                  ├───────────────┤
//!                              │◄── window ──►│
//! ```

use crate::carry_out::{Measured, Session};
use crate::container::{self, Load};
use crate::daemon::{Counters, Daemon, attachment_of, without_attachment};
use crate::error::LabError;
use crate::experiment::Event;
use crate::observations::put_disturbance;
use crate::observers::{MEASURED, Observers, READY_MAX, TALK_EXTRA, finish};
use crate::process::Program;
use crate::testbed::{Crowd, Testbed, UPLINK};
use ktsn_measure::environment::CpuUse;
use ktsn_measure::records::{self, ArrivalRecord, RunRecords, TalkRecord};
use ktsn_measure::results::Series;
use ktsn_measure::series::Facts;
use ktsn_measure::{clock, listener, talker, tap};
use ktsn_time::{Nanos, Tai};
use std::collections::BTreeMap;
use std::path::Path as FilePath;
use std::time::Duration;

/// How many attachments the experiment has unless another number is asked for.
pub const ATTACHMENTS: usize = 200;
/// Distance of two transmit times of a talker.
const PERIOD: Nanos = Nanos::from_millis(10);
/// Distance of two talkers' transmit times, planned.
const SPACING: Nanos = Nanos::from_micros(20);
/// How far ahead the last talker sends.
const LEAD_MIN: Nanos = Nanos::from_millis(10);
/// From the last talker's start to the first transmit time.
const START: Nanos = Nanos::from_millis(100);
/// From the last talker's start to the first transmit time of a functional run, on a machine that may be busy.
const START_FUNCTIONAL: Nanos = Nanos::from_seconds(3);
/// Longest start of one talker beside all others.
const TALKER_START: Nanos = Nanos::from_millis(10);
/// Periods in which all talk and lateness is judged.
const WINDOW: u64 = 200;
/// Periods after them: programs that end are as busy as those that begin.
const TAIL: u64 = 20;
/// The far end's port.
const PORT: u16 = 7000;
/// Sent by talkers, and neither taken by ktsnd nor left to the kernel: still in a ring, or dropped by libktsn.
const BEFORE_KTSND: &str = "before_ktsnd";
/// Handed to the uplink's device, not seen by the tap.
const BEHIND_PORT: &str = "behind_port";

ktsn_model::words! {
    /// How the talkers' transmit times lie to each other; the word is the path's name in results.
    pub enum Phases {
        /// One after the other.
        Planned = "ktsn-many",
        /// Anywhere in the period.
        Random = "ktsn-many-random",
    }
}

impl Phases {
    /// The phase of talker `index`. Random ones are the same in every run, so that runs can be compared.
    fn of(self, index: usize) -> Nanos {
        let index = i64::try_from(index).unwrap_or(i64::MAX);
        match self {
            Self::Planned => SPACING.saturating_mul(index),
            Self::Random => {
                // splitmix64.
                let mut word = (index.unsigned_abs() + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                Nanos::new(((word ^ (word >> 31)) >> 1).cast_signed() % PERIOD.get())
            }
        }
    }

    /// How far ahead talker `index` of `count` sends, so that all of them wake evenly over the period.
    fn lead(self, index: usize, count: usize) -> Nanos {
        let part = |whole: Nanos| {
            whole.get() * i64::try_from(index).unwrap_or(0) / i64::try_from(count).unwrap_or(1).max(1)
        };
        let ahead = LEAD_MIN.get() + PERIOD.get();
        match self {
            Self::Planned => Nanos::new(ahead + self.of(index).get() - part(PERIOD)),
            // They are spread as they are.
            Self::Random => Nanos::new(ahead),
        }
    }
}

/// What was measured, for the results.
fn describe(attachments: usize) -> String {
    format!(
        "{attachments} pods of IPv4 alone, each with an attachment of its own at one ktsnd and one unmodified talker (ordinary process, CPU 0, \
         100 Hz, sends 10 to 20 ms ahead). ktsn-many: transmit times 20 µs apart in one burst each 10 ms, as a TSN planner lays \
         them, so that the worker's spin duty stays below its cap; ktsn-many-random: anywhere in the 10 ms, for \
         information. The far host drops the frames behind the tap: its receive path would run inside our hand-over here. \
         received = seen by the tap. The talkers begin one after the other; lateness (ktsnd's transmit errors) and CPU are of the 2 s in \
         which all talk, frames are counted from the first to the last"
    )
}

/// Measures both variants: random phases in one round only.
pub(super) fn measure(
    plan: &container::Plan,
    attachments: usize,
    session: &mut Session<'_>,
) -> Result<(), LabError> {
    (session.watch)(Event::Step(&format!("{attachments} attachments: pods and daemon")));
    session.document.parameters.insert("attachments".to_owned(), describe(attachments).into());
    let directory = crate::carry_out::directory()?;
    let testbed = Testbed::new()?;
    let pods = Crowd::new(&testbed, attachments, directory.path())?;
    let configured = configured(&testbed, &pods);
    let daemon = Daemon::start(&plan.setup.tools, &testbed.a, directory.path(), &configured)?;
    let many = Many { plan, testbed: &testbed, pods: &pods, daemon, directory: directory.path() };
    for (phases, rounds) in [(Phases::Planned, plan.rounds), (Phases::Random, 1)] {
        let name = format!("{attachments} attachments, {phases}");
        session.repeat(&name, rounds, |turn| many.run(phases, turn.round), |_, _| ())?;
    }
    Ok(())
}

/// One attachment for each pod.
fn configured(testbed: &Testbed, pods: &Crowd) -> String {
    let attachment =
        |(index, pod): (usize, &String)| attachment_of(&testbed.a, &testbed.b, &format!("many-{index}"), pod);
    let each = pods.namespaces().iter().enumerate().map(attachment);
    std::iter::once(without_attachment()).chain(each).collect::<Vec<_>>().join("\n")
}

struct Many<'a> {
    plan: &'a container::Plan,
    testbed: &'a Testbed,
    pods: &'a Crowd,
    daemon: Daemon,
    directory: &'a FilePath,
}

/// What all observers wrote.
struct Observations {
    /// The first sequence number of each talker: they follow one another without a gap, so that all are one run.
    streams: Vec<u64>,
    talked: Vec<TalkRecord>,
    intended: u64,
    tapped: Vec<ArrivalRecord>,
    tap: tap::Summary,
}

impl Many<'_> {
    fn observers(&self) -> Observers<'_> {
        Observers::new(&self.plan.setup, self.directory)
    }

    /// Frames of talker `index`: those before the window, in it and after it.
    fn frames(&self, index: usize) -> u64 {
        (self.pods.namespaces().len() - index) as u64 + WINDOW + TAIL
    }

    /// The first sequence number of each talker.
    fn streams(&self) -> Vec<u64> {
        let before = |sum: &mut u64, index| Some(std::mem::replace(sum, *sum + self.frames(index)));
        (0..self.pods.namespaces().len()).scan(0, before).collect()
    }

    /// Talker `index`, with `at` as its first transmit time.
    fn talker(&self, phases: Phases, index: usize, first_sequence: u64, at: Tai) -> Program {
        let b = self.testbed.b.pod_address;
        let name = format!("talk-{index}");
        let program = self.observers().program(&name, "talk", self.frames(index)).args([
            format!("{b}:{PORT}"),
            format!("--payload={}", container::bars::PAYLOAD_OCTETS),
            format!("--period={}ns", PERIOD.get()),
            format!("--lead={}ns", phases.lead(index, self.pods.namespaces().len()).get()),
            format!("--start-at={}", at.as_nanos()),
            format!("--first-sequence={first_sequence}"),
            "--exact-timers".to_owned(),
        ]);
        let program = self.observers().placed(program, 0, None);
        self.daemon
            .serve(program, &self.plan.setup.tools, self.testbed)
            .within(&self.pods.namespaces()[index])
    }

    fn read(&self, names: &[String], streams: Vec<u64>) -> Result<Observations, LabError> {
        let files = self.observers();
        let mut observations = Observations {
            streams,
            talked: Vec::new(),
            intended: 0,
            tapped: files.records("tap", records::load_arrivals)?,
            tap: files.json("tap")?,
        };
        for name in names {
            observations.talked.extend(files.records(name, records::load_talk)?);
            observations.intended += files.json::<talker::Summary>(name)?.frames_intended;
        }
        Ok(observations)
    }

    fn run(&self, phases: Phases, round: u32) -> Result<Measured, LabError> {
        let names: Vec<String> =
            (0..self.pods.namespaces().len()).map(|index| format!("talk-{index}")).collect();
        let mut files: Vec<&str> = names.iter().map(String::as_str).collect();
        files.push("tap");
        self.observers().forget(&files)?;
        let port = PORT.to_string();
        let tap = self.observers().program("tap", "tap", 0).args([UPLINK, "--port", &port]);
        let mut tap = tap.within(&self.testbed.b.namespace).start(self.directory)?;
        tap.wait_ready(READY_MAX)?;
        // All talkers begin at the same instant, and must be ready before it.
        let pods = i64::try_from(names.len()).unwrap_or(i64::MAX);
        let start = if self.plan.setup.functional { START_FUNCTIONAL } else { START };
        let begins = clock::tai_now().saturating_add(TALKER_START.saturating_mul(pods)).saturating_add(start);
        let begins = Tai::from_nanos(begins.as_nanos().next_multiple_of(PERIOD.get().unsigned_abs()));
        let streams = self.streams();
        let at_first = self.daemon.sums()?;
        let mut talkers = Vec::new();
        for (index, &first) in streams.iter().enumerate() {
            let own = PERIOD.saturating_mul(i64::try_from(index).unwrap_or(i64::MAX));
            let at = begins.saturating_add(own).saturating_add(phases.of(index));
            talkers.push(self.talker(phases, index, first, at).start(self.directory)?);
        }
        for talker in &mut talkers {
            talker.wait_ready(READY_MAX)?;
        }
        if clock::tai_now() >= begins {
            let fault = Some(format!("{pods} talkers were not started in time"));
            return Ok(Measured { fault, ..Measured::default() });
        }
        let opens = begins.saturating_add(PERIOD.saturating_mul(pods));
        sleep_until(opens);
        let (before, machine, begun) = (self.daemon.sums()?, CpuUse::now(), std::time::Instant::now());
        sleep_until(opens.saturating_add(PERIOD.saturating_mul(WINDOW.cast_signed())));
        let (after, ended, elapsed) = (self.daemon.sums()?, CpuUse::now(), begun.elapsed());
        for talker in &mut talkers {
            talker.wait(TALK_EXTRA, MEASURED)?;
        }
        finish(&mut tap)?;
        let counters = after.since(&before);
        let whole = self.daemon.sums()?.since(&at_first);
        let observations = self.read(&names, streams)?;
        let drops = observations.tap.kernel_drops;
        let fault = (drops > 0).then(|| format!("the tap's buffer lost {drops} frames"));
        let daemon_cpu_ratio = Some(counters.cpu.as_secs_f64() / elapsed.as_secs_f64());
        let (plain, run) = series(phases, round, &observations, counters.transmit_figures());
        let mut series = Series {
            daemon_cpu_ratio,
            daemon_rss_octets: Some(self.daemon.resident_octets()?),
            overrun: Some(counters.attachment.overrun),
            late: Some(counters.attachment.late),
            dropped: whereabouts(&plain, &whole),
            bypassed: whole.attachment.bypassed.clone(),
            ..plain
        };
        put_disturbance(&mut series, &machine, &ended);
        Ok(Measured::one((series, run), fault))
    }
}

/// All talkers as one run. There is no listener: what the tap saw was received, and each stream keeps its own order.
fn series(
    phases: Phases,
    round: u32,
    observations: &Observations,
    transmit: Option<ktsn_measure::series::TransmitFigures>,
) -> (Series, RunRecords) {
    let (joined, counts) = records::join(&observations.talked, &observations.tapped, &[], false);
    let seen = joined.iter().filter(|record| record.wire_at.is_some()).count() as u64;
    let run = RunRecords {
        path: phases.word().to_owned(),
        payload_octets: container::bars::PAYLOAD_OCTETS,
        load: Some(Load::Idle.word().to_owned()),
        round,
        records: joined,
    };
    let facts = Facts { frames_intended: observations.intended, counts, transmit, ..Facts::default() };
    let plain = Series::of_run(&run, &facts);
    let series = Series {
        load: run.load.clone(),
        class: Some(container::PRIORITY),
        egress: Some("uplink".to_owned()),
        overlay: Some("vxlan-routed".to_owned()),
        frames_received: Some(seen),
        lost: plain.frames_sent.map(|sent| sent.saturating_sub(seen)),
        reordered: Some(disorder(&observations.streams, &observations.tapped)),
        // Neighbours in number are other talkers' frames.
        wire_jitter_ns: None,
        wire_jitter_left_out: None,
        ..plain
    };
    (series, run)
}

/// What became of the frames that the tap did not see, from the first to the last: ktsnd's reasons, and what was lost on
/// the way to it and behind its port.
fn whereabouts(series: &Series, whole: &Counters) -> BTreeMap<String, u64> {
    let [talked, seen] = [series.frames_sent, series.frames_received].map(Option::unwrap_or_default);
    let whole = &whole.attachment;
    let bypassed: u64 = whole.bypassed.values().sum();
    let mut dropped = whole.dropped.clone();
    for (place, lost) in [
        (BEFORE_KTSND, talked.saturating_sub(whole.taken + bypassed)),
        (BEHIND_PORT, (whole.sent + bypassed).saturating_sub(seen)),
    ] {
        if lost > 0 {
            dropped.insert(place.to_owned(), lost);
        }
    }
    dropped
}

/// Frames that the tap saw after a later one of the same talker; `streams` are the talkers' first sequence numbers.
fn disorder(streams: &[u64], tapped: &[ArrivalRecord]) -> u64 {
    let mut of_talker = BTreeMap::<usize, Vec<ArrivalRecord>>::new();
    for record in tapped {
        let talker = streams.partition_point(|&first| first <= record.probe.sequence);
        of_talker.entry(talker).or_default().push(*record);
    }
    of_talker.values().map(|records| listener::reordered(records)).sum()
}

fn sleep_until(at: Tai) {
    let left = u64::try_from(at.since(clock::tai_now()).get()).unwrap_or(0);
    std::thread::sleep(Duration::from_nanos(left));
}

#[cfg(test)]
mod tests {
    use super::*;
    use ktsn_measure::payload::Probe;
    use ktsn_proto::v1;

    #[test]
    fn planned_phases_lie_one_after_the_other_and_random_ones_anywhere() {
        let planned: Vec<i64> = (0..ATTACHMENTS).map(|index| Phases::Planned.of(index).get()).collect();
        assert!(planned.windows(2).all(|pair| pair[1] - pair[0] == 20_000) && planned[199] < 4_000_000);
        // Wake-ups: 50 µs apart, the first transmit time of a talker at least its lead after its wake-up.
        let wakes = |index| Phases::Planned.of(index).get() - Phases::Planned.lead(index, ATTACHMENTS).get();
        assert!((1..ATTACHMENTS).all(|index| wakes(index) - wakes(index - 1) == 50_000));
        assert!((0..ATTACHMENTS).all(|index| Phases::Planned.lead(index, ATTACHMENTS) >= LEAD_MIN));
        let mut random: Vec<i64> = (0..ATTACHMENTS).map(|index| Phases::Random.of(index).get()).collect();
        assert!(random.iter().all(|phase| (0..10_000_000).contains(phase)));
        random.sort_unstable();
        // Each fifth of the period has about a fifth of them.
        assert!((0..5).all(|part| {
            let within = random.iter().filter(|&&phase| phase / 2_000_000 == part).count();
            (25..=60).contains(&within)
        }));
    }

    #[test]
    fn what_the_tap_saw_was_received_and_streams_are_ordered_each_for_itself() {
        let probe = |sequence: u64, at| Probe { sequence, tx_time: Tai::from_nanos(at) };
        let talk = |probe| TalkRecord { probe, called_at: probe.tx_time, returned_at: probe.tx_time };
        let arrival = |probe: Probe| ArrivalRecord {
            probe,
            kernel_at: Some(probe.tx_time.saturating_add(Nanos::new(700))),
            received_at: None,
        };
        let [a, b] = [[probe(0, 1_000), probe(1, 9_000)], [probe(2, 2_000), probe(3, 8_000)]];
        let observations = Observations {
            streams: vec![0, 2],
            talked: [a, b].concat().into_iter().map(talk).collect(),
            intended: 4,
            // Stream b's second frame is lost; its first came after stream a's last.
            tapped: [a[0], a[1], b[0]].map(arrival).to_vec(),
            tap: tap::Summary::default(),
        };
        let (series, run) = series(Phases::Planned, 1, &observations, None);
        assert_eq!(run.records.len(), 4);
        let reasons = |reasons: &[(&str, u64)]| {
            reasons.iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect::<BTreeMap<_, _>>()
        };
        // Each of them is somewhere: one was dropped, or one never came to ktsnd, or one left and did not arrive.
        let counted = |taken, sent, dropped: &[_]| Counters {
            attachment: v1::AttachmentStatistics {
                taken,
                sent,
                dropped: reasons(dropped),
                ..v1::AttachmentStatistics::default()
            },
            ..Counters::default()
        };
        for (counters, expected) in [
            (counted(4, 3, &[("missed", 1)]), ("missed", 1)),
            (counted(3, 3, &[]), (BEFORE_KTSND, 1)),
            (counted(4, 4, &[]), (BEHIND_PORT, 1)),
        ] {
            assert_eq!(whereabouts(&series, &counters), reasons(&[expected]));
        }
        assert_eq!((series.frames_received, series.lost, series.reordered), (Some(3), Some(1), Some(0)));
        assert_eq!(series.wire_offset_ns.map(|figures| figures.p50), Some(700));
        let observations = Observations { tapped: [a[1], a[0]].map(arrival).to_vec(), ..observations };
        assert_eq!(disorder(&observations.streams, &observations.tapped), 1);
    }
}
