// SPDX-License-Identifier: Apache-2.0
//! How a socket becomes a stream, and how a stream ends.
//!
//! In: Register with what the socket is, or Unregister. Out: the worker's command, and the stream in the directory. A stream for
//! which its attachment has no memory left is refused, and so is a socket that is not served: the program leaves it to the kernel.

use ktsn_ring::control::{self, TXTIME_DEADLINE_MODE};
use ktsn_ring::{ClockId, StreamCode, StreamStatus, stream_flags};
use tracing::warn;

use super::{Held, Service};
use crate::limits;
use crate::stats::count;
use crate::tenant::answer::{flags_of, judge, link_status_of, status_of};
use crate::tenant::directory::Served;
use crate::tenant::socket::{SockTxtime, SocketFacts};
use crate::worker::{Command, StreamInfo};

impl<P: Send + 'static> Service<P> {
    /// Answers a Register; false ends the connection.
    pub(super) fn register(
        &mut self,
        number: u64,
        register: control::Register,
        facts: Option<SocketFacts>,
    ) -> bool {
        let Some(client) = self.connections.get(&number).and_then(|c| c.client.as_ref()) else {
            return false;
        };
        // A registration is what has a client sealed, so the worker has it.
        if register.stream_index >= limits::STREAMS_MAX || !matches!(client.held, Held::Given) {
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
                self.begin_stream(number, register, &served, &facts)
            }
            _ => self.refuse(number, register, judged),
        }
    }

    fn begin_stream(
        &mut self,
        number: u64,
        register: control::Register,
        served: &Served<P>,
        facts: &SocketFacts,
    ) -> bool {
        let control::Register { stream_index: index, token, txtime } = register;
        let Some(client) = self.connections.get(&number).and_then(|c| c.client.as_ref()) else {
            return false;
        };
        let granted = self.granted.entry(served.netns_cookie).or_default();
        let flags = granted.answer(flags_of(served), txtime, facts.cookie);
        let mut known = self.directory.lock();
        let status = match facts.link {
            Some(_) => link_status_of(token, flags, &known.tables, served.index),
            None => status_of(token, flags, &client.offer.table, facts.peer.map(|p| p.ip())),
        };
        let info = StreamInfo {
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
        // The worker may have to give something back first, and what it gives back needs the directory.
        drop(known);
        if let Err(reason) = kept {
            count(&served.stats.clients_refused[reason as usize]);
            if self.quiet.may() {
                let (attachment, reason, memory_max) = (&served.name, reason.word(), served.memory_max);
                warn!(attachment, reason, memory_max, "a socket of a client is refused");
            }
            return self.refuse(number, register, StreamCode::Refused);
        }
        if is_on_tai(flags, facts.txtime) {
            count(&served.stats.tai_streams);
        }
        client.worker.send(Command::Register(client.key, index, Box::new(info))).is_ok()
    }

    /// A socket does not become a stream. What the stream was before ends with it.
    fn refuse(&mut self, number: u64, register: control::Register, code: StreamCode) -> bool {
        let control::Register { stream_index: index, token, .. } = register;
        let Some(client) = self.connections.get(&number).and_then(|c| c.client.as_ref()) else {
            return false;
        };
        self.directory.end_stream(client.key, index);
        let status = StreamStatus { token, code, ..StreamStatus::default() };
        let _ = client.worker.send(Command::Refuse(client.key, index, status));
        true
    }

    /// Ends a stream; false ends the connection.
    pub(super) fn unregister(&mut self, number: u64, index: u32) -> bool {
        let Some(client) = self.connections.get(&number).and_then(|c| c.client.as_ref()) else {
            return false;
        };
        if !matches!(client.held, Held::Given) {
            return true; // it has registered nothing
        }
        self.directory.end_stream(client.key, index);
        client.worker.send(Command::Unregister(client.key, index)).is_ok()
    }
}

/// Whether a socket's transmit times are deadlines: by the SO_TXTIME that it was granted here, else by the kernel's.
fn is_deadline(flags: u16, kernels: SockTxtime) -> bool {
    let flags = stream_flags::recalled(flags).map_or(kernels.flags, u32::from);
    flags & u32::from(TXTIME_DEADLINE_MODE) != 0
}

/// Whether a socket's transmit times are CLOCK_TAI's.
fn is_on_tai(flags: u16, kernels: SockTxtime) -> bool {
    stream_flags::recalled(flags).is_some() || kernels.clock == u32::from(ClockId::Tai.id())
}
