// SPDX-License-Identifier: Apache-2.0
//! Finds the place of an instant in the gates' time, and the windows that are seen from there.

use super::list_execute::Fit;
use super::position::{Hint, Position, Region, Remaining};
use super::program::Lists;
use super::{Gates, Oper, cycle_timer};
use ktsn_time::{Span, Tai};

impl Gates {
    pub(super) fn locate(&self, now: Tai, hint: &mut Hint) -> Position {
        let (mut to_change, mut last_cycle_start) = (Span::ENDLESS, None);
        if let Some(pending) = &self.pending {
            to_change = pending.change_at.span_since(now);
            last_cycle_start = pending.last_cycle_start;
        }
        let mut to_last = Span::ENDLESS;
        let region = match &self.oper {
            Some(Oper { program, first, .. }) if let Some(lists) = program.lists() => {
                if let Some(last) = last_cycle_start
                    && last > now
                {
                    to_last = last.span_since(now);
                }
                match last_cycle_start {
                    _ if now < *first => Region::Before { to_start: first.span_since(now) },
                    Some(last) if last <= now => {
                        let offset = now.span_since(last);
                        Region::Last { offset, entry: lists.last.entry_at(offset, 0) }
                    }
                    _ => {
                        let is_hit = hint.cycle_start >= *first
                            && now
                                .checked_span_since(hint.cycle_start)
                                .is_some_and(|offset| offset < lists.cycle_time);
                        if !is_hit {
                            hint.cycle_start = cycle_timer::cycle_start(*first, lists.cycle_time, now);
                        }
                        let offset = now.span_since(hint.cycle_start);
                        hint.entry = lists.cycle.entry_at(offset, hint.entry);
                        Region::Cycle { offset, entry: hint.entry }
                    }
                }
            }
            _ => Region::Constant,
        };
        Position { now, region, to_change, to_last }
    }

    /// The window of `class` that holds at `position`; `None` while its gate is closed.
    pub(crate) fn window(&self, position: &Position, class: usize) -> Option<Remaining> {
        let Some(oper) = &self.oper else {
            return Some(Remaining { opens_at: Tai::ZERO, rest: position.to_change });
        };
        let constant = oper.program.is_open_initially(class);
        let Some(lists) = oper.program.lists() else {
            let opens_at = if position.now < oper.start { Tai::ZERO } else { oper.start };
            return constant.then_some(Remaining { opens_at, rest: position.to_change });
        };
        let (open_for, rest) = match position.region {
            Region::Constant => return None,
            Region::Before { to_start } => {
                let leading = lists.leading(class, position.last_after(to_start));
                let rest = constant.then(|| to_start.saturating_add(leading))?;
                return Some(Remaining { opens_at: Tai::ZERO, rest: rest.min(position.to_change) });
            }
            Region::Cycle { offset, entry } => {
                let span = lists.cycle.span_at(entry, class, offset)?;
                let lead = if span.begin == Span::ZERO { lists.cycle.lead(class) } else { Span::ZERO };
                let rest = match (span.rest(offset), position.to_last) {
                    (Span::ENDLESS, to_last) if to_last != Span::ENDLESS => {
                        to_last.saturating_add(lists.last.leading(class))
                    }
                    (rest, _) => rest,
                };
                ((offset - span.begin).saturating_add(lead), rest)
            }
            Region::Last { offset, entry } => {
                let span = lists.last.span_at(entry, class, offset)?;
                let lead = if span.begin == Span::ZERO { lists.cycle.lead(class) } else { Span::ZERO };
                ((offset - span.begin).saturating_add(lead), span.rest(offset))
            }
        };
        let opens_at = oper.opened_at(position.now, open_for, constant);
        Some(Remaining { opens_at, rest: rest.min(position.to_change) })
    }

    /// The first instant that is at least `from` after `position` and from which the gate of `class` stays open for `need`
    /// (above 0) within one window. `None` if there is none, now or after the pending change.
    pub(crate) fn next_fit(&self, position: &Position, class: usize, from: Span, need: Span) -> Option<Fit> {
        let found = match &self.oper {
            None => Some(Fit { after: from, rest: Span::ENDLESS }),
            Some(oper) => oper.next_fit(position, class, from, need),
        };
        let Some(pending) = &self.pending else { return found };
        let to_change = position.to_change;
        if let Some(fit) = found
            && fit.after.checked_add(need).is_some_and(|end| end <= to_change)
        {
            return Some(Fit { rest: fit.rest.min(to_change - fit.after), ..fit });
        }
        let from = from.max(to_change) - to_change;
        let fit = match pending.program.lists() {
            None => {
                pending.program.is_open_initially(class).then_some(Fit { after: from, rest: Span::ENDLESS })
            }
            Some(lists) => lists.next_fit(Span::ZERO, 0, class, from, need, Span::ENDLESS),
        };
        fit.map(|fit| fit.later(to_change))
    }
}

impl Oper {
    /// When the window opened that has been open at `now` for `open_for`, counted as if cycles had no beginning.
    fn opened_at(&self, now: Tai, open_for: Span, is_open_initially: bool) -> Tai {
        let opened_at = now.before(open_for);
        if now >= self.start {
            opened_at.max(self.start)
        } else if opened_at > self.first {
            opened_at
        } else if is_open_initially {
            Tai::ZERO
        } else {
            self.first
        }
    }

    fn next_fit(&self, position: &Position, class: usize, mut from: Span, need: Span) -> Option<Fit> {
        let is_open = self.program.is_open_initially(class);
        let Some(lists) = self.program.lists() else {
            return is_open.then_some(Fit { after: from, rest: Span::ENDLESS });
        };
        match position.region {
            Region::Constant => None,
            Region::Before { to_start } => {
                let to_last = position.last_after(to_start);
                if from < to_start {
                    let rest = (to_start - from).saturating_add(lists.leading(class, to_last));
                    if is_open && rest >= need {
                        return Some(Fit { after: from, rest });
                    }
                    from = to_start;
                }
                let fit = lists.next_fit(Span::ZERO, 0, class, from - to_start, need, to_last)?;
                Some(fit.later(to_start))
            }
            Region::Cycle { offset, entry } => {
                lists.next_fit(offset, entry, class, from, need, position.to_last)
            }
            Region::Last { offset, .. } => lists.next_fit_in_last(offset, class, from, need),
        }
    }
}

impl Lists {
    /// For how long the gate is open from the start of the first cycle on, if the last one starts `to_last` later.
    fn leading(&self, class: usize, to_last: Span) -> Span {
        match self.cycle.leading(class) {
            _ if to_last == Span::ZERO => self.last.leading(class),
            Span::ENDLESS if to_last != Span::ENDLESS => to_last.saturating_add(self.last.leading(class)),
            leading => leading,
        }
    }

    /// The first fit of `need`, at least `from` after `offset` in a cycle, which lies in `entry`; the last cycle starts `to_last` later.
    #[inline]
    fn next_fit(
        &self,
        offset: Span,
        entry: usize,
        class: usize,
        from: Span,
        need: Span,
        to_last: Span,
    ) -> Option<Fit> {
        if from < to_last || to_last == Span::ENDLESS {
            let (there, entry) =
                if from == Span::ZERO { (offset, entry) } else { self.later(offset, entry, from) };
            let fit = self.cycle.first_fit(entry, class, there, need).map(|fit| fit.later(from));
            if to_last == Span::ENDLESS {
                return fit;
            }
            if let Some(fit) = fit.filter(|fit| fit.after < to_last) {
                // A gate that no cycle closes may be closed in the last one's extension.
                let rest = match fit.rest {
                    Span::ENDLESS => (to_last - fit.after).saturating_add(self.last.leading(class)),
                    rest => rest,
                };
                if rest >= need {
                    return Some(Fit { rest, ..fit });
                }
            }
        }
        Some(self.next_fit_in_last(Span::ZERO, class, from.max(to_last) - to_last, need)?.later(to_last))
    }

    /// Offset and entry `from` after `offset` in `entry`.
    fn later(&self, offset: Span, entry: usize, from: Span) -> (Span, usize) {
        let there = match offset.checked_add(from) {
            Some(there) if there < self.cycle_time => there,
            Some(there) => there % self.cycle_time,
            None => {
                let there = u128::from(offset.as_nanos()) + u128::from(from.as_nanos());
                Span::from_wide(there % u128::from(self.cycle_time.as_nanos()))
            }
        };
        (there, self.cycle.entry_at(there, entry))
    }

    fn next_fit_in_last(&self, offset: Span, class: usize, from: Span, need: Span) -> Option<Fit> {
        let at = offset.saturating_add(from);
        Some(self.last.first_fit(self.last.entry_at(at, 0), class, at, need)?.later(from))
    }
}
