// SPDX-License-Identifier: Apache-2.0
//! Latency averaged over spans of a run, with the budget as a line. In: rows with their samples, the document's deadline. Out: traces. Each
//! average is of all frames of its span; a span without a frame has none.

use super::canvas::{Picture, layout, linear};
use super::samples::Samples;
use plotly::common::{DashType, Line, Mode};
use plotly::{Scatter, Trace};

/// The publication's span.
const SPAN_SECONDS: f64 = 10.0;
/// A shorter run has so many averages.
const SPANS_MIN: f64 = 10.0;

/// How long the spans of a run of so many seconds are.
pub(super) fn span_of(seconds: f64) -> f64 {
    if seconds >= SPAN_SECONDS * 2.0 { SPAN_SECONDS } else { (seconds / SPANS_MIN).max(0.001) }
}

/// The end of each span in seconds, and the average in µs; rounds follow each other.
fn averages(samples: &Samples, span: f64) -> Vec<(f64, f64)> {
    let mut points = Vec::new();
    let mut begin = 0.0;
    for round in &samples.rounds {
        let mut sums: Vec<(f64, u32)> = Vec::new();
        for &(at, latency) in round {
            let index = (at / span) as usize;
            if sums.len() <= index {
                sums.resize(index + 1, (0.0, 0));
            }
            sums[index].0 += latency;
            sums[index].1 += 1;
        }
        for (index, (sum, frames)) in sums.iter().enumerate() {
            if *frames > 0 {
                points.push((begin + span * (index + 1) as f64, sum / f64::from(*frames) / 1000.0));
            }
        }
        begin += span * sums.len() as f64;
    }
    points
}

/// The picture of rows: name, line, samples. `budget`: microseconds, where a latency itself is known.
pub(super) fn picture(rows: &[(String, Line, &Samples)], budget: Option<f64>, title: &str) -> Picture {
    let last = |samples: &Samples| {
        samples.rounds.iter().filter_map(|round| Some(round.last()?.0)).fold(0.0, f64::max)
    };
    let seconds = rows.iter().map(|(_, _, samples)| last(samples)).fold(0.0, f64::max);
    let span = span_of(seconds);
    let mut traces: Vec<Box<dyn Trace>> = Vec::new();
    let mut right = 0.0_f64;
    for (name, line, samples) in rows {
        let (x, y): (Vec<f64>, Vec<f64>) = averages(samples, span).into_iter().unzip();
        right = x.iter().copied().fold(right, f64::max);
        if !x.is_empty() {
            traces.push(
                Scatter::new(x, y)
                    .name(name)
                    .mode(Mode::LinesMarkers)
                    .line(line.clone())
                    .hover_template("%{x:.1f} s: %{y:.1f} µs"),
            );
        }
    }
    if traces.is_empty() {
        return None;
    }
    if let Some(budget) = budget {
        traces.push(budget_line(vec![0.0, right], vec![budget; 2]));
    }
    let x = linear(&format!("Time [s], an average each {span:.3} s"));
    Some((traces, layout(x, linear(title).range(vec![0.0]))))
}

/// The budget as a line between two points.
pub(super) fn budget_line(x: Vec<f64>, y: Vec<f64>) -> Box<dyn Trace> {
    let line = Line::new().color("#c2185b").width(1.5).dash(DashType::DashDot);
    Scatter::new(x, y).name("budget").mode(Mode::Lines).line(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_span_averages_its_own_frames() {
        let rounds = vec![vec![(0.0, 1000.0), (4.0, 3000.0), (25.0, 9000.0)], vec![(1.0, 500.0)]];
        let samples = Samples { rounds, ..Samples::default() };
        assert_eq!(averages(&samples, 10.0), [(10.0, 2.0), (30.0, 9.0), (40.0, 0.5)]);
        assert_eq!((span_of(100.0), span_of(3.0)), (10.0, 0.3));
        assert!(picture(&[], Some(400.0), "t").is_none());
    }
}
