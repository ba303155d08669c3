// SPDX-License-Identifier: Apache-2.0
//! One path, payload, load and round in figures. In: what was measured. Out: the schema's fields; the schema's page
//! defines each.

use super::Round;
use crate::stats::Statistics;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One path, payload, load and round. Everything that was not measured is `None` or empty, and not written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Series {
    /// The path's name (`ktsn`, `flannel`, …).
    pub path: String,
    /// Octets of payload.
    pub payload_octets: usize,
    /// The load's name (`idle`, …).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load: Option<String>,
    /// Traffic class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<u8>,
    /// Egress mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress: Option<String>,
    /// Overlay mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlay: Option<String>,
    /// Ingress mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress: Option<String>,
    /// The round.
    pub round: Round,
    /// Instants the talker meant to serve.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frames_intended: Option<u64>,
    /// Sends that succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frames_sent: Option<u64>,
    /// Different frames that reached the listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frames_received: Option<u64>,
    /// Sent and never received (what was intended and not sent is neither sent nor lost).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
    /// Second and further copies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duplicates: Option<u64>,
    /// Frames that arrived after one with a higher sequence number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reordered: Option<u64>,
    /// Frames with `handed_at < tx_time` or `wire_at < tx_time`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub early: Option<u64>,
    /// Frames that the worker sent late.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overrun: Option<u64>,
    /// Dropped frames by reason.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub dropped: BTreeMap<String, u64>,
    /// Frames left to the kernel by reason.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub bypassed: BTreeMap<String, u64>,
    /// `handed_at − tx_time`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transmit_error_ns: Option<Statistics>,
    /// `wire_at − tx_time`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wire_offset_ns: Option<Statistics>,
    /// `received_at − tx_time`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_ns: Option<Statistics>,
    /// Magnitude of the jitter of `received_at`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter_ns: Option<Statistics>,
    /// Frames received right after one that was lost or not sent: their jitter is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter_left_out: Option<u64>,
    /// Magnitude of the jitter of `wire_at`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wire_jitter_ns: Option<Statistics>,
    /// Frames at the tap right after one that it did not see: their jitter is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wire_jitter_left_out: Option<u64>,
    /// `received_at −` kernel receive stamp.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wake_up_ns: Option<Statistics>,
    /// The listener's kernel receive stamp `− tx_time`: the latency without the listener's wake-up, frame by frame.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before_wake_up_ns: Option<Statistics>,
    /// Share of frames whose transmit error exceeds 1 µs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub late_over_1us_ratio: Option<f64>,
    /// Share of frames intended that were not sent, lost, or received after the deadline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_missed_ratio: Option<f64>,
    /// Frames handed over outside their gate's window, and no stall of the machine explains it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outside_window: Option<u64>,
    /// Frames whose hand-over began in time and that were not off the link when their gate closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transmission_overrun: Option<u64>,
    /// Those of them that no stall of the machine explains.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transmission_overrun_unproven: Option<u64>,
    /// Share of the frames seen on the wire that were seen outside their gate's window, 10 µs after its end allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wire_outside_window_ratio: Option<f64>,
    /// `handed_at −` the opening of the window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_opening_ns: Option<Statistics>,
    /// CPU time of the talker over elapsed time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub talker_cpu_ratio: Option<f64>,
    /// CPU time of ktsnd over elapsed time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub daemon_cpu_ratio: Option<f64>,
    /// CPU time of the receiving node's ktsnd over elapsed time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub far_daemon_cpu_ratio: Option<f64>,
    /// CPU time of libktsn in the talker over elapsed time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub library_cpu_ratio: Option<f64>,
    /// All of KTSN on both nodes: the daemons' CPU time and the library's over elapsed time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ktsn_cpu_ratio: Option<f64>,
    /// Soft interrupts of the whole machine in CPUs, by the kernel's own sampling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub softirq_cpu_ratio: Option<f64>,
    /// What the load delivered, bit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_bit_rate: Option<f64>,
    /// CPU time of the listener over elapsed time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listener_cpu_ratio: Option<f64>,
    /// Resident memory of ktsnd.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub daemon_rss_octets: Option<u64>,
    /// Rounds that were repeated because the load rule, fixed beforehand, said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub voided_rounds: Option<u64>,
    /// Share of CPU time that the hypervisor took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steal_ratio: Option<f64>,
    /// Share of time in which some task waited for a CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_pressure_some_ratio: Option<f64>,
}

impl Series {
    /// The figure with this name: a count, a ratio, or a statistic of a distribution (`latency_ns.p50`).
    #[must_use]
    pub fn metric(&self, name: &str) -> Option<f64> {
        if let Some((distribution, statistic)) = name.split_once('.') {
            return self.distribution(distribution)?.field(statistic);
        }
        let count = |value: Option<u64>| value.map(|value| value as f64);
        match name {
            "frames_intended" => count(self.frames_intended),
            "frames_sent" => count(self.frames_sent),
            "frames_received" => count(self.frames_received),
            "lost" => count(self.lost),
            "duplicates" => count(self.duplicates),
            "reordered" => count(self.reordered),
            "early" => count(self.early),
            "overrun" => count(self.overrun),
            "jitter_left_out" => count(self.jitter_left_out),
            "wire_jitter_left_out" => count(self.wire_jitter_left_out),
            "outside_window" => count(self.outside_window),
            "transmission_overrun" => count(self.transmission_overrun),
            "transmission_overrun_unproven" => count(self.transmission_overrun_unproven),
            "transmission_overrun_ratio" => {
                let sent = self.frames_sent.filter(|&sent| sent > 0)?;
                Some(self.transmission_overrun? as f64 / sent as f64)
            }
            "wire_outside_window_ratio" => self.wire_outside_window_ratio,
            "daemon_rss_octets" => count(self.daemon_rss_octets),
            "voided_rounds" => count(self.voided_rounds),
            "late_over_1us_ratio" => self.late_over_1us_ratio,
            "deadline_missed_ratio" => self.deadline_missed_ratio,
            "talker_cpu_ratio" => self.talker_cpu_ratio,
            "daemon_cpu_ratio" => self.daemon_cpu_ratio,
            "listener_cpu_ratio" => self.listener_cpu_ratio,
            "far_daemon_cpu_ratio" => self.far_daemon_cpu_ratio,
            "library_cpu_ratio" => self.library_cpu_ratio,
            "ktsn_cpu_ratio" => self.ktsn_cpu_ratio,
            "softirq_cpu_ratio" => self.softirq_cpu_ratio,
            "load_bit_rate" => self.load_bit_rate,
            "steal_ratio" => self.steal_ratio,
            "cpu_pressure_some_ratio" => self.cpu_pressure_some_ratio,
            _ => None,
        }
    }

    fn distribution(&self, name: &str) -> Option<&Statistics> {
        match name {
            "transmit_error_ns" => self.transmit_error_ns.as_ref(),
            "wire_offset_ns" => self.wire_offset_ns.as_ref(),
            "latency_ns" => self.latency_ns.as_ref(),
            "jitter_ns" => self.jitter_ns.as_ref(),
            "wire_jitter_ns" => self.wire_jitter_ns.as_ref(),
            "wake_up_ns" => self.wake_up_ns.as_ref(),
            "before_wake_up_ns" => self.before_wake_up_ns.as_ref(),
            "after_opening_ns" => self.after_opening_ns.as_ref(),
            _ => None,
        }
    }
}
