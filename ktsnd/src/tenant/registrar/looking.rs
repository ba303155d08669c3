// SPDX-License-Identifier: Apache-2.0
//! What clients pass is looked at: at once where the kernel tells it without waiting, else by the examiner.
//!
//! In: a message's descriptors, the examiner's answers. Out: facts. Nothing here waits for a client.

use std::os::fd::OwnedFd;

use tracing::warn;

use super::Service;
use crate::tenant::connection::{Received, unwatch, watch};
use crate::tenant::examiner::{Facts, Owner};
use crate::tenant::socket::facts_without_lock;

/// What came of looking.
pub(super) enum Looked {
    /// The facts.
    At(Facts),
    /// The examiner tells them later.
    Later,
}

impl<P: Send + 'static> Service<P> {
    /// Against whom it counts when something hangs that came by such a connection. Whoever makes namespaces of its own, as
    /// many as it likes, has one place with all others like it: only those that are served count by themselves.
    pub(super) fn owner(&self, netns_cookie: u64, pid: u32) -> Owner {
        let is_served = self.directory.lock().served.iter().any(|served| served.netns_cookie == netns_cookie);
        Owner { netns_cookie: if is_served { netns_cookie } else { 0 }, pid }
    }

    /// What came with a message. Only UDP sockets of namespaces that are served are asked for what may take as long as a
    /// program likes.
    pub(super) fn look(&mut self, owner: Owner, number: u64, mut descriptors: Vec<OwnedFd>) -> Looked {
        if let [descriptor] = &descriptors[..]
            && let Ok(facts) = facts_without_lock(descriptor)
            && facts.closes_at_once()
        {
            let is_served =
                self.directory.lock().served.iter().any(|served| served.netns_cookie == facts.netns_cookie);
            if facts.link.is_some() || !is_served {
                return Looked::At(Some(Ok(facts)));
            }
        } else if descriptors.len() > 1 {
            // No message of ours: what can be closed without waiting is not looked at.
            descriptors.retain(|each| !facts_without_lock(each).is_ok_and(|facts| facts.closes_at_once()));
        }
        if descriptors.is_empty() {
            return Looked::At(None);
        }
        self.examiner.look(owner, number, descriptors).map_or(Looked::Later, Looked::At)
    }

    /// A connection waits for the examiner with this message, and what follows it waits in its socket.
    pub(super) fn wait_for_facts(&mut self, number: u64, message: Box<Received>) {
        if let Some(connection) = self.connections.get_mut(&number) {
            unwatch(&self.epoll, &connection.fd);
            connection.message = Some(message);
        }
    }

    /// Goes on with the messages whose descriptors were looked at. A process that hangs is not heard any more.
    pub(super) fn take_answers(&mut self) {
        for (number, facts) in self.examiner.answers() {
            let Some(connection) = self.connections.get_mut(&number) else { continue };
            let Some(message) = connection.message.take() else { continue };
            let _ = watch(&self.epoll, &connection.fd, number);
            if !self.handle(number, &message, facts) {
                self.end(number);
            }
        }
        for (owner, number) in self.examiner.begins_to_hang() {
            if self.quiet.may() {
                warn!(
                    pid = owner.pid,
                    "a program passed a socket whose lock it holds, or a file that takes long to close: its connections end"
                );
            }
            let is_its = |of: u64, pid: u32| of == number || (pid != 0 && pid == owner.pid);
            let its: Vec<u64> =
                self.connections.iter().filter(|(of, c)| is_its(**of, c.pid)).map(|(of, _)| *of).collect();
            for number in its {
                self.end(number);
            }
        }
    }
}
