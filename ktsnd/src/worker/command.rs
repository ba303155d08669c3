// SPDX-License-Identifier: Apache-2.0
//! What other threads tell a worker, and what it hands back.
//!
//! Everything heavy is made by the sender and freed by the receiver of [`Returned`], so the worker itself
//! neither allocates nor frees.

use std::sync::Arc;

use ktsn_model::{AdminPort, GateStates, LatePolicy, PriorityMap, TrafficClass};
use ktsn_resolve::{AttachmentIndex, PortIndex, Tables};

use ktsn_sched::policing::StreamIdentification;
use ktsn_sched::{ClassOptions, Frame, GateProgram, GateStatus};
use ktsn_time::{Monotonic, Nanos, Now, Tai};
use rustix::fd::OwnedFd;

use super::captured::Captured;
use super::client::{Client, StreamInfo};
use super::policing::Policing;
use super::selection::Selection;
use super::told::NeighboursTold;
use crate::limits;
use crate::queue::{ManySender, Receiver, Sender, WorkerReceiver, threads_to_worker, worker_to_thread};
use crate::stats::{AttachmentStats, PortStats};

/// Names one client for as long as the daemon runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientKey(pub u64);

/// What a worker must know of an attachment, apart from its tables.
#[derive(Debug, Clone)]
pub struct AttachmentPolicy {
    /// Bit n = class n may be used.
    pub classes: u8,
    /// Late frames.
    pub late: LatePolicy,
    /// Greatest oversleep at which a frame is still sent.
    pub overrun_limit: Nanos,
    /// Furthest transmit time ahead.
    pub horizon: Nanos,
    /// Which streams its frames belong to; empty where nothing is policed.
    pub streams: StreamIdentification,
    /// Where its frames are counted.
    pub stats: Arc<AttachmentStats>,
    /// What it uses of the worker; the worker's own.
    pub usage: Usage,
}

impl AttachmentPolicy {
    /// A frame with what the attachment says of all its frames, and the socket of its transmit time; the rest is its taker's to say.
    pub(super) fn frame(&self, is_deadline: bool) -> Frame {
        let late = if is_deadline { LatePolicy::Deadline } else { self.late };
        let (overrun_limit, horizon) = (self.overrun_limit, self.horizon);
        Frame { late, overrun_limit, horizon, ..Frame::empty() }
    }
}

/// What an attachment uses of its worker, and what of it was told; all zero at first.
#[derive(Debug, Clone, Default)]
pub struct Usage {
    /// Frames that are queued now.
    pub(super) queued: usize,
    /// Which missing neighbours were told, and when.
    pub(super) neighbours_told: NeighboursTold,
    /// When a TxTime beyond the horizon was told last.
    pub(super) horizon_told_at: Monotonic,
    /// Doorbells of all its clients since `bells_since`.
    pub(super) bells: u32,
    /// When that count began.
    pub(super) bells_since: Monotonic,
}

/// A port with all that a worker needs to send on it.
#[derive(Debug)]
pub struct NewPort<P> {
    /// The device.
    pub port: Box<P>,
    /// Priority → traffic class.
    pub priority_map: PriorityMap,
    /// Its transmission selection with the queues.
    pub selection: Box<Selection>,
    /// Policing in front of its queue.
    pub policing: Option<Box<Policing>>,
    /// Where its hand-overs are counted.
    pub stats: Arc<PortStats>,
    /// A pod's interface: the pod's own rules run in its hand-overs.
    pub is_pods: bool,
}

/// The gates of one port as its worker sees them: room for an answer, made by who asks (no allocation in the worker).
#[derive(Debug)]
pub struct GateView {
    /// Whose question this is.
    pub number: u64,
    /// When it was answered.
    pub at: Now,
    oper: (bool, AdminPort),
    admin: (bool, AdminPort),
    /// Which gates are open.
    pub oper_gate_states: GateStates,
    /// A change waits for its time.
    pub config_pending: bool,
    /// When the last change took or takes place.
    pub config_change_time: Option<Tai>,
    /// Changes whose base time had passed while gates ran.
    pub config_change_error: u64,
}

impl GateView {
    /// Room for the answer to question `number`.
    #[must_use]
    pub fn new(number: u64) -> Self {
        let room = || {
            let control_list = Vec::with_capacity(AdminPort::ENTRIES_MAX);
            (false, AdminPort { control_list, ..AdminPort::default() })
        };
        Self {
            number,
            at: Now { tai: Tai::ZERO, monotonic: Monotonic::ZERO },
            oper: room(),
            admin: room(),
            oper_gate_states: GateStates::ALL_OPEN,
            config_pending: false,
            config_change_time: None,
            config_change_error: 0,
        }
    }

    /// Gate parameters in force, if there are any.
    #[must_use]
    pub fn oper(&self) -> Option<&AdminPort> {
        self.oper.0.then_some(&self.oper.1)
    }

    /// Gate parameters asked for, if there are any.
    #[must_use]
    pub fn admin(&self) -> Option<&AdminPort> {
        self.admin.0.then_some(&self.admin.1)
    }

    /// Fills in the answer.
    pub(super) fn fill(&mut self, status: &GateStatus<'_>, at: Now) {
        self.at = at;
        copy(&mut self.oper, status.oper);
        copy(&mut self.admin, status.admin);
        self.oper_gate_states = status.oper_gate_states;
        self.config_pending = status.config_pending;
        self.config_change_time = status.config_change_time;
        self.config_change_error = status.config_change_error;
    }
}

/// Copies into room that is there already.
fn copy(into: &mut (bool, AdminPort), from: Option<&AdminPort>) {
    into.0 = from.is_some();
    let Some(from) = from else { return };
    let mut control_list = std::mem::take(&mut into.1.control_list);
    control_list.clear();
    control_list.extend_from_slice(&from.control_list);
    let AdminPort { gate_enabled, gate_states, base_time, cycle_time, cycle_time_extension, .. } = *from;
    into.1 =
        AdminPort { gate_enabled, gate_states, base_time, cycle_time, cycle_time_extension, control_list };
}

/// What a client is told about where it may send.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Interfaces of the namespace's other attachments.
    pub others: Vec<u32>,
    /// Prefixes for datagrams, longest first, and MAC addresses for packet sockets.
    pub table: Vec<ktsn_ring::Destination>,
    /// The interface, for packet sockets.
    pub link: ktsn_ring::LinkFacts,
    /// The interface's IPv4 address where it has one only, else zeros.
    pub sole_v4: [u8; 4],
}

/// What other threads tell a worker.
#[derive(Debug)]
pub enum Command<P> {
    /// A port to send on, under its index in the tables.
    AddPort(PortIndex, NewPort<P>),
    /// The same port's device, opened again; its queue stays. A pod's port first sends what was committed to it.
    ReplacePort(PortIndex, Box<P>),
    /// Gives up a port; what waits for it is dropped as `detached`.
    RemovePort(PortIndex),
    /// A new or changed attachment.
    SetAttachment(AttachmentIndex, Box<AttachmentPolicy>),
    /// An attachment is gone: its frames are dropped, its clients told.
    RemoveAttachment(AttachmentIndex),
    /// Frames that kernel capture takes for its attachment.
    AddCaptured(Box<Captured>),
    /// A new client.
    AddClient(Box<Client>),
    /// A socket was looked at: it becomes the client's stream `index`.
    Register(ClientKey, u32, Box<StreamInfo>),
    /// The socket is closed.
    Unregister(ClientKey, u32),
    /// A socket cannot be served: the answer for the stream's word.
    Refuse(ClientKey, u32, ktsn_ring::StreamStatus),
    /// What the client may send where.
    Offer(ClientKey, Box<Offer>),
    /// The process ended or closed its connection.
    EndClient(ClientKey),
    /// New tables.
    Tables(Arc<Tables>),
    /// Another gate program: in force at its config change time. Queued frames stay.
    ChangeSchedule(PortIndex, Box<GateProgram>),
    /// Other class options: order, queueMaxSDU, shaper.
    SetClasses(PortIndex, Box<[ClassOptions; TrafficClass::COUNT]>),
    /// What guard bands are reckoned with, in bit/s; `None` = unknown.
    SetLinkSpeed(PortIndex, Option<u64>),
    /// Another map from priorities to classes; queued frames keep theirs.
    SetPriorityMap(PortIndex, PriorityMap),
    /// Answers with [`Returned::Gates`].
    LookAtGates(PortIndex, Box<GateView>),
    /// The clock that TAI follows is good from now on, or is not.
    ClockIsGood(bool),
    /// Take nothing new, send what is queued, then end.
    Drain,
}

/// What a worker hands back to be freed or to be acted upon.
#[derive(Debug)]
pub enum Returned<P> {
    /// A client whose last frame is gone.
    Client(Box<Client>),
    /// A port.
    Port(PortIndex, Option<Box<P>>),
    /// A boxed value that was copied.
    Boxed(Box<dyn std::any::Any + Send>),
    /// Older tables.
    Tables(Arc<Tables>),
    /// A frame had no neighbour: make the kernel find it.
    NeighbourWanted(AttachmentIndex, ktsn_resolve::NextHop),
    /// A frame asked for a TxTime this far ahead, beyond its attachment's horizon.
    BeyondHorizon(AttachmentIndex, ktsn_time::Nanos),
    /// A port's device is gone.
    PortFailed(PortIndex),
    /// Hand-overs by a pod's interface are beyond their budget; the longest of them.
    PortSlow(PortIndex, Nanos),
    /// A region had impossible links; the client has to come back with a new one.
    Retired(ClientKey, ktsn_ring::LinkError),
    /// A source of captured frames cannot be waited for: what is put there is read by nobody.
    CaptureRefused(AttachmentIndex),
    /// The gates of a port, as they were asked for; `false`: it has none.
    Gates(PortIndex, Box<GateView>, bool),
    /// The worker drained and ended.
    Ended,
}

/// The worker's end of both queues.
#[derive(Debug)]
pub struct Inbox<P> {
    commands: WorkerReceiver<Command<P>>,
    returned: Sender<Returned<P>>,
}

impl<P> Inbox<P> {
    /// The next command, unless what it brings back might find no room.
    pub(crate) fn next(&mut self) -> Option<Command<P>> {
        if self.returned.room() < limits::RETURNED_RESERVE { None } else { self.commands.pop() }
    }

    /// Hands something back that must not be lost: its queue has room for all that there can be at once
    /// ([`limits::RETURNED_QUEUED`]).
    pub(super) fn give(&mut self, what: Returned<P>) {
        // Without a receiver the daemon ends: the value is freed here.
        let _ = self.returned.try_send(what);
    }

    /// Hands news on that may be lost: the same news come again, or can be asked for again.
    pub(super) fn tell(&mut self, news: Returned<P>) {
        if self.returned.room() > limits::RETURNED_RESERVE + limits::COMMANDS_A_PASS {
            self.give(news);
        }
    }
}

/// The others' end: commands, and the eventfd that wakes the worker.
#[derive(Debug)]
pub struct Outbox<P> {
    commands: ManySender<Command<P>>,
}

impl<P> Clone for Outbox<P> {
    fn clone(&self) -> Self {
        Self { commands: self.commands.clone() }
    }
}

/// The worker does not take commands any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the worker has ended")]
pub struct WorkerEnded;

impl<P> Outbox<P> {
    /// Sends a command and wakes the worker; waits while its queue is full.
    ///
    /// # Errors
    /// [`WorkerEnded`].
    pub fn send(&self, command: Command<P>) -> Result<(), WorkerEnded> {
        self.commands.send(command).map_err(|_| WorkerEnded)
    }

    /// Wakes the worker for one pass.
    pub(crate) fn wake(&self) {
        self.commands.ring();
    }
}

/// Makes the two queues and the eventfd (for [`super::Host::new`]).
///
/// # Errors
/// The kernel's, when descriptors run out.
#[allow(clippy::type_complexity)]
pub fn queues<P>() -> Result<(Outbox<P>, Inbox<P>, Receiver<Returned<P>>, OwnedFd), rustix::io::Errno> {
    let (outbox, commands, wake) = threads_to_worker(limits::COMMANDS_QUEUED)?;
    let (returned, freed) = worker_to_thread(limits::RETURNED_QUEUED)?;
    Ok((Outbox { commands: outbox }, Inbox { commands, returned }, freed, wake))
}
