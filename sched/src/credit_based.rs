// SPDX-License-Identifier: Apache-2.0
//! Credit-based shaping (802.1Q-2022 clause 8.6.8.2): strict priority, where a class with a credit only takes part
//! while its credit is not negative.
//!
//! In: frames with due instants on two clocks, a credit for some classes, the link's speed. Out: among the classes whose first
//! frame is due and whose credit allows it, that frame of the highest one, as soon as the link is free. A class's first frame is that of
//! the attachment whose turn it is (the crate's first page, *Turns*); within an attachment they go by arrival.
//! Never: a frame before its due instant or before an earlier one of its class and attachment; more of a shaped class than its `idleSlope`
//! gives over any span, plus what the clause lets it save up.
//!
//! # The link
//! A frame occupies the link for ⌈wire_octets · 8 · 10^9 / link speed⌉ ns from its hand-over. Nothing is decided
//! before it is free again, drops included, so that a frame of a high class that comes meanwhile goes next. Without a link speed
//! every frame takes no time at all: the shares are kept, but nobody saves up credit while others transmit.

use crate::credit::{Credit, CreditOptions};
use crate::frame::Frame;
use crate::queue::{Head, Node, Queues};
use crate::strategy::{Decision, Refused, Strategy, queued};
use crate::strict_priority::node_of;
use ktsn_model::TrafficClass;
use ktsn_time::{Monotonic, Nanos, Now, TxTime};

/// What [`CreditBased`] is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditBasedOptions {
    /// Room for frames (at most 2^32 − 1), about 110 octets each.
    pub capacity: usize,
    /// How many attachments take turns (at most 65,536), about 800 octets each; one from there on shares the turns of another.
    pub tenants: usize,
    /// `portTransmitRate` in bit/s; `None` or 0: frames take no time.
    pub link_speed: Option<u64>,
    /// The credit of each class; `None`: strict priority.
    pub classes: [Option<CreditOptions>; TrafficClass::COUNT],
}

/// Credit-based transmission selection.
#[derive(Debug)]
pub struct CreditBased {
    queues: Queues,
    credits: [Option<Credit>; TrafficClass::COUNT],
    link_speed: Option<u64>,
    busy_until: Monotonic,
    /// The last instant that was told.
    last: Now,
}

/// When a class could be served at the earliest, as seen from an instant.
#[derive(Clone, Copy)]
struct Chance {
    queue: usize,
    wait: u64,
    wake: Decision,
}

impl CreditBased {
    /// Nothing is allocated later.
    #[must_use]
    pub fn new(options: CreditBasedOptions) -> Self {
        Self {
            queues: Queues::new(options.capacity, options.tenants),
            credits: options.classes.map(|options| options.map(Credit::new)),
            link_speed: options.link_speed.filter(|&speed| speed > 0),
            busy_until: Monotonic::ZERO,
            last: Now::default(),
        }
    }

    /// The credit of `class`, as of when it was last looked at; `None` if it has none.
    #[must_use]
    pub fn credit(&self, class: TrafficClass) -> Option<&Credit> {
        self.credits[usize::from(class.get())].as_ref()
    }

    /// Bring the credit of `class` up to `now`: its first frame has waited since it became due, as the clocks show it now. A step of
    /// TAI counts from the last instant that was told.
    fn bring_up(&mut self, class: usize, now: Now) {
        let Some(credit) = &mut self.credits[class] else { return };
        let overdue = self.queues.head(class, now).filter(|head| head.wait == 0).map(|head| head.overdue);
        if let Some(overdue) = overdue {
            let since = Monotonic::from_nanos(now.monotonic.as_nanos().saturating_sub(overdue));
            if since > credit.as_of() {
                credit.set_waiting(false);
                credit.advance(since, Nanos::MAX);
            }
        }
        credit.set_waiting(overdue.is_some());
        credit.advance(now.monotonic, Nanos::MAX);
    }

    /// Frames are taken out, and no instant is told: they count as removed at the last one.
    fn bring_all_up(&mut self) {
        for class in 0..TrafficClass::COUNT {
            self.bring_up(class, self.last);
        }
    }

    /// The soonest that the first frame of `class` may leave; a wait of 0 is now. Its credit is up to date.
    fn chance(&self, class: usize, now: Now) -> Option<Chance> {
        let Head { queue, wait: due_wait, .. } = self.queues.head(class, now)?;
        let (node, frame) = self.queues.first(queue)?;
        let credit_at = self.credits[class].as_ref().map_or(Monotonic::ZERO, Credit::allowed_at);
        let at = credit_at.max(self.busy_until);
        let wait = at.as_nanos().saturating_sub(now.monotonic.as_nanos());
        let (wait, at) = if wait > due_wait { (wait, TxTime::Monotonic(at)) } else { (due_wait, node.due()) };
        Some(Chance { queue, wait, wake: Decision::WakeAt { at, next: frame.id } })
    }

    /// What is found about a frame that comes now.
    fn admitted(&mut self, frame: &Frame, now: Now) -> Result<Node, Refused> {
        self.queues.see(now);
        let node = node_of(frame, now)?;
        self.last = now;
        self.bring_up(usize::from(frame.class.get()), now);
        Ok(node)
    }

    /// The first frame of `queue`, which is one of `class`, is chosen at `now`.
    fn take(&mut self, class: usize, queue: usize, now: Now) -> Decision {
        let decision = self.queues.take(queue, now);
        if let Decision::Transmit { frame, .. } = &decision {
            let start = now.monotonic.max(self.busy_until);
            let nanos = self.link_speed.map_or(0, |speed| {
                (u128::from(frame.wire_octets) * 8_000_000_000).div_ceil(u128::from(speed))
            });
            let end = start.saturating_add(Nanos::new(i64::try_from(nanos).unwrap_or(i64::MAX)));
            self.busy_until = end;
            if let Some(credit) = &mut self.credits[class] {
                credit.transmit(start, end, frame.wire_octets);
            }
        }
        decision
    }
}

impl Strategy for CreditBased {
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
        self.last = now;
        let mut soonest: Option<Chance> = None;
        for class in (0..TrafficClass::COUNT).rev() {
            self.bring_up(class, now);
            let Some(chance) = self.chance(class, now) else { continue };
            if chance.wait == 0 {
                return self.take(class, chance.queue, now);
            }
            // A class further down does not win a tie.
            if soonest.is_none_or(|soonest| chance.wait < soonest.wait) {
                soonest = Some(chance);
            }
        }
        soonest.map_or(Decision::Idle, |chance| chance.wake)
    }

    fn remove(&mut self, predicate: &mut dyn FnMut(&Frame) -> bool, out: &mut dyn FnMut(Frame)) {
        self.bring_all_up();
        self.queues.remove(predicate, out);
    }

    fn remove_tenant(&mut self, tenant: u32, most: usize, out: &mut dyn FnMut(Frame)) -> bool {
        self.bring_all_up();
        self.queues.remove_tenant(tenant, most, out)
    }

    fn len(&self) -> usize {
        self.queues.len()
    }

    fn capacity(&self) -> usize {
        self.queues.capacity()
    }
}
