// SPDX-License-Identifier: Apache-2.0
//! How connections pause and end.
//!
//! In: a connection's number. Out: its client's end to the worker; what was passed on it and not read goes to the
//! examiner. Nothing here waits for a client longer than the examiner does.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::epoll;
use tracing::{debug, warn};

use super::{Connection, STRANGER_PATIENCE, Service};
use crate::tenant::connection::{shut, unwatch, watch};
use crate::tenant::examiner::{Facts, Job};
use crate::tenant::helper::Behind;
use crate::tenant::socket::facts_without_lock;
use crate::worker::Command;

/// What a message brought is not looked at: its connection ends.
pub(super) struct Refused;

impl<P: Send + 'static> Service<P> {
    /// A connection is not heard for the rest of its window.
    pub(super) fn pause(&mut self, number: u64) {
        if let Some(connection) = self.connections.get(&number)
            && !self.paused.contains(&number)
        {
            unwatch(&self.epoll, &connection.fd);
            self.paused.push(number);
        }
    }

    /// Listens again to connections that had their share of an earlier window, and ends what could not be ended.
    pub(super) fn listen_again(&mut self) {
        let now = Instant::now();
        let is_paused = |number: &u64| self.connections.get(number).is_some_and(|c| !c.pace.is_over(now));
        let (paused, over): (Vec<u64>, Vec<u64>) = self.paused.iter().partition(|number| is_paused(number));
        self.paused = paused;
        for number in over {
            if let Some(connection) = self.connections.get(&number) {
                let _ = watch(&self.epoll, &connection.fd, number);
            }
        }
        while let Some(connection) = self.examiner.next_waiting() {
            self.close(0, connection);
        }
    }

    pub(super) fn lose_patience(&mut self) {
        let silent = |c: &Connection<P>| c.client.is_none() && c.since.elapsed() > STRANGER_PATIENCE;
        let silent: Vec<u64> = self.connections.iter().filter(|(_, c)| silent(c)).map(|(n, _)| *n).collect();
        for number in silent {
            self.end_if_silent(number);
        }
    }

    /// Ends a connection without Hello; one whose Hello lies unread is served instead.
    pub(super) fn end_if_silent(&mut self, number: u64) {
        self.serve(number);
        if self.connections.get(&number).is_some_and(|c| c.client.is_none()) {
            debug!(number, "a connection without Hello ends");
            self.end(number);
        }
    }

    /// The client is over: its worker takes over what is published, then forgets it.
    pub(super) fn end(&mut self, number: u64) {
        if let Some(connection) = self.part(number) {
            self.close(connection.pid, connection.fd);
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
    pub(super) fn close(&mut self, pid: u32, connection: Arc<OwnedFd>) {
        shut(&connection);
        if let Err(behind) = self.examiner.end(connection) {
            self.leave(0, pid, 0, behind);
        }
    }

    /// What came with a message. Only sockets of namespaces that are served are asked for what may take as long as a program
    /// likes, and of each of these namespaces a few may hang.
    pub(super) fn look(&mut self, number: u64, mut descriptors: Vec<OwnedFd>) -> Result<Facts, Refused> {
        let mut netns_cookie = 0;
        if let [descriptor] = &descriptors[..]
            && let Ok(facts) = facts_without_lock(descriptor)
            && facts.closes_at_once()
        {
            if !self.directory.lock().served.iter().any(|served| served.netns_cookie == facts.netns_cookie) {
                return Ok(Some(Ok(facts)));
            }
            if self.examiner.is_full_of(facts.netns_cookie) {
                return Err(Refused);
            }
            netns_cookie = facts.netns_cookie;
        } else if descriptors.len() > 1 {
            // No message of ours: what can be closed without waiting is not looked at.
            descriptors.retain(|each| !facts_without_lock(each).is_ok_and(|facts| facts.closes_at_once()));
        }
        self.examiner.look(descriptors).map_err(|behind| {
            let pid = self.connections.get(&number).map_or(0, |c| c.pid);
            self.leave(number, pid, netns_cookie, behind);
            Refused
        })
    }

    /// A socket that came by this connection hangs: its process is not heard any more. What else it passed is closed
    /// by whom it holds, so that it holds no second one.
    fn leave(&mut self, number: u64, pid: u32, netns_cookie: u64, behind: Option<Behind<Job>>) {
        let Some(behind) = behind else { return };
        if self.quiet.may() {
            warn!(pid, "a program holds the lock of a socket that it passed: its connection ends");
        }
        let is_its = |(of, c): (&u64, &Connection<P>)| *of == number || (pid != 0 && c.pid == pid);
        let its: Vec<u64> = self.connections.iter().filter(|&each| is_its(each)).map(|(of, _)| *of).collect();
        for number in its {
            if let Some(connection) = self.part(number) {
                shut(&connection.fd);
                behind.give(Job::End(connection.fd));
            }
        }
        self.examiner.hangs(pid, netns_cookie, behind);
    }
}
