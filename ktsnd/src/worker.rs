// SPDX-License-Identifier: Apache-2.0
//! The worker: one thread that takes frames over, waits, and hands them to a port at their transmit time.
//!
//! In: rings, commands, clocks. Out: frames on ports, counters. It must never allocate, free, lock or log
//! while it runs, never wait for a peer, and never hand a frame to a port before its transmit time.
//!
//! ```text
//!  commands → intake (ring → resolve → sched) → transmit what is due → wait
//!      ▲                                                               │
//!      └── doorbell, command, clock set, margin before the next ───────┘
//! ```

mod apply;
mod attention;
mod busy;
mod captured;
mod client;
mod command;
mod copies;
mod decaying;
mod due;
mod environment;
mod hand_over;
mod held;
mod intake;
mod margin;
mod policing;
mod report;
mod routes;
mod selection;
mod sending;
mod told;
mod transmit;
mod wait;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use ktsn_model::{DropReason, PriorityMap};
use ktsn_port::Port;
use ktsn_resolve::Tables;
use ktsn_sched::{FrameId, TimeAware};
use ktsn_time::{Monotonic, Nanos, Offset};

pub use captured::{Captured, Ring, Source};
pub use client::{Client, StreamInfo};
pub use command::{
    AttachmentPolicy, ClientKey, Command, GateView, Inbox, NewPort, Offer, Outbox, Returned, WorkerEnded,
    queues,
};
pub use environment::{Environment, Host, Woken, monotonic_now, tai_now};
pub use hand_over::AT_START as HAND_OVER_AT_START;
pub use margin::{Margin, SpinBudget};
pub use policing::Policing;
pub use report::Notice;
pub use selection::Selection;
pub use sending::LinkKind;
pub use told::NeighboursTold;

use crate::config::SpinMargin;
use crate::limits;
use crate::stats::{PortStats, WorkerStats, count};
use busy::Busy;
use hand_over::HandOver;
use held::Held;
use report::End;
use routes::Routes;

/// One port with its queue.
struct PortState<P> {
    port: Box<P>,
    sched: Box<Selection>,
    priority_map: PriorityMap,
    /// In front of the queue.
    policing: Option<Box<Policing>>,
    hand_over: HandOver,
    /// In front of all that is queued.
    held: Option<Held>,
    stats: Arc<PortStats>,
    /// When its failure was told last.
    failure_told_at: Monotonic,
}

impl<P> PortState<P> {
    /// Guard bands are reckoned with `span` from now on.
    fn set_hand_over(&mut self, span: Nanos) {
        self.stats.hand_over_ns.store(span.get().unsigned_abs(), Relaxed);
        if let Some(gates) = self.sched.time_aware() {
            gates.set_hand_over(span);
        }
    }
}

/// The worker of one uplink.
pub struct Worker<P, E> {
    env: E,
    inbox: Inbox<P>,
    ports: Vec<Option<PortState<P>>>,
    /// One above the highest index of a port that is there.
    ports_end: usize,
    /// Ports with frames in their queues; those that were emptied may be among them.
    busy: Busy,
    attachments: Vec<Option<Box<AttachmentPolicy>>>,
    clients: Vec<Option<Box<Client>>>,
    /// One above the highest index of a client that is there.
    clients_end: usize,
    clients_count: usize,
    /// The names of the clients, by place; 0 where there is none.
    keys: Box<[ClientKey]>,
    /// Places of those whose rings are looked at.
    active: Vec<u16>,
    /// What kernel capture takes, by attachment.
    captured: Vec<Option<Box<Captured>>>,
    captured_end: usize,
    captured_count: usize,
    /// Whose turn it is in the next intake, and whose counters were read last.
    captured_turn: usize,
    captured_tended: usize,
    tables: Arc<Tables>,
    routes: Routes,
    margin: Margin,
    budget: SpinBudget,
    stats: Arc<WorkerStats>,
    offset: Option<Offset>,
    muted_count: usize,
    second_began: Monotonic,
    tended_at: Monotonic,
    /// When a frame was taken over from a client last.
    taken_at: Monotonic,
    /// The same from a capture.
    captured_at: Monotonic,
    /// When doorbells were heard last.
    heard_at: Monotonic,
    draining: bool,
    /// What was waited for last: intake stops short of it.
    next: Option<transmit::Next>,
    /// A command that a frame comes before, and since when commands were put off.
    put_off: Option<Command<P>>,
    put_off_at: Option<Monotonic>,
    /// The last hand-over, until the clock is read after it.
    kicked: Option<transmit::Kicked>,
    /// The client whose turn it is in the next intake.
    intake_turn: usize,
    identification: u16,
    scratch: Box<[u8]>,
    woken: Woken,
    /// Who makes the kernel tell programs what they asked to be told.
    notifier: Option<std::sync::mpsc::SyncSender<Notice>>,
}

/// How a worker is set up.
#[derive(Debug, Clone, Copy)]
pub struct WorkerOptions {
    /// Spin margin.
    pub spin_margin: SpinMargin,
    /// Greatest share of a second spent spinning, in parts per thousand.
    pub spin_duty_max_permille: u32,
}

impl<P: Port, E: Environment> Worker<P, E> {
    /// A worker without ports and clients. All that it will ever need is allocated here.
    pub fn new(
        env: E,
        inbox: Inbox<P>,
        tables: Arc<Tables>,
        options: WorkerOptions,
        stats: Arc<WorkerStats>,
    ) -> Self {
        Self {
            env,
            inbox,
            ports: (0..limits::ATTACHMENTS_MAX * 2).map(|_| None).collect(),
            ports_end: 0,
            busy: Busy::new(limits::ATTACHMENTS_MAX * 2),
            attachments: (0..limits::ATTACHMENTS_MAX).map(|_| None).collect(),
            clients: (0..limits::CLIENTS_MAX).map(|_| None).collect(),
            clients_end: 0,
            clients_count: 0,
            keys: vec![ClientKey(0); limits::CLIENTS_MAX].into_boxed_slice(),
            active: Vec::with_capacity(limits::CLIENTS_MAX),
            captured: (0..limits::ATTACHMENTS_MAX).map(|_| None).collect(),
            captured_end: 0,
            captured_count: 0,
            captured_turn: 0,
            captured_tended: 0,
            tables,
            routes: Routes::new(),
            margin: Margin::new(options.spin_margin),
            budget: SpinBudget::new(options.spin_duty_max_permille),
            stats,
            offset: None,
            muted_count: 0,
            second_began: Monotonic::ZERO,
            tended_at: Monotonic::ZERO,
            taken_at: Monotonic::ZERO,
            captured_at: Monotonic::ZERO,
            heard_at: Monotonic::ZERO,
            draining: false,
            next: None,
            put_off: None,
            put_off_at: None,
            kicked: None,
            intake_turn: 0,
            identification: 0,
            scratch: vec![0; 1 << 16].into_boxed_slice(),
            woken: Woken { doorbells: Vec::with_capacity(environment::EVENTS), ..Woken::default() },
            notifier: None,
        }
    }

    /// Runs until it has drained.
    pub fn run(&mut self) {
        while self.pass() {}
        self.inbox.give(Returned::Ended);
    }

    /// One pass: everything that can be done now, then at most one wait. False when the worker has drained.
    pub fn pass(&mut self) -> bool {
        let more_commands = self.apply_commands();
        let now = self.tend();
        // First what is due, so that everything else knows how long it may take.
        self.next = self.transmit_due();
        self.listen(now);
        let has_taken = self.intake_all(now) | self.intake_all_captured();
        if has_taken {
            self.next = self.transmit_due();
        }
        if self.draining && self.is_drained(self.next) {
            return false;
        }
        if !more_commands && !self.is_put_off_for_nothing() {
            self.wait(self.next);
        }
        true
    }

    /// Work that is due a few times a second; what the clock says.
    fn tend(&mut self) -> Monotonic {
        let now = self.env.monotonic();
        if now.since(self.tended_at) < limits::SLEEP_MAX {
            return now;
        }
        self.tended_at = now;
        self.stats.spin_margin_ns.store(self.margin.get().get().unsigned_abs(), Relaxed);
        let new_second = now.since(self.second_began) >= Nanos::from_seconds(1);
        if new_second {
            self.second_began = now;
        }
        for state in self.ports[..self.ports_end].iter_mut().flatten() {
            state.port.reap();
            if new_second && let Some(span) = state.hand_over.tick() {
                state.set_hand_over(span);
            }
            if let Some(retired) = state.sched.time_aware().and_then(TimeAware::take_retired) {
                self.inbox.give(Returned::Boxed(retired));
            }
        }
        self.tend_captured();
        for index in 0..self.clients_end {
            let Some(client) = self.clients[index].as_mut() else { continue };
            intake::count_bypassed(client, &self.attachments);
            if new_second {
                client.bells = 0;
                client.notices = 0;
                if client.muted {
                    client.muted = false;
                    self.muted_count -= 1;
                    self.env.mute(rustix::fd::AsFd::as_fd(&client.doorbell), index as u64, false);
                }
            }
        }
        self.look_at_quiet();
        now
    }

    /// Ends a frame's life: its slot goes back (with what is to be told of it), and the client too when it was its last.
    fn release(&mut self, id: FrameId, end: End) {
        let (index, slot) = split(id);
        if let Some(at) = captured::captured_index(index) {
            return self.release_captured(at, id);
        }
        let is_told = self.tell(index, slot, end);
        let Some(client) = self.clients.get_mut(index).and_then(Option::as_mut) else {
            count(&self.stats.bugs);
            return;
        };
        if let Some(queued) = client.queued.get_mut(usize::from(slot)).and_then(Option::take) {
            client.queued_count -= 1;
            if let Some(Some(policy)) = self.attachments.get_mut(usize::from(queued.sending.attachment().0)) {
                policy.queued = policy.queued.saturating_sub(1);
            }
        }
        if !is_told {
            client.consumer.release(slot);
        }
        self.finish_if_over(index);
    }

    /// Counts a frame that does not leave, then releases it.
    fn drop_frame(&mut self, id: FrameId, tenant: u32, reason: DropReason) {
        if let Some(waiting) = self.waiting(id).filter(|waiting| waiting.copies.is_one_of_several())
            && let Some(at) = waiting.copies.sent
        {
            self.count_lost(tenant, self.copies_left(waiting));
            return self.release(id, End::Sent(at));
        }
        if let Some(Some(policy)) = self.attachments.get(tenant as usize) {
            policy.stats.drop_frame(reason);
        }
        self.release(id, End::Dropped(reason));
    }

    /// Hands a client back when its process is gone and nothing of it is queued.
    fn finish_if_over(&mut self, index: usize) {
        let over = self.clients[index].as_ref().is_some_and(|c| c.ended && c.queued_count == 0);
        if !over {
            return;
        }
        if let Some(client) = self.clients[index].take() {
            self.clients_count -= 1;
            self.keys[index] = ClientKey(0);
            self.forget_active(index);
            if client.muted {
                self.muted_count -= 1;
            }
            self.env.unwatch(rustix::fd::AsFd::as_fd(&client.doorbell));
            self.inbox.give(Returned::Client(client));
        }
        while self.clients_end > 0 && self.clients[self.clients_end - 1].is_none() {
            self.clients_end -= 1;
        }
    }
}

/// A frame's name: which client, which slot.
fn frame_id(client: usize, slot: u16) -> FrameId {
    FrameId((client as u64) << 16 | u64::from(slot))
}

fn split(id: FrameId) -> (usize, u16) {
    ((id.0 >> 16) as usize, id.0 as u16)
}

#[cfg(test)]
mod tests;
