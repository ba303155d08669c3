// SPDX-License-Identifier: Apache-2.0
//! The rows of each pane.
//!
//! In: an interval. Out: cells as text, with the numbers that they are sorted by. All text is safe for a terminal.

use std::cmp::Ordering;

use ktsn_proto::v1;

use super::view::View;
use crate::output::span;
use crate::plain::plain;

/// What is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Pane {
    Ports,
    #[default]
    Attachments,
    Streams,
}

impl Pane {
    pub(super) const ALL: [Self; 3] = [Self::Ports, Self::Attachments, Self::Streams];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Ports => "Ports",
            Self::Attachments => "Attachments",
            Self::Streams => "Streams",
        }
    }

    pub(super) fn moved(self, by: usize) -> Self {
        Self::ALL[(self as usize + by) % Self::ALL.len()]
    }
}

/// One interval: what happened, and the gates at its end.
#[derive(Clone, Debug)]
pub(super) struct Interval {
    pub view: View,
    pub gates: Vec<v1::ScheduleState>,
}

/// A cell.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cell {
    pub text: String,
    /// What a figure is sorted by, the greatest first; `None`: a text.
    weight: Option<f64>,
}

impl Cell {
    fn text(text: &str) -> Self {
        Self { text: plain(text), weight: None }
    }

    fn figure(text: String, weight: f64) -> Self {
        Self { text, weight: Some(weight) }
    }

    pub(super) fn is_text(&self) -> bool {
        self.weight.is_none()
    }
}

/// A row.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    /// The same in the next interval.
    pub key: String,
    pub cells: Vec<Cell>,
    /// The attachment that the row's sparkline is of.
    pub attachment: Option<String>,
    /// The row needs attention.
    pub is_bad: bool,
}

/// The heads of a pane's columns. Columns that do not fit are left out from the right.
pub(super) fn heads(pane: Pane) -> &'static [&'static str] {
    match pane {
        Pane::Ports => &["port", "link", "frames", "overruns", "put back", "refused", "hand-over"],
        Pane::Attachments => &[
            "attachment",
            "streams",
            "sent",
            "late",
            "overrun",
            "dropped",
            "p50",
            "p99",
            "max",
            "taken",
            "waited",
            "passed",
            "Mbit",
        ],
        Pane::Streams => &["attachment", "local", "peer", "p99"],
    }
}

/// The rows of a pane, in ktsnd's order.
pub(super) fn of(pane: Pane, interval: &Interval) -> Vec<Row> {
    match pane {
        Pane::Ports => ports(&interval.view),
        Pane::Attachments => attachments(&interval.view),
        Pane::Streams => streams(&interval.view),
    }
}

/// Texts from A on, figures from the greatest on; then by the first column.
pub(super) fn compare(a: &Row, b: &Row, column: usize) -> Ordering {
    let by = |at: usize| match (a.cells.get(at), b.cells.get(at)) {
        (Some(Cell { weight: Some(a), .. }), Some(Cell { weight: Some(b), .. })) => b.total_cmp(a),
        (Some(a), Some(b)) => a.text.cmp(&b.text),
        _ => Ordering::Equal,
    };
    by(column).then_with(|| by(0)).then_with(|| a.key.cmp(&b.key))
}

fn rate(view: &View, count: u64) -> Cell {
    Cell::figure(view.rate(count), count as f64)
}

/// A span; a dash without one, sorted last.
fn span_or_dash(nanos: Option<u64>) -> Cell {
    nanos.map_or_else(|| Cell::figure("-".to_owned(), -1.0), |nanos| Cell::figure(span(nanos), nanos as f64))
}

fn ports(view: &View) -> Vec<Row> {
    let row = |port: &super::view::Port| {
        let refused = port.counted.refused.values().sum();
        Row {
            key: port.name.clone(),
            cells: vec![
                Cell::text(&port.name),
                Cell::text(if port.up { "up" } else { "DOWN" }),
                rate(view, port.frames()),
                rate(view, port.overruns()),
                rate(view, port.counted.put_back),
                rate(view, refused),
                span_or_dash(Some(port.counted.hand_over_ns).filter(|took| *took > 0)),
            ],
            attachment: None,
            is_bad: !port.up || port.overruns() > 0,
        }
    };
    view.ports.iter().map(row).collect()
}

fn attachments(view: &View) -> Vec<Row> {
    let row = |of: &super::view::Attachment| {
        let counted = &of.counted;
        let dropped: u64 = counted.dropped.values().sum();
        let error = |at: usize| span_or_dash(of.error.map(|error| error[at]));
        Row {
            key: counted.name.clone(),
            cells: vec![
                Cell::text(&counted.name),
                Cell::figure(of.streams.len().to_string(), of.streams.len() as f64),
                rate(view, counted.sent),
                rate(view, counted.late),
                rate(view, counted.overrun),
                rate(view, dropped),
                error(0),
                error(1),
                error(2),
                rate(view, counted.taken),
                rate(view, counted.waited),
                rate(view, counted.bypassed.values().sum()),
                Cell::figure(view.megabits(counted.sent_octets), counted.sent_octets as f64),
            ],
            attachment: Some(counted.name.clone()),
            is_bad: dropped > 0 || counted.late > 0,
        }
    };
    view.attachments.iter().map(row).collect()
}

fn streams(view: &View) -> Vec<Row> {
    let rows = view.attachments.iter().flat_map(|of| {
        of.streams.iter().map(|stream| Row {
            key: format!("{} {} {}", of.counted.name, stream.pid, stream.cookie),
            cells: vec![
                Cell::text(&of.counted.name),
                Cell::text(&stream.local),
                Cell::text(if stream.peer.is_empty() { "-" } else { &stream.peer }),
                span_or_dash(of.error.map(|error| error[1])),
            ],
            attachment: Some(of.counted.name.clone()),
            is_bad: false,
        })
    });
    rows.collect()
}
