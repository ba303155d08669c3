// SPDX-License-Identifier: Apache-2.0
//! What a latency and a CPU consist of. In: the rows of one payload and load. Out: stacked bars, one a path. They show
//! medians as the tables have them; medians of parts need not add up to the median of the whole.

use super::canvas::{Picture, layout, linear};
use crate::results::Series;
use ktsn_traffic::stats::Statistics;
use plotly::common::{Marker, Orientation};
use plotly::layout::{AxisType, BarMode};
use plotly::{Bar, Trace};

pub(super) const PARTS_CAPTION: &str = "Medians. To the wire: from the requested time to the tap. Receiving node: from the tap to the \
    listener's kernel stamp. Wake-up: from that stamp until the listening program has the frame; it is common to all paths. On \
    a short way in the stamp is the uplink's, so its wake-up contains that way.";
pub(super) const CPU_CAPTION: &str = "Of one core, medians of the rounds. Soft interrupts are counted into whoever they interrupted; over \
    virtual Ethernet the receiving node's run inside the sender's system call.";

/// Name of a part, its colour, its share of a row.
type Part = (&'static str, &'static str, fn(&Series) -> Option<f64>);

const PARTS: [Part; 3] = [
    ("to the wire", "#0072b2", |s| p50(s.wire_offset_ns).map(micros)),
    ("receiving node", "#e69f00", |s| {
        Some(micros((p50(s.before_wake_up_ns)? - p50(s.wire_offset_ns)?).max(0.0)))
    }),
    ("listener's wake-up", "#b8bec9", |s| p50(s.wake_up_ns).map(micros)),
];

const CPU: [Part; 4] = [
    ("talker", "#009e73", |s| s.talker_cpu_ratio.map(percent)),
    ("ktsnd", "#0072b2", |s| s.daemon_cpu_ratio.map(percent)),
    ("ktsnd, receiving node", "#56b4e9", |s| s.far_daemon_cpu_ratio.map(percent)),
    ("listener", "#b8bec9", |s| s.listener_cpu_ratio.map(percent)),
];

fn p50(statistics: Option<Statistics>) -> Option<f64> {
    Some(statistics?.p50 as f64)
}

fn micros(nanos: f64) -> f64 {
    (nanos / 10.0).round() / 100.0
}

fn percent(ratio: f64) -> f64 {
    (ratio * 10_000.0).round() / 100.0
}

/// Whether there is a latency to be parted.
pub(super) fn has_parts(series: &Series) -> bool {
    series.before_wake_up_ns.is_some()
}

/// Latencies in their parts.
pub(super) fn parts(rows: &[(&str, &Series)]) -> Picture {
    let parted: Vec<(&str, &Series)> = rows.iter().copied().filter(|(_, series)| has_parts(series)).collect();
    stacked(&parted, &PARTS, "Latency [µs]")
}

/// CPU by program; where latencies were parted, beside them.
pub(super) fn cpu(rows: &[(&str, &Series)]) -> Picture {
    let parted: Vec<(&str, &Series)> = rows.iter().copied().filter(|(_, series)| has_parts(series)).collect();
    stacked(&parted, &CPU, "CPU [% of one core]")
}

fn stacked(rows: &[(&str, &Series)], parts: &[Part], title: &str) -> Picture {
    let mut traces: Vec<Box<dyn Trace>> = Vec::new();
    for (name, colour, share) in parts {
        let known = rows.iter().rev().filter_map(|(path, series)| Some((share(series)?, (*path).to_owned())));
        let (x, y): (Vec<f64>, Vec<String>) = known.unzip();
        if !x.is_empty() {
            let bar = Bar::new(x, y).name(*name).orientation(Orientation::Horizontal);
            traces.push(bar.marker(Marker::new().color(*colour)).hover_template("%{y}: %{x}"));
        }
    }
    // The first path at the top, as in the tables.
    let order: Vec<String> = rows.iter().rev().map(|(path, _)| (*path).to_owned()).collect();
    let paths = linear("").type_(AxisType::Category).category_array(order);
    (!traces.is_empty()).then(|| (traces, layout(linear(title), paths).bar_mode(BarMode::Stack)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(p50: i64) -> Option<Statistics> {
        Some(Statistics { p50, ..Statistics::default() })
    }

    #[test]
    fn a_latency_has_three_parts_and_none_is_negative() {
        let series = Series {
            wire_offset_ns: figures(8_000),
            before_wake_up_ns: figures(7_000),
            wake_up_ns: figures(25_000),
            ..Series::default()
        };
        let shares: Vec<Option<f64>> = PARTS.iter().map(|part| (part.2)(&series)).collect();
        assert_eq!(shares, [Some(8.0), Some(0.0), Some(25.0)]);
        assert_eq!(parts(&[("a", &series), ("b", &Series::default())]).unwrap().0.len(), 3);
        assert!(parts(&[("b", &Series::default())]).is_none() && cpu(&[("a", &series)]).is_none());
    }
}
