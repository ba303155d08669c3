// SPDX-License-Identifier: Apache-2.0
//! Sends passed descriptors to the examiner, and regions to be sealed.
//!  
//! In: a message's descriptors, the examiner's answers. Out: facts, and clients for the workers. Nothing here waits for a
//! client: a connection with a message at the examiner is read again when the answer is there.

use std::os::fd::OwnedFd;
use std::task::Poll;

use tracing::warn;

use super::{Registrar, SealState};
use crate::clients::connection::{Received, unwatch, watch};
use crate::clients::examiner::{Answer, Facts, Job, Owner};
use crate::clients::socket::facts_without_lock;
use crate::worker::{Client, ClientKey, Command};

impl<P: Send + 'static> Registrar<P> {
    /// The owner that jobs of such a connection count against. A program can make any number of namespaces: only those that are
    /// served have an account of their own.
    pub(super) fn owner(&self, netns_cookie: u64, pid: u32) -> Owner {
        Owner { netns_cookie: if self.is_served(netns_cookie) { netns_cookie } else { 0 }, pid }
    }

    /// The owner that jobs of this connection count against.
    pub(super) fn owner_of(&self, number: u64) -> Owner {
        let (netns_cookie, pid) = self.connections.get(&number).map_or((0, 0), |c| (c.netns_cookie, c.pid));
        self.owner(netns_cookie, pid)
    }

    fn is_served(&self, netns_cookie: u64) -> bool {
        self.directory.lock().served.iter().any(|served| served.netns_cookie == netns_cookie)
    }

    /// Examines what came with a message, one descriptor at most. The first registration of a client, or its `Expect`, has its region sealed: the program
    /// has mapped it by then. Only UDP sockets of served namespaces are asked for what may block, and the job counts against the
    /// socket's namespace.
    pub(super) fn look(&mut self, number: u64, seals: bool, mut descriptors: Vec<OwnedFd>) -> Poll<Facts> {
        let mut owner = self.owner_of(number);
        let mut known = None;
        if let [descriptor] = &descriptors[..]
            && let Ok(facts) = facts_without_lock(descriptor)
            && facts.closes_at_once()
        {
            if facts.link.is_some() || !self.is_served(facts.netns_cookie) {
                known = Some(Ok(facts));
                descriptors.clear();
            } else {
                owner.netns_cookie = facts.netns_cookie;
            }
        }
        let mut unsealed = None;
        if seals
            && let Some(client) = self.client_mut(number)
            && matches!(client.seal, SealState::Unsealed(_))
            && let SealState::Unsealed(here) = std::mem::replace(&mut client.seal, SealState::BeingSealed)
        {
            owner.netns_cookie = client.netns_cookie;
            unsealed = Some(here);
        }
        if unsealed.is_none() && descriptors.is_empty() {
            return Poll::Ready(known);
        }
        self.examiner.give(owner, number, Job::Look { unsealed, known, descriptors });
        Poll::Pending
    }

    /// A connection waits for the examiner with this message; what follows stays in its socket.
    pub(super) fn wait_for_facts(&mut self, number: u64, message: Box<Received>) {
        if let Some(connection) = self.connections.get_mut(&number) {
            unwatch(&self.epoll, &connection.fd);
            connection.message = Some(message);
        }
    }

    /// Goes on with the messages of examined descriptors. A process that is blocked is not read any more.
    pub(super) fn take_answers(&mut self) {
        for (owner, number, answer) in self.examiner.answers() {
            match answer {
                Answer::Ended(None) => {}
                Answer::Ended(Some(key)) => self.directory.over(key),
                Answer::Looked { facts, sealed } => {
                    let is_well =
                        sealed.is_none_or(|(key, sealed)| self.take_sealed(owner, number, key, sealed));
                    self.go_on(number, facts, is_well);
                }
            }
        }
        for (owner, number) in self.examiner.begins_to_hang() {
            if self.log_limit.allows() {
                warn!(
                    pid = owner.pid,
                    "a program holds up ktsnd (the lock of a socket that it passed, a file that takes long to close, its \
                     region): its connections end"
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

    /// Reads a connection again; with `is_well` false it ends.
    fn go_on(&mut self, number: u64, facts: Facts, is_well: bool) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let Some(message) = connection.message.take() else { return };
        let _ = watch(&self.epoll, &connection.fd, number);
        if !is_well || !self.handle(number, *message, facts) {
            self.end(number);
        }
    }

    /// A client comes back from the examiner: its worker serves it from now on. False where there is no client.
    fn take_sealed(
        &mut self,
        owner: Owner,
        number: u64,
        key: ClientKey,
        sealed: Result<Box<Client>, ktsn_ring::RegionError>,
    ) -> bool {
        let registered = self.client_mut(number).filter(|client| client.key == key);
        match (registered, sealed) {
            (Some(registered), Ok(client)) => {
                registered.seal = SealState::WithWorker;
                if registered.worker.send(Command::AddClient(client)).is_err() {
                    return false;
                }
                // Reports what changed meanwhile.
                if std::mem::take(&mut registered.are_client_tables_changed) {
                    let client_tables = Box::new(registered.client_tables.clone());
                    let _ = registered.worker.send(Command::SetClientTables(key, client_tables));
                }
                true
            }
            (Some(registered), Err(error)) => {
                registered.seal = SealState::Failed;
                if self.log_limit.allows() {
                    warn!(%error, "a client's region cannot be sealed: its connection ends");
                }
                false
            }
            // It ended while the examiner had it.
            (None, Ok(client)) => {
                self.examiner.give(owner, 0, Job::End { connection: None, client: Some(client) });
                false
            }
            (None, Err(_)) => {
                self.directory.over(key);
                false
            }
        }
    }
}
