// SPDX-License-Identifier: Apache-2.0
//! Ours beside what was published. In: a document with `published` figures. Out: their table with the source, and two
//! figures as the publication has them: medians by payload, and a distribution with p90 and p99 marked. Nothing is judged:
//! the machines differ.

use super::ReportError;
use super::canvas::{Drawing, dotted, layout, linear};
use super::colours::Colours;
use super::escape::{html, label};
use super::figures::{micros, significant};
use super::source::Source;
use super::tables::{self, words};
use super::thin;
use super::verdict::metric;
use crate::results::{Document, Ours, Published, Series};
use plotly::common::{Line, Marker, MarkerSymbol, Mode};
use plotly::layout::{AxisType, BarMode, Shape};
use plotly::{Bar, Scatter, Trace};

/// The published points, on every background.
const MARK: &str = "#c2185b";

/// A value in the unit of its metric; without a unit where it is a ratio.
fn value(published: &Published, value: f64) -> String {
    match &published.to {
        None if published.metric.contains("_ns") => format!("{} µs", micros(Some(value), 1)),
        _ => significant(value),
    }
}

fn pair(of: &str, to: Option<&str>) -> String {
    to.map_or_else(|| of.to_owned(), |to| format!("{of} / {to}"))
}

/// The table with the sources; empty without any.
pub(super) fn table(document: &Document) -> String {
    let mut rows = Vec::new();
    let mut sources: Vec<&str> = Vec::new();
    for entry in &document.published {
        if !sources.contains(&entry.source.as_str()) {
            sources.push(&entry.source);
        }
        let own = |ours: &Ours| {
            format!("{} {}", html(&pair(&ours.of, ours.to.as_deref())), value(entry, ours.value))
        };
        let ours: Vec<String> = entry.ours.iter().map(own).collect();
        let ours = if ours.is_empty() { "not measured".to_owned() } else { ours.join("; ") };
        rows.push(vec![
            words(&entry.figure),
            words(&metric(&entry.metric)),
            ("", entry.payload_octets.map_or_else(|| "all".to_owned(), |octets| octets.to_string())),
            words(&pair(&entry.of, entry.to.as_deref())),
            ("", value(entry, entry.value)),
            ("text", ours),
        ]);
    }
    let sources: String =
        sources.iter().map(|source| format!("<p class=\"note\">Source: {}.</p>", html(source))).collect();
    let heads = [
        ("", "Published in"),
        ("text", "Metric"),
        ("", "Payload, B"),
        ("text", "Of"),
        ("", "Published"),
        ("text", if super::datapaths::applies(document) { "Here" } else { "Here, without a load" }),
    ];
    tables::table("", &heads, &rows) + &sources
}

/// The two figures; none without published ones.
pub(super) fn drawings(source: &Source, colours: &Colours) -> Result<Vec<Drawing>, ReportError> {
    // The two figures are those of the overlay's publication.
    if source.document.published.is_empty() || source.document.experiment == "vm" {
        return Ok(Vec::new());
    }
    let drawings = [medians(source, colours)?, cdf(source, colours)?];
    Ok(drawings.into_iter().flatten().collect())
}

/// Our series that stand beside published ones of `metric`, bare metal as well; those of the first load.
fn ours<'a>(source: &'a Source, quantity: &str) -> Vec<&'a Series> {
    let document = &source.document;
    let load = document.loads().first().copied().flatten();
    let of_quantity = document.published.iter().filter(|entry| entry.metric.starts_with(quantity));
    let paths: Vec<&str> = of_quantity
        .flat_map(|entry| &entry.ours)
        .flat_map(|ours| [Some(&ours.of), ours.to.as_ref()])
        .flatten()
        .map(String::as_str)
        .collect();
    let mut series = document.summary();
    series.retain(|series| paths.contains(&series.path.as_str()) && series.load.as_deref() == load);
    series
}

fn points<'a>(document: &'a Document, quantity: &'a str) -> impl Iterator<Item = (&'a Published, f64)> {
    let is_point = move |entry: &&Published| entry.to.is_none() && entry.metric.starts_with(quantity);
    let rank = |entry: &Published| match entry.metric.rsplit('.').next()? {
        "p50" => Some(50.0),
        "p90" => Some(90.0),
        "p99" => Some(99.0),
        _ => None,
    };
    document.published.iter().filter(is_point).filter_map(move |entry| Some((entry, rank(entry)?)))
}

/// Median latency by payload.
fn medians(source: &Source, colours: &Colours) -> Result<Option<Drawing>, ReportError> {
    let document = &source.document;
    let series = ours(source, "latency_ns");
    let category = |octets: usize| format!("{octets} B");
    let mut traces: Vec<Box<dyn Trace>> = Vec::new();
    let mut paths: Vec<&str> = series.iter().map(|entry| entry.path.as_str()).collect();
    paths.dedup();
    let mut seen = std::collections::BTreeSet::new();
    paths.retain(|path| seen.insert(*path));
    for path in paths {
        let known = series.iter().filter(|entry| entry.path == path);
        let known = known.filter_map(|entry| {
            Some((category(entry.payload_octets), entry.latency_ns?.p50 as f64 / 1000.0))
        });
        let (x, y): (Vec<String>, Vec<f64>) = known.unzip();
        let bar = Bar::new(x, y).name(label(path)).marker(Marker::new().color(colours.look(path).colour));
        traces.push(bar.hover_template("%{x}: %{y:.1f} µs"));
    }
    let published = points(document, "latency_ns").filter(|(_, rank)| *rank == 50.0);
    for (entry, _) in published {
        let Some(octets) = entry.payload_octets else { continue };
        let mark = Scatter::new(vec![category(octets)], vec![entry.value / 1000.0]);
        let name = format!("{} as published ({})", entry.of, entry.figure);
        traces.push(
            mark.name(label(&name))
                .mode(Mode::Markers)
                .marker(star())
                .show_legend(false)
                .hover_template(format!("{}: %{{y}} µs", label(&name))),
        );
    }
    if traces.is_empty() {
        return Ok(None);
    }
    // What was published of other payloads stands where it belongs, too.
    let mut payloads = document.payloads();
    payloads.extend(points(document, "latency_ns").filter_map(|(entry, _)| entry.payload_octets));
    payloads.sort_unstable();
    payloads.dedup();
    let payloads: Vec<String> = payloads.into_iter().map(category).collect();
    let x = linear("Payload").type_(AxisType::Category).category_array(payloads);
    let layout = layout(x, linear("Latency p50 [µs]")).bar_mode(BarMode::Group);
    let caption = "Median latency by payload, without a load, as Fig. 3a of the publication. Stars: the published medians of its \
                   tsn-cni, on its machines.";
    Drawing::single("published-medians", "Medians", html(caption), (traces, layout)).map(Some)
}

fn star() -> Marker {
    Marker::new().color(MARK).size(12).symbol(MarkerSymbol::Star)
}

/// The value, in µs, that so many percent of sorted samples (at least one) do not exceed.
fn at_rank(sorted: &[i64], percent: f64) -> f64 {
    let index = ((sorted.len() as f64 * percent / 100.0).ceil() as usize).clamp(1, sorted.len()) - 1;
    sorted[index] as f64 / 1000.0
}

/// Where the axis ends: a stall of the machine in one path's p99 must not squeeze the curves of all.
fn axis_end(published: f64, p90: impl Iterator<Item = f64>) -> f64 {
    1.25 * p90.fold(published, f64::max)
}

/// The distribution at the payload of the published percentiles, with p90 and p99 marked.
fn cdf(source: &Source, colours: &Colours) -> Result<Option<Drawing>, ReportError> {
    let document = &source.document;
    let marked: Vec<(&Published, f64)> =
        points(document, "latency_ns").filter(|(_, rank)| *rank > 50.0).collect();
    let Some(payload) = marked.iter().find_map(|(entry, _)| entry.payload_octets) else { return Ok(None) };
    let mut curves = Vec::new();
    for entry in ours(source, "latency_ns").into_iter().filter(|entry| entry.payload_octets == payload) {
        let samples = source.samples_of(entry).filter(|samples| !samples.latency.is_empty());
        curves.extend(samples.map(|samples| (entry, samples.latency.as_slice())));
    }
    let published = marked.iter().map(|(entry, _)| entry.value / 1000.0).fold(0.0, f64::max);
    let right = axis_end(published, curves.iter().map(|(_, latency)| at_rank(latency, 90.0)));
    let mut traces: Vec<Box<dyn Trace>> = Vec::new();
    let mut beyond = Vec::new();
    for (entry, latency) in curves {
        let look = colours.look(&entry.path);
        let points = thin::distribution(latency).into_iter();
        let (x, y) = points.map(|(nanos, share)| ((nanos / 10.0).round() / 100.0, share * 100.0)).unzip();
        let line = Line::new().color(look.colour).dash(look.dash.clone()).width(2.0);
        let curve = Scatter::new(x, y).name(label(&entry.path)).mode(Mode::Lines).line(line);
        traces.push(curve.hover_template("%{x} µs: %{y:.2f} %"));
        for rank in [90.0, 99.0] {
            let value = at_rank(latency, rank);
            let (symbol, text) = if value <= right {
                (MarkerSymbol::Circle, "%{y:.0f} %: %{x:.1f} µs".to_owned())
            } else {
                beyond.push(format!("p{rank} of {} ({value:.0} µs)", entry.path));
                (MarkerSymbol::TriangleRight, format!("%{{y:.0f}} %: {value:.1} µs"))
            };
            let dot = Scatter::new(vec![value.min(right)], vec![rank]).mode(Mode::Markers);
            let marker = Marker::new().color(look.colour).size(8).symbol(symbol);
            traces.push(dot.name(label(&entry.path)).show_legend(false).marker(marker).hover_template(text));
        }
    }
    if traces.is_empty() {
        return Ok(None);
    }
    for (entry, rank) in &marked {
        let name = format!("{} as published ({})", entry.of, entry.figure);
        let mark = Scatter::new(vec![entry.value / 1000.0], vec![*rank]).mode(Mode::Markers).marker(star());
        let text = format!("{}: %{{x}} µs", label(&name));
        traces.push(mark.name(label(&name)).show_legend(false).hover_template(text));
    }
    let level = |at| dotted(Shape::new().x_ref("paper").x0(0.0).x1(1.0).y0(at).y1(at));
    let levels = [90.0, 99.0].map(level);
    let x = linear("Latency [µs]").range(vec![0.0, right * 1.02]);
    let layout = layout(x, linear("Frames [%]").range(vec![0.0, 101.0])).shapes(levels.to_vec());
    let caption = format!(
        "Distribution of latency at {payload} octets, without a load, as Fig. 4 of the publication; p90 and p99 are marked. Stars: \
         its p90 and p99 of tsn-cni and Flannel, on its machines. The axis ends past the greatest p90 and star{}.",
        if beyond.is_empty() {
            String::new()
        } else {
            format!("; beyond it, at its edge: {}", beyond.join(", "))
        }
    );
    let title = format!("Distribution at {payload} B");
    Drawing::single("published-cdf", title, html(&caption), (traces, layout)).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_ends_where_the_curves_are_to_be_read() {
        let mut latency: Vec<i64> = (1..=1000).map(|n| n * 100).collect();
        assert_eq!((at_rank(&latency, 90.0), at_rank(&latency, 99.0)), (90.0, 99.0));
        for stalled in &mut latency[985..] {
            *stalled += 9_000_000;
        }
        assert!(at_rank(&latency, 99.0) > 9_000.0);
        let end = axis_end(40.0, [at_rank(&latency, 90.0), 12.0].into_iter());
        assert_eq!(end, 112.5, "the stall is beyond it");
        assert_eq!(axis_end(173.0, [90.0].into_iter()), 216.25, "what was published is always there");
        assert_eq!((at_rank(&[7000], 90.0), at_rank(&[7000], 1.0)), (7.0, 7.0));
    }
}
