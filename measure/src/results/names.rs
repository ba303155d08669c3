// SPDX-License-Identifier: Apache-2.0
//! The rows that a report shows, and their names. In: a document. Out: its series by round, payload and load, and a
//! name for each that distinguishes it from the others.

use super::{Document, Round, Series};

impl Document {
    /// The entries that tables and plots show: those over all rounds, or all entries if there are none such.
    #[must_use]
    pub fn summary(&self) -> Vec<&Series> {
        let all: Vec<&Series> = self.series.iter().filter(|series| series.round == Round::All).collect();
        if all.is_empty() { self.series.iter().collect() } else { all }
    }

    /// The payload sizes of the series, ascending.
    #[must_use]
    pub fn payloads(&self) -> Vec<usize> {
        let mut payloads: Vec<usize> = self.series.iter().map(|series| series.payload_octets).collect();
        payloads.sort_unstable();
        payloads.dedup();
        payloads
    }

    /// Whether the listener's kernel stamp stands for the wire, as between two real hosts without a tap.
    pub(crate) fn wire_by_listener(&self) -> bool {
        self.parameters.get("wire_at").is_some_and(|value| value == "listener_stamp")
    }

    /// Whether publisher and subscriber had clocks of their own, so that a latency is known above the fastest frame only.
    pub(crate) fn has_own_clocks(&self) -> bool {
        self.series.iter().any(|series| series.clock.as_deref() == Some("own"))
    }

    /// The greatest latency allowed, nanoseconds, where latencies themselves are known.
    pub(crate) fn latency_budget(&self) -> Option<f64> {
        let deadline = self.parameters.get("deadline_ns").and_then(serde_json::Value::as_f64);
        deadline.filter(|_| self.experiment == "vm" && !self.has_own_clocks())
    }

    /// The loads of the series, in order of appearance.
    pub(crate) fn loads(&self) -> Vec<Option<&str>> {
        let mut loads = Vec::new();
        for load in self.series.iter().map(|series| series.load.as_deref()) {
            if !loads.contains(&load) {
                loads.push(load);
            }
        }
        loads
    }

    /// Whether the series differ in their load, so that a row must name it.
    pub(crate) fn has_loads(&self) -> bool {
        self.loads().len() > 1
    }

    /// Whether there are series of several classes, so that a row must name its own.
    fn has_classes(&self) -> bool {
        let mut classes = self.series.iter().filter_map(|series| series.class);
        let first = classes.next();
        classes.any(|class| Some(class) != first)
    }

    /// The name of a series in tables.
    pub(crate) fn name(&self, series: &Series) -> String {
        format!("{}{}", self.name_without_round(series), self.round_of(series))
    }

    /// The name of a series in a plot, which is of one load.
    pub(crate) fn name_without_load(&self, series: &Series) -> String {
        let configuration = series.configuration();
        format!("{}{}{configuration}{}", series.path, self.class_of(series), self.round_of(series))
    }

    /// The path, with the load and the class where the document has several.
    pub(crate) fn name_without_round(&self, series: &Series) -> String {
        let load = series.load.as_deref().filter(|_| self.has_loads());
        let load = load.map_or_else(String::new, |load| format!(" ({load})"));
        format!("{}{load}{}{}", series.path, self.class_of(series), series.configuration())
    }

    fn class_of(&self, series: &Series) -> String {
        let class = series.class.filter(|_| self.has_classes());
        class.map_or_else(String::new, |class| format!(", class {class}"))
    }

    /// The round, where the document has single rounds only.
    fn round_of(&self, series: &Series) -> String {
        match series.round {
            Round::Number(number) if self.summary().len() == self.series.len() => format!(", round {number}"),
            _ => String::new(),
        }
    }
}

impl Series {
    /// A guest's configuration, as the end of a name: `, TCP 64 KiB, 8 posted`; empty without one.
    pub(crate) fn configuration(&self) -> String {
        let tcp = self.tcp_octets.map(|octets| format!(", TCP {} KiB", octets / 1024));
        let posted = self.posted_max.map(|buffers| format!(", {buffers} posted"));
        tcp.into_iter().chain(posted).collect()
    }
}
