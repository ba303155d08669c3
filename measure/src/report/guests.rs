// SPDX-License-Identifier: Apache-2.0
//! Guests with a virtio-net driver. In: a document of the experiment `rtos`. Out: figures of TCP bandwidth against TCP's buffers and
//! against posted receive buffers, and of interrupts against posted receive buffers. Only "all" entries are drawn.

use super::ReportError;
use super::canvas::{Drawing, layout, linear, logarithmic};
use super::colours::Colours;
use super::escape::{html, label};
use super::source::Source;
use crate::results::{Document, Series};
use plotly::common::{DashType, Line, Mode};
use plotly::layout::Axis;
use plotly::{Scatter, Trace};

/// The streams, and how their lines are drawn.
const STREAMS: [(&str, DashType); 2] = [("receive", DashType::Solid), ("send", DashType::Dash)];

/// Whether the document is of guests.
pub(super) fn applies(source: &Source) -> bool {
    source.document.experiment == "rtos"
}

/// One plot: which of a series' values are its axes, and which series belong to it.
struct Plot {
    kind: &'static str,
    title: &'static str,
    caption: &'static str,
    x: fn(&Series) -> Option<f64>,
    y: fn(&Series) -> Option<f64>,
    belongs: fn(&Series, &Document) -> bool,
    axes: fn() -> (Axis, Axis),
}

const PLOTS: [Plot; 3] = [
    Plot {
        kind: "bandwidth-tcp",
        title: "Against TCP's buffers",
        caption: "Each point is the median of the rounds. “receive”: the guest takes octets.",
        x: |series| Some(series.tcp_octets? as f64 / 1024.0),
        y: |series| Some(series.bit_rate? / 1e6),
        belongs: |series, document| {
            series.posted_max.is_none() || series.posted_max == usual_posted(document)
        },
        axes: || (logarithmic("TCP buffer [KiB]"), linear("Mbit/s").range(vec![0.0])),
    },
    Plot {
        kind: "bandwidth-posted",
        title: "Against posted receive buffers",
        caption: "With the largest of TCP's buffers. Each point is the median of the rounds. Behind vhost-user the switch drops what finds no buffer posted.",
        x: posted,
        y: |series| Some(series.bit_rate? / 1e6),
        belongs: has_largest_tcp,
        axes: || (logarithmic("Posted receive buffers"), linear("Mbit/s")),
    },
    Plot {
        kind: "interrupts-posted",
        title: "Interrupts against posted receive buffers",
        caption: "Interrupts of the guest's network device for each message of 1,448 octets, with the largest of TCP's buffers.",
        x: posted,
        y: |series| series.interrupts_per_message,
        belongs: has_largest_tcp,
        axes: || (logarithmic("Posted receive buffers"), logarithmic("Interrupts for each message")),
    },
];

fn posted(series: &Series) -> Option<f64> {
    series.posted_max.map(|buffers| buffers as f64)
}

/// How many buffers are posted in the runs against TCP's buffers.
fn usual_posted(document: &Document) -> Option<u64> {
    document.parameters.get("usual_posted").and_then(serde_json::Value::as_u64)
}

fn has_largest_tcp(series: &Series, document: &Document) -> bool {
    series.tcp_octets == document.series.iter().filter_map(|series| series.tcp_octets).max()
}

/// The drawings that the series allow.
pub(super) fn drawings(source: &Source, colours: &Colours) -> Result<Vec<Drawing>, ReportError> {
    if !applies(source) {
        return Ok(Vec::new());
    }
    let drawn = PLOTS.iter().filter_map(|plot| {
        let traces = traces(plot, &source.document, colours);
        let (x, y) = (plot.axes)();
        let picture = (!traces.is_empty()).then(|| (traces, layout(x, y)))?;
        Some(Drawing::single(plot.kind, plot.title, html(plot.caption), picture))
    });
    drawn.collect()
}

/// A line for each path and stream. A single point is left out beside lines: nothing was varied there.
fn traces(plot: &Plot, document: &Document, colours: &Colours) -> Vec<Box<dyn Trace>> {
    let mut paths: Vec<&str> = Vec::new();
    for series in &document.series {
        if !paths.contains(&series.path.as_str()) {
            paths.push(&series.path);
        }
    }
    let has_lines = paths
        .iter()
        .any(|path| STREAMS.iter().any(|(stream, _)| points(plot, document, path, stream).len() > 1));
    let mut traces: Vec<Box<dyn Trace>> = Vec::new();
    for (path, (stream, dash)) in paths.iter().flat_map(|path| STREAMS.map(|stream| (path, stream))) {
        let (x, y): (Vec<f64>, Vec<f64>) = points(plot, document, path, stream).into_iter().unzip();
        if x.is_empty() || x.len() == 1 && has_lines {
            continue;
        }
        let line = Line::new().color(colours.look(path).colour).dash(dash).width(2.0);
        let trace = Scatter::new(x, y).name(label(&format!("{path}, {stream}"))).mode(Mode::LinesMarkers);
        traces.push(trace.line(line).hover_template("%{x}: %{y:.4g}"));
    }
    traces
}

/// The points of one line, from left to right.
fn points(plot: &Plot, document: &Document, path: &str, stream: &str) -> Vec<(f64, f64)> {
    let chosen = document.summary().into_iter().filter(|series| {
        series.path == path && series.load.as_deref() == Some(stream) && (plot.belongs)(series, document)
    });
    let mut points: Vec<(f64, f64)> =
        chosen.filter_map(|series| Some(((plot.x)(series)?, (plot.y)(series)?))).collect();
    points.sort_by(|one, other| one.0.total_cmp(&other.0));
    points
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Round;

    fn document() -> Document {
        let series = |path: &str, tcp_kib: u64, posted_max, rate| Series {
            path: path.to_owned(),
            load: Some("receive".to_owned()),
            payload_octets: 1448,
            tcp_octets: Some(tcp_kib * 1024),
            posted_max,
            round: Round::All,
            bit_rate: Some(rate),
            ..Series::default()
        };
        let mut document = Document { experiment: "rtos".to_owned(), ..Document::default() };
        document.parameters.insert("usual_posted".to_owned(), 8.into());
        document.series = vec![
            series("freertos", 128, Some(255), 9e8),
            series("freertos", 128, Some(8), 8e8),
            series("freertos", 16, Some(8), 5e8),
            series("linux", 128, None, 7e8),
        ];
        document
    }

    #[test]
    fn points_are_of_one_configuration_and_in_order() {
        let document = document();
        assert_eq!(points(&PLOTS[0], &document, "freertos", "receive"), [(16.0, 500.0), (128.0, 800.0)]);
        assert_eq!(points(&PLOTS[1], &document, "freertos", "receive"), [(8.0, 800.0), (255.0, 900.0)]);
        assert_eq!(points(&PLOTS[0], &document, "linux", "receive"), [(128.0, 700.0)]);
        assert!(points(&PLOTS[1], &document, "linux", "receive").is_empty());
        assert!(points(&PLOTS[0], &document, "freertos", "send").is_empty());
    }

    #[test]
    fn a_single_point_is_drawn_only_where_there_are_no_lines() {
        let mut document = document();
        let drawn = |document: &Document, plot| traces(plot, document, &Colours::default()).len();
        // FreeRTOS has two points, Linux has one.
        assert_eq!((drawn(&document, &PLOTS[0]), drawn(&document, &PLOTS[1])), (1, 1));
        document.series.retain(|series| series.tcp_octets == Some(128 * 1024));
        assert_eq!(drawn(&document, &PLOTS[0]), 2);
    }
}
