// SPDX-License-Identifier: Apache-2.0
//! How a socket becomes a stream, and how a stream ends.
//!
//! In: Register with the facts of its socket, ShowPort with those of the second socket, Unregister, or Expect. Out: the worker's command, and
//! the stream in the directory. A stream for which its attachment has no memory left is refused, and so is a socket that is not
//! served: the program leaves it to the kernel.

use std::os::fd::OwnedFd;

use ktsn_ring::control::{self, TXTIME_DEADLINE_MODE};
use ktsn_ring::{ClockId, StreamCode, StreamStatus, stream_flags};
use tracing::warn;

use super::{Registrar, SealState};
use crate::clients::answer::{code_for, flags_of, judge, link_status_of, status_of};
use crate::clients::directory::ServedAttachment;
use crate::clients::socket::SocketFacts;
use crate::clients::sys::SockTxtime;
use crate::limits;
use crate::stats::count;
use crate::worker::{Command, StreamInfo};

impl<P: Send + 'static> Registrar<P> {
    /// Answers a Register; false ends the connection.
    pub(super) fn register(
        &mut self,
        number: u64,
        register: control::Register,
        facts: Option<SocketFacts>,
        socket: Option<OwnedFd>,
    ) -> bool {
        let Some(client) = self.client(number) else { return false };
        // The client was sealed by a registration, so the worker has it.
        if register.stream_index >= limits::STREAMS_MAX || !matches!(client.seal, SealState::WithWorker) {
            return false;
        }
        let served = {
            let known = self.directory.lock();
            known.served.iter().find(|s| s.index == client.attachment).cloned()
        };
        let judged = match (&served, &facts) {
            (Some(served), Some(facts)) => judge(served, &self.directory.lock().tables, facts),
            _ => StreamCode::NotAttached,
        };
        match (served, facts) {
            (Some(served), Some(facts)) if judged == StreamCode::Registered => {
                self.begin_stream(number, register, &served, &facts, socket)
            }
            _ => self.refuse(number, (register.stream_index, register.token), judged),
        }
    }

    /// Answers an Expect: the client is granted a share when it uses an entry of its receive area. False ends the connection.
    pub(super) fn expect(&self, number: u64) -> bool {
        let Some(connection) = self.connections.get(&number) else { return false };
        let Some(client) = connection.client.as_ref() else { return false };
        // The client was sealed by this message or before it.
        if !matches!(client.seal, SealState::WithWorker) {
            return false;
        }
        self.directory.add_receiver(client.key, connection.pid, client.attachment, &client.receive);
        true
    }

    /// Answers a ShowPort: the stream gets the shown port, or goes on without it where the socket shows no port. False ends the
    /// connection.
    pub(super) fn show_port(
        &mut self,
        number: u64,
        shown: control::ShowPort,
        facts: Option<SocketFacts>,
    ) -> bool {
        let control::ShowPort { stream_index: index, token } = shown;
        let Some(client) = self.client(number) else { return false };
        if index >= limits::STREAMS_MAX || !matches!(client.seal, SealState::WithWorker) {
            return false;
        }
        let mut known = self.directory.lock();
        let served = known.served.iter().find(|served| served.index == client.attachment);
        let netns_cookie = served.map(|served| served.netns_cookie);
        let stream = known.clients.get(&client.key).and_then(|view| view.streams.get(index));
        let facts = facts.filter(|facts| Some(facts.netns_cookie) == netns_cookie);
        let Some(info) = stream.map(|stream| with_port(stream, token, facts.as_ref())) else {
            drop(known);
            return self.refuse(number, (index, token), StreamCode::Unsupported);
        };
        // It takes the place of the registration before it, so its page is there.
        let kept = known.keep_stream(client.key, index, info.clone());
        drop(known);
        kept.is_ok() && client.worker.send(Command::Register(client.key, index, Box::new(info))).is_ok()
    }

    fn begin_stream(
        &mut self,
        number: u64,
        register: control::Register,
        served: &ServedAttachment<P>,
        facts: &SocketFacts,
        socket: Option<OwnedFd>,
    ) -> bool {
        let control::Register { stream_index: index, token, txtime, .. } = register;
        let granted = self.granted.entry(served.netns_cookie).or_default();
        let flags = granted.answer(flags_of(served), txtime, facts.cookie) | takes_port(facts);
        let Some(client) = self.client(number) else { return false };
        let flags = flags | self.keep(client.key, index, facts, socket);
        let mut known = self.directory.lock();
        let status = match facts.link {
            Some(_) => link_status_of(token, flags, &known.tables, served.index),
            None => {
                let code = code_for(known.tables.attachment(served.index), facts.local.ip());
                let peer = facts.peer.map(|peer| peer.ip());
                status_of((token, flags, code), &client.client_tables.table, peer)
            }
        };
        let info = StreamInfo {
            interface: facts.interface,
            uid: facts.uid,
            token,
            cookie: facts.cookie,
            attachment: served.index,
            local: facts.local,
            peer: facts.peer,
            link: facts.link,
            is_deadline: is_deadline(flags, facts.txtime),
            status,
        };
        let kept = known.keep_stream(client.key, index, info.clone());
        // The worker may have to return something first, and that needs the directory.
        drop(known);
        if let Err(reason) = kept {
            count(&served.stats.clients_refused[reason as usize]);
            if self.log_limit.allows() {
                let (attachment, reason, memory_max) =
                    (served.name(), reason.word(), served.attachment.clients.memory_max);
                warn!(attachment, reason, memory_max, "a socket of a client is refused");
            }
            return self.refuse(number, (index, token), StreamCode::Refused);
        }
        if is_on_tai(flags, facts.txtime) {
            count(&served.stats.tai_streams);
        }
        client.worker.send(Command::Register(client.key, index, Box::new(info))).is_ok()
    }

    /// Refuses a socket as a stream. What the stream was before ends with it.
    fn refuse(&self, number: u64, (index, token): (u32, u32), code: StreamCode) -> bool {
        let Some(client) = self.client(number) else { return false };
        self.directory.end_stream(client.key, index);
        self.directory.kept().remove(client.key, index);
        let status = StreamStatus { token, code, ..StreamStatus::default() };
        let _ = client.worker.send(Command::Refuse(client.key, index, status));
        true
    }

    /// Ends a stream; false ends the connection.
    pub(super) fn unregister(&self, number: u64, index: u32) -> bool {
        let Some(client) = self.client(number) else { return false };
        if !matches!(client.seal, SealState::WithWorker) {
            return true; // it has registered nothing
        }
        self.directory.end_stream(client.key, index);
        let is_kept = self.directory.kept().begin_end(client.key, index);
        let command = if is_kept { Command::Settle } else { Command::Unregister };
        client.worker.send(command(client.key, index)).is_ok()
    }
}

/// [`stream_flags::TAKES_PORT`] for a UDP socket without a port, else 0.
fn takes_port(facts: &SocketFacts) -> u16 {
    if facts.udp && facts.local.port() == 0 { stream_flags::TAKES_PORT } else { 0 }
}

/// A stream under a new token, with the port of the shown socket. Its own socket is UDP on any address without port and peer, as far
/// as ktsnd knows; the shown one is equal but for its port, and is bound to no device. Otherwise the stream stays as it is.
fn with_port(info: &StreamInfo, token: u32, shown: Option<&SocketFacts>) -> StreamInfo {
    let is_any = |address: std::net::SocketAddr| address.ip().is_unspecified();
    let is_shown = info.status.flags & stream_flags::PORT_SHOWN != 0;
    let has_none = info.link.is_none() && info.peer.is_none() && (info.local.port() == 0 || is_shown);
    let port = shown.filter(|shown| {
        let is_same =
            is_any(shown.local) && is_any(info.local) && shown.local.is_ipv4() == info.local.is_ipv4();
        let is_plain = shown.udp && shown.peer.is_none() && shown.interface == 0 && shown.mark == 0;
        has_none && is_same && is_plain && shown.local.port() != 0
    });
    let mut info = info.clone();
    (info.token, info.status.token) = (token, token);
    info.status.flags &= !stream_flags::PORT_SHOWN;
    if let Some(shown) = port {
        info.local = shown.local;
        info.status.flags |= stream_flags::PORT_SHOWN;
    }
    info
}

/// Whether a socket's transmit times are deadlines: by the SO_TXTIME that was granted here, else by the kernel's.
fn is_deadline(flags: u16, in_kernel: SockTxtime) -> bool {
    let flags = stream_flags::recalled(flags).map_or(in_kernel.flags, u32::from);
    flags & u32::from(TXTIME_DEADLINE_MODE) != 0
}

/// Whether a socket's transmit times are CLOCK_TAI's.
fn is_on_tai(flags: u16, in_kernel: SockTxtime) -> bool {
    stream_flags::recalled(flags).is_some() || in_kernel.clock == u32::from(ClockId::Tai.id())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    use ktsn_resolve::AttachmentIndex;

    use crate::worker::LinkKind;

    fn facts(local: &str) -> SocketFacts {
        SocketFacts {
            udp: true,
            link: None,
            cookie: 9,
            netns_cookie: 1,
            local: local.parse().unwrap(),
            peer: None,
            interface: 0,
            mark: 0,
            uid: 0,
            txtime: SockTxtime::default(),
        }
    }

    fn stream(local: &str) -> StreamInfo {
        StreamInfo {
            interface: 0,
            uid: 0,
            token: 1,
            cookie: 7,
            attachment: AttachmentIndex(0),
            local: local.parse().unwrap(),
            peer: None,
            link: None,
            is_deadline: true,
            status: StreamStatus { token: 1, flags: stream_flags::TAKES_PORT, ..StreamStatus::default() },
        }
    }

    #[test]
    fn a_shown_port_is_the_streams() {
        for (stream_at, shown_at) in [("0.0.0.0:0", "0.0.0.0:5000"), ("[::]:0", "[::]:5000")] {
            let before = stream(stream_at);
            let now = with_port(&before, 2, Some(&facts(shown_at)));
            assert_eq!((now.token, now.status.token, now.local), (2, 2, shown_at.parse().unwrap()));
            assert_eq!(now.status.flags, stream_flags::TAKES_PORT | stream_flags::PORT_SHOWN);
            let status = StreamStatus { token: 1, flags: before.status.flags, ..now.status };
            let rest = StreamInfo { token: 1, local: before.local, status, ..now.clone() };
            assert_eq!(rest, before, "nothing else changes");
            // Another port takes its place.
            let other = SocketAddr::new(now.local.ip(), 6000);
            assert_eq!(
                with_port(&now, 3, Some(&SocketFacts { local: other, ..facts(shown_at) })).local,
                other
            );
        }
    }

    #[test]
    fn nothing_else_is_taken_for_a_port() {
        let peer: SocketAddr = "10.0.0.2:9".parse().unwrap();
        let good = || Some(facts("0.0.0.0:5000"));
        let changed = |change: fn(&mut SocketFacts)| {
            let mut facts = facts("0.0.0.0:5000");
            change(&mut facts);
            Some(facts)
        };
        for (stream, shown) in [
            (stream("0.0.0.0:7"), good()),
            (stream("10.0.0.1:0"), good()),
            (stream("[::]:0"), good()),
            (StreamInfo { peer: Some(peer), ..stream("0.0.0.0:0") }, good()),
            (StreamInfo { link: Some(LinkKind::Frames), ..stream("0.0.0.0:0") }, good()),
            (stream("0.0.0.0:0"), None),
            (stream("0.0.0.0:0"), Some(facts("0.0.0.0:0"))),
            (stream("0.0.0.0:0"), Some(facts("10.0.0.1:5000"))),
            (stream("0.0.0.0:0"), Some(facts("[::]:5000"))),
            (stream("0.0.0.0:0"), changed(|facts| facts.peer = Some(([10, 0, 0, 2], 9).into()))),
            (stream("0.0.0.0:0"), changed(|facts| facts.udp = false)),
            // On another device the same port may be another socket's.
            (stream("0.0.0.0:0"), changed(|facts| facts.interface = 1)),
            (stream("0.0.0.0:0"), changed(|facts| facts.mark = 1)),
        ] {
            let now = with_port(&stream, 2, shown.as_ref());
            let status = StreamStatus { token: 1, ..now.status };
            assert_eq!((now.token, now.status.token), (2, 2));
            assert_eq!(StreamInfo { token: 1, status, ..now }, stream, "it stays as it is: {shown:?}");
        }
        assert_eq!(takes_port(&facts("0.0.0.0:0")), stream_flags::TAKES_PORT);
        assert_eq!(takes_port(&facts("0.0.0.0:5000")), 0);
        assert_eq!(takes_port(&SocketFacts { udp: false, ..facts("0.0.0.0:0") }), 0);
    }
}
