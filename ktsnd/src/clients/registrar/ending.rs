// SPDX-License-Identifier: Apache-2.0
//! How connections pause and end.
//!
//! In: a connection's number. Out: its client's end to the worker; descriptors that were passed and not read go to the
//! examiner. Nothing here waits for a client.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::epoll;
use tracing::debug;

use super::{Connection, Registrar, STRANGER_PATIENCE, STRANGER_PATIENCE_MAX, SealState};
use crate::clients::connection::{Received, is_silent, shut, unwatch, watch};
use crate::clients::examiner::{Job, Owner};
use crate::clients::socket::facts_without_lock;
use crate::worker::{Client, Command};

impl<P: Send + 'static> Registrar<P> {
    /// Stops reading a connection for the rest of its namespace's window, or while the examiner has no room for it.
    pub(super) fn pause(&mut self, number: u64) {
        if let Some(connection) = self.connections.get_mut(&number)
            && !connection.is_paused
        {
            connection.is_paused = true;
            unwatch(&self.epoll, &connection.fd);
            self.paused.push(number);
        }
    }

    /// Reads paused connections again for which there is room, the longest paused first.
    pub(super) fn listen_again(&mut self) {
        let now = (self.clock.now)();
        self.paces.retain(|_, pace| !pace.is_over(now));
        let mut rooms: BTreeMap<u64, usize> = BTreeMap::new();
        let mut paused = Vec::new();
        for number in std::mem::take(&mut self.paused) {
            if !self.connections.contains_key(&number) {
                continue;
            }
            let owner = self.owner_of(number);
            let has_time = self.paces.get(&owner.netns_cookie).is_none_or(|pace| pace.has_left(now));
            let room = if has_time { self.examiner.room_for(owner) } else { 0 };
            let left = rooms.entry(owner.netns_cookie).or_insert(room);
            *left = (*left).min(room);
            if *left == 0 {
                paused.push(number);
                continue;
            }
            *left -= 1;
            if let Some(connection) = self.connections.get_mut(&number) {
                connection.is_paused = false;
                let _ = watch(&self.epoll, &connection.fd, number);
            }
        }
        self.paused = paused;
    }

    /// Ends connections that have been silent for long. A connection that waits for its namespace's turn is not silent, but where all
    /// threads of that namespace are blocked it waits in vain.
    pub(super) fn lose_patience(&mut self) {
        let now = (self.clock.now)();
        let silent: Vec<u64> =
            self.connections.iter().filter(|(_, c)| c.is_stranger()).map(|(n, _)| *n).collect();
        for number in silent {
            let Some(connection) = self.connections.get(&number) else { continue };
            let (since, is_paused) = (now.duration_since(connection.since), connection.is_paused);
            if since <= STRANGER_PATIENCE {
                continue;
            }
            if !is_paused {
                self.end_if_silent(number);
            } else if since > STRANGER_PATIENCE_MAX
                || self.examiner.is_stuck(self.owner_of(number).netns_cookie)
            {
                debug!(number, "a connection without Hello ends: its namespace is busy");
                self.end(number);
            }
        }
    }

    /// Ends a connection without Hello; a connection with an unread Hello is served instead.
    pub(super) fn end_if_silent(&mut self, number: u64) {
        let Some(connection) = self.connections.get(&number) else { return };
        if is_silent(&connection.fd) {
            debug!(number, "a connection without Hello ends");
            self.end(number);
        } else {
            self.serve(number);
        }
    }

    /// Ends the client: its worker takes over published frames, then forgets the client.
    pub(super) fn end(&mut self, number: u64) {
        let owner = self.owner_of(number);
        if let Some((connection, client)) = self.part(number) {
            self.close(owner, connection.fd, client);
        }
    }

    /// Ends a connection that passes several descriptors at once, which no valid message does. Its remaining descriptors are closed
    /// together, not message by message at its namespace's pace: the kernel counts descriptors in flight by user id.
    pub(super) fn end_crowded(&mut self, number: u64, message: Received) {
        debug!(number, descriptors = message.descriptors.len(), "several descriptors: connection ends");
        let owner = self.owner_of(number);
        self.end(number);
        let mut descriptors = message.descriptors;
        descriptors.retain(|each| !facts_without_lock(each).is_ok_and(|facts| facts.closes_at_once()));
        if !descriptors.is_empty() {
            self.examiner.give(owner, 0, Job::Look { unsealed: None, known: None, descriptors });
        }
    }

    /// Ends the client of a connection. The caller closes the connection, and releases a client that no worker has.
    pub(super) fn part(&mut self, number: u64) -> Option<(Connection<P>, Option<Box<Client>>)> {
        let mut connection = self.connections.remove(&number)?;
        unwatch(&self.epoll, &connection.fd);
        if let Some(process) = &connection.process {
            let _ = epoll::delete(&self.epoll, process);
        }
        let mut unsealed = None;
        if let Some(client) = connection.client.take() {
            // It counts until the worker has sent its last frame, or until its memory is released.
            self.directory.ending(client.key);
            self.directory.later().end_client(client.netns_cookie, client.key);
            match client.seal {
                SealState::WithWorker if client.worker.send(Command::EndClient(client.key)).is_err() => {
                    self.directory.over(client.key);
                }
                SealState::WithWorker | SealState::BeingSealed => {}
                SealState::Unsealed(here) => unsealed = Some(here.client),
                SealState::Failed => self.directory.over(client.key),
            }
            debug!(pid = connection.pid, "client ended");
        }
        Some((connection, unsealed))
    }

    /// Closes a connection.
    pub(super) fn close(&mut self, owner: Owner, connection: Arc<OwnedFd>, client: Option<Box<Client>>) {
        shut(&connection);
        self.examiner.end(owner, connection, client);
    }
}
