// SPDX-License-Identifier: Apache-2.0
//! Draws the state of the screen. It fits 80 columns and 24 lines, uses what is there beyond, and draws what fits in less.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Clear;

use super::app::App;
use super::rows::{Interval, Pane, Row, heads};
use super::strip;
use crate::output::span;
use crate::plain::plain;

/// Columns of a name at most.
const NAME_MAX: usize = 28;
/// A sparkline has that many columns at least, or is left out.
const SPARK_MIN: usize = 8;
/// Lines of the gates below the ports: a title, eight classes, the place in the cycle.
const GATES_HEIGHT: u16 = 10;
/// Lines in front of the rows, and behind them.
const HEAD: u16 = 4;
const FOOT: u16 = 1;

const KEYS: &str = "1-3 Tab pane  j k row  s sort  r reverse  / filter  space pause  ? help  q end";

const HELP: [&str; 17] = [
    "ktsn top",
    "",
    "1 2 3, Tab        ports, attachments, streams",
    "up down, j k      mark a row; PgUp PgDn Home End",
    "s S               sort by the next column, by the one before",
    "r                 reverse the order",
    "/                 filter by a part of a name; Enter keeps it, Esc clears it",
    "space, p          pause and go on",
    "? h               this help",
    "q, Esc, Ctrl-C    end",
    "",
    "All counts are per second of the last interval. p50, p99, max: transmit error.",
    "The line of blocks is the p99 of each interval, scaled to the greatest.",
    "ktsnd measures the error per attachment: its streams show the same one.",
    "Gates: a row for each traffic class over one cycle. Full block: open,",
    "shaded: open for a part, dot: closed; ^ now. Behind it the frames of the",
    "class that left in the interval, per second.",
];

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const MARKED: Style = Style::new().add_modifier(Modifier::REVERSED);

/// Draws everything.
pub(super) fn draw(app: &App, frame: &mut Frame<'_>) {
    let area = frame.area();
    let Some(interval) = &app.shown else {
        put(frame, 0, Line::raw("waiting for the first interval…"));
        return put(frame, area.height.saturating_sub(1), Line::raw(KEYS));
    };
    put(frame, 0, Line::styled(state(app, interval), BOLD));
    put(frame, 1, tabs(app));
    let rows = app.rows();
    let gates_height = if app.pane == Pane::Ports && area.height >= HEAD + FOOT + GATES_HEIGHT + 2 {
        GATES_HEIGHT
    } else {
        0
    };
    let room = area.height.saturating_sub(HEAD + FOOT + gates_height);
    table(app, &rows, frame, usize::from(room));
    if gates_height > 0 {
        gates(app, interval, &rows, frame, area.height - FOOT - gates_height);
    }
    put(frame, area.height.saturating_sub(1), Line::raw(KEYS));
    if app.shows_help {
        help(frame);
    }
}

/// Puts a line at a row of the screen, if there is one.
fn put(frame: &mut Frame<'_>, y: u16, line: Line<'_>) {
    let area = frame.area();
    if y < area.height {
        frame.render_widget(line, Rect { x: 0, y, width: area.width, height: 1 });
    }
}

fn state(app: &App, interval: &Interval) -> String {
    let paused = if app.is_paused { "PAUSED  " } else { "" };
    format!("{paused}ktsnd {}; {} interval", interval.view.state(), span(interval.view.interval))
}

fn tabs(app: &App) -> Line<'static> {
    let mut spans = Vec::new();
    for (number, pane) in (1..).zip(Pane::ALL) {
        let style = if pane == app.pane { MARKED } else { Style::new() };
        spans.push(Span::styled(format!(" {number} {} ", pane.title()), style));
        spans.push(Span::raw(" "));
    }
    let order = app.orders[app.pane as usize];
    let column = heads(app.pane).get(order.column).copied().unwrap_or_default();
    let reversed = if order.is_reversed { ", reversed" } else { "" };
    spans.push(Span::raw(format!(" by {column}{reversed}")));
    if app.is_typing || !app.filter.is_empty() {
        let cursor = if app.is_typing { "_" } else { "" };
        spans.push(Span::styled(format!("  /{}{cursor}", app.filter), BOLD));
    }
    Line::from(spans)
}

/// The widths of the columns that fit, and of the sparkline behind them.
fn widths(app: &App, rows: &[Row], width: usize) -> (Vec<usize>, usize) {
    let heads = heads(app.pane);
    let has_spark = app.pane != Pane::Ports;
    let reserved = if has_spark { SPARK_MIN + 1 } else { 0 };
    let (mut widths, mut used) = (Vec::new(), 0);
    for (at, head) in heads.iter().enumerate() {
        let widest = rows.iter().filter_map(|row| row.cells.get(at)).map(|cell| columns(&cell.text)).max();
        let wanted = widest.unwrap_or(0).max(columns(head)).min(NAME_MAX);
        if used + wanted + 1 + reserved > width && !widths.is_empty() {
            break;
        }
        used += wanted + 1;
        widths.push(wanted);
    }
    let rest = width.saturating_sub(used + 1);
    (widths, if has_spark && rest >= SPARK_MIN { rest } else { 0 })
}

fn columns(text: &str) -> usize {
    Span::raw(text).width()
}

/// The text in exactly `width` columns, cut with `…`.
fn fit(text: &str, width: usize, is_figure: bool) -> String {
    let mut cut = text.to_owned();
    if columns(text) > width {
        cut.clear();
        for c in text.chars() {
            if columns(&cut) + columns(c.encode_utf8(&mut [0; 4])) + 1 > width {
                break;
            }
            cut.push(c);
        }
        cut.push('…');
    }
    let gap = " ".repeat(width.saturating_sub(columns(&cut)));
    if is_figure { format!("{gap}{cut}") } else { format!("{cut}{gap}") }
}

fn table(app: &App, rows: &[Row], frame: &mut Frame<'_>, room: usize) {
    let width = usize::from(frame.area().width);
    let (widths, spark_width) = widths(app, rows, width);
    let is_figure =
        |at: usize| rows.first().is_some_and(|row| row.cells.get(at).is_some_and(|cell| !cell.is_text()));
    let mut head: Vec<String> = heads(app.pane)
        .iter()
        .zip(&widths)
        .enumerate()
        .map(|(at, (head, width))| fit(head, *width, is_figure(at)))
        .collect();
    if spark_width > 0 {
        head.push(fit("p99 of each interval", spark_width, false));
    }
    put(frame, HEAD - 1, Line::styled(head.join(" "), BOLD));
    let selected = app.selected_of(rows);
    let first = (selected + 1).saturating_sub(room.max(1));
    for (line, row) in rows.iter().skip(first).take(room).enumerate() {
        let mut cells: Vec<String> = row
            .cells
            .iter()
            .zip(&widths)
            .map(|(cell, width)| fit(&cell.text, *width, !cell.is_text()))
            .collect();
        if spark_width > 0 {
            let values = row.attachment.as_ref().and_then(|name| app.history.get(name));
            cells.push(strip::spark(values.into_iter().flatten().copied(), spark_width));
        }
        let mut style = if first + line == selected { MARKED } else { Style::new() };
        if row.is_bad {
            style = style.add_modifier(Modifier::BOLD);
        }
        put(frame, HEAD + line as u16, Line::styled(cells.join(" "), style));
    }
    if rows.is_empty() {
        let why = if app.filter.is_empty() { "nothing here" } else { "no name has the filter's text" };
        put(frame, HEAD, Line::raw(why));
    }
}

/// The gates of the marked port, and the frames of each class that just left.
fn gates(app: &App, interval: &Interval, rows: &[Row], frame: &mut Frame<'_>, y: u16) {
    let Some(row) = rows.get(app.selected_of(rows)) else { return };
    let Some(port) = interval.view.ports.iter().find(|port| port.name == row.key) else { return };
    let state = interval
        .gates
        .iter()
        .find(|state| port.counted.netns.is_empty() && state.port == port.counted.device);
    let width = usize::from(frame.area().width);
    let left = port.counted.frames.iter().map(|frames| format!(" {}/s", interval.view.rate(*frames)));
    let left: Vec<String> = left.collect();
    let left_width = left.iter().map(String::len).max().unwrap_or(0);
    let parts = width.saturating_sub("7 ".len() + left_width);
    let strip = state.and_then(|state| strip::gates(state, parts));
    let title = match (&strip, state) {
        (Some(_), Some(state)) => {
            let cycle = state.oper.as_ref().map_or(0, |oper| oper.cycle_time);
            format!("gates of {} ({}), one cycle of {}", plain(&port.name), plain(&state.name), span(cycle))
        }
        _ => format!("{}: no gates are in force; frames that left, by class", plain(&port.name)),
    };
    put(frame, y, Line::styled(title, BOLD));
    for class in (0..8).rev() {
        let gates = strip.as_ref().map_or_else(|| " ".repeat(parts), |strip| strip.classes[class].clone());
        let left = left.get(class).map_or("", String::as_str);
        put(frame, y + 8 - class as u16, Line::raw(format!("{class} {gates}{left:>left_width$}")));
    }
    if let Some(strip) = strip {
        put(frame, y + 9, Line::raw(format!("  {}^", " ".repeat(strip.now))));
    }
}

fn help(frame: &mut Frame<'_>) {
    let area = frame.area();
    let height = (HELP.len() as u16).min(area.height);
    frame.render_widget(Clear, Rect { x: 0, y: 0, width: area.width, height: area.height });
    for (y, line) in HELP.iter().take(usize::from(height)).enumerate() {
        put(frame, y as u16, Line::raw(*line));
    }
    put(frame, area.height.saturating_sub(1), Line::raw("? or Esc: back"));
}

#[cfg(test)]
#[path = "draw_tests.rs"]
mod tests;
