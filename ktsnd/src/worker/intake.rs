// SPDX-License-Identifier: Apache-2.0
//! Taking over: published slot → metadata → checks of its time → resolve → police → class → queue and payload, or a named drop.
//! A frame that is refused before costs no copy of its payload: a flood of them leaves the caches to others.

use ktsn_model::{BypassReason, DropReason, Priority, TrafficClass};
use ktsn_port::Port;
use ktsn_resolve::{AttachmentIndex, NextHop, Refusal};
use ktsn_ring::{ClockId, Frame as SlotFrame, SlotError, Taken};
use ktsn_sched::{Frame, Strategy, admit};
use ktsn_time::{Monotonic, Nanos, Now, Tai, TxTime};

use super::client::{Client, Queued};
use super::command::{AttachmentPolicy, Returned};
use super::report::Asked;
use super::sending::Sending;
use super::transmit::Next;
use super::turns::LEVELS;
use super::{Environment, Policing, PortState, Worker, frame_id};
use crate::limits;
use crate::stats::{add_claimed, count};

/// As many frames as are surely taken over before the last stretch of `ahead`, one at least.
pub(super) fn intake_budget(ahead: Nanos) -> usize {
    let fitting = ahead.saturating_sub(limits::LAST_STRETCH).get() / limits::INTAKE_FRAME.get();
    usize::try_from(fitting).unwrap_or(0).clamp(1, limits::INTAKE_BUDGET)
}

fn tx_time_of(taken: &Taken) -> TxTime {
    match taken.clock {
        ClockId::Tai => TxTime::Tai(Tai::from_nanos(taken.frame.tx_time)),
        ClockId::Monotonic => TxTime::Monotonic(Monotonic::from_nanos(taken.frame.tx_time)),
    }
}

impl<P: Port, E: Environment> Worker<P, E> {
    /// Takes over from the clients in turn, a bounded number each and in all; stops short of the next frame that is due, and
    /// goes on in the next pass. Attachments that are granted a higher class come first; one pass in [`limits::LOWER_FIRST_IN`]
    /// begins at a lower one, so that each has a part that no other one can take. Whether it took any.
    pub(super) fn intake_all(&mut self, monotonic: Monotonic) -> bool {
        let quantum = if self.turns.len() > 1 { limits::INTAKE_QUANTUM } else { limits::INTAKE_BUDGET };
        let mut left = limits::INTAKE_A_PASS;
        let first = if self.intake_passes.is_multiple_of(limits::LOWER_FIRST_IN) {
            self.turns.next_lower_level()
        } else {
            LEVELS - 1
        };
        for level in (0..LEVELS).map(|below| (first + LEVELS - below) % LEVELS) {
            let mut empty = 0;
            for _ in 0..self.turns.len_of(level).min(limits::LOOKS_A_PASS) {
                let Some(index) = self.turns.whose_turn(level) else { break };
                self.renew_promise(index, monotonic);
                if self.is_waiting(index) && !self.is_client_to_wait(index) {
                    let Some(budget) = self.time_for_intake(self.taken_at) else {
                        return self.has_taken(left);
                    };
                    left -= self.intake(index, budget.min(quantum).min(left));
                    (empty, _) = (0, self.turns.pass_on(level));
                } else {
                    // An empty ring costs its attachment no turn, unless it has many of them.
                    empty += 1;
                    if empty >= self.turns.pass_on_client(level).min(limits::EMPTY_LOOKS) {
                        (empty, _) = (0, self.turns.pass_on_attachment(level));
                    }
                }
                if left == 0 {
                    return self.has_taken(left);
                }
            }
        }
        self.has_taken(left)
    }

    /// Whether a pass with `left` took any; only such a pass counts.
    fn has_taken(&mut self, left: usize) -> bool {
        let has_taken = left < limits::INTAKE_A_PASS;
        self.intake_passes = self.intake_passes.wrapping_add(usize::from(has_taken));
        has_taken
    }

    fn is_client_to_wait(&self, index: usize) -> bool {
        self.is_behind
            && self.clients[index]
                .as_ref()
                .is_some_and(|client| self.is_attachment_to_wait(client.attachment))
    }

    /// Whether the attachment has so many frames queued that it gets no more, as the worker is behind.
    pub(super) fn is_attachment_to_wait(&self, index: AttachmentIndex) -> bool {
        let policy = self.attachments.get(usize::from(index.0)).and_then(Option::as_ref);
        self.is_behind && policy.is_some_and(|policy| policy.usage.queued >= limits::QUEUED_BEHIND)
    }

    /// How many frames surely can be taken over before the next one is due; `None`: it comes first. But where a frame is always
    /// due at once, one is taken over between two of them now and then, and more often where they have no transmit time and
    /// wait for the link or a gate: rings and captures each where none came from them since `taken_at`.
    pub(super) fn time_for_intake(&mut self, taken_at: Monotonic) -> Option<usize> {
        let Some(next) = self.next else { return Some(limits::INTAKE_BUDGET) };
        let now = self.env.now();
        let ahead = next.at.ahead_of(now);
        if ahead >= limits::INTAKE_STOPS {
            return Some(intake_budget(ahead));
        }
        let passed = now.monotonic.since(taken_at);
        if passed < limits::INTAKE_AFTER_UNTIMED {
            return None;
        }
        let state = self.ports[next.port].as_mut();
        let is_timed = state.is_some_and(|state| state.sched.is_timed_within(limits::INTAKE_STOPS, now));
        (!is_timed || passed >= limits::INTAKE_AFTER).then_some(1)
    }

    /// Takes over from one client. Returns how many frames it took.
    pub(super) fn intake(&mut self, index: usize, budget: usize) -> usize {
        let mut taken = 0;
        let mut now = None;
        // Where slots are in no cache, a link may take as long as a frame does elsewhere: the clock is read now and then.
        let (mut links, mut work) = (2 * budget, 0);
        if let Some(Some(client)) = self.clients.get_mut(index) {
            // Until all of it is taken.
            client.attended.is_settled = false;
        }
        while taken < budget {
            if work >= limits::WORK_A_LOOK {
                work = 0;
                if self.is_next_within(limits::INTAKE_STOPS) {
                    return taken;
                }
            }
            let Some(client) = self.clients[index].as_mut().filter(|c| !c.closed) else { return taken };
            let Some(next) = client.take() else {
                if !client.consumer.published() {
                    // What a broken list had reached is taken by now.
                    client.closed = client.consumer.broken().is_some();
                    return taken;
                }
                if client.closing.is_some_and(|walks| client.is_taken_since(walks)) {
                    return taken;
                }
                if links == 0 {
                    // A long list: the walk goes on in the next pass.
                    return taken;
                }
                let some = links.min(limits::WORK_A_LOOK);
                (links, work) = (links - some, work + some);
                if let Err(error) = client.collect(some) {
                    self.retire(index, error);
                }
                continue;
            };
            taken += 1;
            work += limits::WORK_OF_A_FRAME;
            let now = *now.get_or_insert_with(|| self.env.now());
            client.attended.busy_at = now.monotonic;
            self.taken_at = now.monotonic;
            match next {
                Ok(slot) => self.take_over(index, &slot, now),
                Err(SlotError { slot, .. }) => self.refuse(index, slot, None, DropReason::PeerCorrupt),
            }
        }
        taken
    }

    /// Whether the next frame is due within `span`, or already.
    fn is_next_within(&mut self, span: Nanos) -> bool {
        let Some(next) = self.next else { return false };
        next.at.ahead_of(self.env.now()) < span
    }

    fn take_over(&mut self, index: usize, taken: &Taken, now: Now) {
        let slot = taken.slot;
        let Some(client) = self.clients[index].as_mut() else { return };
        let frame = &taken.frame;
        let Some(stream) = client.registered(frame.stream_index, frame.token) else {
            return self.refuse(index, slot, None, DropReason::PeerCorrupt);
        };
        let (attachment, cookie, is_deadline) = (stream.attachment, stream.cookie, stream.is_deadline);
        let Some(sending) = Sending::of(stream, frame) else {
            return self.refuse(index, slot, Some(attachment), DropReason::PeerCorrupt);
        };
        let tx_time = tx_time_of(taken);
        Asked::remember(client, taken, cookie, sending, || self.env.realtime());
        let Some(Some(policy)) = self.attachments.get_mut(usize::from(attachment.0)) else {
            return self.refuse(index, slot, None, DropReason::Detached);
        };
        count(&policy.stats.taken);
        if self.closing.is_removed(attachment) {
            return self.refuse(index, slot, Some(attachment), DropReason::Detached);
        }
        if self.clock.refuses(tx_time) {
            return self.refuse(index, slot, Some(attachment), DropReason::Unsynchronised);
        }
        let pushed_at = Monotonic::from_nanos(frame.pushed_at);
        let timed = Frame { tx_time: Some(tx_time), pushed_at, ..policy.frame(is_deadline) };
        if let Err(reason) = admit(&timed, now).map_err(|reason| cause_of(reason, frame)) {
            return self.refuse_for_its_time(index, slot, attachment, reason, tx_time.ahead_of(now));
        }
        let payload_octets = taken.payload_octets as u16; // it fits into a slot
        // The way of a packet socket's frame depends on its headers, that of a datagram on its length only.
        let is_fetched = matches!(sending, Sending::Link(_));
        if is_fetched {
            client.fetch(slot, payload_octets);
        }
        let payload = client.payload(slot, payload_octets);
        let (way, wanted) = match sending.way_ahead(&mut self.routes, &self.tables, payload) {
            Ok(found) => found,
            Err(refusal) => return self.refuse_route(index, slot, attachment, refusal),
        };
        let (port, priority, (copies, skipped)) = (way.port(), way.priority(frame.priority), way.copies());
        let (wire_octets, sdu_octets) = way.lengths(payload);
        let Some(Some(state)) = self.ports.get_mut(usize::from(port.0)) else {
            return self.refuse(index, slot, Some(attachment), DropReason::LinkDown);
        };
        let class = match state.admit(policy.classes, priority, wanted, |policing| {
            let stream = sending.stream(&mut self.routes, &self.tables, payload, &policy.streams);
            policing.judge(stream, priority, sdu_octets, wire_octets, now)
        }) {
            Ok(class) => class,
            Err(refusal) => return self.refuse_route(index, slot, attachment, refusal),
        };
        if is_too_greedy(policy.usage.queued, &*state.sched) {
            return self.refuse(index, slot, Some(attachment), DropReason::QueueFull);
        }
        let (id, tenant) = (frame_id(index, slot), u32::from(attachment.0));
        match state.sched.offer(Frame { id, tenant, class, wire_octets, sdu_octets, ..timed }, now) {
            Ok(()) => {
                self.busy.insert(usize::from(port.0));
                policy.usage.queued += 1;
                if !is_fetched {
                    client.fetch(slot, payload_octets);
                }
                let has_waited = frame.has_waited;
                client.queue(slot, Queued { sending, port, payload_octets, copies, has_waited });
                self.note_sooner(tx_time, usize::from(port.0), now);
                self.count_lost(u32::from(attachment.0), u64::from(skipped));
                self.want_neighbour(attachment, wanted);
            }
            Err(refused) => {
                self.refuse_for_its_time(index, slot, attachment, refused.reason, tx_time.ahead_of(now));
            }
        }
    }

    fn refuse_for_its_time(
        &mut self,
        index: usize,
        slot: u16,
        attachment: AttachmentIndex,
        reason: DropReason,
        ahead: Nanos,
    ) {
        if reason == DropReason::BeyondHorizon {
            self.tell_horizon(attachment, ahead);
        }
        self.refuse(index, slot, Some(attachment), reason);
    }

    /// A frame that was just queued is waited for, where it comes before what was: intake stops short of it.
    #[inline]
    pub(super) fn note_sooner(&mut self, at: TxTime, port: usize, now: Now) {
        let ahead = at.ahead_of(now);
        if ahead < limits::INTAKE_PASS && self.next.is_none_or(|next| ahead < next.at.ahead_of(now)) {
            self.next = Some(Next { at, port });
        }
    }

    fn refuse_route(&mut self, index: usize, slot: u16, attachment: AttachmentIndex, refusal: Refusal) {
        let reason = match refusal {
            // The client should have known; its table may be older than ours.
            Refusal::Bypass(_) => DropReason::NoRoute,
            Refusal::Drop(reason, wanted) => {
                self.want_neighbour(attachment, wanted);
                reason
            }
        };
        self.refuse(index, slot, Some(attachment), reason);
    }

    /// Told at most every 10 ms for each neighbour, and of so many of an attachment: a flood of frames must not become a
    /// flood of news.
    #[inline]
    pub(super) fn want_neighbour(&mut self, attachment: AttachmentIndex, wanted: Option<NextHop>) {
        let Some(next_hop) = wanted else { return };
        let now = self.env.monotonic();
        let Some(Some(policy)) = self.attachments.get_mut(usize::from(attachment.0)) else { return };
        if policy.usage.neighbours_told.is_to_tell(next_hop, now) {
            self.inbox.tell(Returned::NeighbourWanted(attachment, next_hop));
        }
    }

    pub(super) fn tell_horizon(&mut self, attachment: AttachmentIndex, ahead: Nanos) {
        let now = self.env.monotonic();
        let Some(Some(policy)) = self.attachments.get_mut(usize::from(attachment.0)) else { return };
        if now.since(policy.usage.horizon_told_at) >= limits::HINT_PAUSE {
            policy.usage.horizon_told_at = now;
            self.inbox.tell(Returned::BeyondHorizon(attachment, ahead));
        }
    }

    fn refuse(&mut self, index: usize, slot: u16, attachment: Option<AttachmentIndex>, reason: DropReason) {
        let Some(client) = self.clients[index].as_ref() else { return };
        let tenant = u32::from(attachment.unwrap_or(client.attachment).0);
        self.drop_frame(frame_id(index, slot), tenant, reason);
    }

    /// The list of published slots is impossible: the client gets a new region at its next send. The consumer has
    /// marked the region.
    fn retire(&mut self, index: usize, error: ktsn_ring::LinkError) {
        let Some(client) = self.clients[index].as_mut() else { return };
        if client.retired {
            return;
        }
        client.retired = true;
        let (key, attachment) = (client.key, client.attachment);
        self.env.unwatch(rustix::fd::AsFd::as_fd(&client.doorbell));
        count(&self.stats.regions_retired);
        if let Some(Some(policy)) = self.attachments.get(usize::from(attachment.0)) {
            policy.stats.drop_frame(DropReason::PeerCorrupt);
        }
        self.inbox.give(Returned::Retired(key, error));
    }
}

impl<P> PortState<P> {
    /// The class that a frame enters: that of the priority it asks for, which its attachment must have been granted, or, where
    /// policing passes it with another priority (IPV), of that one. A stream may be known by the MAC address that is `wanted`.
    #[inline]
    pub(super) fn admit(
        &mut self,
        granted: u8,
        asked: Priority,
        wanted: Option<NextHop>,
        judge: impl FnOnce(&mut Policing) -> Result<Priority, DropReason>,
    ) -> Result<TrafficClass, Refusal> {
        let class = self.priority_map.class(asked);
        if granted & (1 << class.get()) == 0 {
            return Err(Refusal::Drop(DropReason::Policed, None));
        }
        match &mut self.policing {
            None => Ok(class),
            Some(_) if wanted.is_some() => Err(Refusal::Drop(DropReason::NoNeighbour, wanted)),
            Some(policing) => match judge(policing) {
                Ok(priority) => Ok(self.priority_map.class(priority)),
                Err(reason) => Err(Refusal::Drop(reason, None)),
            },
        }
    }
}

/// Why a frame is refused: one whose program had to wait for a slot is late for that.
fn cause_of(reason: DropReason, frame: &SlotFrame) -> DropReason {
    if reason == DropReason::Missed && frame.has_waited { DropReason::Waited } else { reason }
}

/// Whether an attachment with `queued` frames has had its share: [`limits::ATTACHMENT_QUEUED_MAX`] and, of a queue that others
/// use too, a part of what is still free. However many flood it, there is room for the next one's first frames.
pub(super) fn is_too_greedy(queued: usize, sched: &impl Strategy) -> bool {
    let len = sched.len();
    queued >= limits::ATTACHMENT_QUEUED_MAX
        || len > queued && queued >= sched.capacity().saturating_sub(len) / limits::SHARE_OF_FREE
}

/// Adds what a client counted since the last look to its attachment. The numbers are the client's own words.
pub(super) fn count_bypassed(client: &mut Client, attachments: &[Option<Box<AttachmentPolicy>>]) {
    // A closed one's attachment may be another by now.
    if client.closed {
        return;
    }
    let Some(Some(policy)) = attachments.get(usize::from(client.attachment.0)) else { return };
    let counters = client.consumer.counters();
    let seen = client.counters_seen;
    let grown = |i: usize| counters[i].saturating_sub(seen[i]);
    for reason in BypassReason::ALL {
        let number = usize::from(reason.number());
        add_claimed(&policy.stats.bypassed[number], grown(number));
    }
    let absent = grown(ktsn_ring::counter::DAEMON_ABSENT);
    add_claimed(&policy.stats.dropped[usize::from(DropReason::DaemonAbsent.number())], absent);
    add_claimed(&policy.stats.ring_full, grown(ktsn_ring::counter::RING_FULL));
    client.counters_seen = counters;
}
