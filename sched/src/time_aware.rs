// SPDX-License-Identifier: Apache-2.0
//! Time-aware transmission selection (802.1Q-2022 clauses 8.6.8 and 8.6.9): gates, guard bands, a paced link.
//!
//! In: frames with due instants on two clocks, gate programs, the link's speed. Out: of the classes whose head is due, whose
//! gate is open for long enough and whose shaper agrees, the highest one's head; else when that will be.
//! Never: a frame before its due instant, outside of its window, or that would not end in it.

mod fits;
mod guard;
mod link;
mod options;
mod shaping;
mod status;

pub use options::{ClassOptions, Order, Shaper, TimeAwareOptions};
pub use status::GateStatus;

use crate::admission::{admit, is_overrun, is_past_deadline};
use crate::frame::Frame;
use crate::gate::{ENDLESS, Fit, GateProgram, Gates};
use crate::queue::{CLOCKS, Head, Node, QUEUES, Queues};
use crate::strategy::{Decision, Refused, Strategy, Window, queued};
use alloc::boxed::Box;
use fits::Fits;
use guard::Guard;
use ktsn_model::{DropReason, TrafficClass};
use ktsn_time::{Monotonic, Nanos, Now, Tai, TxTime};
use link::Link;
use shaping::Shaping;

/// Transmission selection with gates.
///
/// A frame may leave when it is due, its class's gate is open, and hand-over latency plus transmission end before the
/// gate closes. The link is paced: the next frame is chosen as late as it may be handed over, so that a higher class
/// never waits for more than one frame. A hand-over takes the worker's time: none of a lower class begins that would still be under way when a
/// higher one's frame on time may leave; what was held back that way once goes before it is held back again.
///
/// # Examples
/// ```
/// use ktsn_model::{AdminPort, GateControlEntry, GateOperation, GateStates, LatePolicy, TrafficClass};
/// use ktsn_sched::{Decision, Frame, FrameId, GateProgram, Strategy, TimeAware, TimeAwareOptions, Window};
/// use ktsn_time::{Monotonic, Nanos, Now, Tai, TxTime};
///
/// let at = |micros: u64| Now { tai: Tai::from_nanos(micros * 1_000), monotonic: Monotonic::from_nanos(micros * 1_000) };
/// let entry = |states, micros| GateControlEntry {
///     operation: GateOperation::SetGateStates,
///     states: GateStates::from_bits(states),
///     interval: Nanos::from_micros(micros),
/// };
/// let mut selection = TimeAware::new(TimeAwareOptions {
///     capacity: 1024,
///     tenants: 1,
///     link_speed: Some(1_000_000_000),
///     hand_over: Nanos::from_micros(5),
///     classes: Default::default(),
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
///     tenant: 0,
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
}

/// The soonest instant at which a class will be chosen: `after` from now. The frame is due in `wait`; gates aside it may leave in `from`.
#[derive(Clone, Copy, Debug)]
struct Wake {
    on_time: bool,
    queue: usize,
    after: u64,
    from: u64,
    wait: u64,
}

impl TimeAware {
    /// Transmission selection with every gate open. Nothing is allocated later.
    #[must_use]
    pub fn new(options: TimeAwareOptions) -> Self {
        Self {
            queues: Queues::new(options.capacity, options.tenants),
            gates: Gates::default(),
            fits: Fits::new(),
            link: Link::new(options.link_speed, options.hand_over),
            guard: Guard::default(),
            classes: options.classes,
            shaping: Shaping::new(&options.classes),
            transmission_overrun: [0; TrafficClass::COUNT],
        }
    }

    /// Writes all of its room once, so that no frame waits for memory: for a port that many use.
    pub fn touch(&mut self) {
        self.queues.touch();
    }

    /// Configure `program` at `now` (8.6.9.3): it takes over at its config change time, or at once if it is disabled or has no entries.
    /// Gives back the pending program that it displaces, to be freed elsewhere; where there is none, perhaps one
    /// that a change replaced and nobody [took](Self::take_retired).
    pub fn set_admin(&mut self, program: Box<GateProgram>, now: Now) -> Option<Box<GateProgram>> {
        self.queues.see(now);
        self.advance(now);
        self.update_shaping(now);
        self.fits.forget();
        self.gates.set_admin(program, now.tai.as_nanos())
    }

    /// A program that a change replaced, to be freed elsewhere.
    pub fn take_retired(&mut self) -> Option<Box<GateProgram>> {
        self.gates.take_retired()
    }

    /// How long a frame takes from its hand-over to the wire; below 0 counts as 0.
    pub fn set_hand_over(&mut self, hand_over: Nanos) {
        self.fits.forget();
        self.link.set_hand_over(hand_over);
    }

    /// The link's speed in bit/s; `None` or 0 if it is unknown.
    pub fn set_link_speed(&mut self, link_speed: Option<u64>) {
        self.fits.forget();
        self.link.set_speed(link_speed);
    }

    /// What the classes are from now on, class 0 first. Queued frames stay, whatever their length; where an order changes, they are
    /// sorted anew, which takes O(n log n).
    pub fn set_classes(&mut self, classes: [ClassOptions; TrafficClass::COUNT]) {
        let is_sorted = self.classes.iter().zip(&classes).all(|(old, new)| old.order == new.order);
        self.classes = classes;
        self.shaping.set_classes(&classes);
        if !is_sorted {
            self.queues.rearrange(&mut |node, frame| place(node, index(frame.class), &classes));
        }
    }

    /// A hand-over of `class` ended after its window's latest instant (`transmission-overrun`, 12.29.1.1.2).
    pub fn overran(&mut self, class: TrafficClass) {
        let count = &mut self.transmission_overrun[index(class)];
        *count = count.saturating_add(1);
    }

    /// Whether the head of a class is a frame on time that may leave within `span` of `now`, links and shapers aside: one that a
    /// sleep of that length would oversleep.
    pub fn is_timed_within(&mut self, span: Nanos, now: Now) -> bool {
        self.advance(now);
        let span = span.get().max(0).unsigned_abs();
        let position = self.gates.position(now.tai.as_nanos());
        (0..QUEUES).any(|queue| {
            let Some((node, frame)) = self.queues.first(queue) else { return false };
            let wait = node.due().ahead_of(now).get().max(0).unsigned_abs();
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

    /// What the gates are at `now`, after a change that is due by then.
    pub fn status(&mut self, now: Now) -> GateStatus<'_> {
        self.advance(now);
        let position = self.gates.position(now.tai.as_nanos());
        let pending = self.gates.pending_change_at();
        let oper = self.gates.oper_admin();
        GateStatus {
            oper_gate_states: self.gates.states(&position),
            config_pending: pending.is_some(),
            config_change_time: pending.or(self.gates.oper_start()).map(Tai::from_nanos),
            config_change_error: self.gates.config_change_error(),
            current_cycle_start: self.gates.current_cycle_start(&position).map(Tai::from_nanos),
            oper,
            admin: self.gates.pending_admin().or(oper),
            transmission_overrun: self.transmission_overrun,
        }
    }

    /// Bring the programs up to date.
    fn advance(&mut self, now: Now) {
        if self.gates.pending_change_at().is_some_and(|at| at <= now.tai.as_nanos()) {
            // While the gates before the change are still known.
            self.update_shaping(now);
            self.fits.forget();
            self.gates.advance(now.tai.as_nanos());
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
        let position = self.gates.position(now.tai.as_nanos());
        let window = self.gates.window(&position, class)?;
        let (node, frame) = self.queues.pop(head.queue, now)?;
        let need = self.link.need(frame.wire_octets);
        let overrun = self.overrun(class, head, window.opens_at, need, now);
        if (node.on_time && is_overrun(&frame, overrun)) || is_past_deadline(&frame, now) {
            return Some(self.dropped(class, frame, DropReason::Overrun, now));
        }
        self.link.transmit(now.monotonic, frame.wire_octets);
        if self.shaping.is_shaped(class) {
            let taken = self.link.transmission_time(frame.wire_octets);
            let next = self.queues.head(class, now);
            self.shaping.transmit(class, next.as_ref(), now, taken, frame.wire_octets);
        }
        let window = (window.rest != ENDLESS).then(|| Window {
            opens_at: Tai::from_nanos(window.opens_at),
            latest: Tai::from_nanos(now.tai.as_nanos().saturating_add(window.rest - need)),
        });
        let overrun = Nanos::new(i64::try_from(overrun).unwrap_or(i64::MAX));
        Some(Decision::Transmit { frame, overrun, late: node.late, window })
    }

    /// `frame` is dropped from the head of `class`.
    fn dropped(&mut self, class: usize, frame: Frame, reason: DropReason, now: Now) -> Decision {
        if self.shaping.is_shaped(class) {
            let next = self.queues.head(class, now);
            self.shaping.drop_head(class, next.as_ref());
        }
        Decision::Drop { frame, reason }
    }

    /// Time since the frame alone could have left: from its due instant on, and under the program in force.
    fn overrun(&self, class: usize, head: &Head, opens_at: u64, need: u64, now: Now) -> u64 {
        let Some(start) = self.gates.oper_start() else { return head.overdue };
        let now = now.tai.as_nanos();
        let due = now.saturating_sub(head.overdue).max(start);
        let overdue = now.saturating_sub(due);
        if due >= opens_at {
            return overdue;
        }
        // It was due before this window opened; perhaps it has slept through others.
        let then = self.gates.position_of(due);
        overdue.saturating_sub(self.gates.next_fit(&then, class, 0, need).map_or(u64::MAX, |fit| fit.after))
    }

    /// Time from `now` until a frame of `wire_octets` fits into a window of `class`, at least `from`.
    fn next_fit(&mut self, class: usize, wire_octets: u32, from: u64, now: Now) -> Option<u64> {
        let now = now.tai.as_nanos();
        let at = now.checked_add(from);
        if let Some(after) = at.and_then(|at| self.fits.after(class, wire_octets, at)) {
            return Some(from.saturating_add(after));
        }
        let need = self.link.need(wire_octets);
        let position = self.gates.position(now);
        let fit = self.gates.next_fit(&position, class, from, need)?;
        if let Some(at) = at {
            self.fits.learn(class, wire_octets, at, Fit { after: fit.after - from, ..fit }, need);
        }
        Some(fit.after)
    }

    /// What the class of `head` does: leave now, be dropped, or wait until an instant before `soonest`.
    fn consider(&mut self, class: usize, head: &Head, ready: u64, now: Now, soonest: Option<u64>) -> Verdict {
        let Some((node, frame)) = self.queues.first(head.queue) else { return Verdict::Later };
        let on_time = node.on_time;
        let (wire_octets, horizon) = (frame.wire_octets, frame.horizon.get().unsigned_abs());
        let mut from = ready;
        if self.shaping.is_shaped(class) {
            self.shaping.update(class, Some(head), now, &self.gates);
            from = self.shaping.allowed_after(class, head, ready, now, &self.gates);
        }
        let change = self.gates.pending_change_at().map(|at| at - now.tai.as_nanos());
        let mut fit = self.next_fit(class, wire_octets, from, now);
        let is_beyond = |fit: Option<u64>, change| fit.is_none_or(|after| after >= change);
        if let Some(change) = change.filter(|&change| is_beyond(fit, change)) {
            // What only lacks credit waits. What fits nowhere before a change waits for that, but for none beyond its horizon: one
            // long frame would stop its class until then.
            let is_far = change.saturating_sub(ready) > horizon;
            let is_given_up = is_far && is_beyond(self.next_fit(class, wire_octets, ready, now), change);
            fit = if is_given_up { None } else { fit.or(Some(ready.max(change))) };
        }
        let after = match fit {
            Some(0) => return Verdict::Leave,
            Some(after) => after,
            None if ready == 0 => return Verdict::NeverFits,
            // It will be dropped when its turn comes.
            None => ready,
        };
        if soonest.is_some_and(|soonest| after >= soonest) {
            return Verdict::Later;
        }
        Verdict::Wait(Wake { on_time, queue: head.queue, after, from, wait: head.wait })
    }

    /// Where a frame that comes now waits.
    fn admitted(&mut self, frame: &Frame, now: Now) -> Result<Node, Refused> {
        self.queues.see(now);
        self.advance(now);
        let class = index(frame.class);
        if self.classes[class].queue_max_sdu.is_some_and(|most| frame.sdu_octets > most) {
            return Err(Refused { frame: *frame, reason: DropReason::TooLong });
        }
        let admission = match admit(frame, now) {
            Ok(admission) => admission,
            Err(reason) => return Err(Refused { frame: *frame, reason }),
        };
        if self.shaping.is_shaped(class) {
            // It does not wait before it is here, even if it has been due for longer.
            let head = self.queues.head(class, now);
            self.shaping.update(class, head.as_ref(), now, &self.gates);
        }
        let mut node = Node::new(&admission);
        place(&mut node, class, &self.classes);
        Ok(node)
    }

    fn wake(&self, wake: &Wake, now: Now) -> Option<Decision> {
        let on_tai = |at| TxTime::Tai(Tai::from_nanos(at));
        let on_monotonic = |at| TxTime::Monotonic(Monotonic::from_nanos(at));
        let (node, frame) = self.queues.first(wake.queue)?;
        let at = if wake.after == wake.wait {
            node.due()
        } else if wake.after == wake.from {
            on_monotonic(now.monotonic.as_nanos().saturating_add(wake.after))
        } else {
            on_tai(now.tai.as_nanos().saturating_add(wake.after))
        };
        Some(Decision::WakeAt { at, next: frame.id })
    }
}

/// What a class does at an instant.
enum Verdict {
    /// Its head leaves now.
    Leave,
    /// Its head can never leave.
    NeverFits,
    /// It waits, and is the soonest so far.
    Wait(Wake),
    /// It waits, and another one is not later.
    Later,
}

impl Strategy for TimeAware {
    fn offer(&mut self, frame: Frame, now: Now) -> Result<(), Refused> {
        let node = self.admitted(&frame, now)?;
        queued(self.queues.insert(node, &frame), frame)
    }

    fn put_back(&mut self, frame: Frame, now: Now) -> Result<(), Refused> {
        let node = self.admitted(&frame, now)?;
        queued(self.queues.put_back(node, &frame), frame)
    }

    fn decide(&mut self, now: Now) -> Decision {
        self.queues.see(now);
        self.advance(now);
        if self.queues.len() == 0 {
            return Decision::Idle;
        }
        let link_wait = self.link.wait(now.monotonic);
        let guard = if self.guard.is_up() { self.link.guard() } else { 0 };
        let mut soonest: Option<Wake> = None;
        for class in (0..TrafficClass::COUNT).rev() {
            let Some(head) = self.queues.head(class, now) else { continue };
            let ready = head.wait.max(link_wait);
            let before = soonest.map(|wake| wake.after);
            if before.is_some_and(|before| ready >= before) {
                continue;
            }
            // A hand-over that begins `after` from now would still be under way when a higher class's frame on time is due.
            let holds_back =
                |after| soonest.is_some_and(|wake| wake.on_time && wake.after.saturating_sub(after) < guard);
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
                Verdict::Leave | Verdict::NeverFits if holds_back(0) => {
                    self.guard.hold(class);
                    break;
                }
                Verdict::Leave => self.take(class, &head, now),
                Verdict::NeverFits => self
                    .queues
                    .pop(head.queue, now)
                    .map(|(_, frame)| self.dropped(class, frame, DropReason::GateNeverFits, now)),
            };
            self.guard.chosen(class);
            return decision.unwrap_or(Decision::Idle);
        }
        soonest.and_then(|wake| self.wake(&wake, now)).unwrap_or(Decision::Idle)
    }

    fn remove(&mut self, predicate: &mut dyn FnMut(&Frame) -> bool, out: &mut dyn FnMut(Frame)) {
        let mut classes = 0u8;
        self.queues.remove(predicate, &mut |frame| {
            classes |= 1 << frame.class.get();
            out(frame);
        });
        self.shaping.remove(classes);
    }

    fn remove_tenant(&mut self, tenant: u32, most: usize, out: &mut dyn FnMut(Frame)) -> bool {
        let mut classes = 0u8;
        let is_more = self.queues.remove_tenant(tenant, most, &mut |frame| {
            classes |= 1 << frame.class.get();
            out(frame);
        });
        self.shaping.remove(classes);
        is_more
    }

    fn len(&self) -> usize {
        self.queues.len()
    }

    fn capacity(&self) -> usize {
        self.queues.capacity()
    }
}

/// Put `node` where frames of `class` wait.
fn place(node: &mut Node, class: usize, classes: &[ClassOptions; TrafficClass::COUNT]) {
    node.place(class, classes[class].order == Order::Fifo);
}

fn index(class: TrafficClass) -> usize {
    usize::from(class.get())
}

#[cfg(test)]
mod tests;
