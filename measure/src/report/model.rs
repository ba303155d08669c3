// SPDX-License-Identifier: Apache-2.0
//! What the report knows of a document: the schema's nouns, with everything that may be absent as an `Option`
//! (an absent field is shown as absent, never as zero). Times are nanoseconds, ratios are fractions of one.

/// A document of the schema `ktsn.results/1`.
#[derive(Clone, Debug, Default)]
pub(super) struct Document {
    pub(super) experiment: String,
    pub(super) started_at: Option<String>,
    pub(super) command: Vec<String>,
    /// Name and value, as text, in the document's order.
    pub(super) environment: Vec<(String, String)>,
    pub(super) clock_synchronised: Option<bool>,
    pub(super) tai_offset_seconds: Option<f64>,
    pub(super) parameters: Vec<(String, String)>,
    pub(super) gates: Option<Gates>,
    pub(super) series: Vec<Series>,
    pub(super) micro: Vec<Micro>,
    pub(super) checks: Vec<Check>,
    pub(super) comparisons: Vec<Comparison>,
    pub(super) published: Vec<Published>,
}

/// The gate schedule that a document's frames are held against (`parameters.gate_schedule`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Gates {
    /// TAI, nanoseconds.
    pub(super) base_time: u64,
    /// At least 1 ns.
    pub(super) cycle_time: u64,
    /// Class, and where in the cycle its gate opens and closes, in nanoseconds.
    pub(super) windows: Vec<(u64, u64, u64)>,
}

/// One round, or all of them together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Round {
    #[default]
    All,
    Number(u64),
}

/// One path and payload.
#[derive(Clone, Debug, Default)]
pub(super) struct Series {
    pub(super) path: String,
    pub(super) payload_octets: u64,
    pub(super) load: Option<String>,
    pub(super) round: Round,
    pub(super) class: Option<u64>,
    /// Class, egress, overlay, ingress: name and value.
    pub(super) way: Vec<(String, String)>,
    pub(super) frames_intended: Option<u64>,
    pub(super) frames_sent: Option<u64>,
    pub(super) frames_received: Option<u64>,
    pub(super) lost: Option<u64>,
    pub(super) duplicates: Option<u64>,
    pub(super) reordered: Option<u64>,
    pub(super) early: Option<u64>,
    pub(super) overrun: Option<u64>,
    pub(super) dropped: Vec<(String, u64)>,
    pub(super) bypassed: Vec<(String, u64)>,
    pub(super) transmit_error: Option<Figures>,
    pub(super) wire_offset: Option<Figures>,
    pub(super) latency: Option<Figures>,
    pub(super) jitter: Option<Figures>,
    pub(super) wire_jitter: Option<Figures>,
    pub(super) wake_up: Option<Figures>,
    pub(super) before_wake_up: Option<Figures>,
    pub(super) outside_window: Option<u64>,
    pub(super) transmission_overrun: Option<u64>,
    pub(super) wire_outside_window_ratio: Option<f64>,
    pub(super) after_opening: Option<Figures>,
    pub(super) late_over_1us_ratio: Option<f64>,
    pub(super) deadline_missed_ratio: Option<f64>,
    pub(super) talker_cpu_ratio: Option<f64>,
    pub(super) daemon_cpu_ratio: Option<f64>,
    pub(super) far_daemon_cpu_ratio: Option<f64>,
    pub(super) ktsn_cpu_ratio: Option<f64>,
    pub(super) softirq_cpu_ratio: Option<f64>,
    pub(super) load_bit_rate: Option<f64>,
    pub(super) listener_cpu_ratio: Option<f64>,
    pub(super) daemon_rss_octets: Option<u64>,
    pub(super) voided_rounds: Option<u64>,
    pub(super) steal_ratio: Option<f64>,
    pub(super) cpu_pressure_some_ratio: Option<f64>,
}

/// A distribution in numbers, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Figures {
    pub(super) min: Option<f64>,
    pub(super) p50: Option<f64>,
    pub(super) p90: Option<f64>,
    pub(super) p99: Option<f64>,
    pub(super) p99_9: Option<f64>,
    pub(super) max: Option<f64>,
}

/// A micro-benchmark.
#[derive(Clone, Debug, Default)]
pub(super) struct Micro {
    pub(super) name: String,
    pub(super) unit: String,
    pub(super) p50: Option<f64>,
    pub(super) p90: Option<f64>,
    pub(super) samples: Option<u64>,
}

/// A check of a test suite.
#[derive(Clone, Debug, Default)]
pub(super) struct Check {
    pub(super) name: String,
    pub(super) outcome: String,
    pub(super) reason: Option<String>,
}

/// A figure of one path set against another's, or against a fixed bar (`to` is absent then).
#[derive(Clone, Debug, Default)]
pub(super) struct Comparison {
    pub(super) metric: String,
    pub(super) payload_octets: Option<u64>,
    pub(super) load: Option<String>,
    pub(super) of: String,
    pub(super) to: Option<String>,
    pub(super) ratio: Option<f64>,
    pub(super) bar: Option<f64>,
    pub(super) holds: Option<bool>,
}

/// A figure that was published elsewhere, with ours beside it.
#[derive(Clone, Debug, Default)]
pub(super) struct Published {
    pub(super) source: String,
    pub(super) figure: String,
    pub(super) metric: String,
    pub(super) payload_octets: Option<u64>,
    pub(super) of: String,
    pub(super) to: Option<String>,
    pub(super) value: f64,
    /// Of which path, divided by which, how much.
    pub(super) ours: Vec<(String, Option<String>, f64)>,
}

impl Document {
    /// The entries that the report is about: those over all rounds, or all entries if there are none such.
    pub(super) fn summary(&self) -> Vec<&Series> {
        let all: Vec<&Series> = self.series.iter().filter(|series| series.round == Round::All).collect();
        if all.is_empty() { self.series.iter().collect() } else { all }
    }

    /// The payload sizes of the series, ascending.
    pub(super) fn payloads(&self) -> Vec<u64> {
        let mut payloads: Vec<u64> = self.series.iter().map(|series| series.payload_octets).collect();
        payloads.sort_unstable();
        payloads.dedup();
        payloads
    }

    /// Whether the listener's kernel stamp stands for the wire, as between two real hosts without a tap.
    pub(super) fn wire_by_listener(&self) -> bool {
        self.parameters.iter().any(|(name, value)| name == "wire_at" && value == "listener_stamp")
    }

    /// The loads of the series, in order of appearance.
    pub(super) fn loads(&self) -> Vec<Option<&str>> {
        let mut loads = Vec::new();
        for load in self.series.iter().map(|series| series.load.as_deref()) {
            if !loads.contains(&load) {
                loads.push(load);
            }
        }
        loads
    }

    /// Whether the series differ in their load, so that a row must name it.
    pub(super) fn has_loads(&self) -> bool {
        self.loads().len() > 1
    }

    /// Whether there are series of several classes, so that a row must name its own.
    pub(super) fn has_classes(&self) -> bool {
        let mut classes = self.series.iter().filter_map(|series| series.class);
        let first = classes.next();
        classes.any(|class| Some(class) != first)
    }

    /// The name of a series in tables.
    pub(super) fn name(&self, series: &Series) -> String {
        format!("{}{}", self.name_without_round(series), self.round_of(series))
    }

    /// The name of a series in a plot, which is of one load.
    pub(super) fn name_without_load(&self, series: &Series) -> String {
        format!("{}{}{}", series.path, self.class_of(series), self.round_of(series))
    }

    /// Path, and what tells it from other rows of the same path.
    pub(super) fn name_without_round(&self, series: &Series) -> String {
        let load = series.load.as_deref().filter(|_| self.has_loads());
        let load = load.map_or_else(String::new, |load| format!(" ({load})"));
        format!("{}{load}{}", series.path, self.class_of(series))
    }

    fn class_of(&self, series: &Series) -> String {
        let class = series.class.filter(|_| self.has_classes());
        class.map_or_else(String::new, |class| format!(", class {class}"))
    }

    /// Only where single rounds are all that there is.
    fn round_of(&self, series: &Series) -> String {
        match series.round {
            Round::Number(number) if self.summary().len() == self.series.len() => format!(", round {number}"),
            _ => String::new(),
        }
    }
}
