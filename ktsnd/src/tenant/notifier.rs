// SPDX-License-Identifier: Apache-2.0
//! The notifier thread of a worker: makes the kernel tell programs that completions wait for them.
//!
//! In: notices from the worker. Out: markers on the programs' own error queues. It holds a program's socket only
//! while it sends, never while the program closes it, and no namespace beyond that. It may be slow; what it misses,
//! programs find when they look. A client whose socket hangs (its program holds the lock), or whose numbers are wrong
//! again and again, is not told any more.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ktsn_ring::Attention;
use ktsn_ring::completion::kind;
use ktsn_ring::marker::Marker;
use rustix::process::{PidfdGetfdFlags, pidfd_getfd};
use tracing::warn;

use super::hangs::Hangs;
use super::helper::Helper;
use super::marker::Target;
use super::quiet::Quiet;
use super::socket::close_elsewhere;
use crate::queue::Receiver;
use crate::supervise::Watched;
use crate::worker::{ClientKey, Notice};

/// Notices answered with one socket in hand: a program that closes it waits for no more than these.
const MARKERS_A_HOLD: usize = 16;

/// How a client's sockets are reached.
#[derive(Debug)]
pub(super) struct Process {
    /// The process.
    pub pidfd: OwnedFd,
    /// SO_NETNS_COOKIE of its attachment's namespace.
    netns_cookie: u64,
    /// Its region's words for closing streams.
    pub attention: Attention,
    /// How often its descriptors were wrong, lately.
    wrong: AtomicU32,
}

/// What lay under a descriptor's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// The socket, or nothing.
    Right,
    /// Something else.
    Wrong,
}

/// A wrong number counts as much as so many right ones.
const WRONG_WEIGHT: u32 = 16;
/// From here on a client is not told any more: each wrong number costs a thread that closes what was there.
const WRONG_MAX: u32 = 256 * WRONG_WEIGHT;

impl Process {
    pub(super) fn new(pidfd: OwnedFd, netns_cookie: u64, attention: Attention) -> Self {
        Self { pidfd, netns_cookie, attention, wrong: AtomicU32::new(0) }
    }

    /// Whether it is told further. A program that uses its numbers again in the wrong instant is now and then wrong.
    fn may_go_on(&self, found: Found) -> bool {
        let wrong = self.wrong.load(Relaxed);
        let wrong = match found {
            Found::Right => wrong.saturating_sub(1),
            Found::Wrong => wrong.saturating_add(WRONG_WEIGHT),
        };
        self.wrong.store(wrong, Relaxed);
        wrong < WRONG_MAX
    }
}

/// The clients whose sockets can be reached, shared with the registrar.
#[derive(Clone, Debug, Default)]
pub(super) struct Processes(Arc<Mutex<BTreeMap<ClientKey, Arc<Process>>>>);

impl Processes {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ClientKey, Arc<Process>>> {
        // A panic elsewhere leaves a map that is still right.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn insert(&self, client: ClientKey, process: Process) {
        self.lock().insert(client, Arc::new(process));
    }

    pub(super) fn remove(&self, client: ClientKey) {
        self.lock().remove(&client);
    }

    fn get(&self, client: ClientKey) -> Option<Arc<Process>> {
        self.lock().get(&client).cloned()
    }
}

/// What the marking thread is given: notices of one socket.
type Job = (Arc<Process>, Vec<Notice>);

/// Answers notices until the worker of the uplink `device` has gone.
pub(super) fn run(notices: &Receiver<Notice>, processes: &Processes, device: &str) {
    let watched = Watched::enter("ktsn-notifier", device);
    let receive = || {
        watched.waits();
        let notice = notices.recv().ok();
        watched.works();
        notice
    };
    // A program that holds its socket's lock holds who marks it.
    let mut helper = Helper::new("ktsn-marker", |(process, batch): Job| notify(&process, &batch));
    let (mut hangs, mut quiet) = (Hangs::default(), Quiet::default());
    let mut next = receive();
    while let Some(first) = next.take() {
        watched.works();
        let process = processes.get(first.client);
        let mut batch = vec![first];
        while batch.len() < MARKERS_A_HOLD && next.is_none() {
            match notices.try_recv() {
                Ok(notice) if is_same_socket(&notice, &first) => batch.push(notice),
                Ok(other) => next = Some(other),
                Err(_) => break,
            }
        }
        // What lies under the number may have to be closed elsewhere.
        if let Some(process) = process
            && !hangs.is_full_of(process.netns_cookie)
            && helper.is_ready()
        {
            let is_served = match helper.ask((process.clone(), batch)) {
                Ok(found) => process.may_go_on(found),
                Err(behind) => {
                    if let Some(behind) = behind {
                        hangs.add(0, process.netns_cookie, behind);
                    }
                    false
                }
            };
            if !is_served {
                processes.remove(first.client);
                if quiet.may() {
                    warn!(
                        "a client's sockets hang or are not where it says: its error queues are not woken any more"
                    );
                }
            }
        }
        if next.is_none() {
            next = receive();
        }
    }
}

fn is_same_socket(one: &Notice, other: &Notice) -> bool {
    let name =
        |notice: &Notice| (notice.client, notice.stream, notice.token, notice.descriptor, notice.cookie);
    name(one) == name(other)
}

/// Marks a batch of one socket's notices.
fn notify(process: &Process, batch: &[Notice]) -> Found {
    let Some(first) = batch.first() else { return Found::Right };
    // Declared first, dropped last: the socket is closed before the program may go on closing.
    let Some(_holding) = process.attention.begin(first.stream, first.token) else {
        return Found::Right;
    };
    let Ok(descriptor) = pidfd_getfd(&process.pidfd, first.descriptor, PidfdGetfdFlags::empty()) else {
        return Found::Right;
    };
    let target = match Target::new(descriptor, first.cookie, first.local) {
        Ok(target) => target,
        Err(other) => {
            // Whatever lies under this number now: closing it may take as long as its file system likes.
            close_elsewhere(other);
            return Found::Wrong;
        }
    };
    for notice in batch {
        // In the order of the events that they tell of.
        for kind in [kind::SCHEDULED, kind::SOFTWARE, kind::ERROR] {
            if notice.kinds & kind != 0 {
                let Notice { sequence, slot, .. } = *notice;
                let nonce = process.attention.nonce();
                // Refused (no memory, a filter, lo down): the program finds it when it looks.
                let _ = target.mark(&Marker { nonce, sequence, slot, kind });
            }
        }
    }
    Found::Right
}

#[cfg(test)]
#[path = "notifier_tests.rs"]
mod tests;
