// SPDX-License-Identifier: Apache-2.0
//! The worker: one thread that takes frames over, waits, and hands them to a port at their transmit time.
//!
//! In: rings, commands, clocks. Out: frames on ports, counters. It must never allocate, free, lock or log
//! while it runs, never wait for a peer, and never hand a frame to a port before its transmit time.
//!
//! ```text
//!  commands → transmit due frames → intake (source → admit → queue) → transmit, if any came → wait
//!      ▲                                                                                       │
//!      └── doorbell, command, clock set, margin before the next ───────────────────────────────┘
//! ```
//!
//! [`Worker`] joins these parts. None of them knows the worker:
//!
//! | part | what it holds | file |
//! |---|---|---|
//! | attachments | policies, shares, counters | `attachments` |
//! | clients | rings, promises, doorbells, turns, expected frames | `clients`, `client`, `attention`, `turns`, `expectations` |
//! | captures | captured frames, turns | `captures`, `captured` |
//! | ports | devices, queues, retries, slow hand-overs | `ports`, `port_state`, `hand_over_budget` |
//! | resolver | tables, routes kept ready | `resolver`, `content` |
//! | reporter | completions and notices for programs | `reporter`, `requested_reports` |
//! | inbox | commands, a deferred command, what is handed back | `command` |
//! | closing | what ends, step by step | `closing` |
//! | clock | frames that wait for a good clock | `clock_gate` |
//! | pacing | margin, budgets, rehearsals, the next frame | `pacing` |
//!
//! A datagram goes through these types:
//!
//! | type | file | who makes it | until when |
//! |---|---|---|---|
//! | `SlotFrame` | `ring/src/frame.rs` | the program (libktsn's `send.rs`), in a slot of its region | its slot is given back |
//! | `Taken` | `ring/src/published.rs` | `Consumer::take_metadata`: a checked copy of the slot's header | `Client::offered` |
//! | `Offered` | `source` | `Client`, or `Captured` from a captured frame: what the program asked for | it is queued or refused |
//! | `Queued` | `source` | `FrameAdmission::queue`: what sending needs, in the slot's entry, with a copy of the payload | `release` |
//! | `Frame` | `sched/src/frame.rs` | `FrameAdmission::queue`: what the scheduler needs; `FrameId` names the slot (`owner`) | `decide` |
//! | `Decision` | `sched/src/decision.rs` | `TimeAware::decide`: the `Frame`, and why it may leave now | `Due::new` |
//! | `Due` | `due` | `hand_over`: the `Frame`, and the instants before which it must not leave | it leaves, is dropped or queued again |
//! | `Staged` | `port_state` | `Ports::resolve_and_stage`: headers and payload in the port's buffer, which a `StageId` names | it is a part of `Ready` |
//! | `Ready` | `port_state` | `hand_over`: a `Due` and its `Staged` | `hand_to_port`, or `abandon` |
//!
//! `Worker` is made here. Its methods, which need several parts, are in eight files: `pass` (the loop, commands, waiting), `frames` (a
//! frame's life but for its hand-over), `hand_over` (the hand-over), `copies` (frames that leave as several), `passing` (frames that are
//! the kernel's), `closing_steps` (how owners and ports end), `requests` (what frames lack, asked of the node), `judging` (policing of
//! what only the kernel can send). Two joins of some parts only are `frame_admission` and `expecting`.

mod attachments;
mod attention;
mod capture_ring;
mod captured;
mod captures;
mod client;
mod clients;
mod clock_gate;
mod closing;
mod closing_steps;
mod command;
mod content;
mod copies;
mod cpu_budget;
mod decaying;
mod due;
mod earliest;
mod entries;
mod environment;
mod expectations;
mod expecting;
mod frame_admission;
mod frames;
mod hand_over;
mod hand_over_budget;
mod hand_over_latency;
mod headers;
mod judging;
mod neighbour_requests;
mod owner;
mod pacing;
mod pass;
mod passing;
mod policing;
mod port_state;
mod ports;
mod registrations;
mod reporter;
mod requested_reports;
mod requests;
mod resolver;
mod retry;
mod source;
mod turns;
mod warm_up;

use std::collections::VecDeque;
use std::sync::Arc;

use ktsn_model::UnsynchronisedPolicy;
use ktsn_port::Port;
use ktsn_resolve::Tables;
use ktsn_sched::FrameId;
use ktsn_time::TxTime;

pub use crate::now::{monotonic_now, tai_now};
pub use attachments::{AttachmentPolicy, Usage};
pub use capture_ring::{CaptureRing, Ring};
pub use captured::Captured;
pub use client::{Client, ClientKey, ClientTables};
pub use clock_gate::ClockGate;
pub use command::{Command, GateView, Inbox, Judged, Judging, NewPort, Outbox, Returned, RouteNews, queues};
pub use environment::{Environment, Host, Woken};
pub use hand_over_latency::AT_START as HAND_OVER_AT_START;
pub use neighbour_requests::{NeighbourRequests, RouteRequests};
pub use pacing::WorkerOptions;
pub use passing::{ForPasser, Passed};
pub use policing::Policing;
pub use registrations::{LinkKind, StreamInfo};
pub use reporter::Notice;

use crate::limits;
use crate::queue::Sender;
use crate::stats::WorkerStats;
use attachments::Attachments;
use captures::Captures;
use clients::Clients;
use closing::Closing;
use pacing::Pacing;
use passing::Settling;
use ports::Ports;
use reporter::Reporter;
use resolver::Resolver;

/// The worker of one uplink.
pub struct Worker<P, E> {
    env: E,
    inbox: Inbox<P>,
    stats: Arc<WorkerStats>,
    attachments: Attachments,
    clients: Clients,
    captures: Captures,
    ports: Ports<P>,
    resolver: Resolver,
    reporter: Reporter,
    closing: Closing,
    clock: ClockGate,
    pacing: Pacing,
    /// `None`: frames that are the kernel's are dropped.
    passer: Option<Sender<ForPasser>>,
    /// The last frames that wait for the kernel's answer, with their transmit times.
    unanswered: VecDeque<(FrameId, TxTime)>,
    /// Clients and streams that end, while their sockets may be needed.
    settling: Vec<Settling>,
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
            stats,
            attachments: Attachments::new(),
            clients: Clients::new(),
            captures: Captures::new(),
            ports: Ports::new(),
            resolver: Resolver::new(tables),
            reporter: Reporter::new(),
            closing: Closing::new(),
            clock: ClockGate::new(UnsynchronisedPolicy::Send, true),
            pacing: Pacing::new(options),
            passer: None,
            unanswered: VecDeque::with_capacity(limits::UNANSWERED_NOTED),
            settling: Vec::with_capacity(limits::SETTLING_MAX),
        }
    }

    /// The worker with the policy of its port's `unsynchronised`.
    #[must_use]
    pub fn with_clock(mut self, clock: ClockGate) -> Self {
        self.clock = clock;
        self
    }

    /// The worker with a thread that gives frames to the kernel.
    #[must_use]
    pub fn with_passer(mut self, passer: Sender<ForPasser>) -> Self {
        self.passer = Some(passer);
        self
    }

    /// The worker with a notifier, which makes the kernel wake programs. Without one, programs must look for completions.
    #[must_use]
    pub fn with_notifier(mut self, notifier: Sender<Notice>) -> Self {
        self.reporter.set_notifier(notifier);
        self
    }
}

/// What crosses threads must be allowed to.
const _: fn() = || {
    fn crosses<T: Send>() {}
    crosses::<Arc<ktsn_resolve::Tables>>();
    crosses::<Box<Client>>();
};

#[cfg(test)]
mod tests;
