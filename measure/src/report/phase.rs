// SPDX-License-Identifier: Apache-2.0
//! Phase in the cycle against time. In: a document with a gate schedule, and its samples. Out: one figure: every class's
//! frames where in the cycle the far end saw them, and the windows of the classes as bands.

use super::ReportError;
use super::canvas::{Drawing, layout, linear};
use super::escape::{html, label};
use super::samples::Samples;
use super::source::Source;
use super::thin::{self, POINTS_MAX};
use crate::gates::{GateSchedule, GateWindow};
use crate::results::Series;
use plotly::common::{Marker, Mode};
use plotly::layout::{Annotation, Shape, ShapeLayer, ShapeLine, ShapeType};
use plotly::{Scatter, Trace};

/// A colour for each class, 0 to 7.
const COLOURS: [&str; 8] =
    ["#7f7f7f", "#8c564b", "#17becf", "#bcbd22", "#9467bd", "#2ca02c", "#ff7f0e", "#1f77b4"];
/// Opacity of a band, two hexadecimal digits.
const BAND: &str = "2e";

fn colour(class: u8) -> &'static str {
    COLOURS[usize::from(class) % COLOURS.len()]
}

/// Where in the cycle an instant lies, in nanoseconds. An instant before the base time has a phase as well.
fn phase(gates: &GateSchedule, at: u64) -> u64 {
    let since = i128::from(at) - i128::from(gates.base_time);
    u64::try_from(since.rem_euclid(i128::from(gates.cycle_time.get()))).unwrap_or(0)
}

/// The drawing, where the document has a schedule and samples.
pub(super) fn drawing(source: &Source) -> Result<Option<Drawing>, ReportError> {
    let document = &source.document;
    let Some(gates) = &source.gates else { return Ok(None) };
    let mut traces: Vec<Box<dyn Trace>> = Vec::new();
    for series in document.summary() {
        if let Some(samples) = source.samples_of(series) {
            traces.push(points(gates, &label(&document.name(series)), series, samples));
        }
    }
    if traces.is_empty() {
        return Ok(None);
    }
    let cycle = gates.cycle_time.get() as f64 / 1e3;
    let y = linear("Phase in the cycle [µs]").range(vec![0.0, cycle]);
    let layout = layout(linear("Time in the rounds [s]"), y).shapes(bands(gates)).annotations(names(gates));
    let caption = format!(
        "Where in the cycle of {cycle} µs the tap on the receiving host saw each frame, the rounds one after the \
         other; the bands are the windows of the classes, worked out from the list. Thinned to at most \
         {POINTS_MAX} points a trace; least and greatest phases are kept."
    );
    Drawing::single("phase", "Phase in the cycle", html(&caption), (traces, layout)).map(Some)
}

fn points(gates: &GateSchedule, name: &str, series: &Series, samples: &Samples) -> Box<dyn Trace> {
    let mut all = Vec::new();
    let mut start = 0.0;
    for round in &samples.on_wire {
        all.extend(round.iter().map(|&(at, stamp)| (start + at, phase(gates, stamp) as f64 / 1e3)));
        start += round.last().map_or(0.0, |point| point.0) + 0.01;
    }
    let (x, y): (Vec<f64>, Vec<f64>) = thin::keep_extremes(&all, POINTS_MAX)
        .into_iter()
        .map(|(x, y)| ((x * 1e4).round() / 1e4, (y * 1e3).round() / 1e3))
        .unzip();
    Scatter::new(x, y)
        .name(name)
        .mode(Mode::Markers)
        .marker(Marker::new().color(colour(series.class.unwrap_or(0))).size(3))
        .hover_template("%{x:.3f} s: %{y} µs")
}

/// Each window side by side with those of other classes, so that shared time shows all of its classes.
fn bands(gates: &GateSchedule) -> Vec<Shape> {
    let classes = classes(gates);
    let width = 1.0 / classes.len().max(1) as f64;
    let band = |&GateWindow { class, opens_ns, closes_ns }: &GateWindow| {
        let place = classes.iter().position(|&other| other == class).unwrap_or(0) as f64;
        Shape::new()
            .shape_type(ShapeType::Rect)
            .layer(ShapeLayer::Below)
            .x_ref("paper")
            .y_ref("y")
            .x0(place * width)
            .x1((place + 1.0) * width)
            .y0(opens_ns as f64 / 1e3)
            .y1(closes_ns as f64 / 1e3)
            .fill_color(format!("{}{BAND}", colour(class)))
            .line(ShapeLine::new().width(0.0))
    };
    gates.windows.iter().map(band).collect()
}

fn names(gates: &GateSchedule) -> Vec<Annotation> {
    let classes = classes(gates);
    let width = 1.0 / classes.len().max(1) as f64;
    let name = |(place, class): (usize, &u8)| {
        Annotation::new()
            .text(format!("windows of class {class}"))
            .show_arrow(false)
            .x_ref("paper")
            .y_ref("paper")
            .x((place as f64 + 0.5) * width)
            .y(0.0)
            .y_anchor(plotly::common::Anchor::Bottom)
    };
    classes.iter().enumerate().map(name).collect()
}

fn classes(gates: &GateSchedule) -> Vec<u8> {
    let mut classes: Vec<u8> = gates.windows.iter().map(|window| window.class).collect();
    classes.sort_unstable_by(|a, b| b.cmp(a));
    classes.dedup();
    classes
}

#[cfg(test)]
mod tests {
    use super::*;
    use ktsn_time::Tai;
    use ktsn_traffic::records::{Record, RunRecords};
    use serde_json::json;

    fn document() -> serde_json::Value {
        json!({
            "schema": "ktsn.results/1", "experiment": "gates",
            "parameters": { "gate_schedule": { "base_time": 1_000_000, "cycle_time": 1_000, "windows": [
                { "class": 7, "opens_ns": 0, "closes_ns": 200 }, { "class": 0, "opens_ns": 200, "closes_ns": 1000 } ] } },
            "series": [ { "path": "ktsn", "class": 7, "payload_octets": 64 }, { "path": "ktsn", "class": 0, "payload_octets": 1200 } ]
        })
    }

    #[test]
    fn frames_are_drawn_at_their_phase_over_the_windows() {
        let record = |sequence: u64| Record {
            sequence,
            tx_time: Tai::from_nanos(1_000_000 + 1_000 * sequence),
            handed_at: None,
            wire_at: Some(Tai::from_nanos(1_000_000 + 1_000 * sequence + 123)),
            kernel_at: None,
            received_at: None,
        };
        let records = (0..5).map(record).collect();
        let run = RunRecords { path: "ktsn".into(), payload_octets: 64, load: None, round: 1, records };
        let source = Source::of("r.json", &document(), &[run]).unwrap();
        let drawing = drawing(&source).unwrap().unwrap();
        let figure = &drawing.figures[0].1;
        assert!(figure.contains("0.123") && figure.contains("ktsn, class 7"), "{figure}");
        assert_eq!(figure.matches("\"rect\"").count(), 2);
        let page = super::super::render(&[source]).unwrap();
        assert!(page.contains("id=\"d0-phase\""));
    }

    #[test]
    fn without_a_schedule_or_samples_nothing_is_drawn() {
        let mut plain = document();
        assert!(drawing(&Source::of("r.json", &plain, &[]).unwrap()).unwrap().is_none());
        plain["parameters"] = json!({});
        let source = Source::of("r.json", &plain, &[]).unwrap();
        assert!(drawing(&source).unwrap().is_none());
        assert!(!super::super::render(&[source]).unwrap().contains("Phase in the cycle"));
        let mut wrong = document();
        wrong["parameters"]["gate_schedule"]["cycle_time"] = json!(0);
        let error = Source::of("r.json", &wrong, &[]).unwrap_err().to_string();
        assert!(error.contains("parameters.gate_schedule.cycle_time"), "{error}");
    }

    #[test]
    fn a_phase_is_never_negative() {
        let cycle_time = 30.try_into().unwrap();
        let gates = GateSchedule { base_time: 100, cycle_time, windows: Vec::new() };
        assert_eq!([phase(&gates, 100), phase(&gates, 135), phase(&gates, 95)], [0, 5, 25]);
    }
}
