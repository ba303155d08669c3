// SPDX-License-Identifier: Apache-2.0
//! How long the registrar keeps sockets of streams.
//!
//! In: registrations that allow it. Out: a socket in the directory ([`KeptSockets`]). It is let go when its stream or its client has ended
//! and the worker needs it no more ([`Command::Settle`]). Until then the program's close waits.
//!
//! [`Command::Settle`]: crate::worker::Command::Settle
//! [`KeptSockets`]: crate::clients::kept::KeptSockets

use std::os::fd::OwnedFd;
use std::sync::Arc;

use ktsn_ring::control::{self, Message};
use ktsn_ring::stream_flags;

use super::Registrar;
use crate::clients::connection::Received;
use crate::clients::kept::KeptSocket;
use crate::clients::socket::{SocketFacts, facts_without_lock};
use crate::worker::ClientKey;

/// A second descriptor of the socket that came with a registration, where that allows to keep it.
pub(super) fn kept_of(message: &Received) -> Option<OwnedFd> {
    let [socket] = &message.descriptors[..] else { return None };
    let is_kept =
        matches!(control::parse(message.octets()), Ok(Message::Register(register)) if register.is_kept);
    let is_udp = || facts_without_lock(socket).is_ok_and(|facts| facts.udp);
    (is_kept && is_udp()).then(|| socket.try_clone().ok()).flatten()
}

impl<P: Send + 'static> Registrar<P> {
    /// Keeps a stream's socket in the place of an older one: [`stream_flags::KEPT`], or 0.
    pub(super) fn keep(
        &self,
        client: ClientKey,
        stream: u32,
        facts: &SocketFacts,
        socket: Option<OwnedFd>,
    ) -> u16 {
        let process = self.directory.process(client);
        let kept = socket.zip(process).is_some_and(|(socket, process)| {
            let (cookie, local, uid) = (facts.cookie, facts.local, facts.uid);
            let (socket, is_ending) = (Arc::new(socket), false);
            let socket = KeptSocket { socket, cookie, local, uid, process, is_ending };
            self.directory.kept().insert(client, stream, socket)
        });
        if kept {
            return stream_flags::KEPT;
        }
        self.directory.kept().remove(client, stream);
        0
    }
}
