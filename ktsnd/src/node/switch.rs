// SPDX-License-Identifier: Apache-2.0
//! A port to a virtual switch (vhost-user) for one attachment.
//!
//! In: an attachment with `egress = "vhost-user"`. Out: its port, and what the listing says about it. The port listens at its
//! socket as long as the attachment is attached; the switch may come and go.

use std::path::PathBuf;

use ktsn_port::vhost_user::{Socket, Status, VhostUser};
use ktsn_port::{AnyPort, Device, OpenError, Options};
use ktsn_resolve::PortIndex;
use ktsn_sched::{TimeAware, TimeAwareOptions};

use super::errors::not_opened;
use super::{Node, NodeError};
use crate::config::Attachment;
use crate::limits;
use crate::worker::{Command, HAND_OVER_AT_START, NewPort};

/// Transmit buffers of such a port.
const STAGES: u16 = 256;

/// What is known of the switch at the other end.
#[derive(Debug)]
pub(super) struct Backend {
    socket: PathBuf,
    status: Status,
}

impl Backend {
    /// Whether it is connected.
    pub(super) fn is_up(&self) -> bool {
        self.status.is_up()
    }

    /// Why no frame leaves, or nothing.
    pub(super) fn reason(&self) -> String {
        if self.is_up() {
            return String::new();
        }
        let fault =
            self.status.last_fault().map(|fault| format!("; the last one: {fault}")).unwrap_or_default();
        format!("waits for a switch to connect to {}{fault}", self.socket.display())
    }
}

impl Node {
    /// Opens the port that sends for the attachment's interface, and gives it to the uplink's worker.
    pub(super) fn open_vhost_user(
        &mut self,
        attachment: &Attachment,
        uplink: &str,
        socket: &Socket<'_>,
    ) -> Result<PortIndex, NodeError> {
        let device = Device { ifname: &attachment.interface, netns: Some(&attachment.netns) };
        let options = Options { stage_count: STAGES, ..Options::default() };
        let port = VhostUser::open(Some(&device), socket, &options).map_err(|error| {
            let is_socket = matches!(error, OpenError::VhostUser(_));
            not_opened(if is_socket { "attachment.vhost_socket" } else { "attachment.interface" }, &error)
        })?;
        let backend = Backend { socket: socket.path.to_owned(), status: port.status() };
        let port = AnyPort::from(port);
        let index = self.free_port();
        let netns = attachment.netns.display().to_string();
        let stats = self.note_port(index, &attachment.interface, netns, &port, String::new(), None);
        if let Some(open) = self.ports.get_mut(&index.0) {
            open.backend = Some(backend);
        }
        // Gates, shapers and policing are the uplink's; what leaves here goes on the switch's way.
        let selection = Box::new(TimeAware::new(TimeAwareOptions {
            hand_over: HAND_OVER_AT_START,
            ..TimeAwareOptions::gates(limits::INTERFACE_QUEUE_MAX, 1)
        }));
        let (port, priority_map) = (Box::new(port), self.priority_map(uplink));
        // No rule of the pod runs in a hand-over: it is a copy.
        let new = NewPort { port, priority_map, selection, policing: None, stats, is_pod_interface: false };
        if let Err(error) = self.workers[uplink].must_take(Command::AddPort(index, new)) {
            self.ports.remove(&index.0);
            return Err(error);
        }
        Ok(index)
    }
}
