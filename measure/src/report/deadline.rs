// SPDX-License-Identifier: Apache-2.0
//! Cycles of a control loop that a deadline would lose. In: a document of the experiment `loop` with its samples. Out: one
//! figure: for each deadline the share of cycles without an answer by then.

use super::ReportError;
use super::canvas::{Drawing, layout, logarithmic};
use super::colours::Colours;
use super::escape::{html, label};
use super::samples::Samples;
use super::source::Source;
use super::thin;
use plotly::common::{Line, LineShape, Mode};
use plotly::{Scatter, Trace};

const CAPTION: &str = "Share of all cycles without an answer by the deadline, which is counted from the cycle's begin; all \
                       rounds together. Further left and lower is better. A line ends where every answered cycle is in time; \
                       cycles without any answer stay above it for ever.";

/// Whether the document is of a control loop.
pub(super) fn applies(source: &Source) -> bool {
    source.document.experiment == "loop"
}

/// The drawing, where there are samples.
pub(super) fn drawing(source: &Source, colours: &Colours) -> Result<Option<Drawing>, ReportError> {
    if !applies(source) {
        return Ok(None);
    }
    let document = &source.document;
    let mut traces: Vec<Box<dyn Trace>> = Vec::new();
    for series in document.summary() {
        let Some(samples) = source.samples_of(series).filter(|samples| !samples.latency.is_empty()) else {
            continue;
        };
        let look = colours.look(&series.path);
        let (x, y) = lost(samples, series.frames_intended.unwrap_or(0)).into_iter().unzip();
        traces.push(
            Scatter::new(x, y)
                .name(label(&document.name(series)))
                .mode(Mode::Lines)
                .line(Line::new().color(look.colour).dash(look.dash.clone()).width(2.0).shape(LineShape::Hv))
                .hover_template("%{x} µs: %{y:.3g} % lost"),
        );
    }
    if traces.is_empty() {
        return Ok(None);
    }
    let layout = layout(logarithmic("Deadline [µs]"), logarithmic("Cycles lost [%]"));
    Drawing::single("deadline", "Cycles that a deadline would lose", html(CAPTION), (traces, layout))
        .map(Some)
}

/// Points (deadline in µs, per cent of `cycles` without an answer by then); nothing where none is lost, which a logarithmic
/// axis cannot show.
fn lost(samples: &Samples, cycles: u64) -> Vec<(f64, f64)> {
    let answered = samples.latency.len() as f64;
    let cycles = (cycles as f64).max(answered);
    let points = thin::distribution(&samples.latency).into_iter();
    points
        .map(|(span, share)| (span / 1e3, (cycles - share * answered) * 100.0 / cycles))
        .filter(|&(_, lost)| lost > 1e-9)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_without_an_answer_are_lost_at_every_deadline() {
        let samples = Samples { latency: vec![10_000, 20_000, 40_000], ..Samples::default() };
        assert_eq!(lost(&samples, 4), [(10.0, 75.0), (20.0, 50.0), (40.0, 25.0)]);
        assert_eq!(lost(&samples, 3).len(), 2);
    }
}
