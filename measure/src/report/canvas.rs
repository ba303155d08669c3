// SPDX-License-Identifier: Apache-2.0
//! What all plots share: axes, layout, and the JSON that plotly draws.

use super::ReportError;
use super::escape::json_in_script;
use plotly::color::NamedColor;
use plotly::common::{Anchor, DashType, ExponentFormat, Orientation, Title};
use plotly::configuration::DisplayModeBar;
use plotly::layout::{Axis, AxisType, HoverMode, Legend, Margin, Shape, ShapeLine, ShapeType};
use plotly::{Configuration, Layout, Plot, Trace};

/// One plot of the page: a place, and a figure for each payload (or one for all).
#[derive(Debug)]
pub(super) struct Drawing {
    /// Names the place within its document.
    pub(super) id: String,
    /// Which plot it is; one of several loads has a place for each.
    pub(super) kind: &'static str,
    pub(super) title: String,
    /// HTML.
    pub(super) caption: String,
    /// Payload (`None`: all of them) and the figure's JSON, fit for a script element.
    pub(super) figures: Vec<(Option<usize>, String)>,
}

impl Drawing {
    /// A plot that is the same for all payloads.
    pub(super) fn single(
        kind: &'static str,
        title: impl Into<String>,
        caption: String,
        picture: (Vec<Box<dyn Trace>>, Layout),
    ) -> Result<Self, ReportError> {
        let figures = vec![(None, figure(picture.0, picture.1)?)];
        Ok(Self { id: kind.to_owned(), kind, title: title.into(), caption, figures })
    }
}

/// Traces and layout of one plot; `None`: there is nothing to draw.
pub(super) type Picture = Option<(Vec<Box<dyn Trace>>, Layout)>;

pub(super) fn linear(title: &str) -> Axis {
    Axis::new().title(Title::with_text(title)).zero_line(false).auto_margin(true)
}

pub(super) fn logarithmic(title: &str) -> Axis {
    linear(title).type_(AxisType::Log).exponent_format(ExponentFormat::None)
}

pub(super) fn layout(x: Axis, y: Axis) -> Layout {
    Layout::new()
        .x_axis(x)
        .y_axis(y)
        .auto_size(true)
        .height(440)
        .margin(Margin::new().top(48).right(12).bottom(48).left(60))
        .paper_background_color(NamedColor::Transparent)
        .plot_background_color(NamedColor::Transparent)
        .hover_mode(HoverMode::Closest)
        .show_legend(true)
        .legend(Legend::new().orientation(Orientation::Horizontal).x(0.0).y(1.02).y_anchor(Anchor::Bottom))
}

pub(super) fn figure(traces: Vec<Box<dyn Trace>>, layout: Layout) -> Result<String, ReportError> {
    let mut plot = Plot::new();
    plot.add_traces(traces);
    plot.set_layout(layout);
    plot.set_configuration(
        Configuration::new().responsive(true).display_logo(false).display_mode_bar(DisplayModeBar::Hover),
    );
    Ok(json_in_script(&serde_json::to_string(&plot)?))
}

/// A dotted line across the whole plot.
pub(super) fn dotted(shape: Shape) -> Shape {
    let line = ShapeLine::new().color("#888888").width(1.0).dash(DashType::Dot);
    shape.shape_type(ShapeType::Line).line(line)
}
