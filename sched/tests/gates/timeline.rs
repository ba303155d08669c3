// SPDX-License-Identifier: Apache-2.0
//! Which gates are open when (802.1Q-2022 8.6.9), by walking from entry to entry.
//!
//! In: what administrators ask for and when. Out: gate states, windows, the first instant that fits. Every
//! question is answered by walking forwards from the start of a cycle; nothing is compiled, nothing is
//! searched. `machines.rs` is plainer still, and `clauses.rs` proves the two equal, tick by tick.

use crate::port::Status;
use ktsn_model::{AdminPort, GateStates};
use std::rc::Rc;

const OPEN_ALL: u8 = 0xff;

#[derive(Clone, Debug)]
struct Oper {
    admin: Rc<AdminPort>,
    /// Config change time: it took over here, and windows begin no sooner.
    start: i128,
    /// Base time: cycles lie from here on, also before `start`, which only a step back of TAI shows.
    first: i128,
}

#[derive(Clone, Debug)]
struct Pending {
    admin: Rc<AdminPort>,
    at: i128,
    /// When it was configured.
    since: i128,
}

/// A span of TAI with one set of gate states; `None` has no bound.
#[derive(Clone, Copy, Debug)]
struct Segment {
    start: Option<i128>,
    end: Option<i128>,
    states: u8,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Timeline {
    oper: Option<Oper>,
    pending: Option<Pending>,
    change_time: Option<i128>,
    errors: u64,
}

fn runs(admin: &AdminPort) -> bool {
    admin.gate_enabled && !admin.control_list.is_empty()
}

fn cycle_of(admin: &AdminPort) -> i128 {
    admin.cycle_time.get().into()
}

impl Timeline {
    /// 8.6.9.3: at config change time pending becomes oper.
    pub(crate) fn advance(&mut self, now: i128) {
        if let Some(pending) = self.pending.take_if(|pending| pending.at <= now) {
            let first = pending.admin.base_time.as_nanos().into();
            self.oper = Some(Oper { admin: pending.admin, start: pending.at, first });
        }
    }

    pub(crate) fn set_admin(&mut self, admin: &AdminPort, now: i128) {
        self.advance(now);
        if !runs(admin) {
            self.pending = None;
            self.oper = Some(Oper { admin: Rc::new(admin.clone()), start: now, first: now });
            self.change_time = Some(now);
            return;
        }
        let mut at = i128::from(admin.base_time.as_nanos());
        if at < now {
            if self.oper.as_ref().is_some_and(|oper| oper.admin.gate_enabled) {
                self.errors += 1;
            }
            let cycles = (now - at) / cycle_of(admin);
            at += cycles * cycle_of(admin);
            while at < now {
                at += cycle_of(admin);
            }
        }
        self.change_time = Some(at);
        self.pending = Some(Pending { admin: Rc::new(admin.clone()), at, since: now });
        self.advance(now);
    }

    pub(crate) fn pending_at(&self) -> Option<i128> {
        self.pending.as_ref().map(|pending| pending.at)
    }

    pub(crate) fn status(&self, now: i128) -> Status {
        let cycle_start = self
            .oper
            .as_ref()
            .filter(|oper| runs(&oper.admin) && now >= oper.first)
            .map(|oper| self.cycle(oper, now).0);
        Status {
            states: GateStates::from_bits(self.segment(now).states),
            config_pending: self.pending.is_some(),
            config_change_time: self.change_time,
            config_change_error: self.errors,
            cycle_start,
        }
    }

    /// Start and end of the cycle that `at` lies in (8.6.9.1); `at` lies before what is pending.
    fn cycle(&self, oper: &Oper, at: i128) -> (i128, i128) {
        let length = cycle_of(&oper.admin);
        let mut start = oper.first + (at - oper.first) / length * length;
        let Some(pending) = &self.pending else { return (start, start + length) };
        let reach = length + i128::from(oper.admin.cycle_time_extension.get());
        let is_last = |start: i128| start >= pending.since && pending.at <= start + reach;
        // An earlier cycle may be the last one, and go on until now.
        let mut earlier = start;
        while earlier >= oper.first && earlier + reach + length >= start {
            if is_last(earlier) {
                start = earlier;
            }
            earlier -= length;
        }
        let end = if is_last(start) { pending.at } else { (start + length).min(pending.at) };
        (start, end)
    }

    /// The entry (or what stands for one) that holds at `at` (8.6.9.2).
    fn segment(&self, at: i128) -> Segment {
        if let Some(pending) = self.pending.as_ref().filter(|pending| pending.at <= at) {
            let mut changed = self.clone();
            changed.advance(pending.at);
            return changed.segment(at);
        }
        let change = self.pending_at();
        let Some(oper) = &self.oper else { return Segment { start: None, end: change, states: OPEN_ALL } };
        let initial = oper.admin.gate_states.bits();
        if !runs(&oper.admin) {
            let start = (at >= oper.start).then_some(oper.start);
            return Segment { start, end: change, states: initial };
        }
        if at < oper.first {
            let end = change.map_or(oper.first, |change| change.min(oper.first));
            return Segment { start: None, end: Some(end), states: initial };
        }
        let (cycle_start, cycle_end) = self.cycle(oper, at);
        let (mut start, last) = (cycle_start, oper.admin.control_list.len() - 1);
        for (index, entry) in oper.admin.control_list.iter().enumerate() {
            let mut end = start + i128::from(entry.interval.get());
            if index == last || end > cycle_end {
                end = cycle_end;
            }
            if at < end {
                return Segment { start: Some(start), end: Some(end), states: entry.states.bits() };
            }
            start = end;
        }
        unreachable!("the last entry holds until the cycle's end")
    }

    pub(crate) fn is_open(&self, class: usize, at: i128) -> bool {
        self.segment(at).states >> class & 1 == 1
    }

    /// How far a walk from `at` goes to have seen everything: two cycles are behind it, no change ahead.
    fn has_seen_all(&self, from: i128, at: i128) -> bool {
        let settled = self.oper.as_ref().map_or(from, |oper| from.max(oper.first));
        let cycle = self.oper.as_ref().map_or(0, |oper| cycle_of(&oper.admin));
        self.pending.is_none() && at > settled + 2 * cycle
    }

    /// The end of the span around `at` in which `class` is open: `None` is without end.
    fn closes(&self, class: usize, at: i128) -> Option<i128> {
        let mut reached = at;
        while self.is_open(class, reached) {
            let end = self.segment(reached).end?;
            if self.pending_at() == Some(end) {
                return Some(end);
            }
            if self.has_seen_all(at, end) {
                return None;
            }
            reached = end;
        }
        Some(reached)
    }

    /// The first instant ≥ `from` with the gate open for another `needs`, before whatever is pending.
    pub(crate) fn first_fit(&self, class: usize, needs: i128, from: i128) -> Option<i128> {
        let mut at = from;
        loop {
            if self.pending_at().is_some_and(|change| at >= change) || self.has_seen_all(from, at) {
                return None;
            }
            if !self.is_open(class, at) {
                at = self.segment(at).end?;
                continue;
            }
            match self.closes(class, at) {
                Some(end) if at + needs > end => at = end,
                _ => return Some(at),
            }
        }
    }

    /// The first instant from `due` on, and not before oper, at which a frame could have left; `now` at last.
    pub(crate) fn ready(&self, class: usize, needs: i128, due: i128, now: i128) -> i128 {
        let start = self.oper.as_ref().map_or(due, |oper| oper.start);
        let from = due.max(start);
        if from >= now {
            return now;
        }
        self.first_fit(class, needs, from).map_or(now, |at| at.min(now))
    }

    /// The window around `now`, as (opens at, latest hand-over); `None` if it has no end.
    pub(crate) fn window(&self, class: usize, needs: i128, now: i128) -> Option<(i128, i128)> {
        let latest = self.closes(class, now)? - needs.max(1);
        let change = self.oper.as_ref().map(|oper| oper.start).filter(|&start| start <= now);
        let mut opens_at = now;
        loop {
            let Some(start) = self.segment(opens_at).start else { return Some((0, latest)) };
            // An extended last cycle may have begun before the change that made this oper.
            let start = change.map_or(start, |change| start.max(change));
            if change == Some(start) || !self.is_open(class, start - 1) {
                return Some((start, latest));
            }
            opens_at = start - 1;
        }
    }
}
