// SPDX-License-Identifier: Apache-2.0
//! Looks at passed descriptors for the registrar, on a thread that can be left behind.
//!
//! In: the descriptors of one message, or a connection that is over. Out: what the last descriptor is. The messages of
//! a connection keep their order, as the registrar waits for each answer, at most [`PATIENCE`]. A process whose socket
//! hangs is not heard while it does.
//!
//! [`PATIENCE`]: super::helper::PATIENCE

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::connection;
use super::hangs::Hangs;
use super::helper::{Behind, Helper};
use super::socket::{NotASocket, SocketFacts};

/// How a descriptor is looked at, and closed: [`super::socket::examine`].
pub(super) type Examine = fn(OwnedFd) -> Result<SocketFacts, NotASocket>;
/// What the descriptor of a message is; `None` without one.
pub(super) type Facts = Option<Result<SocketFacts, NotASocket>>;

/// What the thread is given.
pub(super) enum Job {
    /// Say what the last one is, close all.
    Look(Vec<OwnedFd>),
    /// Close what still lies in this connection.
    End(Arc<OwnedFd>),
}

/// The registrar's examiner.
pub(super) struct Examiner {
    helper: Helper<Job, Facts>,
    /// Whose sockets hang.
    hangs: Hangs,
    /// Connections that are over, while nothing can be closed.
    waiting: Vec<Arc<OwnedFd>>,
}

impl Examiner {
    pub(super) fn new(examine: Examine) -> Self {
        let work = move |job| match job {
            Job::Look(mut descriptors) => {
                let last = descriptors.pop();
                // A second descriptor is not ours to look at, but it must not hold us when it is closed.
                for other in descriptors {
                    let _ = examine(other);
                }
                last.map(examine)
            }
            Job::End(connection) => {
                connection::drain(&connection, examine);
                None
            }
        };
        Self { helper: Helper::new("ktsn-examiner", work), hangs: Hangs::default(), waiting: Vec::new() }
    }

    /// Whether a message may be read: what came with it could be closed.
    pub(super) fn is_ready(&mut self) -> bool {
        self.helper.is_ready()
    }

    /// What the last of these descriptors is; all are closed.
    ///
    /// # Errors
    /// As [`Helper::ask`].
    pub(super) fn look(&mut self, descriptors: Vec<OwnedFd>) -> Result<Facts, Option<Behind<Job>>> {
        if descriptors.is_empty() {
            return Ok(None);
        }
        self.helper.ask(Job::Look(descriptors))
    }

    /// Closes a connection that was shut down, with what lies in it.
    ///
    /// # Errors
    /// As [`Helper::ask`].
    pub(super) fn end(&mut self, connection: Arc<OwnedFd>) -> Result<(), Option<Behind<Job>>> {
        if !self.is_ready() {
            self.waiting.push(connection);
            return Ok(());
        }
        self.helper.ask(Job::End(connection)).map(|_| ())
    }

    /// One of the connections that could not be ended before, if that can be done now.
    pub(super) fn next_waiting(&mut self) -> Option<Arc<OwnedFd>> {
        if self.waiting.is_empty() || !self.is_ready() { None } else { self.waiting.pop() }
    }

    /// Whether there are connections to be ended later.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Remembers whose socket hangs.
    pub(super) fn hangs(&mut self, pid: u32, netns_cookie: u64, behind: Behind<Job>) {
        self.hangs.add(pid, netns_cookie, behind);
    }

    /// Whether a socket of this process hangs.
    pub(super) fn is_hanging(&mut self, pid: u32) -> bool {
        self.hangs.has_of(pid)
    }

    /// Whether so many sockets of this namespace hang that no more are looked at.
    pub(super) fn is_full_of(&mut self, netns_cookie: u64) -> bool {
        self.hangs.is_full_of(netns_cookie)
    }
}

impl Drop for Examiner {
    fn drop(&mut self) {
        // The process ends; the kernel closes these then, in nobody's way.
        std::mem::forget(std::mem::take(&mut self.waiting));
    }
}
