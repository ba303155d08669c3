// SPDX-License-Identifier: Apache-2.0
//! List execute (802.1Q-2022 clause 8.6.9.2): which gates are open at an offset into a cycle, and until when.
//!
//! In: a gate control list; then offsets into a cycle, all in nanoseconds. Out: open spans of a class.
//! Never: allocates after `new`, or looks at more than O(log entries) of the list for one answer.
//!
//! The list is compiled into the open spans of each class, in the order of their begin. From the entry that holds
//! at an offset one table look-up leads to the span that holds or comes next, and a tree of maxima over the lengths
//! leads from there to the next span that is long enough.
//!
//! ```text
//!  entries    |  o  |  C  |   o   |  o  |      class c: o open, C closed; a cycle of four entries
//!  spans      [--0--)     [-------1-----+--0--)         the last one goes on into the next cycle
//! ```

use alloc::boxed::Box;
use alloc::vec::Vec;
use ktsn_model::{GateControlEntry, GateStates, TrafficClass};
use ktsn_time::Span;

/// `[begin, end)` as offsets into a cycle. Where cycles repeat, a span that is open at their seam ends in the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opening {
    pub(crate) begin: Span,
    pub(crate) end: Span,
}

impl Opening {
    /// What is left of it at `offset`, which lies inside.
    pub(crate) fn rest(self, offset: Span) -> Span {
        if self.end == Span::ENDLESS { Span::ENDLESS } else { self.end - offset }
    }
}

/// Where something fits into a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fit {
    /// Time until it does.
    pub(crate) after: Span,
    /// How long the gate stays open from there on, or less where that is certain; `Span::ENDLESS` if it never closes.
    pub(crate) rest: Span,
}

impl Fit {
    /// This place, seen from an instant that is `span` earlier.
    pub(crate) fn later(self, span: Span) -> Self {
        Self { after: self.after.saturating_add(span), ..self }
    }
}

/// The open spans of one class.
#[derive(Debug)]
struct Windows {
    spans: Box<[Opening]>,
    /// How long the gate is open before each span begins, in one cycle; one more for the whole cycle.
    opened: Box<[Span]>,
    /// Maxima of the lengths as an implicit tree; leaf `i` is node `lengths.len() / 2 + i`.
    lengths: Box<[Span]>,
    /// For how long span 0 has been open when a cycle follows another one.
    lead: Span,
}

impl Windows {
    fn new(mut spans: Vec<Opening>, cycle_time: Option<Span>) -> Self {
        let mut sum = Span::ZERO;
        let mut opened: Vec<Span> = Vec::with_capacity(spans.len() + 1);
        for span in &spans {
            opened.push(sum);
            sum = sum.saturating_add(span.rest(span.begin));
        }
        opened.push(sum);
        let mut lead = Span::ZERO;
        if let (Some(cycle_time), [first, rest @ ..]) = (cycle_time, spans.as_mut_slice())
            && first.begin == Span::ZERO
        {
            match rest.last_mut() {
                Some(last) if last.end == cycle_time => {
                    lead = cycle_time - last.begin;
                    last.end = cycle_time + first.end;
                }
                None if first.end == cycle_time => (first.end, lead) = (Span::ENDLESS, Span::ENDLESS),
                _ => {}
            }
        }
        let leaves = spans.len().max(1).next_power_of_two();
        let mut lengths = alloc::vec![Span::ZERO; 2 * leaves];
        for (index, span) in spans.iter().enumerate() {
            lengths[leaves + index] = span.rest(span.begin);
        }
        for node in (1..leaves).rev() {
            lengths[node] = lengths[2 * node].max(lengths[2 * node + 1]);
        }
        Self { spans: spans.into(), opened: opened.into(), lengths: lengths.into(), lead }
    }

    /// Index of the first span from index `from` on whose length is at least `need` (more than 0).
    fn first_of(&self, from: usize, need: Span) -> Option<usize> {
        let leaves = self.lengths.len() / 2;
        if from >= self.spans.len() || self.lengths[1] < need {
            return None;
        }
        let mut node = leaves + from;
        while self.lengths[node] < need {
            // On to what follows, as the largest subtree that begins there.
            node += 1;
            node >>= node.trailing_zeros();
            if node == 1 {
                return None;
            }
        }
        while node < leaves {
            node = 2 * node + usize::from(self.lengths[2 * node] < need);
        }
        Some(node - leaves)
    }
}

/// A gate control list, compiled for look-ups by offset.
#[derive(Debug)]
pub(crate) struct Timetable {
    /// Offset of each entry; the first is 0.
    begins: Box<[Span]>,
    states: Box<[GateStates]>,
    /// Per entry and class: the first span that ends after the entry's begin.
    spans_from: Box<[[u16; TrafficClass::COUNT]]>,
    classes: [Windows; TrafficClass::COUNT],
    cycle_time: Option<Span>,
}

impl Timetable {
    /// Compile `entries` (at least one, at most 2^16 − 2, intervals above 0), repeated with `cycle_time` (above 0), or executed once with
    /// the last entry held for ever.
    pub(crate) fn new(entries: &[GateControlEntry], cycle_time: Option<Span>) -> Self {
        let end = cycle_time.unwrap_or(Span::ENDLESS);
        let mut begins = Vec::with_capacity(entries.len());
        let mut states = Vec::with_capacity(entries.len());
        let mut begin = Span::ZERO;
        for entry in entries {
            // What lies beyond the cycle's end is cut off.
            if begin >= end {
                break;
            }
            begins.push(begin);
            states.push(entry.states);
            begin = begin.saturating_add(Span::not_negative(entry.interval));
        }
        let mut spans_from = alloc::vec![[0u16; TrafficClass::COUNT]; begins.len()];
        let classes = core::array::from_fn(|class| {
            let mut spans: Vec<Opening> = Vec::new();
            for (index, &begin) in begins.iter().enumerate() {
                // A closed entry lies before the span to come, which has this index.
                spans_from[index][class] = spans.len() as u16;
                if states[index].bits() >> class & 1 == 0 {
                    continue;
                }
                let entry_end = begins.get(index + 1).copied().unwrap_or(end);
                match spans.last_mut() {
                    Some(last) if last.end == begin => {
                        last.end = entry_end;
                        spans_from[index][class] -= 1;
                    }
                    _ => spans.push(Opening { begin, end: entry_end }),
                }
            }
            Windows::new(spans, cycle_time)
        });
        Self {
            begins: begins.into(),
            states: states.into(),
            spans_from: spans_from.into(),
            classes,
            cycle_time,
        }
    }

    /// The entry that holds at `offset`, tried first at `hint`.
    pub(crate) fn entry_at(&self, offset: Span, hint: usize) -> usize {
        let is_hit = self.begins.get(hint).is_some_and(|&begin| begin <= offset)
            && self.begins.get(hint + 1).is_none_or(|&next| offset < next);
        if is_hit { hint } else { self.begins.partition_point(|&begin| begin <= offset) - 1 }
    }

    pub(crate) fn states(&self, entry: usize) -> GateStates {
        self.states[entry]
    }

    /// The open span of `class` that holds at `offset`, which lies in `entry`.
    pub(crate) fn span_at(&self, entry: usize, class: usize, offset: Span) -> Option<Opening> {
        let index = self.spans_from[entry][class];
        self.classes[class].spans.get(usize::from(index)).filter(|span| span.begin <= offset).copied()
    }

    /// For how long the span that begins a cycle has been open when a cycle precedes it.
    pub(crate) fn lead(&self, class: usize) -> Span {
        self.classes[class].lead
    }

    /// For how long the gate is open from the begin of a cycle on.
    pub(crate) fn leading(&self, class: usize) -> Span {
        self.span_at(0, class, Span::ZERO).map_or(Span::ZERO, |span| span.end)
    }

    /// The first offset from `offset` on, which lies in `entry`, at which the gate is open for `need` (above 0) or longer. Where
    /// cycles repeat it may lie in the next one; `None` if there is none at all.
    #[inline]
    pub(crate) fn first_fit(&self, entry: usize, class: usize, offset: Span, need: Span) -> Option<Fit> {
        let windows = &self.classes[class];
        let index = usize::from(self.spans_from[entry][class]);
        if let Some(span) = windows.spans.get(index) {
            let at = span.begin.max(offset);
            let rest = span.rest(at);
            if rest >= need {
                return Some(Fit { after: at - offset, rest });
            }
        }
        let (index, cycles) = match windows.first_of(index + 1, need) {
            Some(index) => (index, Span::ZERO),
            // Of a span that crosses the seam, the part behind it is never long enough where the whole was not.
            None => (windows.first_of(0, need)?, self.cycle_time?),
        };
        let span = windows.spans.get(index)?;
        Some(Fit { after: span.begin + cycles - offset, rest: span.rest(span.begin) })
    }

    /// For how long the gate is open from the begin of a cycle to `offset`.
    pub(crate) fn opened(&self, class: usize, offset: Span) -> Span {
        let windows = &self.classes[class];
        let index = usize::from(self.spans_from[self.entry_at(offset, 0)][class]);
        let inside = windows.spans.get(index).map_or(Span::ZERO, |span| offset.saturating_sub(span.begin));
        windows.opened[index] + inside
    }

    /// For how long the gate is open in the whole list.
    pub(crate) fn opened_in_all(&self, class: usize) -> Span {
        self.classes[class].opened.last().copied().unwrap_or_default()
    }

    /// The offset at which the gate has been open for `amount` (above 0) since the begin of a cycle.
    pub(crate) fn when_opened(&self, class: usize, amount: Span) -> Option<Span> {
        let windows = &self.classes[class];
        let index = windows.opened.partition_point(|&opened| opened < amount) - 1;
        Some(windows.spans.get(index)?.begin.saturating_add(amount - windows.opened[index]))
    }
}
