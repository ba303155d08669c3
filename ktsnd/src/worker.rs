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
mod clock;
mod closing;
mod command;
mod copies;
mod cpu_budget;
mod decaying;
mod due;
mod environment;
mod hand_over;
mod held;
mod intake;
mod margin;
mod policing;
mod port_turns;
mod report;
mod routes;
mod selection;
mod sending;
mod slow;
mod told;
mod transmit;
mod turns;
mod wait;
mod warm_up;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use ktsn_model::{DropReason, PriorityMap, UnsynchronisedPolicy};
use ktsn_port::Port;
use ktsn_resolve::{AttachmentIndex, PortIndex, Tables};
use ktsn_sched::{FrameId, TimeAware};
use ktsn_time::{Monotonic, Nanos, Offset};

pub use captured::{Captured, Ring, Source};
pub use client::{Client, StreamInfo};
pub use clock::ClockGate;
pub use command::{
    AttachmentPolicy, ClientKey, Command, GateView, Inbox, NewPort, Offer, Outbox, Returned, Usage,
    WorkerEnded, queues,
};
pub use environment::{Environment, Host, Woken, monotonic_now, tai_now};
pub use hand_over::AT_START as HAND_OVER_AT_START;
pub use margin::{Margin, Margins, SpinBudget};
pub use policing::Policing;
pub use report::Notice;
pub use selection::Selection;
pub use sending::LinkKind;
pub use told::NeighboursTold;

use crate::config::SpinMargin;
use crate::limits;
use crate::queue::Sender;
use crate::stats::{PortStats, WorkerStats, count};
use busy::Busy;
use closing::Closing;
use cpu_budget::{Allowed, CpuBudget};
use hand_over::HandOver;
use held::Held;
use report::End;
use routes::Routes;
use slow::Slow;
use turns::Turns;
use warm_up::WarmUp;

/// One port with its queue.
struct PortState<P> {
    port: Box<P>,
    /// Takes its place as soon as all that was committed has left.
    successor: Option<Box<P>>,
    sched: Box<Selection>,
    priority_map: PriorityMap,
    /// In front of the queue.
    policing: Option<Box<Policing>>,
    hand_over: HandOver,
    warm_up: WarmUp,
    /// A pod's interface: what its hand-overs may do to other ports.
    is_pods: bool,
    slow: Slow,
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
    /// The attachments of the clients, by place.
    attachment_of: Box<[AttachmentIndex]>,
    /// The clients with rings that are looked at.
    turns: Turns,
    /// What is on its way out.
    closing: Closing,
    /// Of every clock and of all that the worker does.
    cpu: CpuBudget,
    /// Only frames that are due are attended to.
    is_resting: bool,
    /// It should rest, but more is due than it hands over in a turn.
    is_behind: bool,
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
    /// A clock stepped: promises by the other one are void.
    is_stepped: bool,
    /// Places of clients with doorbells that are not heard, and which of them was looked at last, and when.
    muted: Vec<u16>,
    /// Passes in which a frame was taken over.
    intake_passes: usize,
    /// The pod's interface that hands over first in the next turn.
    pods_from: usize,
    muted_turn: usize,
    /// First place whose promise the next sleep makes nearer.
    nearer_turn: usize,
    muted_at: Monotonic,
    second_began: Monotonic,
    tended_at: Monotonic,
    /// The client that is looked after next.
    tended: usize,
    /// When a frame was handed over last.
    handed_over_at: Monotonic,
    /// When the last rehearsal ended, and the experience with rehearsals.
    rehearsed_at: Monotonic,
    rehearsal: WarmUp,
    /// When a frame was taken over from a client last.
    taken_at: Monotonic,
    /// The same from a capture.
    captured_at: Monotonic,
    /// The same from a ring that is closed.
    closed_at: Monotonic,
    /// When doorbells were heard last.
    heard_at: Monotonic,
    draining: bool,
    /// What depends on TAI, while TAI is not to be trusted.
    clock: ClockGate,
    /// What was waited for last: intake stops short of it.
    next: Option<transmit::Next>,
    /// A command that a frame comes before, and since when commands were put off.
    put_off: Option<Command<P>>,
    put_off_at: Option<Monotonic>,
    /// The last hand-over, until the clock is read after it.
    kicked: Option<transmit::Kicked>,
    identification: u16,
    scratch: Box<[u8]>,
    woken: Woken,
    /// Who makes the kernel tell programs what they asked to be told.
    notifier: Option<Sender<Notice>>,
}

/// How a worker is set up.
#[derive(Debug, Clone, Copy)]
pub struct WorkerOptions {
    /// Spin margin.
    pub spin_margin: SpinMargin,
    /// The margins that an earlier worker on this machine had learnt.
    pub known_margins: Option<Margins>,
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
            ports: (0..limits::PORTS_MAX).map(|_| None).collect(),
            ports_end: 0,
            busy: Busy::new(limits::PORTS_MAX),
            attachments: (0..limits::ATTACHMENTS_MAX).map(|_| None).collect(),
            clients: (0..limits::CLIENTS_MAX).map(|_| None).collect(),
            clients_end: 0,
            clients_count: 0,
            keys: vec![ClientKey(0); limits::CLIENTS_MAX].into_boxed_slice(),
            attachment_of: vec![AttachmentIndex(u16::MAX); limits::CLIENTS_MAX].into_boxed_slice(),
            turns: Turns::new(limits::CLIENTS_MAX, limits::ATTACHMENTS_MAX),
            closing: Closing::new(),
            cpu: CpuBudget::new(),
            is_resting: false,
            is_behind: false,
            captured: (0..limits::ATTACHMENTS_MAX).map(|_| None).collect(),
            captured_end: 0,
            captured_count: 0,
            captured_turn: 0,
            captured_tended: 0,
            tables,
            routes: Routes::new(),
            margin: Margin::new(options.spin_margin, options.known_margins),
            budget: SpinBudget::new(options.spin_duty_max_permille),
            stats,
            offset: None,
            is_stepped: false,
            muted: Vec::with_capacity(limits::CLIENTS_MAX),
            intake_passes: 1,
            pods_from: 0,
            muted_turn: 0,
            nearer_turn: 0,
            muted_at: Monotonic::ZERO,
            second_began: Monotonic::ZERO,
            tended_at: Monotonic::ZERO,
            tended: usize::MAX,
            handed_over_at: Monotonic::ZERO,
            rehearsed_at: Monotonic::ZERO,
            rehearsal: WarmUp::of_rehearsal(),
            taken_at: Monotonic::ZERO,
            captured_at: Monotonic::ZERO,
            closed_at: Monotonic::ZERO,
            heard_at: Monotonic::ZERO,
            draining: false,
            clock: ClockGate::new(UnsynchronisedPolicy::Send, true),
            next: None,
            put_off: None,
            put_off_at: None,
            kicked: None,
            identification: 0,
            scratch: vec![0; 1 << 16].into_boxed_slice(),
            woken: Woken { doorbells: Vec::with_capacity(environment::EVENTS), ..Woken::default() },
            notifier: None,
        }
    }

    /// With what its port's `unsynchronised` says, and the room that it needs.
    #[must_use]
    pub fn with_clock(mut self, clock: ClockGate) -> Self {
        self.clock = clock;
        self
    }

    /// Runs until it has drained.
    pub fn run(&mut self) {
        while self.pass() {
            self.stats.passed();
        }
        self.inbox.give(Returned::Ended);
    }

    /// One pass: a bounded step of everything that can be done now, then at most one wait. False when the worker has drained.
    pub fn pass(&mut self) -> bool {
        let began = self.env.monotonic();
        self.cpu.awake(began);
        if self.cpu.is_spent() {
            let used = self.env.cpu_time();
            self.cpu.correct(used);
        }
        match self.cpu.allowed() {
            Allowed::Work => self.is_behind = false,
            Allowed::Due(span) => {
                if self.rest(span) {
                    return true;
                }
                // So much is due that nothing was saved: the rings of those that it is not of must not wait for it.
                self.is_behind = true;
            }
            Allowed::Nothing(span) => {
                self.rest_at_all_costs(span);
                return true;
            }
        }
        let more_commands = self.apply_commands() | self.attend_to_clock();
        let now = self.env.monotonic();
        // First what is due, so that everything else knows how long it may take.
        self.next = self.transmit_due();
        let more_to_tend = self.tend(now);
        self.listen(now);
        self.look_at_muted(now);
        let has_taken = self.close_some() | self.intake_all(now) | self.intake_all_captured();
        if has_taken {
            self.next = self.transmit_due();
        }
        if self.draining && self.is_drained(self.next) {
            return false;
        }
        let is_more =
            more_commands || more_to_tend || self.closing.is_at_work() || self.is_put_off_for_nothing();
        if !is_more || self.is_close(limits::INTAKE_STOPS) {
            self.wait(self.next);
        }
        true
    }

    /// Whether a frame is due within `span`, but not now.
    fn is_close(&mut self, span: Nanos) -> bool {
        let Some(next) = self.next else { return false };
        let ahead = next.at.ahead_of(self.env.now());
        ahead > Nanos::ZERO && ahead < span
    }

    /// Work for each few hundred milliseconds: of the ports at once, of the clients a few in a pass. Whether there is more.
    fn tend(&mut self, now: Monotonic) -> bool {
        if now.since(self.tended_at) >= limits::SLEEP_MAX && self.tended >= self.clients_end {
            self.tended_at = now;
            self.tended = 0;
            self.tend_ports(now);
            self.tend_captured();
        }
        if self.tended >= self.clients_end || self.is_close(limits::COMMANDS_STOP) {
            return false;
        }
        let end = self.clients_end.min(self.tended + limits::TENDED_A_PASS);
        for index in self.tended..end {
            let Some(client) = self.clients[index].as_mut() else { continue };
            intake::count_bypassed(client, &self.attachments);
            if client.muted && now.since(client.muted_at) >= Nanos::from_seconds(1) {
                client.muted = false;
                self.env.mute(rustix::fd::AsFd::as_fd(&client.doorbell), index as u64, false);
                self.muted.retain(|place| usize::from(*place) != index);
            }
            self.look_at_quiet(index);
        }
        self.tended = end;
        end < self.clients_end
    }

    fn tend_ports(&mut self, now: Monotonic) {
        self.stats.spin_margin_ns.store(self.margin.get().get().unsigned_abs(), Relaxed);
        for (shown, margin) in self.stats.margins_learnt.iter().zip(self.margin.learnt()) {
            shown.store(margin.map_or(0, |margin| margin.get().unsigned_abs()), Relaxed);
        }
        let new_second = now.since(self.second_began) >= Nanos::from_seconds(1);
        if new_second {
            self.second_began = now;
        }
        for (index, state) in (0..).zip(&mut self.ports[..self.ports_end]) {
            let Some(state) = state else { continue };
            state.port.reap();
            if let Some(before) = state.succeed() {
                self.inbox.give(Returned::Port(PortIndex(index), Some(before)));
            }
            if new_second && let Some(span) = state.hand_over.tick() {
                state.set_hand_over(span);
            }
            if let Some(retired) = state.sched.time_aware().and_then(TimeAware::take_retired) {
                self.inbox.give(Returned::Boxed(retired));
            }
        }
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
                policy.usage.queued = policy.usage.queued.saturating_sub(1);
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
            self.turns.remove(index);
            self.attachment_of[index] = AttachmentIndex(u16::MAX);
            if client.muted {
                self.muted.retain(|place| usize::from(*place) != index);
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
