// SPDX-License-Identifier: Apache-2.0
//! A snapshot as OpenMetrics text.
//!
//! In: a [`Snapshot`], or none where the control thread does not answer. Out: the text of one scrape, by the table's names.

use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ktsn_model::{BypassReason, DropReason};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, LabelSetEncoder, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::snapshot::{AttachmentSnapshot, PortSnapshot, Snapshot};
use super::table::{By, Kind, Metric, PREFIX, Table, table};
use crate::stats::{PortRefusal, RefusedBy, Spans, WorkerStats};

/// The value of one sample.
enum Value<'a> {
    Whole(u64),
    Seconds(f64),
    Distribution(&'a Spans),
}

/// Takes the samples of one metric: label values in the table's order, and the value.
type Samples<'a> = dyn FnMut(&[&str], Value<'_>) + 'a;

/// The text of a scrape. `None`: the control thread did not answer in time.
#[must_use]
pub fn render(snapshot: Option<Snapshot>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape(snapshot)));
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
    text
}

/// The names of all metrics of the table that ktsnd serves.
#[must_use]
pub fn served() -> Vec<&'static str> {
    table().metrics.iter().filter(|metric| metric.by == By::Both).map(|metric| metric.name).collect()
}

#[derive(Debug)]
struct Scrape(Option<Snapshot>);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let table = table();
        for metric in table.metrics.iter().filter(|metric| metric.by == By::Both) {
            let mut family = Family { metric, table, written: Vec::new() };
            match &self.0 {
                Some(snapshot) => {
                    samples(metric.name, snapshot, &mut |labels, value| family.take(labels, &value));
                }
                // What the agent says of a ktsnd that does not answer.
                None if matches!(metric.name, "up" | "healthy") => family.take(&[], &Value::Whole(0)),
                None => {}
            }
            family.write(&mut encoder)?;
        }
        Ok(())
    }
}

/// A sample with everything read.
enum Read {
    Whole(u64),
    Seconds(f64),
    Histogram { sum: f64, count: u64, buckets: Vec<(f64, u64)> },
}

/// The samples of one metric. A metric without samples is left out.
struct Family<'a> {
    metric: &'a Metric,
    table: &'a Table,
    written: Vec<(Vec<(&'a str, String)>, Read)>,
}

impl Family<'_> {
    fn take(&mut self, labels: &[&str], value: &Value<'_>) {
        let read = match value {
            Value::Whole(whole) => Read::Whole(*whole),
            Value::Seconds(seconds) => Read::Seconds(*seconds),
            Value::Distribution(spans) => histogram(spans, &self.table.bounds),
        };
        debug_assert_eq!(labels.len(), self.metric.labels.len(), "{}", self.metric.name);
        let labels = self.metric.labels.iter().copied().zip(labels.iter().map(|text| (*text).to_owned()));
        self.written.push((labels.collect(), read));
    }

    fn write(self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        if self.written.is_empty() {
            return Ok(());
        }
        let kind = match self.metric.kind {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
            Kind::Histogram => MetricType::Histogram,
        };
        // OpenMetrics names the family of a counter without `_total`; the encoder adds it to the sample.
        let name = format!("{PREFIX}{}", self.metric.name.strip_suffix("_total").unwrap_or(self.metric.name));
        let mut family = encoder.encode_descriptor(&name, self.metric.help, None, kind)?;
        for (labels, value) in &self.written {
            let labels = Labels(labels);
            let sample = family.encode_family(&labels)?;
            write_sample(sample, self.metric.kind, value)?;
        }
        Ok(())
    }
}

fn write_sample(mut sample: MetricEncoder<'_>, kind: Kind, value: &Read) -> fmt::Result {
    match (kind, value) {
        (_, Read::Histogram { sum, count, buckets }) => {
            sample.encode_histogram::<NoLabelSet>(*sum, *count, buckets, None)
        }
        (Kind::Counter, Read::Whole(whole)) => sample.encode_counter::<NoLabelSet, _, u64>(whole, None),
        (Kind::Counter, Read::Seconds(seconds)) => sample.encode_counter::<NoLabelSet, _, u64>(seconds, None),
        // Gauges of a whole number are small.
        (_, Read::Whole(whole)) => sample.encode_gauge(&(*whole as f64)),
        (_, Read::Seconds(seconds)) => sample.encode_gauge(seconds),
    }
}

/// The labels of one sample.
#[derive(Debug)]
struct Labels<'a>(&'a [(&'a str, String)]);

impl EncodeLabelSet for Labels<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        for (name, text) in self.0 {
            let mut label = encoder.encode_label();
            let mut key = label.encode_label_key()?;
            key.write_str(name)?;
            let mut value = key.encode_label_value()?;
            value.write_str(text)?;
            value.finish()?;
        }
        Ok(())
    }
}

fn histogram(spans: &Spans, bounds: &[u64]) -> Read {
    let found = spans.up_to(bounds);
    let seconds = |nanos: u64| nanos as f64 / 1e9;
    let upper = bounds.iter().map(|bound| seconds(*bound)).chain([f64::INFINITY]);
    let count = found.counts.iter().sum();
    Read::Histogram { sum: found.sum_ns as f64 / 1e9, count, buckets: upper.zip(found.counts).collect() }
}

fn flag(is: bool) -> Value<'static> {
    Value::Whole(u64::from(is))
}

fn nanos(nanos: u64) -> Value<'static> {
    Value::Seconds(nanos as f64 / 1e9)
}

fn get(counter: &AtomicU64) -> Value<'static> {
    Value::Whole(counter.load(Relaxed))
}

/// Gives all samples of the metric `name`.
fn samples(name: &str, of: &Snapshot, give: &mut Samples<'_>) {
    if let Some(name) = name.strip_prefix("port_") {
        of.ports.iter().for_each(|port| of_port(name, port, give));
    } else if let Some(name) = name.strip_prefix("worker_") {
        of.workers.iter().for_each(|(uplink, stats)| give(&[uplink.as_str()], of_worker(name, stats)));
    } else if table().get(name).is_some_and(|metric| metric.labels.first() == Some(&"attachment")) {
        of.attachments.iter().for_each(|attachment| of_attachment(name, attachment, give));
    } else {
        of_daemon(name, of, give);
    }
}

fn of_daemon(name: &str, of: &Snapshot, give: &mut Samples<'_>) {
    let health = &of.health;
    for thread in &health.threads {
        let labels = [thread.name.as_str(), thread.device.as_str()];
        match name {
            "thread_stuck" => give(&labels, flag(thread.is_stuck)),
            "thread_silent_seconds" => give(&labels, nanos(thread.silent_ns)),
            _ => {}
        }
    }
    match (name, &health.clock) {
        ("up", _) => give(&[], flag(true)),
        ("healthy", _) => give(&[], flag(health.serving)),
        ("warnings", _) => give(&[], Value::Whole(health.warnings.len() as u64)),
        ("attachments", _) => give(&[], Value::Whole(of.attachments.len() as u64)),
        ("clock_synchronised", _) => give(&[], flag(health.clock_synchronised)),
        ("clock_tai_offset_seconds", _) => give(&[], Value::Seconds(f64::from(health.tai_offset_seconds))),
        ("clock_good", Some(clock)) => give(&[clock.source.as_str()], flag(clock.is_good)),
        ("clock_transitions_total", Some(clock)) => give(&[], Value::Whole(clock.transitions)),
        ("clock_steps_total", Some(clock)) => give(&[], Value::Whole(clock.steps)),
        ("clock_held_ports", Some(clock)) => give(&[], Value::Whole(clock.holding.len() as u64)),
        _ => {}
    }
}

fn of_attachment(name: &str, of: &AttachmentSnapshot, give: &mut Samples<'_>) {
    let (stats, labels) = (&*of.stats, [of.name.as_str()]);
    let counts = of.receive.as_ref().and_then(|receive| receive.counts);
    let value = match name {
        "clients" => Value::Whole(of.clients as u64),
        "frames_taken_total" => get(&stats.taken),
        "frames_sent_total" => get(&stats.sent),
        "sent_octets_total" => get(&stats.sent_octets),
        "frames_late_total" => get(&stats.late),
        "frames_overrun_total" => get(&stats.overrun),
        "frames_waited_total" => get(&stats.waited),
        "sends_ring_full_total" => get(&stats.ring_full),
        "frames_deferred_total" => get(&stats.deferred),
        "frames_deferred_failed_total" => get(&stats.deferred_failed),
        "deferred_seconds" => nanos(of.deferral.map_or(0, |deferral| deferral.for_ns)),
        "transmit_error_seconds" => Value::Distribution(&stats.transmit_error),
        "frames_dropped_total" => {
            return reasons(of, &stats.dropped, |i| DropReason::ALL[i].word(), give);
        }
        "datagrams_bypassed_total" => {
            return reasons(of, &stats.bypassed, |i| BypassReason::ALL[i].word(), give);
        }
        "clients_refused_total" => {
            return reasons(of, &stats.clients_refused, |i| RefusedBy::ALL[i].word(), give);
        }
        "ingress_frames_left_total" => {
            for (reason, count) in of.ingress.iter().flat_map(|ingress| &ingress.left) {
                give(&[of.name.as_str(), reason], Value::Whole(*count));
            }
            return;
        }
        "capture_lag_seconds" if !stats.capture_lag.is_empty() => Value::Distribution(&stats.capture_lag),
        _ => match (name, of.deferral, &of.ingress, counts, of.receive) {
            ("deferred_hand_over_seconds", Some(deferral), ..) => nanos(deferral.longest_hand_over_ns),
            ("ingress_frames_taken_total", _, Some(ingress), ..) => Value::Whole(ingress.taken),
            ("receive_expected_total", .., Some(counts), _) => Value::Whole(counts.expected),
            ("receive_hit_total", .., Some(counts), _) => Value::Whole(counts.hit),
            ("receive_early_total", .., Some(counts), _) => Value::Whole(counts.early),
            ("receive_missed_total", .., Some(counts), _) => Value::Whole(counts.missed),
            ("receive_spun_seconds_total", .., Some(counts), _) => nanos(counts.spun_ns),
            ("receive_processes", .., Some(receive)) => Value::Whole(u64::from(receive.processes)),
            ("receive_granted_cpus", .., Some(receive)) => {
                Value::Seconds(f64::from(receive.granted_permille) / 1e3)
            }
            _ => return,
        },
    };
    give(&labels, value);
}

/// The counters that counted something, by reason.
fn reasons(
    of: &AttachmentSnapshot,
    counters: &[AtomicU64],
    word: fn(usize) -> &'static str,
    give: &mut Samples<'_>,
) {
    for (at, counter) in counters.iter().enumerate() {
        let count = counter.load(Relaxed);
        if count > 0 {
            give(&[of.name.as_str(), word(at)], Value::Whole(count));
        }
    }
}

fn of_port(name: &str, of: &PortSnapshot, give: &mut Samples<'_>) {
    let (stats, device) = (&*of.stats, of.device.as_str());
    let mut by_class = |counters: &[AtomicU64]| {
        for (class, counter) in counters.iter().enumerate() {
            give(&[device, &class.to_string()], get(counter));
        }
    };
    match name {
        "frames_total" => by_class(&stats.frames),
        "transmission_overrun_total" => by_class(&stats.transmission_overrun),
        "up" => give(&[device], flag(of.up)),
        "link_speed_octets_per_second" => give(&[device], Value::Whole(of.link_speed / 8)),
        "retried_total" => give(&[device], get(&stats.retried)),
        "hand_over_seconds" => give(&[device], nanos(stats.hand_over_ns.load(Relaxed))),
        "refused_total" => {
            for (at, counter) in stats.refused.iter().enumerate() {
                let count = counter.load(Relaxed);
                if count > 0 {
                    give(&[device, PortRefusal::ALL[at].word()], Value::Whole(count));
                }
            }
        }
        _ => {}
    }
}

fn of_worker(name: &str, stats: &WorkerStats) -> Value<'static> {
    match name {
        "wake_ups_total" => get(&stats.wake_ups),
        "spin_seconds_total" => nanos(stats.spin_ns.load(Relaxed)),
        "cpu_budget_spent_total" => get(&stats.cpu_budget_spent),
        "clock_steps_total" => get(&stats.clock_steps),
        // `bugs_total`; a test finds a name of the table without its own line.
        _ => get(&stats.bugs),
    }
}

#[cfg(test)]
#[path = "text_tests.rs"]
mod tests;
