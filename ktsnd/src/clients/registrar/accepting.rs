// SPDX-License-Identifier: Apache-2.0
//! How a connection begins.
//!  
//! In: the listener, or a connection with its caller. Out: a connection that the registrar reads, or one that it closes at once:
//! its namespace has too many connections without Hello, or too many that wait to be closed, or its process is blocked.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with};
use tracing::{debug, warn};

use super::{Connection, Registrar, TOKEN_PROCESS};
use crate::clients::connection::watch;
use crate::clients::{socket, sys};

/// Connections of one namespace that have not said Hello yet.
const STRANGERS_MAX: usize = 64;
/// Connections of one namespace without Hello, together with those with a Hello that is examined or waits for its turn.
const STRANGERS_WAITING_MAX: usize = 512;
/// Connections that are accepted before existing ones get their turn.
const ACCEPTED_A_TURN: usize = 16;

/// The process at the other end of a connection, as the kernel knows it.
pub(in crate::clients) struct Caller {
    /// Readable when the process ends; `None` where the process is not visible.
    pub process: Option<OwnedFd>,
    /// 0 = not visible.
    pub pid: u32,
    /// SO_NETNS_COOKIE of its end.
    pub netns_cookie: u64,
}

impl<P: Send + 'static> Registrar<P> {
    /// Accepts connections, a bounded number of them.
    pub(super) fn accept(&mut self) {
        for _ in 0..ACCEPTED_A_TURN {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let fd = match acceptfrom_with(&self.listener, flags) {
                Ok((fd, _)) => fd,
                Err(Errno::MFILE | Errno::NFILE) => {
                    if self.log_limit.allows() {
                        warn!("no descriptors left for further clients; raise the limit of open files");
                    }
                    // The listener stays ready: do not poll it again and again.
                    std::thread::sleep(Duration::from_millis(10));
                    return;
                }
                Err(_) => return,
            };
            let (process, pid) = socket::process_of(&fd);
            let netns_cookie = sys::netns_cookie(&fd).unwrap_or(0);
            self.begin(fd, Caller { process, pid, netns_cookie });
        }
    }

    /// Begins a connection: the registrar reads it, or closes it.
    pub(in crate::clients) fn begin(&mut self, fd: OwnedFd, caller: Caller) {
        let Caller { process, pid, netns_cookie } = caller;
        let number = self.next_number;
        self.next_number += 1;
        let owner = self.owner(netns_cookie, pid);
        let has_room = self.make_room(owner.netns_cookie);
        let fd = Arc::new(fd);
        let reason = if !has_room {
            Some("strangers_max")
        } else if self.examiner.is_hanging(pid) {
            Some("process_hangs")
        } else if self.examiner.is_line_full(owner.netns_cookie) {
            Some("line_full")
        } else {
            None
        };
        if reason.is_some() || watch(&self.epoll, &fd, number).is_err() {
            debug!(number, pid, netns_cookie, reason, "a connection is not heard");
            self.close(owner, fd, None);
            return;
        }
        if let Some(process) = &process {
            let _ = watch(&self.epoll, process, TOKEN_PROCESS | number);
        }
        let since = (self.clock.now)();
        let connection = Connection {
            fd,
            process,
            pid,
            netns_cookie,
            since,
            is_paused: false,
            message: None,
            client: None,
        };
        self.connections.insert(number, connection);
    }

    /// Whether one more connection of a namespace may wait for its Hello; the one that has been silent longest makes room for it.
    fn make_room(&mut self, netns_cookie: u64) -> bool {
        let strangers: Vec<u64> =
            self.connections.iter().filter(|(_, c)| c.client.is_none()).map(|(number, _)| *number).collect();
        let of_one: Vec<u64> = strangers
            .into_iter()
            .filter(|number| self.owner_of(*number).netns_cookie == netns_cookie)
            .collect();
        if of_one.len() >= STRANGERS_MAX {
            let is_silent =
                |number: &u64| self.connections.get(number).is_some_and(|c| c.is_stranger() && !c.is_paused);
            if let Some(oldest) = of_one.iter().copied().find(is_silent) {
                self.end_if_silent(oldest);
            }
        }
        of_one.len() < STRANGERS_WAITING_MAX
    }
}
