// SPDX-License-Identifier: Apache-2.0
//! The one table of metrics, which ktsnd and the node agent have in common.
//!
//! In: `k8s/internal/metrics/names.txt`, built into the program. Out: names, kinds, labels, help and the bounds of histograms.

use std::sync::LazyLock;

/// The prefix of every metric.
pub const PREFIX: &str = "ktsn_";

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let text = include_str!("../../../k8s/internal/metrics/names.txt");
    Table::parse(text).expect("a test reads the table that is built in")
});

ktsn_model::words! {
    /// What a metric is.
    pub enum Kind {
        /// It only grows.
        Counter = "counter",
        /// It goes up and down.
        Gauge = "gauge",
        /// A distribution.
        Histogram = "histogram",
    }
}

ktsn_model::words! {
    /// Which programs serve a metric.
    pub enum By {
        /// The node agent alone.
        Agent = "agent",
        /// ktsnd, and the node agent on its behalf.
        Both = "both",
    }
}

/// A metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name without [`PREFIX`].
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// The names of its labels.
    pub labels: Vec<&'static str>,
    /// Which programs serve it.
    pub by: By,
    /// One sentence.
    pub help: &'static str,
}

/// All metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// In the table's order.
    pub metrics: Vec<Metric>,
    /// Upper bounds of all histograms, nanoseconds, ascending.
    pub bounds: Vec<u64>,
}

/// The table that is built in.
#[must_use]
pub fn table() -> &'static Table {
    &TABLE
}

impl Table {
    /// Reads the table. `None`: a line is not of its form.
    fn parse(text: &'static str) -> Option<Self> {
        let mut table = Self { metrics: Vec::new(), bounds: Vec::new() };
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            match line.split(" | ").collect::<Vec<_>>()[..] {
                ["bounds", bounds] => {
                    table.bounds =
                        bounds.split(' ').map(|bound| bound.parse().ok()).collect::<Option<_>>()?;
                }
                [name, kind, labels, by, help] => table.metrics.push(Metric {
                    name,
                    kind: kind.parse().ok()?,
                    labels: labels.split(',').filter(|label| !label.is_empty()).collect(),
                    by: by.parse().ok()?,
                    help,
                }),
                _ => return None,
            }
        }
        Some(table)
    }

    /// The metric with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Metric> {
        self.metrics.iter().find(|metric| metric.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_well_formed() {
        let table = table();
        assert!(table.metrics.len() > 50 && table.bounds.is_sorted());
        for metric in &table.metrics {
            let Metric { name, kind, help, .. } = metric;
            assert_eq!(*kind == Kind::Counter, name.ends_with("_total"), "{name}");
            assert!(help.ends_with('.') && !help.contains(['|', '\n']), "{name}: {help}");
            assert_eq!(table.metrics.iter().filter(|other| other.name == *name).count(), 1, "{name} twice");
        }
        assert_eq!(Table::parse("up | gauge | both | text"), None);
        assert_eq!(Table::parse("up | number |  | both | text."), None);
    }
}
