// SPDX-License-Identifier: Apache-2.0
//! Transmission selection behind gates once more (802.1Q-2022 8.6.8), as plainly as it can be said.
//!
//! In: the calls of a port. Out: the decisions that the rules ask for. One list of frames, scanned for every
//! answer, in integers wide enough that nothing saturates. Shares no code with the crate beyond the words of
//! its edge; written from the page of rules, never from the engine.

use crate::credit::Credit;
use crate::port::{ATTACHMENTS, ClassSetup, Order, Status, Wanted};
use crate::timeline::Timeline;
use crate::turn_rule::Rule;
use ktsn_model::{AdminPort, DropReason, LatePolicy};
use ktsn_sched::{Frame, Refused};
use ktsn_time::{Monotonic, Now, TxTime};

#[derive(Clone, Copy, Debug)]
struct Waiting {
    frame: Frame,
    /// Which clock the due instant is read on.
    on_tai: bool,
    due: i128,
    arrival: i128,
    late: bool,
    on_time: bool,
    /// The last instant of hand-over on the clock of the TxTime.
    deadline: Option<(bool, i128)>,
}

fn clock(now: Now, on_tai: bool) -> i128 {
    if on_tai { now.tai.as_nanos().into() } else { now.monotonic.as_nanos().into() }
}

impl Waiting {
    /// Nanoseconds since it became due; negative while it is not.
    fn overdue(&self, now: Now) -> i128 {
        clock(now, self.on_tai) - self.due
    }
    fn class(&self) -> usize {
        self.frame.class.get().into()
    }
}

/// What one class would do at an instant that lies `after` nanoseconds ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Transmit,
    Overrun,
    NeverFits,
}

/// The reference. All of it is public to the tests, none of it is fast.
#[derive(Clone, Debug)]
pub(crate) struct Reference {
    capacity: usize,
    arrivals: i128,
    waiting: Vec<Waiting>,
    rule: Rule,
    link_speed: Option<u64>,
    pub(crate) hand_over: i128,
    pub(crate) classes: [ClassSetup; 8],
    credits: [Credit; 8],
    seen_at: Option<i128>,
    /// MONOTONIC instant at which the wire is free again.
    busy_until: Option<i128>,
    /// The class that was held back and had no turn since, and whether a higher one had.
    held: Option<(usize, bool)>,
    pub(crate) timeline: Timeline,
    /// The timeline as of the last look at credits: what was pending then was pending in between.
    seen_timeline: Timeline,
}

impl Reference {
    pub(crate) fn new(
        capacity: usize,
        link_speed: Option<u64>,
        hand_over: u64,
        classes: [ClassSetup; 8],
    ) -> Self {
        Self {
            capacity,
            arrivals: 0,
            waiting: Vec::new(),
            rule: Rule::new(ATTACHMENTS),
            link_speed: link_speed.filter(|&speed| speed > 0),
            hand_over: hand_over.into(),
            classes,
            credits: [Credit::default(); 8],
            seen_at: None,
            busy_until: None,
            held: None,
            timeline: Timeline::default(),
            seen_timeline: Timeline::default(),
        }
    }

    pub(crate) fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    /// Nanoseconds on the wire, rounded up.
    fn wire_time(&self, frame: &Frame) -> i128 {
        match self.link_speed {
            None => 0,
            Some(speed) => {
                let bits = i128::from(frame.wire_octets) * 8 * 1_000_000_000;
                (bits + i128::from(speed) - 1) / i128::from(speed)
            }
        }
    }

    /// Every call sees the clocks first: the change that has come takes place, credits move.
    fn see(&mut self, now: Now) {
        self.rule.see(now);
        let to = clock(now, false);
        let from = self.seen_at.unwrap_or(to);
        let is_shaped = self.classes.iter().any(|class| class.idle_slope.is_some());
        for at in from..=if is_shaped { to } else { from } {
            for class in 0..8 {
                if let Some(idle_slope) = self.classes[class].idle_slope {
                    let then = |on_tai| clock(now, on_tai) - (to - at);
                    let heads = (0..self.waiting.len()).filter(|&index| self.is_first(class, index));
                    let waits = heads.map(|index| &self.waiting[index]).any(|w| then(w.on_tai) >= w.due);
                    if at == to {
                        self.credits[class].reset(at, waits);
                        continue;
                    }
                    let open = self.seen_timeline.is_open(class, then(true));
                    self.credits[class].tick(at, idle_slope.into(), waits, open);
                }
            }
        }
        self.seen_at = Some(to);
        self.timeline.advance(clock(now, true));
        self.seen_timeline = self.timeline.clone();
    }

    /// Whether `frame` may be queued.
    fn judge(&self, frame: &Frame, now: Now) -> Result<(), DropReason> {
        let max = self.classes[usize::from(frame.class.get())].queue_max_sdu;
        if max.is_some_and(|max| frame.sdu_octets > max) {
            return Err(DropReason::TooLong);
        }
        self.admit(frame, now)?;
        if self.waiting.len() >= self.capacity {
            return Err(DropReason::QueueFull);
        }
        Ok(())
    }

    fn admit(&self, frame: &Frame, now: Now) -> Result<Waiting, DropReason> {
        let mono_now = clock(now, false);
        let age = (mono_now - i128::from(frame.pushed_at.as_nanos())).max(0);
        let waited = age.min(frame.overrun_limit.get().max(0).into());
        let mut entry = Waiting {
            frame: *frame,
            on_tai: false,
            due: mono_now - waited,
            arrival: self.arrivals,
            late: false,
            on_time: false,
            deadline: None,
        };
        let (on_tai, tx_time) = match frame.tx_time {
            None | Some(TxTime::Monotonic(Monotonic::ZERO)) => return Ok(entry),
            Some(TxTime::Tai(at)) if at.as_nanos() == 0 => return Err(DropReason::InvalidTime),
            Some(TxTime::Monotonic(at)) => (false, i128::from(at.as_nanos())),
            Some(TxTime::Tai(at)) => (true, i128::from(at.as_nanos())),
        };
        let now_there = clock(now, on_tai);
        if tx_time < now_there - age {
            match (frame.late, on_tai) {
                (LatePolicy::Drop | LatePolicy::Deadline, _) | (LatePolicy::ByClock, true) => {
                    return Err(DropReason::Missed);
                }
                (LatePolicy::Send, _) | (LatePolicy::ByClock, false) => {
                    entry.on_tai = on_tai;
                    entry.due = now_there - waited;
                    entry.late = true;
                }
            }
        } else if tx_time - now_there > i128::from(frame.horizon.get().max(0)) {
            return Err(DropReason::BeyondHorizon);
        } else if frame.late == LatePolicy::Deadline {
            entry.deadline = Some((on_tai, tx_time));
        } else {
            entry.on_tai = on_tai;
            // What fq's rule keeps however late is due no longer than what etf's rule keeps.
            let is_kept = !on_tai && frame.late != LatePolicy::Drop;
            entry.due = if is_kept { tx_time.max(now_there - waited) } else { tx_time };
            entry.on_time = true;
        }
        Ok(entry)
    }

    pub(crate) fn take(&mut self, frame: Frame, now: Now) -> Result<(), Refused> {
        self.see(now);
        self.judge(&frame, now).map_err(|reason| Refused { frame, reason })?;
        let entry = self.admit(&frame, now).unwrap();
        self.arrivals += 1;
        self.waiting.push(entry);
        Ok(())
    }

    pub(crate) fn remove(&mut self, predicate: impl Fn(&Frame) -> bool) -> Vec<Frame> {
        let (gone, kept) = self.waiting.iter().partition(|w| predicate(&w.frame));
        self.waiting = kept;
        gone.iter().map(|w: &Waiting| w.frame).collect()
    }

    pub(crate) fn configure(&mut self, admin: &AdminPort, now: Now) {
        self.see(now);
        self.timeline.set_admin(admin, clock(now, true));
        self.seen_timeline = self.timeline.clone();
    }

    pub(crate) fn observe(&mut self, now: Now) -> Status {
        // Management looks at gates, not at credits.
        self.timeline.advance(clock(now, true));
        self.timeline.status(clock(now, true))
    }

    /// A link of unknown speed is always free, and what was under way is forgotten.
    pub(crate) fn change_link_speed(&mut self, link_speed: Option<u64>) {
        self.link_speed = link_speed.filter(|&speed| speed > 0);
        if self.link_speed.is_none() {
            self.busy_until = None;
        }
    }

    /// Whether the frame is one of `class`, and nothing of its attachment there has to leave before it, due or not.
    fn is_first(&self, class: usize, index: usize) -> bool {
        let w = &self.waiting[index];
        let place = self.rule.place(&w.frame);
        let before = |other: &Waiting| self.rule.place(&other.frame) == place && other.arrival < w.arrival;
        w.class() == class && (self.classes[class].order == Order::TxTime || !self.waiting.iter().any(before))
    }

    /// The frame of `class` that alone may leave: whose turn it is, or will be soonest.
    fn head(&self, class: usize, now: Now) -> Option<usize> {
        (0..self.waiting.len()).filter(|&index| self.is_first(class, index)).max_by_key(|&index| {
            let w = &self.waiting[index];
            self.rule.rank(&w.frame, w.on_tai, w.due, w.arrival, now)
        })
    }

    /// Nanoseconds until the link may be given a frame (negative: since when).
    fn link_free_in(&self, now: Now) -> Option<i128> {
        let busy_until = self.busy_until?;
        self.link_speed?;
        Some(busy_until - self.hand_over - clock(now, false))
    }

    /// The first instant, in nanoseconds from now, at which this head would leave or be dropped, and which.
    fn earliest(&self, head: &Waiting, now: Now) -> Option<(i128, Outcome)> {
        let class = head.class();
        let needs = self.hand_over + self.wire_time(&head.frame);
        let tai = clock(now, true);
        let soonest = (-head.overdue(now)).max(self.link_free_in(now).unwrap_or(0)).max(0);
        let mut view = self.timeline.clone();
        let mut from = soonest;
        let mut at = None;
        if let Some(change) = view.pending_at() {
            // While a change is pending nothing is said never to fit: the new gates may be wider.
            if view.first_fit(class, needs, tai + soonest).is_some()
                && let Some(credit_in) = self.credit_wait(class, now, head)
            {
                at = view.first_fit(class, needs, tai + soonest.max(credit_in));
            }
            if at.is_none() {
                // One that lies beyond the frame's horizon as soon as it is due is not waited for.
                let fits = view.first_fit(class, needs, tai + soonest).is_some();
                if !fits && change - tai - soonest > i128::from(head.frame.horizon.get().max(0)) {
                    return Some((soonest, Outcome::NeverFits));
                }
                view.advance(change);
                from = soonest.max(change - tai);
            }
        }
        if at.is_none() {
            if view.first_fit(class, needs, tai + from).is_none() {
                return Some((from, Outcome::NeverFits));
            }
            let credit_in = self.credit_wait(class, now, head)?;
            at = view.first_fit(class, needs, tai + from.max(credit_in));
        }
        let after = at? - tai;
        let then = |on_tai| clock(now, on_tai) + after;
        let ready = view.ready(class, needs, then(true) - (then(head.on_tai) - head.due), then(true));
        let overrun = (then(true) - ready).max(0);
        // fq sends what it has, however late; etf drops.
        let counts = head.on_time && (head.on_tai || head.frame.late == LatePolicy::Drop);
        let overran = counts && overrun > i128::from(head.frame.overrun_limit.get().max(0));
        let expired = head.deadline.is_some_and(|(on_tai, deadline)| then(on_tai) > deadline);
        Some((after, if overran || expired { Outcome::Overrun } else { Outcome::Transmit }))
    }

    /// Nanoseconds until the credit of `class` is not negative, with `head` waiting as soon as it is due.
    fn credit_wait(&self, class: usize, now: Now, head: &Waiting) -> Option<i128> {
        let Some(idle_slope) = self.classes[class].idle_slope else { return Some(0) };
        let mut credit = self.credits[class];
        let at = clock(now, false);
        (0..200_000).find(|&after| {
            let waits = head.overdue(now) + after >= 0;
            credit.reset(at + after, waits);
            let is_enough = credit.is_enough();
            let open = self.timeline.is_open(class, clock(now, true) + after);
            credit.tick(at + after, idle_slope.into(), waits, open);
            is_enough
        })
    }

    pub(crate) fn wanted(&mut self, now: Now) -> Wanted {
        self.see(now);
        // Highest class first, so that of equal instants the highest class's is kept.
        let mut best: Option<(i128, Outcome, usize)> = None;
        let mut held = None;
        for class in (0..8).rev() {
            let Some(index) = self.head(class, now) else { continue };
            let Some((after, outcome)) = self.earliest(&self.waiting[index], now) else { continue };
            // The hand-over would still be under way when the higher class's frame on time leaves.
            let guard = if self.held.is_some_and(|held| held.1) { 0 } else { self.hand_over.min(20_000) };
            let held_back = best.is_some_and(|(soonest, _, best): (i128, _, usize)| {
                self.waiting[best].on_time && after < soonest && soonest < after + guard
            });
            if held_back {
                held = held.or(Some(class));
            }
            if !held_back && best.is_none_or(|(soonest, _, _)| after < soonest) {
                best = Some((after, outcome, index));
            }
        }
        if let Some(class) = held.filter(|&class| self.held.is_none_or(|held| held.0 < class)) {
            self.held = Some((class, false));
        }
        let Some((after, outcome, index)) = best else { return Wanted::Idle };
        if after > 0 {
            return self.wake_at(now, after, index);
        }
        let head = self.waiting.remove(index);
        let frame = head.frame;
        self.held = self.held.filter(|held| head.class() > held.0).map(|held| (held.0, true));
        self.rule.serve(&frame, head.due, now);
        match outcome {
            Outcome::NeverFits => return Wanted::Drop { frame, reason: DropReason::GateNeverFits },
            Outcome::Overrun => return Wanted::Drop { frame, reason: DropReason::Overrun },
            Outcome::Transmit => {}
        }
        let (class, tai) = (head.class(), clock(now, true));
        let duration = self.wire_time(&frame);
        let needs = self.hand_over + duration;
        let ready = self.timeline.ready(class, needs, tai - head.overdue(now), tai);
        let mono = clock(now, false);
        let wire_free = self.busy_until.unwrap_or(0).max(mono + self.hand_over);
        self.busy_until = self.link_speed.map(|_| wire_free + duration);
        self.credits[class].spend(mono, duration, i128::from(frame.wire_octets) * 8);
        Wanted::Transmit {
            frame,
            overrun: (tai - ready).max(0),
            late: head.late,
            window: self.timeline.window(class, needs, tai),
        }
    }

    /// On the clock of the last requirement to be met; of equal ones in the order due, link, gate, credit.
    fn wake_at(&self, now: Now, after: i128, index: usize) -> Wanted {
        let head = &self.waiting[index];
        let is_shaped = self.classes[head.class()].idle_slope.is_some();
        let (on_tai, on_monotonic) = if -head.overdue(now) == after {
            (head.on_tai, !head.on_tai)
        } else if self.link_free_in(now) == Some(after) {
            (is_shaped, true)
        } else {
            // Credit grows while the gate is open: where both are waited for, either is the last.
            (true, is_shaped)
        };
        Wanted::WakeAt { after, on_tai, on_monotonic, next: head.frame.id }
    }
}
