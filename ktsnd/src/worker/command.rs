// SPDX-License-Identifier: Apache-2.0
//! Commands of other threads to a worker, and what the worker hands back.
//!
//! In: commands, each with all memory that it needs. Out: the same memory when the worker is done with it, and notifications. The
//! sender allocates and the receiver of [`Returned`] frees, so the worker does neither.

use std::sync::Arc;

use ktsn_model::{DropReason, Priority, PriorityMap, TrafficClass};
use ktsn_resolve::{AttachmentIndex, Flow, PortIndex, RouteAnswer, Tables};
use ktsn_sched::{ClassOptions, GateProgram, GateStatus, TimeAware};
use ktsn_time::{Monotonic, Nanos, Now, Tai, TxTime};
use rustix::fd::OwnedFd;

use super::attachments::AttachmentPolicy;
use super::captured::Captured;
use super::client::{Client, ClientKey, ClientTables};
use super::policing::Policing;
use super::registrations::StreamInfo;
use crate::limits;
use crate::queue::{ManySender, Receiver, Sender, WorkerReceiver, threads_to_worker, worker_to_thread};
use crate::stats::PortStats;

/// A port with all that a worker needs to send on it.
#[derive(Debug)]
pub struct NewPort<P> {
    /// The device.
    pub port: Box<P>,
    /// Priority → traffic class.
    pub priority_map: PriorityMap,
    /// Its transmission selection with the queues.
    pub selection: Box<TimeAware>,
    /// Policing in front of its queue.
    pub policing: Option<Box<Policing>>,
    /// Where its hand-overs are counted.
    pub stats: Arc<PortStats>,
    /// A pod's interface: the pod's own rules run in its hand-overs.
    pub is_pod_interface: bool,
}

/// The gates of one port as its worker sees them. The caller makes the room for the answer, so the worker allocates nothing.
#[derive(Debug)]
pub struct GateView {
    /// The number of the request.
    pub number: u64,
    /// When it was answered.
    pub at: Now,
    /// The state of the gates; `None` where the port has none.
    pub status: Option<GateStatus>,
}

impl GateView {
    /// Room for the answer to request `number`.
    #[must_use]
    pub fn new(number: u64) -> Self {
        Self { number, at: Now::default(), status: None }
    }
}

/// The kernel's answer about a flow's route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteNews {
    /// The flow.
    pub flow: Flow,
    /// The revision of the answer: it holds while the tables name this one.
    pub revision: u64,
    /// The answer.
    pub answer: RouteAnswer,
}

/// A datagram that is held until it was judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judging {
    /// SO_NETNS_COOKIE of the namespace that holds it.
    pub netns_cookie: u64,
    /// Its number there.
    pub number: u64,
    /// Where it goes.
    pub flow: Flow,
    /// The socket's priority.
    pub priority: Priority,
    /// Octets of its payload.
    pub payload_octets: u32,
    /// Octets of each datagram that it is cut into (UDP_SEGMENT); 0: it is one.
    pub segment_octets: u16,
    /// Not before this instant.
    pub tx_time: TxTime,
}

/// When a datagram may leave, where that is after its transmit time; or why it does not leave.
pub type Judged = Result<Option<Tai>, DropReason>;

/// A command to a worker.
#[derive(Debug)]
pub enum Command<P> {
    /// A port to send on, under its index in the tables.
    AddPort(PortIndex, NewPort<P>),
    /// The device of this port, opened again; the port's queue stays. A pod's port first sends what was committed to it.
    ReplacePort(PortIndex, Box<P>),
    /// Gives up a port; what waits for it is dropped as `detached`.
    RemovePort(PortIndex),
    /// A new or changed attachment.
    SetAttachment(AttachmentIndex, Box<AttachmentPolicy>),
    /// An attachment is gone: its frames are dropped, its clients detached.
    RemoveAttachment(AttachmentIndex),
    /// Frames that kernel capture takes for its attachment.
    AddCaptured(Box<Captured>),
    /// A new client.
    AddClient(Box<Client>),
    /// A socket was examined: it becomes the client's stream `index`.
    Register(ClientKey, u32, Box<StreamInfo>),
    /// The socket is closed.
    Unregister(ClientKey, u32),
    /// A socket cannot be served: the answer for the stream's word.
    Refuse(ClientKey, u32, ktsn_ring::StreamStatus),
    /// The destinations that the client may send to.
    SetClientTables(ClientKey, Box<ClientTables>),
    /// A stream ends whose socket is kept: answers with [`super::ForPasser::Settled`] when the socket is not needed any more.
    Settle(ClientKey, u32),
    /// A datagram that the kernel will send: answers with [`super::ForPasser::Judged`].
    Judge(Box<Judging>),
    /// The datagram in a slot of [`super::Passed`] was read.
    Release(ClientKey, u16),
    /// The process ended or closed its connection.
    EndClient(ClientKey),
    /// New tables.
    Tables(Arc<Tables>),
    /// The kernel's answer about a flow's route.
    Route(Box<RouteNews>),
    /// Another gate program: in force at its config change time. Queued frames stay.
    ChangeSchedule(PortIndex, Box<GateProgram>),
    /// Other class options: order, queueMaxSDU, shaper.
    SetClasses(PortIndex, Box<[ClassOptions; TrafficClass::COUNT]>),
    /// The link speed that guard bands are computed with, in bit/s; `None` = unknown.
    SetLinkSpeed(PortIndex, Option<u64>),
    /// Another map from priorities to classes; queued frames keep theirs.
    SetPriorityMap(PortIndex, PriorityMap),
    /// Answers with [`Returned::Gates`].
    LookAtGates(PortIndex, Box<GateView>),
    /// True: the clock that TAI follows can be trusted from now on.
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
    /// Only the kernel knows the route of this flow: ask it.
    RouteWanted(Flow),
    /// A frame asked for a TxTime this far ahead, beyond its attachment's horizon.
    BeyondHorizon(AttachmentIndex, ktsn_time::Nanos),
    /// The device of a port of this generation is gone: of the port that this many [`Command::ReplacePort`] have brought.
    PortFailed(PortIndex, u64),
    /// Hand-overs by a pod's interface are beyond their budget; the longest of them.
    PortSlow(PortIndex, Nanos),
    /// A region had impossible links; the client has to come back with a new one.
    Retired(ClientKey, ktsn_ring::LinkError),
    /// A source of captured frames cannot be waited for: its frames are not read.
    CaptureRefused(AttachmentIndex),
    /// The gates of a port, as requested.
    Gates(PortIndex, Box<GateView>),
    /// The worker drained and ended.
    Ended,
}

/// The worker's end of both queues, and the command that it defers.
#[derive(Debug)]
pub struct Inbox<P> {
    commands: WorkerReceiver<Command<P>>,
    returned: Sender<Returned<P>>,
    /// A command that was taken and must wait for a frame that is due soon, or for the end of an attachment.
    deferred: Option<Command<P>>,
    /// Since when commands are deferred for frames.
    deferred_since: Option<Monotonic>,
}

impl<P> Inbox<P> {
    /// The next command, unless what it brings back might find no room.
    pub(crate) fn next(&mut self) -> Option<Command<P>> {
        let deferred = self.deferred.take();
        if deferred.is_some() {
            return deferred;
        }
        if self.returned.room() < limits::RETURNED_RESERVE { None } else { self.commands.pop() }
    }

    /// The command comes first the next time.
    pub(super) fn defer(&mut self, command: Command<P>) {
        self.deferred = Some(command);
    }

    /// True when a command was deferred.
    pub(super) fn has_deferred(&self) -> bool {
        self.deferred.is_some()
    }

    /// True when commands must wait for a frame that is due in `ahead`: soon, but not now. Commands do not wait for longer than
    /// [`limits::COMMANDS_DEFERRED_MAX`].
    pub(super) fn must_defer(&mut self, ahead: Option<Nanos>, now: Monotonic) -> bool {
        if ahead.is_none_or(|ahead| ahead <= Nanos::ZERO || ahead >= limits::COMMANDS_STOP) {
            self.deferred_since = None;
            return false;
        }
        let since = *self.deferred_since.get_or_insert(now);
        now.since(since) < limits::COMMANDS_DEFERRED_MAX
    }

    /// Commands do not wait for frames any more.
    pub(super) fn end_deferral(&mut self) {
        self.deferred_since = None;
    }

    /// Hands something back that must not be lost: its queue has room for all that there can be at once
    /// ([`limits::RETURNED_QUEUED`]).
    pub(super) fn hand_back(&mut self, what: Returned<P>) {
        // Without a receiver the daemon ends: the value is freed here.
        let _ = self.returned.try_send(what);
    }

    /// Hands boxes back that must not be lost.
    pub(super) fn hand_back_boxed<T: std::any::Any + Send>(
        &mut self,
        what: impl IntoIterator<Item = Box<T>>,
    ) {
        for what in what {
            self.hand_back(Returned::Boxed(what));
        }
    }

    /// Hands a port back that is not used any more, with its queue and its policing.
    pub(super) fn hand_back_port(
        &mut self,
        index: PortIndex,
        ports: [Option<Box<P>>; 2],
        selection: Box<TimeAware>,
        policing: Option<Box<Policing>>,
    ) {
        self.hand_back_boxed([selection]);
        self.hand_back_boxed(policing);
        for port in ports.into_iter().flatten() {
            self.hand_back(Returned::Port(index, Some(port)));
        }
    }

    /// Notifies the node. The notification may be lost: it comes again, or can be asked for again.
    pub(super) fn notify(&mut self, what: Returned<P>) {
        if self.returned.room() > limits::RETURNED_RESERVE + limits::COMMANDS_A_PASS {
            self.hand_back(what);
        }
    }
}

/// The other threads' end: it sends commands and wakes the worker, and waits while the queue is full.
pub type Outbox<P> = ManySender<Command<P>>;

/// Makes the two queues and the eventfd (for `Host::new`).
///
/// # Errors
/// The kernel's, when descriptors run out.
#[allow(clippy::type_complexity)]
pub fn queues<P>() -> Result<(Outbox<P>, Inbox<P>, Receiver<Returned<P>>, OwnedFd), rustix::io::Errno> {
    let (outbox, commands, wake) = threads_to_worker(limits::COMMANDS_QUEUED)?;
    let (returned, freed) = worker_to_thread(limits::RETURNED_QUEUED)?;
    let inbox = Inbox { commands, returned, deferred: None, deferred_since: None };
    Ok((outbox, inbox, freed, wake))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deferred_command_comes_first_and_commands_wait_for_frames_for_a_bounded_time() {
        let (outbox, mut inbox, _returned, _wake) = queues::<ktsn_port::memory::Memory>().unwrap();
        outbox.send(Command::ClockIsGood(true)).unwrap();
        outbox.send(Command::Drain).unwrap();
        let command = inbox.next().unwrap();
        inbox.defer(command);
        assert!(inbox.has_deferred() && matches!(inbox.next(), Some(Command::ClockIsGood(true))));
        assert!(matches!(inbox.next(), Some(Command::Drain)) && inbox.next().is_none());

        let begin = Monotonic::from_nanos(1_000_000_000);
        let soon = Some(Nanos::from_micros(30));
        assert!(!inbox.must_defer(None, begin) && !inbox.must_defer(Some(Nanos::ZERO), begin));
        assert!(inbox.must_defer(soon, begin));
        let after = begin.saturating_add(limits::COMMANDS_DEFERRED_MAX);
        assert!(!inbox.must_defer(soon, after), "for ever it does not wait");
        inbox.end_deferral();
        assert!(inbox.must_defer(soon, after));
    }
}
