// SPDX-License-Identifier: Apache-2.0
//! How connections pause and end.
//!
//! In: a connection's number. Out: its client's end to the worker; what was passed on it and not read goes to the
//! examiner. Nothing here waits for a client.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::epoll;
use tracing::debug;

use super::{Connection, STRANGER_PATIENCE, Service};
use crate::tenant::connection::{shut, unwatch, watch};
use crate::tenant::examiner::Owner;
use crate::worker::Command;

impl<P: Send + 'static> Service<P> {
    /// A connection is not heard for the rest of its window, or while its owner holds up the examiner.
    pub(super) fn pause(&mut self, number: u64) {
        if let Some(connection) = self.connections.get(&number)
            && !self.paused.contains(&number)
        {
            unwatch(&self.epoll, &connection.fd);
            self.paused.push(number);
        }
    }

    /// Listens again to paused connections whose share or whose examiner is there again.
    pub(super) fn listen_again(&mut self) {
        let now = Instant::now();
        let (mut paused, mut over) = (Vec::new(), Vec::new());
        for number in std::mem::take(&mut self.paused) {
            let Some(connection) = self.connections.get(&number) else { continue };
            let owner = self.owner(connection.netns_cookie, connection.pid);
            let may = connection.pace.has_left(now) && self.examiner.may(owner);
            if may { over.push(number) } else { paused.push(number) }
        }
        self.paused = paused;
        for number in over {
            if let Some(connection) = self.connections.get(&number) {
                let _ = watch(&self.epoll, &connection.fd, number);
            }
        }
    }

    pub(super) fn lose_patience(&mut self) {
        let silent = |c: &Connection<P>| {
            c.client.is_none() && c.message.is_none() && c.since.elapsed() > STRANGER_PATIENCE
        };
        let silent: Vec<u64> = self.connections.iter().filter(|(_, c)| silent(c)).map(|(n, _)| *n).collect();
        for number in silent {
            self.end_if_silent(number);
        }
    }

    /// Ends a connection without Hello; one whose Hello lies unread is served instead.
    pub(super) fn end_if_silent(&mut self, number: u64) {
        self.serve(number);
        if self.connections.get(&number).is_some_and(|c| c.client.is_none() && c.message.is_none()) {
            debug!(number, "a connection without Hello ends");
            self.end(number);
        }
    }

    /// The client is over: its worker takes over what is published, then forgets it.
    pub(super) fn end(&mut self, number: u64) {
        if let Some(connection) = self.part(number) {
            self.close(self.owner(connection.netns_cookie, connection.pid), connection.fd);
        }
    }

    /// Ends the client of a connection; the connection is the caller's to close.
    fn part(&mut self, number: u64) -> Option<Connection<P>> {
        let mut connection = self.connections.remove(&number)?;
        unwatch(&self.epoll, &connection.fd);
        if let Some(process) = &connection.process {
            let _ = epoll::delete(&self.epoll, process);
        }
        if let Some(client) = connection.client.take() {
            // It counts until the worker has sent its last frame.
            self.directory.ending(client.key);
            if client.worker.send(Command::EndClient(client.key)).is_err() {
                self.directory.over(client.key);
            }
            debug!(pid = connection.pid, "client ended");
        }
        Some(connection)
    }

    /// Closes a connection.
    pub(super) fn close(&mut self, owner: Owner, connection: Arc<OwnedFd>) {
        shut(&connection);
        self.examiner.end(owner, connection);
    }
}
