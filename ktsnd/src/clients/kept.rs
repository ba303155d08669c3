// SPDX-License-Identifier: Apache-2.0
//! Sockets that are kept while their streams are registered.
//!
//! In: a socket that came with a registration. Out: the socket, for a datagram of its stream that is the kernel's. Only a program that
//! waits in its close until the socket is let go is served so: a port and an `epoll` then see the close as ever.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ktsn_resolve::Flow;

use super::notifier::Process;
use crate::limits;
use crate::worker::{ClientKey, StreamInfo};

/// A socket with what was registered of it.
#[derive(Clone, Debug)]
pub(super) struct KeptSocket {
    pub socket: Arc<OwnedFd>,
    /// SO_COOKIE.
    pub cookie: u64,
    pub local: SocketAddr,
    pub uid: u32,
    /// Its program, with the region.
    pub process: Arc<Process>,
    /// Its stream ends.
    pub is_ending: bool,
}

/// Whether a datagram of this flow may come from a socket with these facts.
fn is_from(flow: &Flow, local: SocketAddr, uid: u32) -> bool {
    let own = local.ip().to_canonical();
    uid == flow.uid
        && local.port() == flow.source_port
        && flow.bound.is_none_or(|bound| own.is_unspecified() || own == bound.to_canonical())
}

impl KeptSocket {
    /// Whether it is the socket that this flow's datagram was sent by. `now`: its stream's registration, if there is one.
    pub(super) fn sent(&self, flow: &Flow, now: Option<&StreamInfo>) -> bool {
        match now {
            Some(now) => now.cookie == self.cookie && is_from(flow, now.local, now.uid),
            None => is_from(flow, self.local, self.uid),
        }
    }
}

/// All sockets that are kept, by client and stream.
#[derive(Clone, Debug, Default)]
pub(super) struct KeptSockets(Arc<Mutex<BTreeMap<(ClientKey, u32), KeptSocket>>>);

impl KeptSockets {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(ClientKey, u32), KeptSocket>> {
        // A panic elsewhere leaves a map that is still right.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a socket in the place of an older one. False: its namespace has as many as it may have.
    pub(super) fn insert(&self, client: ClientKey, stream: u32, socket: KeptSocket) -> bool {
        let mut all = self.lock();
        let netns_cookie = socket.process.netns_cookie;
        let of_namespace = all.values().filter(|kept| kept.process.netns_cookie == netns_cookie).count();
        let may = of_namespace < limits::KEPT_OF_NAMESPACE_MAX || all.contains_key(&(client, stream));
        if may {
            all.insert((client, stream), socket);
        }
        may
    }

    /// The socket of a stream.
    pub(super) fn get(&self, client: ClientKey, stream: u32) -> Option<KeptSocket> {
        self.lock().get(&(client, stream)).cloned()
    }

    /// Lets go of a stream's socket.
    pub(super) fn remove(&self, client: ClientKey, stream: u32) {
        self.lock().remove(&(client, stream));
    }

    /// A stream ends; whether its socket is kept.
    pub(super) fn begin_end(&self, client: ClientKey, stream: u32) -> bool {
        self.lock().get_mut(&(client, stream)).map(|kept| kept.is_ending = true).is_some()
    }

    /// Lets go of the socket of a stream that ends. False: none is kept, or another socket has become the stream.
    pub(super) fn end(&self, client: ClientKey, stream: u32) -> bool {
        let mut all = self.lock();
        let ends = all.get(&(client, stream)).is_some_and(|kept| kept.is_ending);
        if ends {
            all.remove(&(client, stream));
        }
        ends
    }

    /// Lets go of a client's sockets.
    pub(super) fn remove_client(&self, client: ClientKey) {
        self.lock().retain(|(of, _), _| *of != client);
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }
}
