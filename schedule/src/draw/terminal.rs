// SPDX-License-Identifier: Apache-2.0
//! The time line as text.

use ktsn_time::Nanos;

use super::{Kind, Span, cut, drawn, headline, label, left_out, micros, spans, ticks};
use crate::analysis::{Analysis, ClassUse, Link, show_share};
use crate::schedule::Schedule;
use crate::units::show_span;

/// Whether the terminal shows colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    /// Text alone.
    Plain,
    /// ANSI colours.
    Colour,
}

/// Columns beside the time line: the label before it, a space; two spaces and the share after it.
const LABEL_CHARS: usize = 18;
const SHARE_CHARS: usize = 10;
/// The time line does not get narrower.
const CELLS_MIN: usize = 20;

/// What one column shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cell {
    Closed,
    Part,
    Mostly(Kind),
}

impl Cell {
    const fn glyph(self) -> char {
        match self {
            Self::Closed => '·',
            Self::Part => '▏',
            Self::Mostly(Kind::Alone) => '█',
            Self::Mostly(Kind::Shared) => '▓',
            Self::Mostly(Kind::Guard) => '╱',
        }
    }
    /// The ANSI colour.
    const fn colour(self) -> &'static str {
        match self {
            Self::Closed => "\x1b[2m",
            Self::Part | Self::Mostly(Kind::Alone) => "\x1b[36m",
            Self::Mostly(Kind::Shared) => "\x1b[34m",
            Self::Mostly(Kind::Guard) => "\x1b[33m",
        }
    }
}

/// Draws one cycle, `columns` wide, and a table of what each class gets.
#[must_use]
pub fn timeline(
    schedule: &Schedule,
    link: &Link,
    analysis: &Analysis,
    columns: usize,
    paint: Paint,
) -> String {
    let mut text = String::new();
    if let Some(name) = &schedule.name {
        text.push_str(&format!("{name}\n"));
    }
    text.push_str(&format!("{}\n\n", headline(schedule, link, analysis)));
    if analysis.cycle_time > Nanos::ZERO {
        let cells = columns.saturating_sub(LABEL_CHARS + 1 + SHARE_CHARS).max(CELLS_MIN);
        text.push_str(&scale(analysis.cycle_time.get(), cells));
        for class in drawn(analysis) {
            text.push_str(&row(schedule, analysis, class, cells, paint));
        }
        text.push_str(&legend(columns));
    }
    text.push_str(&table(schedule, analysis));
    if let Some(words) = left_out(analysis) {
        text.push_str(&format!("{words}\n"));
    }
    text
}

/// Numbers in µs, and a ruler with a mark under each.
fn scale(cycle: i64, cells: usize) -> String {
    let mut numbers: Vec<char> = Vec::new();
    let mut ruler = vec!['─'; cells];
    for at in ticks(cycle, cells as i64 / 10) {
        let column = (i128::from(at) * cells as i128 / i128::from(cycle)) as usize;
        let number = micros(at);
        if column < cells {
            ruler[column] = '┬';
        }
        // A number begins at its mark; one that would touch the one before it is left out.
        if numbers.is_empty() || numbers.len() < column {
            numbers.resize(column, ' ');
            numbers.extend(number.chars());
        }
    }
    ruler[0] = '├';
    let pad = " ".repeat(LABEL_CHARS + 1);
    let numbers: String = numbers.into_iter().collect();
    format!("{pad}{numbers} µs\n{pad}{}┤  usable\n", ruler.into_iter().collect::<String>())
}

fn row(schedule: &Schedule, analysis: &Analysis, class: &ClassUse, cells: usize, paint: Paint) -> String {
    let label = cut(&label(schedule, class.class), LABEL_CHARS);
    let mut text = format!("{label:<LABEL_CHARS$} ");
    let mut colour_before = "";
    for cell in cells_of(&spans(analysis, class), analysis.cycle_time.get(), cells) {
        if paint == Paint::Colour && cell.colour() != colour_before {
            // The dim attribute does not end with another colour.
            text.push_str("\x1b[0m");
            text.push_str(cell.colour());
            colour_before = cell.colour();
        }
        text.push(cell.glyph());
    }
    if paint == Paint::Colour {
        text.push_str("\x1b[0m");
    }
    let usable = class.usable.map_or("-".into(), |usable| show_share(usable, analysis.cycle_time));
    format!("{text} {usable:>9}\n")
}

/// What prevails in each column.
fn cells_of(spans: &[Span], cycle: i64, cells: usize) -> Vec<Cell> {
    let edge = |cell: usize| (i128::from(cycle) * cell as i128 / cells as i128) as i64;
    let mut first = 0;
    (0..cells)
        .map(|cell| {
            // At least a nanosecond wide, or a short cycle would have columns of nothing.
            let (begin, end) = (edge(cell), edge(cell + 1).max(edge(cell) + 1));
            while spans.get(first).is_some_and(|span| span.ends_at <= begin) {
                first += 1;
            }
            let mut lengths = [0i64; 3];
            for span in spans[first..].iter().take_while(|span| span.begins_at < end) {
                lengths[span.kind as usize] += span.ends_at.min(end) - span.begins_at.max(begin);
            }
            let open: i64 = lengths.iter().sum();
            let kinds = [Kind::Alone, Kind::Shared, Kind::Guard];
            let most = kinds.into_iter().max_by_key(|kind| lengths[*kind as usize]);
            match most {
                _ if open == 0 => Cell::Closed,
                Some(kind) if open * 2 >= end - begin => Cell::Mostly(kind),
                _ => Cell::Part,
            }
        })
        .collect()
}

fn legend(columns: usize) -> String {
    let words = ["█ open, alone", "▓ open, shared", "╱ guard band", "▏ open for a part", "· closed"];
    let mut text = String::from("\n");
    let mut used = 0;
    for word in words {
        let chars = word.chars().count() + 2;
        if used > 0 && used + chars > columns {
            text.push('\n');
            used = 0;
        }
        text.push_str(word);
        text.push_str("  ");
        used += chars;
    }
    format!("{}\n\n", text.trim_end_matches(' '))
}

/// Figures of each class.
fn table(schedule: &Schedule, analysis: &Analysis) -> String {
    let head = ["class", "windows", "open", "alone", "guard band", "usable", "largest", "frames"];
    let cycle = analysis.cycle_time;
    let mut rows = vec![head.map(str::to_owned)];
    for class in drawn(analysis) {
        let share = |part| if cycle > Nanos::ZERO { show_share(part, cycle) } else { "-".into() };
        let windows = match (class.is_always_open, class.windows.len()) {
            (true, _) => "always".to_owned(),
            (false, 0) => "never".to_owned(),
            (false, count) => count.to_string(),
        };
        let guard = class.guard_band.filter(|_| !class.is_always_open && !class.windows.is_empty());
        let frames = class.frames_count.filter(|_| cycle > Nanos::ZERO);
        rows.push([
            cut(&label(schedule, class.class), 30),
            windows,
            share(class.open),
            share(class.exclusive),
            guard.map_or("-".into(), |guard| show_span(guard.get())),
            class.usable.map_or("-".into(), share),
            format!("{} B", class.sdu_max),
            frames.map_or("-".into(), |count| count.to_string()),
        ]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = format!("{:<first$}", row[0], first = widths[0]);
        for (cell, width) in row.iter().zip(&widths).skip(1) {
            line.push_str(&format!("  {cell:>width$}"));
        }
        text.push_str(&format!("{}\n", line.trim_end()));
    }
    text.push_str(
        "usable: the share in which a largest frame may start; frames: largest ones that fit into a cycle\n",
    );
    text
}
