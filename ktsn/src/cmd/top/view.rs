// SPDX-License-Identifier: Apache-2.0
//! What happened between two statistics of a ktsnd.
//!
//! In: two replies, how the daemon is, what there is. Out: a [`View`] as table, line or JSON. Rates are frames each second;
//! percentiles are those of the frames of the interval alone. A counter that went backwards started again from 0.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;
use ktsn_proto::v1;
use serde_json::{Value, json};

use crate::output::{or_dash, span, table};
use crate::plain::plain;

/// What happened within an interval.
#[derive(Clone, Debug)]
pub(super) struct View {
    /// Nanoseconds.
    pub interval: u64,
    health: v1::HealthReply,
    pub ports: Vec<Port>,
    pub attachments: Vec<Attachment>,
    workers: Vec<v1::WorkerStatistics>,
}

/// A port, with what it counted in the interval.
#[derive(Clone, Debug)]
pub(super) struct Port {
    pub name: String,
    pub up: bool,
    pub counted: v1::PortStatistics,
}

/// An attachment, with what it counted in the interval.
#[derive(Clone, Debug)]
pub(super) struct Attachment {
    pub streams: Vec<Stream>,
    pub counted: v1::AttachmentStatistics,
    /// p50, p99 and greatest transmit error, nanoseconds; `None`: nothing with a transmit time was sent.
    pub error: Option<[u64; 3]>,
}

/// A socket that a program sends by.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    pub pid: u32,
    pub cookie: u64,
    pub local: String,
    /// Empty when not connected.
    pub peer: String,
}

impl Port {
    pub(super) fn frames(&self) -> u64 {
        self.counted.frames.iter().sum()
    }

    pub(super) fn overruns(&self) -> u64 {
        self.counted.transmission_overrun.iter().sum()
    }
}

impl Attachment {
    /// What came by the ingress fast path; `None`: the attachment has none.
    fn arrived(&self) -> Option<u64> {
        Some(self.counted.ingress.as_ref()?.taken)
    }

    /// Expected arrivals, and the processes that may spin for them; `None`: the attachment neither grants them nor counted any.
    fn received(&self) -> Option<(v1::ReceiveCounts, u32)> {
        let receive = self.counted.receive?;
        Some((receive.counts.unwrap_or_default(), receive.processes))
    }
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
            let is_it =
                |device: &str, netns: &str| (device, netns) == (port.device.as_str(), port.netns.as_str());
            let known = before.ports.iter().find(|known| is_it(&known.device, &known.netns));
            let state = list.ports.iter().find(|state| is_it(&state.device, &state.netns));
            let place = port.netns.rsplit('/').next().filter(|place| !place.is_empty());
            Port {
                name: place.map_or_else(|| port.device.clone(), |place| format!("{place}:{}", port.device)),
                up: state.is_none_or(|state| state.up),
                counted: known.map_or_else(|| port.clone(), |known| port.since(known)),
            }
        });
        let attachments = after.attachments.iter().map(|of| {
            let known = before.attachments.iter().find(|known| known.name == of.name);
            let error = known.and_then(|known| known.transmit_error.as_ref());
            Attachment {
                streams: streams(list, &of.name),
                counted: known.map_or_else(|| of.clone(), |known| of.since(known)),
                error: errors(error, of.transmit_error.as_ref()),
            }
        });
        let workers = after.workers.iter().map(|worker| {
            let known = before.workers.iter().find(|known| known.uplink == worker.uplink);
            known.map_or_else(|| worker.clone(), |known| worker.since(known))
        });
        Self {
            interval: after.at_monotonic_ns.saturating_sub(before.at_monotonic_ns).max(1),
            health: health.clone(),
            ports: ports.collect(),
            attachments: attachments.collect(),
            workers: workers.collect(),
        }
    }

    /// A count as a rate per second; tenths below ten.
    pub(super) fn rate(&self, count: u64) -> String {
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

    pub(super) fn state(&self) -> String {
        let serving = if self.health.serving { "serving" } else { "NOT SERVING" };
        let clock = if self.health.clock_synchronised { "synchronised" } else { "NOT SYNCHRONISED" };
        let warnings = match self.health.warnings.len() {
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
                ("port", |(_, port)| plain(&port.name)),
                ("link", |(_, port)| if port.up { "up" } else { "DOWN" }.to_owned()),
                ("frames", |(view, port)| view.rate(port.frames())),
                ("overruns", |(view, port)| view.rate(port.overruns())),
                ("put back", |(view, port)| view.rate(port.counted.put_back)),
                ("hand-over", |(_, port)| match port.counted.hand_over_ns {
                    0 => "-".to_owned(),
                    took => span(took),
                }),
            ],
        )));
        text.push_str(&below(&table(
            self.attachments.iter().map(|of| (self, of)),
            &[
                ("attachment", |(_, of)| plain(&of.counted.name)),
                ("streams", |(_, of)| of.streams.len().to_string()),
                ("taken", |(view, of)| view.rate(of.counted.taken)),
                ("sent", |(view, of)| view.rate(of.counted.sent)),
                ("Mbit", |(view, of)| view.megabits(of.counted.sent_octets)),
                ("late", |(view, of)| view.rate(of.counted.late)),
                ("overrun", |(view, of)| view.rate(of.counted.overrun)),
                ("waited", |(view, of)| view.rate(of.counted.waited)),
                ("dropped", |(view, of)| view.rate(of.counted.dropped.values().sum())),
                ("passed", |(view, of)| view.rate(of.counted.bypassed.values().sum())),
                ("ring full", |(view, of)| view.rate(of.counted.ring_full)),
                ("short in", |(view, of)| of.arrived().map_or("-".to_owned(), |count| view.rate(count))),
                ("p50", |(_, of)| of.error.map_or("-".to_owned(), |error| span(error[0]))),
                ("p99", |(_, of)| of.error.map_or("-".to_owned(), |error| span(error[1]))),
                ("max", |(_, of)| of.error.map_or("-".to_owned(), |error| span(error[2]))),
                ("why", |(view, of)| view.why(of)),
            ],
        )));
        let receiving = self.attachments.iter().filter_map(|of| Some((self, of, of.received()?)));
        text.push_str(&below(&table(
            receiving,
            &[
                ("expected arrivals", |(_, of, _)| plain(&of.counted.name)),
                ("processes", |(.., (_, processes))| processes.to_string()),
                ("expected", |(view, _, (received, _))| view.rate(received.expected)),
                ("hit", |(view, _, (received, _))| view.rate(received.hit)),
                ("early", |(view, _, (received, _))| view.rate(received.early)),
                ("missed", |(view, _, (received, _))| view.rate(received.missed)),
                ("spins", |(view, _, (received, _))| view.percent(received.spun_ns)),
            ],
        )));
        text.push_str(&below(&table(
            self.workers.iter().map(|worker| (self, worker)),
            &[
                ("worker", |(_, worker)| plain(&worker.uplink)),
                ("wake-ups", |(view, worker)| view.rate(worker.wake_ups)),
                ("spins", |(view, worker)| view.percent(worker.spin_ns)),
                ("margin", |(_, worker)| span(worker.spin_margin_ns)),
                ("budget spent", |(view, worker)| view.rate(worker.spin_budget_spent)),
                ("bugs", |(_, worker)| worker.bugs.to_string()),
            ],
        )));
        text
    }

    pub(super) fn megabits(&self, octets: u64) -> String {
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
        let reasons = of.counted.dropped.iter().chain(&of.counted.bypassed);
        let reasons = reasons.map(|(word, count)| format!("{word} {}", self.rate(*count)));
        or_dash(&plain(&reasons.collect::<Vec<_>>().join(", ")))
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
            sum(|of| of.counted.taken),
            sum(|of| of.counted.sent),
            sum(|of| of.counted.late),
            sum(|of| of.counted.overrun),
            sum(|of| of.counted.dropped.values().sum()),
            sum(|of| of.counted.bypassed.values().sum()),
        )
    }

    /// All of it, for programs.
    pub(super) fn json(&self) -> Value {
        let rates = |counts: &BTreeMap<String, u64>| -> BTreeMap<String, f64> {
            counts.iter().map(|(word, count)| (word.clone(), self.per_second(*count))).collect()
        };
        json!({
            "interval_ns": self.interval, "serving": self.health.serving,
            "clock_synchronised": self.health.clock_synchronised,
            "warnings": self.health.warnings.len(),
            "ports": self.ports.iter().map(|port| json!({
                "name": port.name, "up": port.up, "frames_per_second": self.per_second(port.frames()),
                "transmission_overrun_per_second": self.per_second(port.overruns()),
                "put_back_per_second": self.per_second(port.counted.put_back), "hand_over_ns": port.counted.hand_over_ns,
            })).collect::<Vec<_>>(),
            "attachments": self.attachments.iter().map(|of| json!({
                "name": of.counted.name, "streams": of.streams.len(), "taken_per_second": self.per_second(of.counted.taken),
                "sent_per_second": self.per_second(of.counted.sent),
                "sent_octets_per_second": self.per_second(of.counted.sent_octets),
                "late_per_second": self.per_second(of.counted.late), "overrun_per_second": self.per_second(of.counted.overrun),
                "waited_per_second": self.per_second(of.counted.waited), "ring_full_per_second": self.per_second(of.counted.ring_full),
                "dropped_per_second": rates(&of.counted.dropped), "bypassed_per_second": rates(&of.counted.bypassed),
                "short_in_per_second": of.arrived().map(|count| self.per_second(count)),
                "receive": of.received().map(|(received, processes)| json!({
                    "processes": processes,
                    "expected_per_second": self.per_second(received.expected),
                    "hit_per_second": self.per_second(received.hit),
                    "early_per_second": self.per_second(received.early),
                    "missed_per_second": self.per_second(received.missed),
                    "spin_ratio": received.spun_ns as f64 / self.interval as f64,
                })),
                "transmit_error_ns": of.error.map(|[p50, p99, max]| json!({ "p50": p50, "p99": p99, "max": max })),
            })).collect::<Vec<_>>(),
            "streams": self.attachments.iter().flat_map(|of| of.streams.iter().map(|stream| json!({
                "attachment": of.counted.name, "pid": stream.pid, "local": stream.local, "peer": stream.peer,
            }))).collect::<Vec<_>>(),
            "workers": self.workers.iter().map(|worker| json!({
                "uplink": worker.uplink, "wake_ups_per_second": self.per_second(worker.wake_ups),
                "spin_ratio": worker.spin_ns as f64 / self.interval as f64, "spin_margin_ns": worker.spin_margin_ns,
                "spin_budget_spent": worker.spin_budget_spent, "bugs": worker.bugs,
            })).collect::<Vec<_>>(),
        })
    }
}

/// A table below an empty line.
fn below(table: &str) -> String {
    if table.is_empty() { String::new() } else { format!("\n{table}") }
}

fn streams(list: &v1::ListReply, name: &str) -> Vec<Stream> {
    let is_it = |state: &&v1::AttachmentState| state.name == name;
    let clients = list.attachments.iter().find(is_it).into_iter().flat_map(|state| &state.clients);
    let of_client = |client: &v1::Client| {
        let pid = client.pid;
        let stream = move |stream: &v1::Stream| Stream {
            pid,
            cookie: stream.cookie,
            local: stream.local.clone(),
            peer: stream.peer.clone(),
        };
        client.streams.iter().map(stream).collect::<Vec<_>>()
    };
    clients.flat_map(of_client).collect()
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
