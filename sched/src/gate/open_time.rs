// SPDX-License-Identifier: Apache-2.0
//! For how long the gate of a class is open over a span, and the other way round: what credit is gained in (8.6.8.2).
//!
//! In: an instant, a span or an amount of open time. Out: the other one. Closed forms over cycles and one search in
//! the list, however many cycles a span covers.

use super::list_execute::ENDLESS;
use super::position::{Position, Region};
use super::program::{GateProgram, Lists};
use super::{Gates, Oper, Pending};

impl Gates {
    /// For how long the gate of `class` is open in the `span` that begins at `at`.
    pub(crate) fn open_time(&self, class: usize, at: u64, span: u64) -> u64 {
        if let Some((pending, lag)) = self.changed_by(at) {
            let program = &pending.program;
            return program.open_time(class, lag.saturating_add(span)) - program.open_time(class, lag);
        }
        let position = self.position_of(at);
        let before = span.min(position.to_change());
        let open = self.oper.as_ref().map_or(before, |oper| oper.open_time(&position, class, before));
        match &self.pending {
            Some(pending) => open.saturating_add(pending.program.open_time(class, span - before)),
            None => open,
        }
    }

    /// How long after `at` the gate of `class` has been open for `amount` (above 0); `None` if it never has.
    pub(crate) fn open_after(&self, class: usize, at: u64, amount: u64) -> Option<u64> {
        if let Some((pending, lag)) = self.changed_by(at) {
            let amount = amount.saturating_add(pending.program.open_time(class, lag));
            return pending.program.open_after(class, amount).map(|after| after - lag);
        }
        let position = self.position_of(at);
        let after = match &self.oper {
            None => Some(amount),
            Some(oper) => oper.open_after(&position, class, amount),
        };
        let Some(pending) = &self.pending else { return after };
        let to_change = position.to_change();
        if let Some(after) = after
            && after <= to_change
        {
            return Some(after);
        }
        let amount = amount.saturating_sub(self.open_time(class, at, to_change)).max(1);
        Some(pending.program.open_after(class, amount)?.saturating_add(to_change))
    }

    /// What will have changed by `at`, which may lie ahead of now, and how long before.
    fn changed_by(&self, at: u64) -> Option<(&Pending, u64)> {
        let pending = self.pending.as_ref()?;
        Some((pending, at.checked_sub(pending.change_at)?))
    }
}

impl Oper {
    fn open_time(&self, position: &Position, class: usize, span: u64) -> u64 {
        let constant = |span| if self.program.is_open_initially(class) { span } else { 0 };
        let Some(lists) = self.program.lists() else { return constant(span) };
        match position.region {
            Region::Constant => 0,
            Region::Before { to_start } => {
                let before = span.min(to_start);
                let to_last = position.last_after(to_start);
                constant(before).saturating_add(lists.open_time(class, 0, span - before, to_last))
            }
            Region::Cycle { offset, .. } => lists.open_time(class, offset, span, position.to_last()),
            Region::Last { offset, .. } => {
                lists.last.opened(class, offset.saturating_add(span)) - lists.last.opened(class, offset)
            }
        }
    }

    fn open_after(&self, position: &Position, class: usize, amount: u64) -> Option<u64> {
        let is_open = self.program.is_open_initially(class);
        let Some(lists) = self.program.lists() else { return is_open.then_some(amount) };
        match position.region {
            Region::Constant => None,
            Region::Before { to_start } if is_open && amount <= to_start => Some(amount),
            Region::Before { to_start } => {
                let amount = amount - if is_open { to_start } else { 0 };
                let after = lists.open_after(class, 0, amount, position.last_after(to_start))?;
                Some(after.saturating_add(to_start))
            }
            Region::Cycle { offset, .. } => lists.open_after(class, offset, amount, position.to_last()),
            Region::Last { offset, .. } => {
                let opened = lists.last.opened(class, offset).saturating_add(amount);
                Some(lists.last.when_opened(class, opened)? - offset)
            }
        }
    }
}

impl GateProgram {
    /// As [`Gates::open_time`], from the program's start on.
    fn open_time(&self, class: usize, span: u64) -> u64 {
        match self.lists() {
            Some(lists) => lists.open_time(class, 0, span, ENDLESS),
            None if self.is_open_initially(class) => span,
            None => 0,
        }
    }

    /// As [`Gates::open_after`], from the program's start on.
    fn open_after(&self, class: usize, amount: u64) -> Option<u64> {
        match self.lists() {
            Some(lists) => lists.open_after(class, 0, amount, ENDLESS),
            None => self.is_open_initially(class).then_some(amount),
        }
    }
}

impl Lists {
    /// In the `span` from `offset` in a cycle; the last cycle starts `to_last` later.
    fn open_time(&self, class: usize, offset: u64, span: u64, to_last: u64) -> u64 {
        let in_cycles = span.min(to_last);
        let end = u128::from(offset) + u128::from(in_cycles);
        let cycle_time = u128::from(self.cycle_time);
        let per_cycle = u128::from(self.cycle.opened_in_all(class));
        let to_end =
            end / cycle_time * per_cycle + u128::from(self.cycle.opened(class, (end % cycle_time) as u64));
        // Never more than `in_cycles`.
        let open = (to_end - u128::from(self.cycle.opened(class, offset))) as u64;
        open.saturating_add(self.last.opened(class, span - in_cycles))
    }

    fn open_after(&self, class: usize, offset: u64, amount: u64, to_last: u64) -> Option<u64> {
        let per_cycle = u128::from(self.cycle.opened_in_all(class));
        if per_cycle > 0 {
            let opened = u128::from(self.cycle.opened(class, offset)) + u128::from(amount);
            let cycles = opened.div_ceil(per_cycle) - 1;
            let there = self.cycle.when_opened(class, (opened - cycles * per_cycle) as u64)?;
            let after = cycles * u128::from(self.cycle_time) + u128::from(there) - u128::from(offset);
            let after = u64::try_from(after).unwrap_or(u64::MAX);
            if to_last == ENDLESS || after <= to_last {
                return Some(after);
            }
        }
        if to_last == ENDLESS {
            return None;
        }
        let rest = amount - self.open_time(class, offset, to_last, to_last);
        Some(self.last.when_opened(class, rest)?.saturating_add(to_last))
    }
}
