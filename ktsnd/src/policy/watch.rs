// SPDX-License-Identifier: Apache-2.0
//! The node's rules, kept current.
//!
//! In: notifications of nf_tables (nft, and the iptables that stands on it); for the older iptables, which sends none, a poll
//! about every second while it has tables. Out: the rules, again when they change. While nothing changes no tool runs; however
//! much changes, tools rest 0.5 s, or nine times as long as they took, up to 1.2 s. Reads only.
//!
//! ```text
//!  notification ─(100 ms, further ones join)─► tools ─► other rules? ─► subscribers
//! ```

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rtnetlink::packet_core::NetlinkBuffer;
use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::warn;

use super::read::{Read, Wanted, has_older_tables};
use super::{Rule, Seen};
use crate::sys;

/// NFNLGRP_NFTABLES (linux/netfilter/nfnetlink.h) as a bit.
pub(crate) const GROUP_NFTABLES: u32 = 1 << 6;
/// NFNL_SUBSYS_NFTABLES: the upper octet of a message's type.
const SUBSYSTEM_NFTABLES: u16 = 10;
/// Messages that change no rule (linux/netfilter/nf_tables.h): of sets and their elements, generations, traces, objects
/// and flow tables.
const NO_RULES: std::ops::RangeInclusive<u16> = 9..=24;
const BUFFER_OCTETS: usize = 64 * 1024;
/// Changes that follow each other within this time are read once.
const COALESCE: Duration = Duration::from_millis(100);
/// After a change the tools rest at least as long, and this many times as long as they took.
const REST: Duration = Duration::from_millis(500);
const REST_RATIO: u32 = 9;
/// But never longer: a rule is followed within two seconds where reading takes up to [`SLOW`].
const REST_MAX: Duration = Duration::from_millis(1200);
const SLOW: Duration = Duration::from_millis(600);
/// How often rules without notifications are polled, and a tool that failed runs again.
const LOOK: Duration = Duration::from_millis(500);

/// The rules, as long as there is a subscriber.
#[derive(Debug)]
pub(crate) struct Watch {
    wanted: watch::Sender<bool>,
    rules: Known,
}

/// The rules as they were last read; `None`: nothing reads them now.
pub(crate) type Known = watch::Receiver<Option<Seen>>;

impl Watch {
    /// Starts on the current runtime, idle. Ends when it is dropped.
    pub(crate) fn start() -> Self {
        let (wanted, is_wanted) = watch::channel(false);
        let (told, rules) = watch::channel(None);
        tokio::spawn(async move {
            // It ends with the handle.
            let _ = keep(is_wanted, told).await;
        });
        Self { wanted, rules }
    }

    /// Whether there is a subscriber. Without one nothing runs and nothing is open.
    pub(crate) fn want(&self, is_wanted: bool) {
        self.wanted.send_if_modified(|before| std::mem::replace(before, is_wanted) != is_wanted);
    }

    /// Waits until the rules change. True where all rules could be read.
    pub(crate) async fn changed(&mut self) -> (Arc<Vec<Rule>>, bool) {
        if self.rules.changed().await.is_err() {
            std::future::pending::<()>().await; // the runtime ends
        }
        let seen = self.rules.borrow_and_update().clone();
        let is_whole = seen.as_ref().is_some_and(|seen| seen.known().is_ok());
        (seen.unwrap_or_default().rules, is_whole)
    }

    /// The current rules, without waiting.
    pub(crate) fn known(&self) -> Known {
        self.rules.clone()
    }
}

/// Ends when the handle is gone.
async fn keep(
    mut wanted: watch::Receiver<bool>,
    told: watch::Sender<Option<Seen>>,
) -> Result<(), watch::error::RecvError> {
    loop {
        wanted.wait_for(|is_wanted| *is_wanted).await?;
        tokio::select! {
            ended = wanted.wait_for(|is_wanted| !*is_wanted) => drop(ended?),
            () = follow(&told) => {}
        }
        // The next subscriber must not get old rules.
        tell(&told, None);
    }
}

fn tell(told: &watch::Sender<Option<Seen>>, seen: Option<Seen>) {
    told.send_if_modified(|before| {
        let is_other = *before != seen;
        if is_other {
            *before = seen;
        }
        is_other
    });
}

async fn follow(told: &watch::Sender<Option<Seen>>) {
    // Without it, as without nf_tables, only polling remains.
    let socket = subscribe().ok();
    let (mut read, mut wanted) = (Read::default(), Wanted::All);
    let (mut rested_at, mut is_slow, mut failed) = (Instant::now(), false, None);
    loop {
        let began = Instant::now();
        let before = read.clone();
        let reading = tokio::task::spawn_blocking(move || before.again(wanted));
        // The last rules hold until then, and changes wait. A tool that hangs is killed, and has failed then.
        let is_read = match reading.await {
            Ok(now) => {
                read = now;
                tell(told, Some(Seen::of(&read)));
                if let Some(why) = read.unread().filter(|why| failed != Some(*why)) {
                    warn!("{why}: changes of the node's rules that it would show are not followed");
                }
                failed = read.unread();
                true
            }
            Err(_) => false,
        };
        let took = began.elapsed();
        if took > SLOW && !is_slow {
            is_slow = true;
            warn!("the node's rules took {took:.1?} to read: changes of them are followed as late");
        }
        sleep_until(rested_at).await;
        if is_read {
            wanted = next(socket.as_ref(), failed.is_some()).await;
        }
        rested_at = Instant::now() + (took * REST_RATIO).clamp(REST, REST_MAX);
    }
}

/// Waits until there is something to read.
async fn next(socket: Option<&AsyncFd<OwnedFd>>, has_failed: bool) -> Wanted {
    loop {
        let look_at = Instant::now() + LOOK;
        tokio::select! {
            () = changes(socket) => {
                sleep(COALESCE).await;
                return Wanted::All;
            }
            () = sleep_until(look_at) => match socket {
                _ if has_failed => return Wanted::All,
                Some(_) if has_older_tables() => return Wanted::Untold,
                Some(_) => {}
                None => return Wanted::All,
            },
        }
    }
}

/// Waits for a notification about rules.
async fn changes(socket: Option<&AsyncFd<OwnedFd>>) {
    let Some(socket) = socket else { return std::future::pending().await };
    let mut buffer = vec![0; BUFFER_OCTETS];
    loop {
        let Ok(mut ready) = socket.readable().await else { return };
        let mut is_other = false;
        loop {
            match rustix::net::recv(socket.get_ref(), &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((octets, _)) => is_other |= concerns_rules(buffer.get(..octets).unwrap_or_default()),
                // Notifications were lost.
                Err(Errno::NOBUFS) => is_other = true,
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        ready.clear_ready();
        if is_other {
            return;
        }
    }
}

/// Whether one of these messages is about a rule, a chain or a table; on doubt it is.
fn concerns_rules(mut messages: &[u8]) -> bool {
    while !messages.is_empty() {
        let Ok(message) = NetlinkBuffer::new_checked(messages) else { return true };
        if changes_rules(message.message_type()) {
            return true;
        }
        let next = (message.length() as usize).next_multiple_of(4);
        messages = messages.get(next..).unwrap_or_default();
    }
    false
}

/// Whether a message of this type is about a rule, a chain or a table.
pub(crate) fn changes_rules(kind: u16) -> bool {
    kind >> 8 == SUBSYSTEM_NFTABLES && !NO_RULES.contains(&(kind & 0xff))
}

fn subscribe() -> io::Result<AsyncFd<OwnedFd>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::NETFILTER))?;
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, GROUP_NFTABLES))?;
    sys::readiness(socket)
}

#[cfg(test)]
mod tests {
    use super::concerns_rules;

    fn message(kind: u16) -> [u8; 16] {
        let mut message = [0; 16];
        message[0] = 16;
        message[4..6].copy_from_slice(&kind.to_ne_bytes());
        message
    }

    #[test]
    fn only_what_may_change_a_rule_is_looked_at() {
        const OF: u16 = 10 << 8;
        // New and deleted tables, chains and rules; NFT_MSG_DESTROYRULE.
        for kind in [0, 2, 3, 5, 6, 8, 26, 28] {
            assert!(concerns_rules(&message(OF | kind)), "{kind}");
        }
        // Sets, elements, generations, objects; another subsystem (conntrack).
        for kind in [OF | 9, OF | 11, OF | 12, OF | 14, OF | 15, OF | 18, 1 << 8] {
            assert!(!concerns_rules(&message(kind)), "{kind}");
        }
        let both = [message(OF | 12), message(OF | 6)].concat();
        assert!(concerns_rules(&both) && !concerns_rules(&both[..16]) && !concerns_rules(&[]));
        assert!(concerns_rules(&[1, 0, 0, 0, 0, 0, 0, 0]), "no message at all");
    }
}
