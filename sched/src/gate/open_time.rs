// SPDX-License-Identifier: Apache-2.0
//! For how long the gate of a class is open over a span, and the other way round: credit grows in that time (8.6.8.2).
//!
//! In: an instant, a span or an amount of open time. Out: the other one. Closed forms over cycles and one search in
//! the list, however many cycles a span covers.

use super::position::{Position, Region};
use super::program::{GateProgram, Lists};
use super::{Gates, Oper, Pending};
use ktsn_time::{Span, Tai};

impl Gates {
    /// For how long the gate of `class` is open in the `span` that begins at `at`.
    pub(crate) fn open_time(&self, class: usize, at: Tai, span: Span) -> Span {
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
    pub(crate) fn open_after(&self, class: usize, at: Tai, amount: Span) -> Option<Span> {
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
        let amount = amount.saturating_sub(self.open_time(class, at, to_change)).max(Span::from_nanos(1));
        Some(pending.program.open_after(class, amount)?.saturating_add(to_change))
    }

    /// What will have changed by `at`, which may lie ahead of now, and how long before.
    fn changed_by(&self, at: Tai) -> Option<(&Pending, Span)> {
        let pending = self.pending.as_ref()?;
        Some((pending, at.checked_span_since(pending.change_at)?))
    }
}

impl Oper {
    fn open_time(&self, position: &Position, class: usize, span: Span) -> Span {
        let constant = |span| if self.program.is_open_initially(class) { span } else { Span::ZERO };
        let Some(lists) = self.program.lists() else { return constant(span) };
        match position.region {
            Region::Constant => Span::ZERO,
            Region::Before { to_start } => {
                let before = span.min(to_start);
                let to_last = position.last_after(to_start);
                constant(before).saturating_add(lists.open_time(class, Span::ZERO, span - before, to_last))
            }
            Region::Cycle { offset, .. } => lists.open_time(class, offset, span, position.to_last()),
            Region::Last { offset, .. } => {
                lists.last.opened(class, offset.saturating_add(span)) - lists.last.opened(class, offset)
            }
        }
    }

    fn open_after(&self, position: &Position, class: usize, amount: Span) -> Option<Span> {
        let is_open = self.program.is_open_initially(class);
        let Some(lists) = self.program.lists() else { return is_open.then_some(amount) };
        match position.region {
            Region::Constant => None,
            Region::Before { to_start } if is_open && amount <= to_start => Some(amount),
            Region::Before { to_start } => {
                let amount = amount - if is_open { to_start } else { Span::ZERO };
                let after = lists.open_after(class, Span::ZERO, amount, position.last_after(to_start))?;
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
    /// For how long the gate of `class` is open in the first `span` of the program.
    fn open_time(&self, class: usize, span: Span) -> Span {
        match self.lists() {
            Some(lists) => lists.open_time(class, Span::ZERO, span, Span::ENDLESS),
            None if self.is_open_initially(class) => span,
            None => Span::ZERO,
        }
    }

    /// How long after the program's start the gate of `class` has been open for `amount`; `None` if it never has.
    fn open_after(&self, class: usize, amount: Span) -> Option<Span> {
        match self.lists() {
            Some(lists) => lists.open_after(class, Span::ZERO, amount, Span::ENDLESS),
            None => self.is_open_initially(class).then_some(amount),
        }
    }
}

impl Lists {
    /// For how long the gate is open in the `span` from `offset` in a cycle; the last cycle starts `to_last` later.
    fn open_time(&self, class: usize, offset: Span, span: Span, to_last: Span) -> Span {
        let in_cycles = span.min(to_last);
        let end = wide(offset) + wide(in_cycles);
        let cycle_time = wide(self.cycle_time);
        let opened = |offset| wide(self.cycle.opened(class, offset));
        let to_end = end / cycle_time * wide(self.cycle.opened_in_all(class))
            + opened(Span::from_wide(end % cycle_time));
        // Never more than `in_cycles`.
        let open = Span::from_wide(to_end - opened(offset));
        open.saturating_add(self.last.opened(class, span - in_cycles))
    }

    fn open_after(&self, class: usize, offset: Span, amount: Span, to_last: Span) -> Option<Span> {
        let per_cycle = wide(self.cycle.opened_in_all(class));
        if per_cycle > 0 {
            let opened = wide(self.cycle.opened(class, offset)) + wide(amount);
            let cycles = opened.div_ceil(per_cycle) - 1;
            let there = self.cycle.when_opened(class, Span::from_wide(opened - cycles * per_cycle))?;
            let after = cycles * wide(self.cycle_time) + wide(there) - wide(offset);
            let after = Span::from_wide(after);
            if to_last == Span::ENDLESS || after <= to_last {
                return Some(after);
            }
        }
        if to_last == Span::ENDLESS {
            return None;
        }
        let rest = amount - self.open_time(class, offset, to_last, to_last);
        Some(self.last.when_opened(class, rest)?.saturating_add(to_last))
    }
}

/// Wide enough for any product of spans and cycles here.
fn wide(span: Span) -> u128 {
    span.as_nanos().into()
}
