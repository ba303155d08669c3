// SPDX-License-Identifier: Apache-2.0
//! Plots: in: a document with its samples. Out: plotly figures as JSON, one per plot and payload, and captions.
//! Histograms and boxes are computed here from every sample; the browser only draws. All times are shown in µs.

use super::ReportError;
use super::canvas::{Drawing, Picture, dotted, figure, layout, linear, logarithmic};
use super::colours::Colours;
use super::escape::{html, label};
use super::samples::Samples;
use super::source::Source;
use super::thin::{self, FLOOR_NS, POINTS_MAX};
use super::{averages, datapaths, deadline, guests, phase, published, realtime, stacks};
use crate::results::{Document, Series};
use ktsn_traffic::stats::Statistics;
use plotly::box_plot::BoxPoints;
use plotly::common::{ErrorData, ErrorType, Fill, Line, LineShape, Marker, Mode};
use plotly::layout::{AxisType, BoxMode};
use plotly::{BoxPlot, Scatter, Trace};

/// One quantity that is drawn.
#[derive(Clone, Copy)]
struct Quantity {
    title: &'static str,
    samples: fn(&Samples) -> &[i64],
    figures: fn(&Series) -> Option<Statistics>,
}

const LATENCY: Quantity =
    Quantity { title: "Latency [µs]", samples: |s| &s.latency, figures: |s| s.latency_ns };
/// Latency between clocks that agree in nothing.
const ABOVE_FASTEST: Quantity = Quantity {
    title: "Latency above the fastest frame [µs]",
    samples: |s| &s.latency,
    figures: |s| s.above_fastest_ns,
};
const WIRE_OFFSET: Quantity =
    Quantity { title: "Wire offset [µs]", samples: |s| &s.wire_offset, figures: |s| s.wire_offset_ns };
const NETWORK: Quantity =
    Quantity { title: "Network latency [µs]", samples: |s| &s.network, figures: |s| s.network_latency_ns };
const JITTER: Quantity =
    Quantity { title: "|Jitter| at the listener [µs]", samples: |s| &s.jitter, figures: |s| s.jitter_ns };
const WIRE_JITTER: Quantity = Quantity {
    title: "|Jitter| on the wire [µs]",
    samples: |s| &s.wire_jitter,
    figures: |s| s.wire_jitter_ns,
};

/// A row of the document with its samples, its name and its look.
struct Row<'a> {
    series: &'a Series,
    name: String,
    look: super::colours::Look,
    samples: Option<&'a Samples>,
}

impl Row<'_> {
    fn line(&self, width: f64) -> Line {
        Line::new().color(self.look.colour).dash(self.look.dash.clone()).width(width)
    }

    /// The samples of a quantity, unless there are none.
    fn values(&self, quantity: Quantity) -> Option<&[i64]> {
        self.samples.map(quantity.samples).filter(|values| !values.is_empty())
    }
}

fn rows<'a>(source: &'a Source, load: Option<&str>, colours: &Colours) -> Vec<Row<'a>> {
    let document = &source.document;
    let row = |series: &'a Series| Row {
        series,
        name: label(&document.name_without_load(series)),
        look: colours.look(&series.path),
        samples: source.samples_of(series),
    };
    let mut summary = document.summary();
    summary.retain(|series| series.load.as_deref() == load);
    summary.into_iter().map(row).collect()
}

/// Nanoseconds on a logarithmic axis in µs: what is below the axis' floor is drawn at the floor.
fn shown(nanos: f64) -> f64 {
    (nanos.max(FLOOR_NS) / 1000.0 * 1e4).round() / 1e4
}

/// All plots of a document that its series allow: each kind for each load, those of a kind side by side.
pub(super) fn drawings(source: &Source, colours: &Colours) -> Result<Vec<Drawing>, ReportError> {
    let mut drawings: Vec<Drawing> = phase::drawing(source)?.into_iter().collect();
    drawings.extend(published::drawings(source, colours)?);
    drawings.extend(deadline::drawing(source, colours)?);
    drawings.extend(guests::drawings(source, colours)?);
    if let Some(found) = &source.document.realtime {
        drawings.extend(realtime::drawings(found, colours)?);
    }
    drawings.extend(datapaths::drawing(source)?);
    let loads = source.document.loads();
    for (index, load) in loads.iter().enumerate() {
        for mut drawing in of_load(source, *load, colours)? {
            if let Some(load) = load.filter(|_| loads.len() > 1) {
                drawing.title = format!("{}, {}", drawing.title, html(load));
            }
            if index > 0 {
                drawing.id = format!("{}-{index}", drawing.id);
            }
            drawings.push(drawing);
        }
    }
    Ok(drawings)
}

fn of_load(source: &Source, load: Option<&str>, colours: &Colours) -> Result<Vec<Drawing>, ReportError> {
    let rows = rows(source, load, colours);
    let latency = if source.document.has_own_clocks() { ABOVE_FASTEST } else { LATENCY };
    let budget_us = source.document.latency_budget().map(|budget| budget / 1000.0);
    let mut payloads: Vec<usize> = rows.iter().map(|row| row.series.payload_octets).collect();
    payloads.sort_unstable();
    payloads.dedup();
    let mut drawings = Vec::new();
    let each = |draw: &dyn Fn(&[&Row<'_>]) -> Picture| each_payload(&rows, &payloads, draw);
    let mut push =
        |kind, title: &str, caption, figures| push_to(&mut drawings, kind, title, caption, figures);
    let below = |quantity| floor_note(&rows, quantity);
    let caption = |text: &str, quantity| format!("{}{}", html(text), below(quantity));
    for (kind, title, quantity) in [
        ("cdf-latency", "Distribution of latency", latency),
        ("cdf-wire-offset", "Distribution of wire offset", WIRE_OFFSET),
        ("cdf-network", "Distribution of network latency", NETWORK),
    ]
    .into_iter()
    .filter(|(kind, ..)| shows(source, kind))
    {
        let budget_us = budget_us.filter(|_| kind == "cdf-latency");
        push(kind, title, caption(CDF_CAPTION, quantity), each(&|r| distribution(r, quantity, budget_us))?);
    }
    push(
        "parts",
        "Parts of the latency",
        html(stacks::PARTS_CAPTION),
        each(&|r| stacks::parts(&series_of(r)))?,
    );
    push("cpu", "CPU", html(stacks::CPU_CAPTION), each(&|r| stacks::cpu(&series_of(r)))?);
    let boxes_text = boxes_caption(&rows);
    for (kind, title, quantity) in [
        ("box-latency", "Latency by path and payload", latency),
        ("box-wire-offset", "Wire offset by path and payload", WIRE_OFFSET),
    ] {
        if shows(source, kind) && rows.iter().any(|row| (quantity.figures)(row.series).is_some()) {
            let figures = vec![(None, boxes(&rows, &payloads, quantity)?)];
            push(kind, title, caption(boxes_text, quantity), figures);
        }
    }
    for (kind, title, quantity) in [
        ("histogram-jitter", "Jitter histogram, at the listener", JITTER),
        ("histogram-wire-jitter", "Jitter histogram, on the wire", WIRE_JITTER),
    ]
    .into_iter()
    .filter(|(kind, ..)| shows(source, kind))
    {
        push(kind, title, caption(JITTER_CAPTION, quantity), each(&|r| histogram(r, quantity))?);
    }
    if datapaths::applies(&source.document) {
        let (kind, title) = ("histogram-network", "Histogram of network latency");
        push(kind, title, caption(NETWORK_CAPTION, NETWORK), each(&|r| histogram(r, NETWORK))?);
    }
    let time = format!(
        "The rounds of each path one after the other (they were measured interleaved), parted by dotted lines. \
         Thinned to at most {POINTS_MAX} points a trace; least and greatest frames are kept."
    );
    push("time-latency", "Latency over time", html(&time), each(&|r| over_time(r, latency, |s| &s.rounds))?);
    if datapaths::applies(&source.document) {
        let draw = |r: &[&Row<'_>]| over_time(r, NETWORK, |s| &s.network_rounds);
        push("time-network", "Network latency over time", html(&time), each(&draw)?);
    }
    if source.document.experiment == "vm" {
        let drawn = each(&|r| averages::picture(&with_samples(r), budget_us, latency.title))?;
        let budget = if budget_us.is_some() { AVERAGES_BUDGET } else { "" };
        push("averages", "Averages over time", html(&format!("{AVERAGES_CAPTION}{budget}")), drawn);
    }
    Ok(drawings)
}

/// One picture for each payload that has one.
fn each_payload(
    rows: &[Row<'_>],
    payloads: &[usize],
    draw: &dyn Fn(&[&Row<'_>]) -> Picture,
) -> Result<Vec<(Option<usize>, String)>, ReportError> {
    let mut figures = Vec::new();
    for &payload in payloads {
        let chosen: Vec<&Row<'_>> = rows.iter().filter(|row| row.series.payload_octets == payload).collect();
        if let Some((traces, layout)) = draw(&chosen) {
            figures.push((Some(payload), figure(traces, layout)?));
        }
    }
    Ok(figures)
}

/// A drawing without figures is left out.
fn push_to(
    drawings: &mut Vec<Drawing>,
    kind: &'static str,
    title: &str,
    caption: String,
    figures: Vec<(Option<usize>, String)>,
) {
    if !figures.is_empty() {
        drawings.push(Drawing { id: kind.to_owned(), kind, title: title.to_owned(), caption, figures });
    }
}

/// Whether a plot of this kind says something about the document: where the ends of a datapath differ, the wire has no place of its own.
fn shows(source: &Source, kind: &str) -> bool {
    let is_datapaths = datapaths::applies(&source.document);
    match kind {
        "cdf-network" => is_datapaths,
        _ => !is_datapaths || kind.ends_with("-latency"),
    }
}

const CDF_CAPTION: &str = "Share of frames that are no later than this; all rounds together. Further left and steeper is \
                           better.";
const JITTER_CAPTION: &str = "Share of frames per bin of the jitter's magnitude; every frame of all rounds is counted. \
                              Further left is better.";

const NETWORK_CAPTION: &str = "Share of frames per bin of the network latency; every frame of all rounds is counted. Further left is \
                               better.";
const AVERAGES_CAPTION: &str =
    "Mean of all frames of each span, as Fig. 5 of the publication, whose spans are 10 s long.";
const AVERAGES_BUDGET: &str = " The line “budget” is the latency that its subscriber may see, 0.4 ms.";

/// The rows that have samples, as `averages` takes them.
fn with_samples<'a>(rows: &[&'a Row<'_>]) -> Vec<(String, Line, &'a Samples)> {
    let row = |row: &&'a Row<'_>| {
        Some((row.name.clone(), row.line(1.8), row.samples.filter(|s| !s.latency.is_empty())?))
    };
    rows.iter().filter_map(row).collect()
}

/// The rows as `stacks` takes them.
fn series_of<'a>(rows: &[&'a Row<'_>]) -> Vec<(&'a str, &'a Series)> {
    rows.iter().map(|row| (row.name.as_str(), row.series)).collect()
}

fn boxes_caption(rows: &[Row<'_>]) -> &'static str {
    let with = rows.iter().filter(|row| row.samples.is_some()).count();
    match with {
        0 => "Point: p50; bar: from the least frame to p99, as stored (boxes need the raw records).",
        with if with == rows.len() => {
            "Box: quartiles and median; whiskers: least and greatest frame of all rounds."
        }
        _ => {
            "Box: quartiles and median; whiskers: least and greatest frame of all rounds. Without raw records a \
             point at p50 with a bar from the least frame to p99."
        }
    }
}

/// Says how many samples a logarithmic axis cannot show where they are.
fn floor_note(rows: &[Row<'_>], quantity: Quantity) -> String {
    let values = rows.iter().filter_map(|row| row.values(quantity)).flatten();
    let below = values.filter(|&&value| (value as f64) < FLOOR_NS).count();
    if below == 0 {
        return String::new();
    }
    format!(" {below} frames below {} µs are drawn there.", FLOOR_NS / 1000.0)
}

fn distribution(rows: &[&Row<'_>], quantity: Quantity, budget_us: Option<f64>) -> Picture {
    let mut traces: Vec<Box<dyn Trace>> = Vec::new();
    for row in rows {
        let (points, mode) = match row.values(quantity) {
            Some(values) => (thin::distribution(values), Mode::Lines),
            None => ((quantity.figures)(row.series).map(percentiles).unwrap_or_default(), Mode::LinesMarkers),
        };
        if points.is_empty() {
            continue;
        }
        let (x, y) = points.into_iter().map(|(value, share)| (shown(value), share * 100.0)).unzip();
        traces.push(
            Scatter::new(x, y)
                .name(&row.name)
                .mode(mode)
                .line(row.line(2.0))
                .hover_template("%{x} µs: %{y:.2f} %"),
        );
    }
    if let Some(budget) = budget_us.filter(|_| !traces.is_empty()) {
        traces.push(averages::budget_line(vec![budget; 2], vec![0.0, 100.0]));
    }
    let y = linear("Frames [%]").range(vec![0.0, 100.5]);
    (!traces.is_empty()).then(|| (traces, layout(logarithmic(quantity.title), y)))
}

/// Points of a distribution of which only percentiles are known.
fn percentiles(figures: Statistics) -> Vec<(f64, f64)> {
    let known = [
        (figures.min, 0.0),
        (figures.p50, 0.5),
        (figures.p90, 0.9),
        (figures.p99, 0.99),
        (figures.p99_9, 0.999),
        (figures.max, 1.0),
    ];
    known.into_iter().map(|(value, share)| (value as f64, share)).collect()
}

fn category(payload: usize) -> String {
    format!("{payload} B")
}

/// One trace per path, one box per payload.
fn boxes(rows: &[Row<'_>], payloads: &[usize], quantity: Quantity) -> Result<String, ReportError> {
    let mut traces: Vec<Box<dyn Trace>> = Vec::new();
    let mut names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
    let mut seen = std::collections::BTreeSet::new();
    names.retain(|name| seen.insert(*name));
    for name in names {
        let of_path: Vec<&Row<'_>> = rows.iter().filter(|row| row.name == name).collect();
        traces.extend(box_trace(&of_path, quantity));
        traces.extend(range_trace(&of_path, quantity));
    }
    let categories: Vec<String> = payloads.iter().map(|&payload| category(payload)).collect();
    let x = linear("Payload").type_(AxisType::Category).category_array(categories);
    figure(traces, layout(x, logarithmic(quantity.title)).box_mode(BoxMode::Group).box_gap(0.15))
}

fn box_trace(rows: &[&Row<'_>], quantity: Quantity) -> Option<Box<dyn Trace>> {
    let with: Vec<(&Row<'_>, &[i64])> =
        rows.iter().filter_map(|row| Some((*row, row.values(quantity)?))).collect();
    let (first, _) = with.first()?;
    let at = |share: f64| -> Vec<f64> {
        let rank =
            |values: &[i64]| ((values.len() as f64 * share).ceil() as usize).clamp(1, values.len()) - 1;
        with.iter().map(|(_, values)| shown(values[rank(values)] as f64)).collect()
    };
    let mut trace = BoxPlot::<String, f64>::default();
    trace = *Box::new(trace)
        .x(with.iter().map(|(row, _)| category(row.series.payload_octets)).collect())
        .q1(at(0.25))
        .median(at(0.5))
        .q3(at(0.75))
        .lower_fence(at(0.0))
        .upper_fence(at(1.0))
        .name(&first.name)
        .offset_group(&first.name)
        .box_points(BoxPoints::False)
        .whisker_width(0.5)
        .marker(Marker::new().color(first.look.colour))
        .line(Line::new().color(first.look.colour).width(1.6));
    Some(Box::new(trace))
}

/// The stored statistics of rows without samples: the median, with a bar from the least to p99.
fn range_trace(rows: &[&Row<'_>], quantity: Quantity) -> Option<Box<dyn Trace>> {
    let known = |row: &&&Row<'_>| row.values(quantity).is_none();
    let figures = |row: &&Row<'_>| -> Option<(String, f64, f64, f64)> {
        let figures = (quantity.figures)(row.series)?;
        let median = shown(figures.p50 as f64);
        let below = median - shown(figures.min as f64);
        let above = shown(figures.p99 as f64) - median;
        Some((category(row.series.payload_octets), median, below.max(0.0), above.max(0.0)))
    };
    let without: Vec<_> = rows.iter().filter(known).filter_map(figures).collect();
    let first = rows.first().filter(|_| !without.is_empty())?;
    let error = ErrorData::new(ErrorType::Data)
        .array(without.iter().map(|row| row.3).collect())
        .array_minus(without.iter().map(|row| row.2).collect())
        .symmetric(false)
        .color(first.look.colour);
    let (x, y): (Vec<String>, Vec<f64>) = without.iter().map(|row| (row.0.clone(), row.1)).unzip();
    let trace = Scatter::new(x, y)
        .name(&first.name)
        .mode(Mode::Markers)
        .marker(Marker::new().color(first.look.colour).size(9))
        .error_y(error);
    Some(trace)
}

/// Steps over logarithmic bins that all paths share.
fn histogram(rows: &[&Row<'_>], quantity: Quantity) -> Picture {
    let with: Vec<(&Row<'_>, &[i64])> =
        rows.iter().filter_map(|row| Some((*row, row.values(quantity)?))).collect();
    let bins = || with.iter().flat_map(|(_, values)| [values[0], values[values.len() - 1]]);
    let first = bins().map(|value| thin::bin_of(value as f64)).min()?;
    let last = bins().map(|value| thin::bin_of(value as f64)).max()?;
    let edges: Vec<f64> = (first..=last + 1).map(|bin| thin::bin_edge(bin) / 1000.0).collect();
    let mut traces: Vec<Box<dyn Trace>> = Vec::new();
    for (row, values) in with {
        let share = |count: u64| count as f64 * 100.0 / values.len() as f64;
        let mut shares: Vec<f64> = thin::histogram(values, first, last).into_iter().map(share).collect();
        // The last edge closes the last bin.
        shares.push(0.0);
        traces.push(
            Scatter::new(edges.clone(), shares)
                .name(&row.name)
                .mode(Mode::Lines)
                .line(row.line(1.8).shape(LineShape::Hv))
                .fill(Fill::ToZeroY)
                .fill_color(format!("{}1c", row.look.colour))
                .hover_template("from %{x:.3g} µs: %{y:.2f} %"),
        );
    }
    Some((traces, layout(logarithmic(quantity.title), linear("Frames per bin [%]"))))
}

/// A round's points in time.
type Points = Vec<(f64, f64)>;

/// The rounds of every path side by side.
fn over_time(rows: &[&Row<'_>], quantity: Quantity, rounds_of: fn(&Samples) -> &[Points]) -> Picture {
    let with: Vec<(&Row<'_>, &[Points])> = rows
        .iter()
        .filter_map(|row| Some((*row, rounds_of(row.samples.filter(|s| !s.latency.is_empty())?))))
        .collect();
    let rounds = with.iter().map(|(_, rounds)| rounds.len()).max()?;
    let length = |round: &Vec<(f64, f64)>| round.last().map_or(0.0, |point| point.0);
    let mut starts = vec![0.0];
    for round in 0..rounds {
        let longest = with.iter().filter_map(|(_, rounds)| rounds.get(round)).map(length).fold(0.0, f64::max);
        starts.push(starts[round] + longest * 1.01);
    }
    let mut traces: Vec<Box<dyn Trace>> = Vec::new();
    for (row, rounds) in with {
        let (mut x, mut y) = (Vec::new(), Vec::new());
        // A gap (no value) parts two rounds; the gaps count as points.
        let limit = POINTS_MAX / rounds.len().max(1) - 1;
        for (round, start) in rounds.iter().zip(&starts) {
            if !x.is_empty() {
                x.push(*start);
                y.push(None);
            }
            for (at, latency) in thin::keep_extremes(round, limit.max(2)) {
                x.push(((start + at) * 1e4).round() / 1e4);
                y.push(Some(shown(latency)));
            }
        }
        traces.push(
            Scatter::new(x, y)
                .name(&row.name)
                .mode(Mode::Lines)
                .line(Line::new().color(row.look.colour).width(1.0))
                .hover_template("%{x:.3f} s: %{y} µs"),
        );
    }
    let x = linear("Time in the path's rounds [s]");
    let borders = starts[1..starts.len() - 1].iter().map(|&at| {
        dotted(plotly::layout::Shape::new().x_ref("x").y_ref("paper").x0(at).x1(at).y0(0.0).y1(1.0))
    });
    let layout = layout(x, logarithmic(quantity.title)).shapes(borders.collect());
    Some((traces, layout))
}

/// Which of the page's payloads is shown first: 64 octets, the size that the bars are set for, if it was measured.
pub(super) fn first_payload(document: &Document) -> Option<usize> {
    let payloads = document.payloads();
    payloads.iter().copied().find(|&payload| payload == 64).or_else(|| payloads.first().copied())
}
