// SPDX-License-Identifier: Apache-2.0
//! What talker, listener and tap recorded of one run.
//!
//! In: the directories that they wrote into, what the daemon counted. Out: joined records, their figures, and whether the
//! observation rather than the path is at fault.

use crate::daemon::{Counters, Daemon};
use crate::error::LabError;
use crate::observers::Observers;
use ktsn_measure::environment::CpuUse;
use ktsn_measure::records::{self, ArrivalRecord, RunRecords, TalkRecord};
use ktsn_measure::results::Series;
use ktsn_measure::series::{Facts, WireSource, untapped};
use ktsn_measure::{listener, talker, tap};
use ktsn_time::{Nanos, Tai};

/// A latency above this misses the deadline.
pub const DEADLINE: Nanos = Nanos::from_micros(400);
/// SO_PRIORITY of every talker, and so the traffic class.
pub(crate) const PRIORITY: u8 = 6;

/// What the three observers wrote.
pub(crate) struct Observations {
    talk: talker::Summary,
    pub(crate) talked: Vec<TalkRecord>,
    listen: listener::Summary,
    listened: Vec<ArrivalRecord>,
    tap: tap::Summary,
    pub(crate) tapped: Vec<ArrivalRecord>,
}

/// The run that the observations are of.
pub(crate) struct RunLabel<'a> {
    pub(crate) path: &'a str,
    /// Whether ktsnd or a qdisc keeps the frames until their time: then the talker's call does not hand them over to the port.
    pub(crate) is_kept: bool,
    /// What takes the frames from the sender.
    pub(crate) egress: &'a str,
    pub(crate) is_overlay: bool,
    pub(crate) ingress: &'a str,
    pub(crate) payload: usize,
    pub(crate) load: &'a str,
    pub(crate) round: u32,
}

/// What the daemon counted and used while a run lasted.
pub(crate) struct DaemonUse {
    pub(crate) counters: Counters,
    resident_octets: u64,
}

impl DaemonUse {
    /// The difference between two readings, with the memory that the daemon has now.
    pub(crate) fn since(daemon: &Daemon, now: &Counters, before: &Counters) -> Result<Self, LabError> {
        Ok(Self { counters: now.since(before), resident_octets: daemon.resident_octets()? })
    }

    /// Writes the figures of a run of `elapsed` seconds into `series`.
    pub(crate) fn fill_in(self, series: &mut Series, elapsed: f64) {
        series.daemon_cpu_ratio = Some(self.counters.cpu.as_secs_f64() / elapsed);
        series.daemon_rss_octets = Some(self.resident_octets);
        series.overrun = Some(self.counters.attachment.overrun);
        series.late = Some(self.counters.attachment.late);
        series.dropped = self.counters.attachment.dropped;
        series.bypassed = self.counters.attachment.bypassed;
    }
}

/// Writes into `series` what else the machine did between two looks at it.
pub(crate) fn put_disturbance(series: &mut Series, begun: &CpuUse, ended: &CpuUse) {
    let disturbance = ended.since(begun);
    series.steal_ratio = Some(disturbance.steal_ratio);
    series.cpu_pressure_some_ratio = disturbance.cpu_pressure_some_ratio;
    series.softirq_cpu_ratio = Some(ended.softirqs_since(begun));
}

impl Observations {
    /// Reads `talk`, `listen` and `tap` where each of them wrote.
    pub(crate) fn read(
        talker: &Observers<'_>,
        listener: &Observers<'_>,
        tap: &Observers<'_>,
    ) -> Result<Self, LabError> {
        Ok(Self {
            talk: talker.json("talk")?,
            talked: talker.records("talk", records::load_talk)?,
            listen: listener.json("listen")?,
            listened: listener.records("listen", records::load_arrivals)?,
            tap: tap.json("tap")?,
            tapped: tap.records("tap", records::load_arrivals)?,
        })
    }

    /// The observations of the frames whose transmit time satisfies `is_in`.
    pub(crate) fn part(&self, is_in: impl Fn(Tai) -> bool) -> Self {
        let arrived = |all: &[ArrivalRecord]| {
            all.iter().filter(|record| is_in(record.probe.tx_time)).copied().collect::<Vec<_>>()
        };
        let talked: Vec<TalkRecord> =
            self.talked.iter().filter(|record| is_in(record.probe.tx_time)).copied().collect();
        Self {
            talk: talker::Summary { frames_intended: talked.len() as u64, ..self.talk.clone() },
            talked,
            listen: self.listen.clone(),
            listened: arrived(&self.listened),
            tap: self.tap.clone(),
            tapped: arrived(&self.tapped),
        }
    }

    /// The run's records and figures.
    pub(crate) fn figures(&self, label: &RunLabel<'_>, counted: Option<&DaemonUse>) -> (RunRecords, Series) {
        let (records, counts) = records::join(&self.talked, &self.tapped, &self.listened, !label.is_kept);
        let load = Some(label.load.to_owned());
        let run = RunRecords {
            path: label.path.to_owned(),
            payload_octets: label.payload,
            load: load.clone(),
            round: label.round,
            records,
        };
        let facts = Facts {
            frames_intended: self.talk.frames_intended,
            counts,
            wire: WireSource::Tap,
            deadline: Some(DEADLINE),
            transmit: counted.and_then(|counted| counted.counters.transmit_figures()),
        };
        let series = Series {
            load,
            class: Some(PRIORITY),
            egress: Some(label.egress.to_owned()),
            overlay: label.is_overlay.then(|| "vxlan-routed".to_owned()),
            ingress: Some(label.ingress.to_owned()),
            talker_cpu_ratio: Some(self.talk.cpu_ratio),
            listener_cpu_ratio: Some(self.listen.cpu_ratio),
            ..Series::of_run(&run, &facts)
        };
        (run, series)
    }

    /// Why the observation, not the path, is at fault, by the void rule.
    pub(crate) fn fault(&self, run: &RunRecords) -> Option<String> {
        if self.talk.clock_stepped || self.listen.clock_stepped || self.tap.clock_stepped {
            return Some("a clock was stepped".to_owned());
        }
        if self.tap.kernel_drops > 0 {
            return Some(format!("the tap's buffer lost {} frames", self.tap.kernel_drops));
        }
        match untapped(&run.records) {
            0 => None,
            count => Some(format!("the tap did not see {count} frames that the listener received")),
        }
    }
}
