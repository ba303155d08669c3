// SPDX-License-Identifier: Apache-2.0
//! All rounds of a series as one entry. In: its rounds. Out: for each statistic and ratio the median of the rounds
//! that have it, counts summed. No round is left out for what it shows.

use super::{Round, Series};
use crate::stats::{Statistics, median};
use std::collections::BTreeMap;

impl Series {
    /// The `"all"` entry of `rounds`, which are of one path, payload and load; `None` without rounds.
    /// Memory counts as a statistic. What describes the way is the first round's.
    #[must_use]
    pub fn merged(rounds: &[Self]) -> Option<Self> {
        let first = rounds.first()?;
        let sum = |field: fn(&Self) -> Option<u64>| {
            rounds
                .iter()
                .filter_map(field)
                .fold(None, |sum: Option<u64>, count| Some(sum.unwrap_or(0) + count))
        };
        let ratio = |field: fn(&Self) -> Option<f64>| median(rounds.iter().filter_map(field));
        let by_reason = |field: fn(&Self) -> &BTreeMap<String, u64>| {
            let mut sums = BTreeMap::new();
            for (reason, count) in rounds.iter().flat_map(field) {
                *sums.entry(reason.clone()).or_insert(0) += count;
            }
            sums
        };
        let statistics = |field: fn(&Self) -> Option<Statistics>| {
            let present: Vec<Statistics> = rounds.iter().filter_map(field).collect();
            Statistics::median_of(&present)
        };
        let memory = median(rounds.iter().filter_map(|s| s.daemon_rss_octets).map(|octets| octets as f64));
        Some(Self {
            path: first.path.clone(),
            payload_octets: first.payload_octets,
            load: first.load.clone(),
            class: first.class,
            egress: first.egress.clone(),
            overlay: first.overlay.clone(),
            ingress: first.ingress.clone(),
            round: Round::All,
            frames_intended: sum(|s| s.frames_intended),
            frames_sent: sum(|s| s.frames_sent),
            frames_received: sum(|s| s.frames_received),
            lost: sum(|s| s.lost),
            duplicates: sum(|s| s.duplicates),
            reordered: sum(|s| s.reordered),
            early: sum(|s| s.early),
            overrun: sum(|s| s.overrun),
            dropped: by_reason(|s| &s.dropped),
            bypassed: by_reason(|s| &s.bypassed),
            transmit_error_ns: statistics(|s| s.transmit_error_ns),
            wire_offset_ns: statistics(|s| s.wire_offset_ns),
            latency_ns: statistics(|s| s.latency_ns),
            jitter_ns: statistics(|s| s.jitter_ns),
            jitter_left_out: sum(|s| s.jitter_left_out),
            wire_jitter_ns: statistics(|s| s.wire_jitter_ns),
            wire_jitter_left_out: sum(|s| s.wire_jitter_left_out),
            wake_up_ns: statistics(|s| s.wake_up_ns),
            before_wake_up_ns: statistics(|s| s.before_wake_up_ns),
            late_over_1us_ratio: ratio(|s| s.late_over_1us_ratio),
            deadline_missed_ratio: ratio(|s| s.deadline_missed_ratio),
            outside_window: sum(|s| s.outside_window),
            transmission_overrun: sum(|s| s.transmission_overrun),
            transmission_overrun_unproven: sum(|s| s.transmission_overrun_unproven),
            wire_outside_window_ratio: ratio(|s| s.wire_outside_window_ratio),
            after_opening_ns: statistics(|s| s.after_opening_ns),
            talker_cpu_ratio: ratio(|s| s.talker_cpu_ratio),
            daemon_cpu_ratio: ratio(|s| s.daemon_cpu_ratio),
            far_daemon_cpu_ratio: ratio(|s| s.far_daemon_cpu_ratio),
            library_cpu_ratio: ratio(|s| s.library_cpu_ratio),
            ktsn_cpu_ratio: ratio(|s| s.ktsn_cpu_ratio),
            softirq_cpu_ratio: ratio(|s| s.softirq_cpu_ratio),
            load_bit_rate: ratio(|s| s.load_bit_rate),
            listener_cpu_ratio: ratio(|s| s.listener_cpu_ratio),
            daemon_rss_octets: memory.map(|octets| octets as u64),
            voided_rounds: sum(|s| s.voided_rounds),
            steal_ratio: ratio(|s| s.steal_ratio),
            cpu_pressure_some_ratio: ratio(|s| s.cpu_pressure_some_ratio),
        })
    }
}
