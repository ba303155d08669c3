// SPDX-License-Identifier: Apache-2.0
//! Time lines of one cycle: a row a class, on a terminal and as SVG.
//!
//! In: a schedule, the link, the analysis. Out: text. Whatever the width, a window never vanishes: where it is
//! narrower than a column it is shown as a part of one.

mod svg;
mod terminal;

pub use svg::svg;
pub use terminal::{Paint, timeline};

use ktsn_model::{GateStates, TrafficClass};
use ktsn_time::Nanos;

use crate::analysis::{Analysis, ClassUse, Link};
use crate::schedule::Schedule;
use crate::units::{show_span, show_speed};

/// What a class may do in a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Open while every other class is closed.
    Alone,
    /// Open together with other classes.
    Shared,
    /// Open, and too late for the largest frame.
    Guard,
}

/// A span of one cycle, in nanoseconds from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    begins_at: i64,
    ends_at: i64,
    kind: Kind,
}

/// The spans in which a class is open, in their order; neighbours differ in kind.
fn spans(analysis: &Analysis, class: &ClassUse) -> Vec<Span> {
    let cycle = analysis.cycle_time.get();
    let guards = guards(class, cycle);
    let mut spans: Vec<Span> = Vec::new();
    let mut push = |begins_at: i64, ends_at: i64, kind| {
        if begins_at >= ends_at {
            return;
        }
        match spans.last_mut() {
            Some(last) if last.ends_at == begins_at && last.kind == kind => last.ends_at = ends_at,
            _ => spans.push(Span { begins_at, ends_at, kind }),
        }
    };
    for segment in analysis.segments.iter().filter(|segment| segment.states.is_open(class.class)) {
        let is_alone = segment.states == GateStates::from_bits(1 << class.class.get());
        let kind = if is_alone { Kind::Alone } else { Kind::Shared };
        let begin = segment.begins_at.get();
        let end = begin + segment.length.get();
        let mut at = begin;
        for (guard_begins, guard_ends) in
            guards.iter().filter(|(begins, ends)| *begins < end && *ends > begin)
        {
            push(at, (*guard_begins).max(at), kind);
            let (begins, ends) = ((*guard_begins).max(at), (*guard_ends).min(end));
            push(begins, ends, Kind::Guard);
            at = ends;
        }
        push(at, end, kind);
    }
    spans
}

/// Guard bands within the cycle, in their order; one that crosses its end is two.
fn guards(class: &ClassUse, cycle: i64) -> Vec<(i64, i64)> {
    let Some(guard) = class.guard_band.filter(|_| !class.is_always_open) else { return Vec::new() };
    let mut guards = Vec::new();
    for window in &class.windows {
        let end = window.opens_at.get() + window.length.get();
        let begin = end - guard.get().min(window.length.get());
        if begin >= cycle {
            guards.push((begin - cycle, end - cycle));
        } else if end > cycle {
            guards.push((begin, cycle));
            guards.push((0, end - cycle));
        } else {
            guards.push((begin, end));
        }
    }
    guards.sort_unstable();
    guards
}

/// The classes that are drawn, highest first: those that open or that priorities lead to.
fn drawn(analysis: &Analysis) -> impl Iterator<Item = &ClassUse> {
    analysis.classes.iter().rev().filter(|class| class.is_used || !class.windows.is_empty())
}

/// The classes that are not, as words; none if every one is drawn.
fn left_out(analysis: &Analysis) -> Option<String> {
    let numbers: Vec<String> = analysis
        .classes
        .iter()
        .filter(|class| !class.is_used && class.windows.is_empty())
        .map(|class| class.class.get().to_string())
        .collect();
    match numbers.len() {
        0 => None,
        1 => Some(format!("class {} is closed and no priority leads to it", numbers[0])),
        _ => Some(format!("classes {} are closed and no priority leads to them", numbers.join(", "))),
    }
}

/// What the drawing is of, in one line.
fn headline(schedule: &Schedule, link: &Link, analysis: &Analysis) -> String {
    let mut parts = Vec::new();
    if analysis.cycle_time > Nanos::ZERO {
        let count = schedule.admin.control_list.len();
        let entries = if count == 1 { "1 entry".into() } else { format!("{count} entries") };
        parts.push(format!("cycle {}", show_span(analysis.cycle_time.get())));
        parts.push(entries);
    } else {
        parts.push(format!("gates stay at {:#04x}", schedule.admin.gate_states.bits()));
    }
    parts.push(
        link.speed.map_or("link speed unknown".into(), |bits| format!("{}bit/s", spaced(&show_speed(bits)))),
    );
    parts.push(format!("MTU {}", link.mtu));
    if link.hand_over > Nanos::ZERO {
        parts.push(format!("hand-over {}", show_span(link.hand_over.get())));
    }
    parts.join(" · ")
}

/// `2.5G` → `2.5 G`.
fn spaced(speed: &str) -> String {
    let digits = speed.trim_end_matches(char::is_alphabetic);
    format!("{digits} {}", &speed[digits.len()..])
}

/// Instants for the scale, at most `count_max` and the cycle's end: 1, 2 or 5 times a power of ten apart.
fn ticks(cycle: i64, count_max: i64) -> Vec<i64> {
    let mut step = 1i64;
    for factor in [2, 5, 10].into_iter().cycle() {
        if cycle / step <= count_max.max(1) {
            break;
        }
        let decade = 10i64.pow(step.ilog10());
        step = decade * factor;
    }
    (0..=cycle / step).map(|tick| tick * step).collect()
}

/// Microseconds, exact.
fn micros(nanos: i64) -> String {
    let text = format!("{}.{:03}", nanos / 1_000, nanos % 1_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A label cut to a number of characters.
fn cut(text: &str, chars_max: usize) -> String {
    if text.chars().count() <= chars_max {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(chars_max.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

/// The class's number and name; the number alone where it is never used.
fn label(schedule: &Schedule, class: TrafficClass) -> String {
    schedule.class_label(class)
}

#[cfg(test)]
mod tests;
