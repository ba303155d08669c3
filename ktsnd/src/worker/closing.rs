// SPDX-License-Identifier: Apache-2.0
//! What is being closed: clients, attachments, ports, or the whole worker.
//!
//! In: a client, an attachment, a port or the worker that must end. Out: the next step. A command only begins this. Each pass does a
//! bounded step of it, and frames that are due come first. All that was published when closing began is taken over, and sent or
//! counted with a reason; then memory is handed back.
//!
//! ```text
//!  EndClient         ring ──► queue                         ──► handed back with its last frame
//!  RemoveAttachment  clients ──► rings ──► captured ──► queues ──► policy handed back     (its frames: `detached`)
//!  RemovePort        after the attachments before it        ──► handed back
//!  Drain             clients ──► rings ──► captured ──► queue sent ──► Ended
//! ```

use std::collections::VecDeque;

use ktsn_resolve::{AttachmentIndex, PortIndex};

use super::command::Command;
use crate::limits;

/// What of an attachment is closed at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Clients from this place on are still to be found.
    Clients(usize),
    /// Rings of its clients are emptied.
    Rings,
    /// Captured frames are taken, or counted: at most so many more.
    Captured(usize),
    /// Queued frames are dropped.
    Queues,
}

/// An attachment that is being removed, or a port that is removed after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Removal {
    Attachment(AttachmentIndex, Stage),
    Port(PortIndex),
}

/// What a drain closes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drain {
    /// Clients from this place on.
    Clients(usize),
    /// This capture: at most so many more frames of it are taken, or counted.
    Captured(AttachmentIndex, usize),
}

/// Everything that is being closed. Memory is allocated when it is made.
#[derive(Debug)]
pub(super) struct Closing {
    /// Clients with rings that are emptied and then closed; they take turns.
    rings: VecDeque<u16>,
    /// Attachments and ports. The first one is being removed.
    removals: VecDeque<Removal>,
    /// The next step of a drain.
    drain: Option<Drain>,
    is_draining: bool,
}

impl Closing {
    /// Nothing is being closed.
    pub(super) fn new() -> Self {
        Self {
            rings: VecDeque::with_capacity(limits::CLIENTS_MAX),
            removals: VecDeque::with_capacity(limits::ATTACHMENTS_MAX + limits::PORTS_MAX),
            drain: None,
            is_draining: false,
        }
    }

    /// True when there is work for further passes.
    pub(super) fn is_at_work(&self) -> bool {
        !self.rings.is_empty() || !self.removals.is_empty() || self.drain.is_some()
    }

    /// True when this attachment is being removed: its frames are `detached`.
    #[inline]
    pub(super) fn is_removed(&self, attachment: AttachmentIndex) -> bool {
        let is_its =
            |removal: &Removal| matches!(removal, Removal::Attachment(index, _) if *index == attachment);
        !self.removals.is_empty() && self.removals.iter().any(is_its)
    }

    /// True when this port is being removed.
    fn is_port_removed(&self, port: PortIndex) -> bool {
        self.removals.contains(&Removal::Port(port))
    }

    /// True when the command needs the end of something that is being closed.
    pub(super) fn must_wait<P>(&self, command: &Command<P>) -> bool {
        match command {
            Command::SetAttachment(index, _) | Command::RemoveAttachment(index) => self.is_removed(*index),
            Command::AddPort(index, _) => self.is_port_removed(*index),
            _ => false,
        }
    }

    /// Begins to remove an attachment.
    pub(super) fn remove_attachment(&mut self, attachment: AttachmentIndex) {
        self.removals.push_back(Removal::Attachment(attachment, Stage::Clients(0)));
    }

    /// Removes a port after the attachments that are being removed: their frames wait there. False: there is none, the port can be
    /// removed at once.
    pub(super) fn remove_port(&mut self, port: PortIndex) -> bool {
        let must_wait = !self.removals.is_empty();
        if must_wait {
            self.removals.push_back(Removal::Port(port));
        }
        must_wait
    }

    /// What is removed now.
    pub(super) fn removal(&self) -> Option<Removal> {
        self.removals.front().copied()
    }

    /// The removal goes on with this; `None`: it is over.
    pub(super) fn set_removal(&mut self, next: Option<Removal>) {
        match (next, self.removals.front_mut()) {
            (Some(next), Some(front)) => *front = next,
            _ => drop(self.removals.pop_front()),
        }
    }

    /// Nothing new from now on; what is published by now is still taken.
    pub(super) fn begin_drain(&mut self) {
        self.is_draining = true;
        self.drain = Some(Drain::Clients(0));
    }

    /// True when the worker takes nothing new.
    pub(super) fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// The next step of a drain.
    pub(super) fn drain(&self) -> Option<Drain> {
        self.drain
    }

    /// The drain goes on with this step; `None`: there is no further one.
    pub(super) fn set_drain(&mut self, drain: Option<Drain>) {
        self.drain = drain;
    }

    /// The ring of the client in this place is emptied, in turn with others.
    pub(super) fn push_ring(&mut self, at: usize) {
        self.rings.push_back(at as u16); // a place is below CLIENTS_MAX, and stands there once
    }

    /// The place of the next client to empty the ring of.
    pub(super) fn pop_ring(&mut self) -> Option<usize> {
        self.rings.pop_front().map(usize::from)
    }

    /// How many rings are being emptied.
    pub(super) fn rings_count(&self) -> usize {
        self.rings.len()
    }

    /// True when the ring of a client in a place that is `its` is being emptied.
    pub(super) fn has_ring(&self, its: impl Fn(usize) -> bool) -> bool {
        self.rings.iter().any(|at| its(usize::from(*at)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_goes_after_the_attachments_before_it() {
        let mut closing = Closing::new();
        let (attachment, port) = (AttachmentIndex(1), PortIndex(5));
        assert!(!closing.remove_port(port) && !closing.is_at_work());
        closing.remove_attachment(attachment);
        assert!(closing.remove_port(port) && closing.is_port_removed(port) && closing.is_removed(attachment));
        assert_eq!(closing.removal(), Some(Removal::Attachment(attachment, Stage::Clients(0))));
        let queues = Some(Removal::Attachment(attachment, Stage::Queues));
        closing.set_removal(queues);
        assert_eq!(closing.removal(), queues);
        closing.set_removal(None);
        assert_eq!(closing.removal(), Some(Removal::Port(port)));
        assert!(!closing.is_removed(attachment));
        closing.set_removal(None);
        assert!(!closing.is_at_work());
    }

    #[test]
    fn rings_take_turns_and_a_drain_is_work() {
        let mut closing = Closing::new();
        [3, 7].iter().for_each(|at| closing.push_ring(*at));
        assert_eq!((closing.pop_ring(), closing.rings_count()), (Some(3), 1));
        closing.push_ring(3);
        assert!(closing.has_ring(|at| at == 3));
        assert_eq!((closing.pop_ring(), closing.pop_ring(), closing.pop_ring()), (Some(7), Some(3), None));
        closing.begin_drain();
        assert!(closing.is_at_work() && closing.is_draining());
        closing.set_drain(None);
        assert!(!closing.is_at_work() && closing.is_draining());
    }
}
