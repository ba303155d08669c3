// SPDX-License-Identifier: Apache-2.0
//! Time-aware transmission selection (802.1Q-2022 clauses 8.6.8 and 8.6.9): gates, guard bands, a paced link.
//!
//! In: frames with due instants on two clocks, gate programs, the link's speed. Out: the head of the highest class with a head that is
//! due, a gate that is open for long enough, and credit; else the instant at which there will be one.
//! Never: a frame before its due instant, outside of its window, or that would not end in it.

mod burst;
mod fits;
mod guard;
mod link;
mod options;
mod shaping;
mod status;

pub use options::{ClassOptions, Order, Shaper, TimeAwareOptions};
pub use status::GateStatus;

use crate::credit::Credit;
use crate::decision::{Decision, Refused, Window, is_overrun, is_past_deadline, judge_time, queued};
use crate::frame::Frame;
use crate::gate::{Fit, GateProgram, Gates};
use crate::queue::{CLOCKS, Head, Node, QUEUES, Queues};
use alloc::boxed::Box;
use fits::Fits;
use guard::Guard;
use ktsn_model::{DropReason, TrafficClass};
use ktsn_time::{Nanos, Now, Span, Tai, TxTime};
use link::Link;
use shaping::Shaping;

/// Transmission selection with gates.
///
/// A frame may leave when it is due, its class's gate is open, and hand-over latency plus transmission end before the gate closes. The
/// link is paced: the next frame is chosen as late as it may be handed over, so that a higher class never waits for more than one. A
/// hand-over takes the worker's time: a lower class does not begin one that would still be under way when a higher class's frame on time
/// may leave. A class that was held back once goes before it is held back again.
///
/// # Examples
/// ```
/// use ktsn_model::{AdminPort, GateControlEntry, GateOperation, GateStates, LatePolicy, TrafficClass};
/// use ktsn_sched::{Decision, Frame, FrameId, GateProgram, TimeAware, TimeAwareOptions, Window};
/// use ktsn_time::{Monotonic, Nanos, Now, Tai, TxTime};
///
/// let at = |micros: u64| Now { tai: Tai::from_nanos(micros * 1_000), monotonic: Monotonic::from_nanos(micros * 1_000) };
/// let entry = |states, micros| GateControlEntry {
///     operation: GateOperation::SetGateStates,
///     states: GateStates::from_bits(states),
///     interval: Nanos::from_micros(micros),
/// };
/// let mut selection = TimeAware::new(TimeAwareOptions {
///     link_speed: Some(1_000_000_000),
///     hand_over: Nanos::from_micros(5),
///     ..TimeAwareOptions::gates(1024, 1)
/// });
/// let program = GateProgram::new(&AdminPort {
///     gate_enabled: true,
///     cycle_time: Nanos::from_micros(500),
///     control_list: vec![entry(0x7f, 400), entry(0x80, 100)],
///     ..AdminPort::default()
/// })?;
/// assert!(selection.set_admin(Box::new(program), at(0)).is_none());
/// let frame = Frame {
///     id: FrameId(1),
///     attachment: 0,
///     class: TrafficClass::new(7)?,
///     tx_time: Some(TxTime::Tai(Tai::from_nanos(50_000))),
///     pushed_at: Monotonic::ZERO,
///     wire_octets: 125,
///     sdu_octets: 83,
///     late: LatePolicy::ByClock,
///     overrun_limit: Nanos::from_millis(1),
///     horizon: Nanos::from_seconds(10),
/// };
/// selection.offer(frame, at(10))?;
/// let opens_at = Tai::from_nanos(400_000);
/// assert_eq!(selection.decide(at(60)), Decision::WakeAt { at: TxTime::Tai(opens_at), next: FrameId(1) });
/// // 5 µs to the wire and 1 µs on it end with the window at 500 µs. Waiting for the gate is no overrun.
/// let window = Some(Window { opens_at, latest: Tai::from_nanos(494_000) });
/// assert_eq!(
///     selection.decide(at(402)),
///     Decision::Transmit { frame, overrun: Nanos::from_micros(2), late: false, window }
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TimeAware {
    queues: Queues,
    gates: Gates,
    fits: Fits,
    link: Link,
    guard: Guard,
    classes: [ClassOptions; TrafficClass::COUNT],
    shaping: Shaping,
    transmission_overrun: [u64; TrafficClass::COUNT],
    has_gates: bool,
    /// The last instant of a call: frames that are removed leave then.
    last: Now,
}

/// The soonest instant at which a class will be chosen: `after` from now. The frame is due in `wait`; gates aside it may leave in `from`.
#[derive(Clone, Copy, Debug)]
struct Wake {
    on_time: bool,
    queue: usize,
    after: Span,
    from: Span,
    wait: Span,
}

/// The answer about a class at an instant.
enum Verdict {
    /// Its head leaves now.
    Leave,
    /// Its head can never leave.
    NeverFits,
    /// The class waits, and is the soonest so far.
    Wait(Wake),
    /// The class waits, and another one is not later.
    Later,
}

impl TimeAware {
    /// Transmission selection with every gate open. Nothing is allocated later.
    #[must_use]
    pub fn new(options: TimeAwareOptions) -> Self {
        Self {
            queues: Queues::new(options.capacity, options.attachments),
            gates: Gates::default(),
            fits: Fits::new(),
            link: Link::new(options.link_speed, options.hand_over),
            guard: Guard::default(),
            classes: options.classes,
            shaping: Shaping::new(&options.classes),
            transmission_overrun: [0; TrafficClass::COUNT],
            has_gates: options.has_gates,
            last: Now::default(),
        }
    }

    /// Whether it can run a gate program.
    #[must_use]
    pub const fn has_gates(&self) -> bool {
        self.has_gates
    }

    /// The credit of `class` at `now`, or at the end of the transmission that is under way; `None` for a class without a shaper.
    pub fn credit(&mut self, class: TrafficClass, now: Now) -> Option<Credit> {
        self.advance(now);
        self.update_shaping(now);
        self.shaping.credit(usize::from(class.get()))
    }

    /// Writes all of its room once, so that no frame waits for memory: for a port that many use.
    pub fn touch(&mut self) {
        self.queues.touch();
    }

    /// Configure `program` at `now` (8.6.9.3): it takes over at its config change time, or at once if it is disabled or has no entries.
    /// Returns the pending program that it displaces, for the caller to free; where there is none, a program that a change replaced, if one
    /// was not [taken](Self::take_retired) yet. Without gates it returns `program`.
    pub fn set_admin(&mut self, program: Box<GateProgram>, now: Now) -> Option<Box<GateProgram>> {
        if !self.has_gates {
            return Some(program);
        }
        self.queues.forget_turns_if_clock_stepped(now);
        self.advance(now);
        self.update_shaping(now);
        self.fits.forget();
        self.gates.set_admin(program, now.tai)
    }

    /// A program that a change replaced, to be freed elsewhere.
    pub fn take_retired(&mut self) -> Option<Box<GateProgram>> {
        self.gates.take_retired()
    }

    /// How long a frame takes from its hand-over to the wire; below 0 counts as 0. Without gates nothing changes.
    pub fn set_hand_over(&mut self, hand_over: Nanos) {
        if self.has_gates {
            self.fits.forget();
            self.link.set_hand_over(hand_over);
        }
    }

    /// The link's speed in bit/s; `None` or 0 if it is unknown. Without gates and shapers nothing changes: frames are not paced then.
    pub fn set_link_speed(&mut self, link_speed: Option<u64>) {
        if self.has_gates || self.shaping.is_any() {
            self.fits.forget();
            self.link.set_speed(link_speed);
        }
    }

    /// Sets the options of the classes, class 0 first. Queued frames stay, whatever their length; where an order changes, they are
    /// sorted again, which takes O(n log n).
    pub fn set_classes(&mut self, classes: [ClassOptions; TrafficClass::COUNT]) {
        // Credits change by the classes of the time before.
        self.update_shaping(self.last);
        let is_sorted = self.classes.iter().zip(&classes).all(|(old, new)| old.order == new.order);
        self.classes = classes;
        self.shaping.set_classes(&classes);
        if !is_sorted {
            self.queues.rearrange(&mut |node, frame| {
                let class = usize::from(frame.class.get());
                node.place(class, classes[class].order == Order::Fifo);
            });
        }
    }

    /// Counts a hand-over of `class` that ended after its window's latest instant (`transmission-overrun`, 12.29.1.1.2).
    pub fn overran(&mut self, class: TrafficClass) {
        let count = &mut self.transmission_overrun[usize::from(class.get())];
        *count = count.saturating_add(1);
    }

    /// Whether the head of a class is a frame on time that may leave within `span` of `now`. Link and shapers are left out. A worker
    /// that slept for `span` would send such a frame late.
    pub fn is_timed_within(&mut self, span: Nanos, now: Now) -> bool {
        self.advance(now);
        let span = Span::not_negative(span);
        let position = self.gates.position(now.tai);
        (0..QUEUES).any(|queue| {
            let Some((node, frame)) = self.queues.first(queue) else { return false };
            let wait = Span::not_negative(node.due().ahead_of(now));
            let need = self.link.need(frame.wire_octets);
            let is_soon = |after| after <= span;
            node.on_time
                && is_soon(wait)
                && self
                    .gates
                    .next_fit(&position, queue / CLOCKS, wait, need)
                    .is_some_and(|fit| is_soon(fit.after))
        })
    }

    /// The state of the gates at `now`, after a change that is due by then. Nothing is allocated: parameters are shared.
    pub fn status(&mut self, now: Now) -> GateStatus {
        self.advance(now);
        let position = self.gates.position(now.tai);
        let pending = self.gates.pending_change_at();
        let oper = self.gates.oper_admin().cloned();
        GateStatus {
            oper_gate_states: self.gates.states(&position),
            config_pending: pending.is_some(),
            config_change_time: pending.or(self.gates.oper_start()),
            config_change_error: self.gates.config_change_error(),
            current_cycle_start: self.gates.current_cycle_start(&position),
            admin: self.gates.pending_admin().cloned().or(oper.clone()),
            oper,
            transmission_overrun: self.transmission_overrun,
        }
    }

    /// Let a gate change that is due at `now` take place.
    fn advance(&mut self, now: Now) {
        self.last = now;
        if self.gates.pending_change_at().is_some_and(|at| at <= now.tai) {
            // While the gates before the change are still known.
            self.update_shaping(now);
            self.fits.forget();
            self.gates.advance(now.tai);
        }
    }

    fn update_shaping(&mut self, now: Now) {
        for class in 0..TrafficClass::COUNT {
            if self.shaping.is_shaped(class) {
                let head = self.queues.head(class, now);
                self.shaping.update(class, head.as_ref(), now, &self.gates);
            }
        }
    }

    /// Transmit `head`, which may leave now, or drop it as `overrun`.
    fn take(&mut self, class: usize, head: &Head, now: Now) -> Option<Decision> {
        let position = self.gates.position(now.tai);
        let window = self.gates.window(&position, class)?;
        let (node, frame) = self.queues.pop(head.queue, now)?;
        let need = self.link.need(frame.wire_octets);
        let overrun = self.overrun(class, head, window.opens_at, need, now);
        if (node.on_time && is_overrun(&frame, overrun)) || is_past_deadline(&frame, now) {
            return Some(Decision::Drop { frame, reason: DropReason::Overrun });
        }
        self.link.transmit(now.monotonic, frame.wire_octets);
        if self.shaping.is_shaped(class) {
            let taken = self.link.transmission_time(frame.wire_octets);
            self.shaping.transmit(class, now, taken, frame.wire_octets);
        }
        let window = (window.rest != Span::ENDLESS)
            .then(|| Window { opens_at: window.opens_at, latest: now.tai.after(window.rest - need) });
        Some(Decision::Transmit { frame, overrun: overrun.to_nanos(), late: node.late, window })
    }

    /// Time since the frame could have left if it were alone: from its due instant on, and under the program in force.
    fn overrun(&self, class: usize, head: &Head, opens_at: Tai, need: Span, now: Now) -> Span {
        let Some(start) = self.gates.oper_start() else { return head.overdue };
        let due = now.tai.before(head.overdue).max(start);
        let overdue = now.tai.span_since(due);
        if due >= opens_at {
            return overdue;
        }
        // It was due before this window opened; perhaps it has slept through others.
        let then = self.gates.position_of(due);
        let fit = self.gates.next_fit(&then, class, Span::ZERO, need);
        overdue.saturating_sub(fit.map_or(Span::ENDLESS, |fit| fit.after))
    }

    /// Time from `now` until a frame of `wire_octets` fits into a window of `class`, at least `from`.
    fn next_fit(&mut self, class: usize, wire_octets: u32, from: Span, now: Now) -> Option<Span> {
        let at = now.tai.checked_after(from);
        if let Some(after) = at.and_then(|at| self.fits.after(class, wire_octets, at)) {
            return Some(from.saturating_add(after));
        }
        let need = self.link.need(wire_octets);
        let position = self.gates.position(now.tai);
        let fit = self.gates.next_fit(&position, class, from, need)?;
        if let Some(at) = at {
            self.fits.learn(class, wire_octets, at, Fit { after: fit.after - from, ..fit }, need);
        }
        Some(fit.after)
    }

    /// Decides about `head`, the head of `class`: it leaves now, is dropped, or waits until an instant before `soonest`.
    fn consider(
        &mut self,
        class: usize,
        head: &Head,
        ready: Span,
        now: Now,
        soonest: Option<Span>,
    ) -> Verdict {
        let Some((node, frame)) = self.queues.first(head.queue) else { return Verdict::Later };
        let on_time = node.on_time;
        let (wire_octets, horizon) = (frame.wire_octets, Span::not_negative(frame.horizon));
        let mut from = ready;
        if self.shaping.is_shaped(class) {
            from = self.shaping.allowed_after(class, head, ready, now, &self.gates);
        }
        let change = self.gates.pending_change_at().map(|at| at.span_since(now.tai));
        let mut fit = self.next_fit(class, wire_octets, from, now);
        let is_beyond = |fit: Option<Span>, change| fit.is_none_or(|after| after >= change);
        if let Some(change) = change.filter(|&change| is_beyond(fit, change)) {
            // A frame that lacks credit only waits. A frame that fits nowhere before a change waits for the change, unless that is
            // beyond its horizon: one long frame would stop its class until then.
            let is_far = change.saturating_sub(ready) > horizon;
            let is_given_up = is_far && is_beyond(self.next_fit(class, wire_octets, ready, now), change);
            fit = if is_given_up { None } else { fit.or(Some(ready.max(change))) };
        }
        let after = match fit {
            Some(Span::ZERO) => return Verdict::Leave,
            Some(after) => after,
            None if ready == Span::ZERO => return Verdict::NeverFits,
            // It will be dropped when its turn comes.
            None => ready,
        };
        if soonest.is_some_and(|soonest| after >= soonest) {
            return Verdict::Later;
        }
        Verdict::Wait(Wake { on_time, queue: head.queue, after, from, wait: head.wait })
    }

    /// Judges a frame that is offered at `now` and makes its node. ktsnd's worker has called [`judge_time`] before, ahead of the route;
    /// here it gives the due instant, and refuses frames of other callers.
    fn admitted(&mut self, frame: &Frame, now: Now) -> Result<Node, Refused> {
        self.queues.forget_turns_if_clock_stepped(now);
        self.advance(now);
        let class = usize::from(frame.class.get());
        if self.classes[class].queue_max_sdu.is_some_and(|most| frame.sdu_octets > most) {
            return Err(Refused { frame: *frame, reason: DropReason::TooLong });
        }
        let admission = match judge_time(frame, now) {
            Ok(admission) => admission,
            Err(reason) => return Err(Refused { frame: *frame, reason }),
        };
        if self.shaping.is_shaped(class) {
            // It does not wait before it is here, even if it has been due for longer.
            let head = self.queues.head(class, now);
            self.shaping.update(class, head.as_ref(), now, &self.gates);
        }
        let mut node = Node::new(&admission);
        node.place(class, self.classes[class].order == Order::Fifo);
        Ok(node)
    }

    fn wake(&self, wake: &Wake, now: Now) -> Option<Decision> {
        let (node, frame) = self.queues.first(wake.queue)?;
        let at = if wake.after == wake.wait {
            node.due()
        } else if wake.after == wake.from {
            TxTime::Monotonic(now.monotonic.after(wake.after))
        } else {
            TxTime::Tai(now.tai.after(wake.after))
        };
        Some(Decision::WakeAt { at, next: frame.id })
    }

    /// Queue a frame.
    ///
    /// # Errors
    /// [`Refused`] hands it back with the reason; nothing else has changed then.
    pub fn offer(&mut self, frame: Frame, now: Now) -> Result<(), Refused> {
        let node = self.admitted(&frame, now)?;
        queued(self.queues.insert(node, &frame), frame)
    }

    /// As [`offer`](Self::offer), for the last frame that was transmitted and did not leave: in front of those that it was chosen before.
    ///
    /// # Errors
    /// The same.
    pub fn put_back(&mut self, frame: Frame, now: Now) -> Result<(), Refused> {
        let node = self.admitted(&frame, now)?;
        queued(self.queues.put_back(node, &frame), frame)
    }

    /// What to do at `now`: asked with a fresh `now` until it is `WakeAt` or `Idle`. Each frame offered comes out once.
    pub fn decide(&mut self, now: Now) -> Decision {
        self.queues.forget_turns_if_clock_stepped(now);
        self.advance(now);
        if self.queues.len() == 0 {
            return Decision::Idle;
        }
        if self.shaping.is_any() {
            // Every class, whatever is chosen: a step of TAI counts from the decision before.
            self.update_shaping(now);
        }
        let link_wait = self.link.wait(now.monotonic);
        let guard = if self.guard.is_up() { self.link.hand_over_span() } else { Span::ZERO };
        let mut soonest: Option<Wake> = None;
        for class in (0..TrafficClass::COUNT).rev() {
            let Some(head) = self.queues.head(class, now) else { continue };
            let ready = head.wait.max(link_wait);
            let before = soonest.map(|wake| wake.after);
            if before.is_some_and(|before| ready >= before) {
                continue;
            }
            // A hand-over that begins `after` from now would still be under way when a higher class's frame on time is due.
            let holds_back = |after: Span| {
                soonest.is_some_and(|wake| wake.on_time && wake.after.saturating_sub(after) < guard)
            };
            let decision = match self.consider(class, &head, ready, now, before) {
                Verdict::Later => continue,
                Verdict::Wait(wake) if holds_back(wake.after) => {
                    self.guard.hold(class);
                    continue;
                }
                Verdict::Wait(wake) => {
                    soonest = Some(wake);
                    continue;
                }
                Verdict::Leave | Verdict::NeverFits if holds_back(Span::ZERO) => {
                    self.guard.hold(class);
                    break;
                }
                Verdict::Leave => self.take(class, &head, now),
                Verdict::NeverFits => self
                    .queues
                    .pop(head.queue, now)
                    .map(|(_, frame)| Decision::Drop { frame, reason: DropReason::GateNeverFits }),
            };
            self.guard.chosen(class);
            return decision.unwrap_or(Decision::Idle);
        }
        soonest.and_then(|wake| self.wake(&wake, now)).unwrap_or(Decision::Idle)
    }

    /// Take out every frame that `predicate` names and hand it to `out`, in no particular order. Those that stay keep theirs.
    pub fn remove(&mut self, predicate: &mut dyn FnMut(&Frame) -> bool, out: &mut dyn FnMut(Frame)) {
        self.update_shaping(self.last);
        self.queues.remove(predicate, out);
    }

    /// Take out at most `most` frames of `attachment` and hand them to `out`, in no particular order, in O(most log n) for n queued
    /// frames; whether more may be left. Where attachments share a place ([`TimeAwareOptions`]), it may take out more at once.
    pub fn remove_attachment(&mut self, attachment: u32, most: usize, out: &mut dyn FnMut(Frame)) -> bool {
        self.update_shaping(self.last);
        self.queues.remove_attachment(attachment, most, out)
    }

    /// How many frames are queued.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queues.len()
    }

    /// Whether nothing is queued.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many frames can be queued.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.queues.capacity()
    }
}

#[cfg(test)]
mod tests;
