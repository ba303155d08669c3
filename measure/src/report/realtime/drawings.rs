// SPDX-License-Identifier: Apache-2.0
//! The drawings of cells. In: cells with their histograms. Out: figures for plotly. All times are in µs on logarithmic axes.

use super::super::ReportError;
use super::super::canvas::{Drawing, layout, linear, logarithmic};
use super::super::colours::Colours;
use super::super::escape::{html, label};
use super::super::thin::{FLOOR_NS, bin_edge, bin_of};
use crate::table::realtime::name;
use ktsn_realtime::causes::Cause;
use ktsn_realtime::{Cell, RealTime};
use plotly::box_plot::BoxPoints;
use plotly::common::{ColorScale, ColorScalePalette, DashType, Line, LineShape, Marker, Mode};
use plotly::layout::{AxisType, BoxMode};
use plotly::{BoxPlot, HeatMap, Layout, Scatter, Trace};

const DASHES: [DashType; 4] = [DashType::Solid, DashType::Dash, DashType::Dot, DashType::DashDot];

fn shown(nanos: f64) -> f64 {
    (nanos.max(FLOOR_NS) / 1000.0 * 1e4).round() / 1e4
}

/// A line of a cell: its system's colour, its profile's dash.
fn line_of(cell: &Cell, colours: &Colours) -> Line {
    let dash = DASHES[usize::from(cell.profile.number() - 1) % DASHES.len()].clone();
    Line::new().color(colours.look(&cell.system).colour).dash(dash).width(1.6)
}

/// All drawings that the cells allow.
pub(crate) fn drawings(found: &RealTime, colours: &Colours) -> Result<Vec<Drawing>, ReportError> {
    let cells: Vec<&Cell> = found.cells.iter().filter(|cell| cell.statistics.is_some()).collect();
    if cells.is_empty() {
        return Ok(Vec::new());
    }
    let boxes =
        "Box: quartiles and median. Whiskers: percentiles 2.5 and 97.5, as in the paper's figures 8 to 12.";
    let time = "Each point is the greatest latency of a slice of the run.";
    let histograms = "Samples in logarithmic bins of latency, all that were measured.";
    let mut drawings = vec![
        Drawing::single("rt-boxes", "Latency by profile", html(boxes), self::boxes(&cells, colours))?,
        Drawing::single(
            "rt-time",
            "Greatest latencies",
            html(time),
            over_time(&cells, found.period_ns, colours),
        )?,
        Drawing::single(
            "rt-histogram",
            "Samples by latency",
            html(histograms),
            self::histograms(&cells, colours),
        )?,
    ];
    if let Some(heat) = heat(&cells) {
        let caption =
            "The share of all lateness of a cell that a cause can explain; shares need not sum up to 1.";
        drawings.push(Drawing::single("rt-heat", "Cells against causes", html(caption), heat)?);
    }
    Ok(drawings)
}

fn boxes(cells: &[&Cell], colours: &Colours) -> (Vec<Box<dyn Trace>>, Layout) {
    let mut systems: Vec<&str> = Vec::new();
    for cell in cells {
        if !systems.contains(&cell.system.as_str()) {
            systems.push(&cell.system);
        }
    }
    let mut traces: Vec<Box<dyn Trace>> = Vec::new();
    for system in systems {
        let own: Vec<_> = cells.iter().filter(|cell| cell.system == system).collect();
        let of = |field: fn(&ktsn_realtime::BoxStatistics) -> u64| {
            own.iter()
                .filter_map(|cell| Some(shown(field(cell.statistics.as_ref()?) as f64)))
                .collect::<Vec<f64>>()
        };
        let colour = colours.look(system).colour;
        let trace = Box::new(BoxPlot::<String, f64>::default())
            .x(own.iter().map(|cell| format!("profile {}", cell.profile)).collect())
            .q1(of(|s| s.lower_quartile_ns.min(s.median_ns)))
            .median(of(|s| s.median_ns))
            .q3(of(|s| s.upper_quartile_ns))
            .lower_fence(of(|s| s.lower_whisker_ns))
            .upper_fence(of(|s| s.upper_whisker_ns))
            .name(label(system))
            .offset_group(label(system))
            .box_points(BoxPoints::False)
            .whisker_width(0.5)
            .marker(Marker::new().color(colour))
            .line(Line::new().color(colour).width(1.6));
        traces.push(trace);
    }
    let x = linear("").type_(AxisType::Category);
    (traces, layout(x, logarithmic("Latency [µs]")).box_mode(BoxMode::Group))
}

fn over_time(cells: &[&Cell], period_ns: u64, colours: &Colours) -> (Vec<Box<dyn Trace>>, Layout) {
    let mut traces: Vec<Box<dyn Trace>> = Vec::new();
    for cell in cells {
        let step = cell.timeline.slice_samples as f64 * period_ns as f64 / 1e9;
        let x: Vec<f64> = (0..cell.timeline.slices.len()).map(|index| index as f64 * step).collect();
        let y: Vec<f64> = cell.timeline.slices.iter().map(|slice| shown(slice.max_ns as f64)).collect();
        let trace =
            Scatter::new(x, y).name(label(&name(cell))).mode(Mode::Lines).line(line_of(cell, colours));
        traces.push(trace.hover_template("at %{x:.4g} s: %{y:.4g} µs"));
    }
    (traces, layout(linear("Measured time [s]"), logarithmic("Greatest latency [µs]")))
}

fn histograms(cells: &[&Cell], colours: &Colours) -> (Vec<Box<dyn Trace>>, Layout) {
    let mut traces: Vec<Box<dyn Trace>> = Vec::new();
    for cell in cells {
        let mut bins: std::collections::BTreeMap<i32, u64> = std::collections::BTreeMap::new();
        for (low, samples) in cell.histogram.buckets() {
            *bins.entry(bin_of(low.as_nanos() as f64)).or_default() += samples;
        }
        let (Some(&first), Some(&last)) = (bins.keys().next(), bins.keys().next_back()) else { continue };
        let x: Vec<f64> = (first..=last + 1).map(|bin| bin_edge(bin) / 1000.0).collect();
        // A logarithmic axis has no zero: an empty bin is a gap.
        let y: Vec<Option<u64>> = (first..=last + 1).map(|bin| bins.get(&bin).copied()).collect();
        let line = line_of(cell, colours).shape(LineShape::Hv);
        let trace = Scatter::new(x, y).name(label(&name(cell))).mode(Mode::LinesMarkers).line(line);
        traces.push(trace.marker(Marker::new().size(3)).hover_template("from %{x:.3g} µs: %{y}"));
    }
    (traces, layout(logarithmic("Latency [µs]"), logarithmic("Samples in a bin")))
}

fn heat(cells: &[&Cell]) -> Option<(Vec<Box<dyn Trace>>, Layout)> {
    let late: Vec<_> = cells.iter().filter(|cell| cell.excursions > 0).collect();
    let of = |cell: &Cell, cause: Cause| {
        cell.causes.iter().find(|ranked| ranked.cause == cause).map_or(0.0, |ranked| ranked.explained_ratio)
    };
    let causes: Vec<Cause> =
        Cause::ALL.iter().copied().filter(|&cause| late.iter().any(|cell| of(cell, cause) > 0.0)).collect();
    if causes.is_empty() {
        return None;
    }
    let x: Vec<String> = causes.iter().map(|cause| cause.word().to_owned()).collect();
    let y: Vec<String> = late.iter().map(|cell| label(&name(cell))).collect();
    let z: Vec<Vec<f64>> = late
        .iter()
        .map(|cell| causes.iter().map(|&cause| (of(cell, cause) * 1000.0).round() / 10.0).collect())
        .collect();
    let trace = HeatMap::new(x, y, z)
        .color_scale(ColorScale::Palette(ColorScalePalette::YlOrRd))
        .hover_template("%{y}, %{x}: %{z} %<extra></extra>");
    let category = || linear("").type_(AxisType::Category);
    Some((vec![trace], layout(category(), category()).show_legend(false)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ktsn_realtime::causes::RankedCause;
    use ktsn_realtime::{BoxStatistics, Histogram, Profile};
    use ktsn_time::Span;

    #[test]
    fn every_cell_is_drawn_and_causes_only_where_there_are_late_wake_ups() {
        let histogram: Histogram = (1..200).map(|micros| Span::from_nanos(micros * 1000)).collect();
        let statistics = BoxStatistics::of(&histogram);
        let cell = Cell { histogram, statistics, ..Cell::new("<host>", Profile::ALL[2]) };
        let found =
            |cell| RealTime { cells: vec![cell, Cell::new("host", Profile::ALL[0])], ..RealTime::default() };
        let colours = Colours::of(["<host>"].into_iter());
        let drawn = drawings(&found(cell.clone()), &colours).unwrap();
        assert_eq!(
            drawn.iter().map(|drawing| drawing.kind).collect::<Vec<_>>(),
            ["rt-boxes", "rt-time", "rt-histogram"]
        );
        assert!(drawn.iter().all(|drawing| !drawing.figures[0].1.contains('<')));
        let cause = RankedCause { cause: Cause::Steal, explained_ratio: 0.5, wake_ups: 1, thread: None };
        let late = Cell { excursions: 1, causes: vec![cause], ..cell };
        let drawn = drawings(&found(late), &colours).unwrap();
        assert!(drawn[3].figures[0].1.contains("steal"));
        assert!(drawings(&RealTime::default(), &colours).unwrap().is_empty());
    }
}
