// SPDX-License-Identifier: Apache-2.0
//! How clients and attachments go, and how the worker drains: in steps that other frames do not wait for.
//!
//! In: a client, an attachment or the worker that is to end. Out: all that was published by then, taken over and sent or counted
//! with a reason; then what is to be freed. A command only begins this. Each pass does a bounded step of it, and frames that
//! are due come first.
//!
//! ```text
//!  EndClient         ring ──► queue                         ──► handed back with its last frame
//!  RemoveAttachment  clients ──► rings ──► captured ──► queues ──► policy handed back     (its frames: `detached`)
//!  RemovePort        after the attachments before it        ──► handed back
//!  Drain             clients ──► rings ──► captured ──► queue sent ──► Ended
//! ```

use ktsn_model::DropReason;
use ktsn_port::Port;
use ktsn_resolve::{AttachmentIndex, PortIndex};
use ktsn_ring::RegionState;
use ktsn_sched::Strategy;

use super::command::{Command, Returned};
use super::{Environment, Worker, intake};
use crate::limits;

/// What of an attachment, or of the whole worker, is closed at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Clients from this place on are still to be found.
    Clients(usize),
    /// Rings of its clients are emptied.
    Rings,
    /// Captured frames are taken, or counted: at most so many more.
    Captured(usize),
    /// Queued frames are dropped.
    Queues,
}

/// An attachment on its way out, or a port that goes after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Removal {
    Attachment(AttachmentIndex, Stage),
    Port(PortIndex),
}

/// What a drain closes next.
#[derive(Clone, Copy, Debug)]
enum Drain {
    /// Clients from this place on.
    Clients(usize),
    /// This capture: at most so many more frames of it are taken, or counted.
    Captured(usize, usize),
}

/// What is on its way out.
#[derive(Debug)]
pub(super) struct Closing {
    /// Clients with rings that are emptied and then closed; they take turns.
    clients: std::collections::VecDeque<u16>,
    /// Attachments and ports, the first one at work.
    removals: std::collections::VecDeque<Removal>,
    /// What a drain does next.
    drain: Option<Drain>,
}

impl Closing {
    /// Nothing is; nothing is allocated later.
    pub(super) fn new() -> Self {
        Self {
            clients: std::collections::VecDeque::with_capacity(limits::CLIENTS_MAX),
            removals: std::collections::VecDeque::with_capacity(limits::ATTACHMENTS_MAX + limits::PORTS_MAX),
            drain: None,
        }
    }

    /// Whether there is work for further passes.
    pub(super) fn is_at_work(&self) -> bool {
        !self.clients.is_empty() || !self.removals.is_empty() || self.drain.is_some()
    }

    /// Whether this attachment is on its way out: its frames are `detached`.
    pub(super) fn is_removed(&self, attachment: AttachmentIndex) -> bool {
        let is_its =
            |removal: &Removal| matches!(removal, Removal::Attachment(index, _) if *index == attachment);
        !self.removals.is_empty() && self.removals.iter().any(is_its)
    }
}

impl<P: Port, E: Environment> Worker<P, E> {
    /// Whether the command needs an end of what is on its way out.
    pub(super) fn is_to_wait_for_closing(&self, command: &Command<P>) -> bool {
        match command {
            Command::SetAttachment(index, _) | Command::RemoveAttachment(index) => {
                self.closing.is_removed(*index)
            }
            Command::AddPort(index, _) => self.closing.removals.contains(&Removal::Port(*index)),
            _ => false,
        }
    }

    /// Empties the client's ring in further passes, then closes it; `ends`: its process is gone.
    pub(super) fn close_client(&mut self, at: usize, ends: bool) {
        let Some(client) = self.clients.get_mut(at).and_then(Option::as_mut) else { return };
        client.ends |= ends;
        if client.closed {
            client.ended |= ends;
            return self.finish_if_over(at);
        }
        if client.closing.is_none() {
            client.closing = Some(client.walks());
            self.turns.remove(at);
            self.closing.clients.push_back(at as u16); // a place is below CLIENTS_MAX, and stands there once
        }
    }

    /// Begins to remove an attachment.
    pub(super) fn remove_attachment(&mut self, attachment: AttachmentIndex) {
        if self.attachments.get(usize::from(attachment.0)).is_some_and(Option::is_some) {
            self.closing.removals.push_back(Removal::Attachment(attachment, Stage::Clients(0)));
        }
    }

    /// Removes a port, after the attachments that are on their way out: their frames wait there.
    pub(super) fn remove_port_in_turn(&mut self, port: PortIndex) {
        if self.closing.removals.is_empty() {
            self.remove_port(port);
        } else {
            self.closing.removals.push_back(Removal::Port(port));
        }
    }

    /// Nothing new from now on; what is published by now is still taken.
    pub(super) fn drain(&mut self) {
        self.draining = true;
        self.closing.drain = Some(Drain::Clients(0));
    }

    /// One step of all that is on its way out, as far as there is time before the next frame. Whether it took frames over.
    pub(super) fn close_some(&mut self) -> bool {
        if !self.closing.is_at_work() {
            return false;
        }
        let has_taken = self.empty_some_rings();
        if let Some(drain) = self.closing.drain {
            self.closing.drain = self.drain_some(drain);
        }
        if let Some(removal) = self.closing.removals.front().copied() {
            match removal {
                Removal::Attachment(index, stage) => self.remove_some(index, stage),
                Removal::Port(port) => {
                    self.closing.removals.pop_front();
                    self.remove_port(port);
                }
            }
        }
        has_taken
    }

    /// One step of a drain; the next one.
    fn drain_some(&mut self, drain: Drain) -> Option<Drain> {
        match drain {
            Drain::Clients(from) => match self.close_clients_from(from, |_| true) {
                Some(from) => Some(Drain::Clients(from)),
                None => Some(Drain::Captured(0, limits::CAPTURED_LEFT_MAX)),
            },
            Drain::Captured(at, _) if at >= self.captured_end => None,
            Drain::Captured(at, most) => Some(match self.empty_captured(AttachmentIndex(at as u16), most) {
                Some(most) => Drain::Captured(at, most),
                None => Drain::Captured(at + 1, limits::CAPTURED_LEFT_MAX),
            }),
        }
    }

    /// Takes some frames over from the rings that are closed next.
    fn empty_some_rings(&mut self) -> bool {
        let mut has_taken = false;
        for _ in 0..self.closing.clients.len().min(limits::CLOSED_A_PASS) {
            let Some(budget) = self.time_for_intake(self.closed_at) else { break };
            let Some(place) = self.closing.clients.pop_front() else { break };
            let at = usize::from(place);
            has_taken |= self.intake(at, budget.min(limits::INTAKE_QUANTUM)) > 0;
            self.closed_at = self.env.monotonic();
            let Some(Some(client)) = self.clients.get_mut(at) else { continue };
            if !client.closing.is_some_and(|walks| client.is_taken_since(walks)) {
                self.closing.clients.push_back(place);
                continue;
            }
            intake::count_bypassed(client, &self.attachments);
            (client.closed, client.ended) = (true, client.ends);
            self.finish_if_over(at);
        }
        has_taken
    }

    /// Begins to close the clients from a place on that `which` names by their attachment; where to go on, if there may be more.
    fn close_clients_from(&mut self, from: usize, which: impl Fn(AttachmentIndex) -> bool) -> Option<usize> {
        let mut found = 0;
        for at in from..self.clients_end {
            if found == limits::CLOSED_A_PASS || at - from == limits::PLACES_A_PASS {
                return Some(at);
            }
            // The attachment of the client in each place, so that the walk touches no client of others.
            if !which(self.attachment_of[at]) {
                continue;
            }
            if let Some(Some(client)) = self.clients.get_mut(at) {
                found += 1;
                client.consumer.set_state(RegionState::Detached);
                self.close_client(at, false);
            }
        }
        None
    }

    /// One step of the removal at the front.
    fn remove_some(&mut self, index: AttachmentIndex, stage: Stage) {
        let stage = match stage {
            Stage::Clients(from) => match self.close_clients_from(from, |of| of == index) {
                Some(from) => Some(Stage::Clients(from)),
                None => Some(Stage::Rings),
            },
            Stage::Rings => {
                let is_its = |place: &u16| self.attachment_of[usize::from(*place)] == index;
                Some(if self.closing.clients.iter().any(is_its) {
                    Stage::Rings
                } else {
                    Stage::Captured(limits::CAPTURED_LEFT_MAX)
                })
            }
            Stage::Captured(most) => Some(match self.empty_captured(index, most) {
                Some(most) => Stage::Captured(most),
                None => Stage::Queues,
            }),
            Stage::Queues => (self.remove_queued(index) || self.clock.has_of(index)).then_some(Stage::Queues),
        };
        match (stage, self.closing.removals.front_mut()) {
            (Some(stage), Some(front)) => *front = Removal::Attachment(index, stage),
            _ => {
                self.closing.removals.pop_front();
                if let Some(policy) = self.attachments.get_mut(usize::from(index.0)).and_then(Option::take) {
                    self.inbox.give(Returned::Boxed(policy));
                }
            }
        }
    }

    /// Drops some queued frames of an attachment; whether there may be more. Its frames wait at two of a thousand ports.
    fn remove_queued(&mut self, index: AttachmentIndex) -> bool {
        let tenant = u32::from(index.0);
        let mut from = 0;
        while let Some(port) = self.busy.next(from) {
            from = port + 1;
            self.remove_held(port, |whose| whose == tenant);
            let Some(mut state) = self.ports[port].take() else { continue };
            let is_more = state.sched.remove_tenant(tenant, limits::REMOVED_A_PASS, &mut |frame| {
                self.drop_frame(frame.id, frame.tenant, DropReason::Detached);
            });
            self.ports[port] = Some(state);
            if is_more {
                return true;
            }
        }
        false
    }

    /// Gives up a port; what waits for it is dropped. A port of a pod has nothing queued by then: its attachment went before.
    pub(super) fn remove_port(&mut self, index: PortIndex) {
        self.remove_held(usize::from(index.0), |_| true);
        let Some(mut state) = self.ports.get_mut(usize::from(index.0)).and_then(Option::take) else { return };
        self.remove_from(&mut state.sched, |_| true);
        while self.ports_end > 0 && self.ports[self.ports_end - 1].is_none() {
            self.ports_end -= 1;
        }
        self.inbox.give(Returned::Boxed(state.sched));
        self.give_policing(state.policing);
        for port in [Some(state.port), state.successor].into_iter().flatten() {
            self.inbox.give(Returned::Port(index, Some(port)));
        }
    }
}
