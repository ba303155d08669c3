// SPDX-License-Identifier: Apache-2.0
//! What happened between two statistics of a ktsnd.
//!
//! In: two replies, how the daemon is, what there is. Out: a [`View`] as table, line or JSON. Rates are frames each second;
//! percentiles are those of the frames of the interval alone. A counter that went backwards started again from 0.

use std::collections::{BTreeMap, HashMap};

use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;
use ktsn_proto::v1;
use serde_json::{Value, json};

use crate::output::{or_dash, span, table};

/// What happened within an interval.
#[derive(Clone, Debug)]
pub(super) struct View {
    /// Nanoseconds.
    interval: u64,
    serving: bool,
    synchronised: bool,
    warnings: usize,
    ports: Vec<Port>,
    attachments: Vec<Attachment>,
    workers: Vec<Worker>,
}

#[derive(Clone, Debug)]
struct Port {
    name: String,
    up: bool,
    frames: u64,
    overruns: u64,
    put_back: u64,
    hand_over: u64,
}

#[derive(Clone, Debug, Default)]
struct Attachment {
    name: String,
    streams: usize,
    taken: u64,
    sent: u64,
    octets: u64,
    late: u64,
    overrun: u64,
    waited: u64,
    ring_full: u64,
    dropped: BTreeMap<String, u64>,
    bypassed: BTreeMap<String, u64>,
    /// By the ingress fast path; `None`: the attachment has none.
    arrived: Option<u64>,
    /// Expected arrivals; `None`: the attachment neither grants them nor counted any.
    received: Option<Received>,
    /// p50, p99 and greatest transmit error, nanoseconds; `None`: nothing with a transmit time was sent.
    error: Option<[u64; 3]>,
}

/// What was counted of expected arrivals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Received {
    expected: u64,
    hit: u64,
    early: u64,
    missed: u64,
    /// Nanoseconds.
    spun: u64,
    /// Processes that may spin now.
    processes: u32,
}

#[derive(Clone, Debug)]
struct Worker {
    uplink: String,
    wake_ups: u64,
    /// Nanoseconds.
    spun: u64,
    margin: u64,
    budget_spent: u64,
    bugs: u64,
}

/// What was counted since; a counter that is lower now started again.
fn since(before: u64, after: u64) -> u64 {
    after.checked_sub(before).unwrap_or(after)
}

fn reasons(before: &HashMap<String, u64>, after: &HashMap<String, u64>) -> BTreeMap<String, u64> {
    let counted = |(word, count): (&String, &u64)| {
        let count = since(before.get(word).copied().unwrap_or(0), *count);
        (count > 0).then(|| (word.clone(), count))
    };
    after.iter().filter_map(counted).collect()
}

/// The errors of the interval's frames alone.
fn errors(before: Option<&v1::Histogram>, after: Option<&v1::Histogram>) -> Option<[u64; 3]> {
    let decoded = |of: &v1::Histogram| -> Option<Histogram<u64>> {
        Deserializer::new().deserialize(&mut of.hdr_v2.as_slice()).ok()
    };
    let mut all = decoded(after?)?;
    // A histogram that started again cannot be taken off, and need not be.
    if let Some(before) = before.and_then(decoded).filter(|before| before.len() <= all.len()) {
        let _ = all.subtract(&before);
    }
    (!all.is_empty()).then(|| [all.value_at_quantile(0.5), all.value_at_quantile(0.99), all.max()])
}

impl View {
    /// The view of the interval between two replies.
    pub(super) fn between(
        before: &v1::StatisticsReply,
        after: &v1::StatisticsReply,
        health: &v1::HealthReply,
        list: &v1::ListReply,
    ) -> Self {
        let ports = after.ports.iter().map(|port| {
            let known = before
                .ports
                .iter()
                .find(|known| (&known.device, &known.netns) == (&port.device, &port.netns));
            let sum = |counters: &[u64]| counters.iter().sum::<u64>();
            let old = |of: fn(&v1::PortStatistics) -> &[u64]| known.map_or(0, |known| sum(of(known)));
            let state = list.ports.iter().find(|it| (&it.device, &it.netns) == (&port.device, &port.netns));
            let place = port.netns.rsplit('/').next().filter(|place| !place.is_empty());
            Port {
                name: place.map_or_else(|| port.device.clone(), |place| format!("{place}:{}", port.device)),
                up: state.is_none_or(|state| state.up),
                frames: since(old(|it| &it.frames), sum(&port.frames)),
                overruns: since(old(|it| &it.transmission_overrun), sum(&port.transmission_overrun)),
                put_back: since(known.map_or(0, |known| known.put_back), port.put_back),
                hand_over: port.hand_over_ns,
            }
        });
        let attachments = after.attachments.iter().map(|of| {
            let known = before.attachments.iter().find(|known| known.name == of.name);
            Attachment { streams: streams(list, &of.name), ..attachment(known, of) }
        });
        let workers = after.workers.iter().map(|worker| {
            let known = before.workers.iter().find(|known| known.uplink == worker.uplink);
            let old = |of: fn(&v1::WorkerStatistics) -> u64| known.map_or(0, of);
            Worker {
                uplink: worker.uplink.clone(),
                wake_ups: since(old(|it| it.wake_ups), worker.wake_ups),
                spun: since(old(|it| it.spin_ns), worker.spin_ns),
                margin: worker.spin_margin_ns,
                budget_spent: since(old(|it| it.spin_budget_spent), worker.spin_budget_spent),
                bugs: since(old(|it| it.bugs), worker.bugs),
            }
        });
        Self {
            interval: after.at_monotonic_ns.saturating_sub(before.at_monotonic_ns).max(1),
            serving: health.serving,
            synchronised: health.clock_synchronised,
            warnings: health.warnings.len(),
            ports: ports.collect(),
            attachments: attachments.collect(),
            workers: workers.collect(),
        }
    }

    /// A count as a rate per second; tenths below ten.
    fn rate(&self, count: u64) -> String {
        let tenths = self.tenths(count);
        if tenths == 0 || tenths >= 100 {
            return (tenths / 10).to_string();
        }
        format!("{}.{}", tenths / 10, tenths % 10)
    }

    fn tenths(&self, count: u64) -> u128 {
        let interval = u128::from(self.interval);
        (u128::from(count) * 10_000_000_000 + interval / 2) / interval
    }

    fn per_second(&self, count: u64) -> f64 {
        count as f64 * 1e9 / self.interval as f64
    }

    fn state(&self) -> String {
        let serving = if self.serving { "serving" } else { "NOT SERVING" };
        let clock = if self.synchronised { "synchronised" } else { "NOT SYNCHRONISED" };
        let warnings = match self.warnings {
            0 => String::new(),
            count => format!(", {count} warnings (ktsn status)"),
        };
        format!("{serving}, clock {clock}{warnings}")
    }

    /// The view as tables.
    pub(super) fn table(&self) -> String {
        let mut text =
            format!("ktsnd {}; {} interval, all rates per second\n", self.state(), span(self.interval));
        text.push_str(&below(&table(
            self.ports.iter().map(|port| (self, port)),
            &[
                ("port", |(_, port)| port.name.clone()),
                ("link", |(_, port)| if port.up { "up" } else { "DOWN" }.to_owned()),
                ("frames", |(view, port)| view.rate(port.frames)),
                ("overruns", |(view, port)| view.rate(port.overruns)),
                ("put back", |(view, port)| view.rate(port.put_back)),
                (
                    "hand-over",
                    |(_, port)| {
                        if port.hand_over == 0 { "-".to_owned() } else { span(port.hand_over) }
                    },
                ),
            ],
        )));
        text.push_str(&below(&table(
            self.attachments.iter().map(|of| (self, of)),
            &[
                ("attachment", |(_, of)| of.name.clone()),
                ("streams", |(_, of)| of.streams.to_string()),
                ("taken", |(view, of)| view.rate(of.taken)),
                ("sent", |(view, of)| view.rate(of.sent)),
                ("Mbit", |(view, of)| view.megabits(of.octets)),
                ("late", |(view, of)| view.rate(of.late)),
                ("overrun", |(view, of)| view.rate(of.overrun)),
                ("waited", |(view, of)| view.rate(of.waited)),
                ("dropped", |(view, of)| view.rate(of.dropped.values().sum())),
                ("passed", |(view, of)| view.rate(of.bypassed.values().sum())),
                ("ring full", |(view, of)| view.rate(of.ring_full)),
                ("short in", |(view, of)| of.arrived.map_or("-".to_owned(), |count| view.rate(count))),
                ("p50", |(_, of)| of.error.map_or("-".to_owned(), |error| span(error[0]))),
                ("p99", |(_, of)| of.error.map_or("-".to_owned(), |error| span(error[1]))),
                ("max", |(_, of)| of.error.map_or("-".to_owned(), |error| span(error[2]))),
                ("why", |(view, of)| view.why(of)),
            ],
        )));
        let receiving = self.attachments.iter().filter_map(|of| Some((self, of, of.received?)));
        text.push_str(&below(&table(
            receiving,
            &[
                ("expected arrivals", |(_, of, _)| of.name.clone()),
                ("processes", |(.., received)| received.processes.to_string()),
                ("expected", |(view, _, received)| view.rate(received.expected)),
                ("hit", |(view, _, received)| view.rate(received.hit)),
                ("early", |(view, _, received)| view.rate(received.early)),
                ("missed", |(view, _, received)| view.rate(received.missed)),
                ("spins", |(view, _, received)| view.percent(received.spun)),
            ],
        )));
        text.push_str(&below(&table(
            self.workers.iter().map(|worker| (self, worker)),
            &[
                ("worker", |(_, worker)| worker.uplink.clone()),
                ("wake-ups", |(view, worker)| view.rate(worker.wake_ups)),
                ("spins", |(view, worker)| view.percent(worker.spun)),
                ("margin", |(_, worker)| span(worker.margin)),
                ("budget spent", |(view, worker)| view.rate(worker.budget_spent)),
                ("bugs", |(_, worker)| worker.bugs.to_string()),
            ],
        )));
        text
    }

    fn megabits(&self, octets: u64) -> String {
        let bits = u64::try_from(self.tenths(octets.saturating_mul(8)) / 10).unwrap_or(u64::MAX);
        format!("{}.{:02}", bits / 1_000_000, bits % 1_000_000 / 10_000)
    }

    /// A part of the interval.
    fn percent(&self, nanos: u64) -> String {
        let permille = u128::from(nanos) * 1000 / u128::from(self.interval);
        format!("{}.{} %", permille / 10, permille % 10)
    }

    /// The reasons why frames were dropped or passed to the kernel.
    fn why(&self, of: &Attachment) -> String {
        let reasons = of.dropped.iter().chain(&of.bypassed);
        let reasons = reasons.map(|(word, count)| format!("{word} {}", self.rate(*count)));
        or_dash(&reasons.collect::<Vec<_>>().join(", "))
    }

    /// The sums of all attachments.
    pub(super) fn line(&self) -> String {
        let sum = |of: fn(&Attachment) -> u64| self.rate(self.attachments.iter().map(of).sum());
        let worst = |at: usize| self.attachments.iter().filter_map(|of| Some(of.error?[at])).max();
        let error = match (worst(0), worst(1)) {
            (Some(p50), Some(p99)) => format!("error p50 {} p99 {} (worst attachment)", span(p50), span(p99)),
            _ => "nothing timed sent".to_owned(),
        };
        format!(
            "{}; taken {} sent {} late {} overrun {} dropped {} passed {} per second; {error}",
            self.state(),
            sum(|of| of.taken),
            sum(|of| of.sent),
            sum(|of| of.late),
            sum(|of| of.overrun),
            sum(|of| of.dropped.values().sum()),
            sum(|of| of.bypassed.values().sum()),
        )
    }

    /// All of it, for programs.
    pub(super) fn json(&self) -> Value {
        let rates = |counts: &BTreeMap<String, u64>| -> BTreeMap<String, f64> {
            counts.iter().map(|(word, count)| (word.clone(), self.per_second(*count))).collect()
        };
        json!({
            "interval_ns": self.interval, "serving": self.serving, "clock_synchronised": self.synchronised,
            "warnings": self.warnings,
            "ports": self.ports.iter().map(|port| json!({
                "name": port.name, "up": port.up, "frames_per_second": self.per_second(port.frames),
                "transmission_overrun_per_second": self.per_second(port.overruns),
                "put_back_per_second": self.per_second(port.put_back), "hand_over_ns": port.hand_over,
            })).collect::<Vec<_>>(),
            "attachments": self.attachments.iter().map(|of| json!({
                "name": of.name, "streams": of.streams, "taken_per_second": self.per_second(of.taken),
                "sent_per_second": self.per_second(of.sent),
                "sent_octets_per_second": self.per_second(of.octets),
                "late_per_second": self.per_second(of.late), "overrun_per_second": self.per_second(of.overrun),
                "waited_per_second": self.per_second(of.waited), "ring_full_per_second": self.per_second(of.ring_full),
                "dropped_per_second": rates(&of.dropped), "bypassed_per_second": rates(&of.bypassed),
                "short_in_per_second": of.arrived.map(|count| self.per_second(count)),
                "receive": of.received.map(|received| json!({
                    "processes": received.processes,
                    "expected_per_second": self.per_second(received.expected),
                    "hit_per_second": self.per_second(received.hit),
                    "early_per_second": self.per_second(received.early),
                    "missed_per_second": self.per_second(received.missed),
                    "spin_ratio": received.spun as f64 / self.interval as f64,
                })),
                "transmit_error_ns": of.error.map(|[p50, p99, max]| json!({ "p50": p50, "p99": p99, "max": max })),
            })).collect::<Vec<_>>(),
            "workers": self.workers.iter().map(|worker| json!({
                "uplink": worker.uplink, "wake_ups_per_second": self.per_second(worker.wake_ups),
                "spin_ratio": worker.spun as f64 / self.interval as f64, "spin_margin_ns": worker.margin,
                "spin_budget_spent": worker.budget_spent, "bugs": worker.bugs,
            })).collect::<Vec<_>>(),
        })
    }
}

/// A table below an empty line.
fn below(table: &str) -> String {
    if table.is_empty() { String::new() } else { format!("\n{table}") }
}

fn streams(list: &v1::ListReply, name: &str) -> usize {
    let is_it = |state: &&v1::AttachmentState| state.name == name;
    list.attachments.iter().find(is_it).map_or(0, |state| state.clients.iter().map(|c| c.streams.len()).sum())
}

fn attachment(known: Option<&v1::AttachmentStatistics>, of: &v1::AttachmentStatistics) -> Attachment {
    let old = |counter: fn(&v1::AttachmentStatistics) -> u64| since(known.map_or(0, counter), counter(of));
    let none = HashMap::new();
    let taken_in = |of: &v1::AttachmentStatistics| of.ingress.as_ref().map(|ingress| ingress.taken);
    Attachment {
        name: of.name.clone(),
        streams: 0,
        taken: old(|it| it.taken),
        sent: old(|it| it.sent),
        octets: old(|it| it.sent_octets),
        late: old(|it| it.late),
        overrun: old(|it| it.overrun),
        waited: old(|it| it.waited),
        ring_full: old(|it| it.ring_full),
        dropped: reasons(known.map_or(&none, |known| &known.dropped), &of.dropped),
        bypassed: reasons(known.map_or(&none, |known| &known.bypassed), &of.bypassed),
        received: received(known, of),
        arrived: taken_in(of).map(|count| since(known.and_then(taken_in).unwrap_or(0), count)),
        error: errors(known.and_then(|known| known.transmit_error.as_ref()), of.transmit_error.as_ref()),
    }
}

fn received(known: Option<&v1::AttachmentStatistics>, of: &v1::AttachmentStatistics) -> Option<Received> {
    let now = of.receive.as_ref()?;
    let counts = now.counts.unwrap_or_default();
    let before = known.and_then(|known| known.receive.as_ref()?.counts).unwrap_or_default();
    Some(Received {
        expected: since(before.expected, counts.expected),
        hit: since(before.hit, counts.hit),
        early: since(before.early, counts.early),
        missed: since(before.missed, counts.missed),
        spun: since(before.spun_ns, counts.spun_ns),
        processes: now.processes,
    })
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
