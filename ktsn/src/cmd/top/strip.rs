// SPDX-License-Identifier: Apache-2.0
//! Gates and errors as rows of characters.
//!
//! In: a port's gate parameters, or the errors of the last intervals. Out: one character for each part of a cycle, or for each
//! interval. Pure.

use ktsn_proto::v1;

/// The gate is open for the whole part, for some of it, never.
const OPEN: char = '█';
const PARTLY: char = '▒';
const CLOSED: char = '·';

const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The gates of one port over a cycle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Strip {
    /// A row for each traffic class, class n at index n.
    pub classes: [String; 8],
    /// The part of the cycle in which the port is now.
    pub now: usize,
}

/// The strip of a port's cycle in `width` parts. `None`: no gates are in force.
pub(super) fn gates(state: &v1::ScheduleState, width: usize) -> Option<Strip> {
    let oper = state.oper.as_ref().filter(|_| state.gate_enabled)?;
    let cycle = u128::from(oper.cycle_time);
    if cycle == 0 || width == 0 || oper.control_list.is_empty() {
        return None;
    }
    let parts = width as u128;
    let bounds = |part: usize| (cycle * part as u128 / parts, cycle * (part as u128 + 1) / parts);
    let mut classes: [String; 8] = Default::default();
    for (class, row) in classes.iter_mut().enumerate() {
        for part in 0..width {
            let (begin, end) = bounds(part);
            let open = open_within(&oper.control_list, class, begin, end.max(begin + 1), cycle);
            row.push(match open {
                0 => CLOSED,
                _ if open >= end.max(begin + 1) - begin => OPEN,
                _ => PARTLY,
            });
        }
    }
    let since = (i128::from(state.current_time) - i128::from(oper.base_time)).rem_euclid(cycle as i128);
    let now = (since as u128 * parts / cycle) as usize;
    Some(Strip { classes, now: now.min(width - 1) })
}

/// How long the gate of `class` is open between two instants of the cycle. The last entry lasts until the cycle ends.
fn open_within(list: &[v1::GateControlEntry], class: usize, begin: u128, end: u128, cycle: u128) -> u128 {
    let (mut at, mut open) = (0_u128, 0);
    for (index, entry) in list.iter().enumerate() {
        let is_last = index + 1 == list.len();
        let until = if is_last { cycle } else { (at + u128::from(entry.time_interval_value)).min(cycle) };
        if entry.gate_states_value >> class & 1 == 1 {
            open += until.min(end).saturating_sub(at.max(begin));
        }
        at = until;
    }
    open
}

/// A sparkline of the last `width` values, scaled to the greatest of them. An interval without a value is a blank.
pub(super) fn spark(values: impl DoubleEndedIterator<Item = Option<u64>>, width: usize) -> String {
    let mut last: Vec<Option<u64>> = values.rev().take(width).collect();
    last.reverse();
    let greatest = last.iter().flatten().max().copied().unwrap_or(0).max(1);
    let level = |value: u64| (u128::from(value) * (LEVELS.len() as u128 - 1) / u128::from(greatest)) as usize;
    let blanks = " ".repeat(width - last.len());
    let line = last.iter().map(|value| value.map_or(' ', |value| LEVELS[level(value)]));
    blanks.chars().chain(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(entries: &[(u32, u64)], cycle_time: u64, current_time: u64) -> v1::ScheduleState {
        let entry = |(gate_states_value, time_interval_value): &(u32, u64)| v1::GateControlEntry {
            gate_states_value: *gate_states_value,
            time_interval_value: *time_interval_value,
            ..Default::default()
        };
        let control_list = entries.iter().map(entry).collect();
        v1::ScheduleState {
            gate_enabled: true,
            current_time,
            oper: Some(v1::GateParameters { cycle_time, base_time: 100, control_list, ..Default::default() }),
            ..Default::default()
        }
    }

    #[test]
    fn windows_are_drawn_where_they_are() {
        let strip = gates(&state(&[(0b100_0000, 250), (0b1, 250), (0, 500)], 1000, 100 + 5_600), 8).unwrap();
        assert_eq!(strip.classes[6], "██······");
        assert_eq!(strip.classes[0], "··██····");
        assert_eq!(strip.classes[7], "········");
        assert_eq!(strip.now, 4);
    }

    #[test]
    fn short_windows_are_seen_and_the_last_entry_lasts() {
        let strip = gates(&state(&[(0, 990), (0b10, 1)], 1000, 0), 4).unwrap();
        assert_eq!(strip.classes[1], "···▒", "the last entry lasts until the cycle ends");
        assert_eq!(strip.now, 3, "before the base time");
        let strip = gates(&state(&[(0b10, 5_000), (0, 1)], 1000, 0), 4).unwrap();
        assert_eq!(strip.classes[1], "████", "what is beyond the cycle does not count");
    }

    #[test]
    fn nothing_is_drawn_without_gates() {
        assert_eq!(gates(&v1::ScheduleState::default(), 8), None);
        assert_eq!(gates(&state(&[], 1000, 0), 8), None);
        assert_eq!(gates(&state(&[(1, 1)], 0, 0), 8), None);
        assert_eq!(gates(&state(&[(1, 1)], 10, 0), 0), None);
        // More parts than nanoseconds, and the greatest numbers.
        assert_eq!(gates(&state(&[(1, 1)], 3, 0), 9).unwrap().classes[0], "█████████");
        gates(&state(&[(1, u64::MAX), (0, u64::MAX)], u64::MAX, u64::MAX), 80).unwrap();
    }

    #[test]
    fn a_sparkline_has_one_character_for_each_interval() {
        let values = [None, Some(0), Some(50), Some(100), None];
        assert_eq!(spark(values.into_iter(), 7), "   ▁▄█ ");
        assert_eq!(spark(values.into_iter(), 2), "█ ");
        assert_eq!(spark([Some(u64::MAX), Some(0)].into_iter(), 2), "█▁");
        assert_eq!(spark(std::iter::empty(), 3), "   ");
    }
}
