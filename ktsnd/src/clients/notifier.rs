// SPDX-License-Identifier: Apache-2.0
//! The notifier thread of a worker: makes the kernel report to programs that completions wait for them.
//!  
//! In: notices from the worker. Out: markers on the programs' own error queues. The notifier holds a program's socket only
//! while it sends, never while the program closes it. It may be slow: programs find what it misses when they read. Each
//! namespace has a thread of its own: a thread that waits for a program's socket delays the notices of its own namespace
//! only. A client with a blocked socket (its program holds the lock), or with wrong descriptor numbers again and again, gets no
//! more notices.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU32, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::mpsc::{Receiver as Batches, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ktsn_ring::Markers;
use ktsn_ring::completion::kind;
use ktsn_ring::marker::Marker;
use rustix::process::{PidfdGetfdFlags, pidfd_getfd};
use tracing::warn;

use super::hangs::{CPU_PATIENCE, Hangs, PATIENCE, waits};
use super::marker::Target;
use super::socket::close;
use crate::log_limit::LogLimit;
use crate::queue::Receiver;
use crate::supervise::Watched;
use crate::worker::{ClientKey, Notice};

/// Notices answered with one socket in hand: a program that closes it waits for no more than these.
const MARKERS_A_HOLD: usize = 16;

/// How to reach a client's sockets.
#[derive(Debug)]
pub(super) struct Process {
    /// The process.
    pub pidfd: OwnedFd,
    /// SO_NETNS_COOKIE of its attachment's namespace.
    pub netns_cookie: u64,
    /// Its region's words for streams that close.
    pub markers: Markers,
    /// How often its descriptors were wrong, lately.
    wrong: AtomicU32,
}

/// A wrong number counts as much as this many right ones.
const WRONG_WEIGHT: u32 = 16;
/// Value of `Process::wrong` from which on a client gets no more notices.
const WRONG_MAX: u32 = 256 * WRONG_WEIGHT;

impl Process {
    pub(super) fn new(pidfd: OwnedFd, netns_cookie: u64, markers: Markers) -> Self {
        Self { pidfd, netns_cookie, markers, wrong: AtomicU32::new(0) }
    }

    /// Whether the client gets more notices. `is_right`: a descriptor's number referred to the socket, or to nothing. A program that
    /// reuses descriptor numbers is wrong now and then.
    fn may_go_on(&self, is_right: bool) -> bool {
        let wrong = self.wrong.load(Relaxed);
        let wrong = if is_right { wrong.saturating_sub(1) } else { wrong.saturating_add(WRONG_WEIGHT) };
        self.wrong.store(wrong, Relaxed);
        wrong < WRONG_MAX
    }
}

/// The clients with sockets that can be reached, shared with the registrar.
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

    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Namespaces that have clients.
    fn namespaces(&self) -> BTreeSet<u64> {
        self.lock().values().map(|process| process.netns_cookie).collect()
    }

    pub(super) fn get(&self, client: ClientKey) -> Option<Arc<Process>> {
        self.lock().get(&client).cloned()
    }
}

/// Batches of one namespace that may wait for its thread. Further ones are lost: programs find completions when they read.
const BATCHES_WAITING: usize = 1024;
/// In a lane's word: its thread was left behind, and does nothing more.
const LEFT: u64 = u64::MAX;

/// The thread that marks the sockets of one namespace, one after the other: a program that holds its socket's lock delays this
/// thread, and nothing of another namespace.
struct Lane {
    /// `None`: the thread finishes what it has.
    batches: Option<SyncSender<Vec<Notice>>>,
    state: Arc<LaneState>,
    /// The batch that the thread worked on when it was last checked, and since when.
    seen: (u64, Instant),
}

#[derive(Default)]
struct LaneState {
    /// The kernel's number of the thread.
    tid: AtomicI32,
    /// The number of the current batch, 0 = none, or [`LEFT`].
    at: AtomicU64,
    /// The client of that batch.
    client: AtomicU64,
    is_over: Arc<AtomicBool>,
}

/// Reports that a thread is over, however it ends.
struct AtEnd(Arc<LaneState>);

impl Drop for AtEnd {
    fn drop(&mut self) {
        self.0.is_over.store(true, SeqCst);
    }
}

impl Lane {
    fn start(processes: &Processes) -> Option<Self> {
        let (batches, given) = sync_channel::<Vec<Notice>>(BATCHES_WAITING);
        let state = Arc::new(LaneState::default());
        let (own, processes) = (state.clone(), processes.clone());
        let run = move || {
            let own = AtEnd(own);
            mark_all(&given, &own.0, &processes);
        };
        std::thread::Builder::new().name("ktsn-marker".into()).stack_size(256 << 10).spawn(run).ok()?;
        Some(Self { batches: Some(batches), state, seen: (0, Instant::now()) })
    }

    /// The client with the socket that blocks the thread; the thread is left behind then.
    fn leave_if_it_hangs(&mut self) -> Option<ClientKey> {
        let at = self.state.at.load(SeqCst);
        if at == 0 || at != self.seen.0 {
            self.seen = (at, Instant::now());
            return None;
        }
        let took = self.seen.1.elapsed();
        let hangs = took >= CPU_PATIENCE || (took >= PATIENCE && waits(self.state.tid.load(SeqCst)));
        let client = ClientKey(self.state.client.load(SeqCst));
        // A thread that has just gone on is not left behind.
        let is_left = hangs && self.state.at.compare_exchange(at, LEFT, SeqCst, SeqCst).is_ok();
        is_left.then_some(client)
    }
}

/// Marks batch after batch, until there are no more or the thread was left behind: another thread has its place then, and owns the
/// region's words.
fn mark_all(given: &Batches<Vec<Notice>>, state: &LaneState, processes: &Processes) {
    state.tid.store(rustix::thread::gettid().as_raw_nonzero().get(), SeqCst);
    let mut log_limit = LogLimit::default();
    for (number, batch) in (1..).zip(given) {
        let Some(first) = batch.first() else { continue };
        let Some(process) = processes.get(first.client) else { continue };
        state.client.store(first.client.0, SeqCst);
        state.at.store(number, SeqCst);
        let is_right = notify(&process, &batch);
        if state.at.compare_exchange(number, 0, SeqCst, SeqCst).is_err() {
            return;
        }
        if !process.may_go_on(is_right) {
            processes.remove(first.client);
            if log_limit.allows() {
                warn!("a client's sockets are not where it says: its error queues are not woken any more");
            }
        }
    }
}

/// The lanes of all namespaces.
#[derive(Default)]
struct Lanes {
    lanes: BTreeMap<u64, Lane>,
    hangs: Hangs,
    log_limit: LogLimit,
}

impl Lanes {
    /// Leaves blocked threads behind; their clients get no more notices.
    fn leave_hanging(&mut self, processes: &Processes) {
        let mut left = Vec::new();
        for (netns_cookie, lane) in &mut self.lanes {
            left.extend(lane.leave_if_it_hangs().map(|client| (*netns_cookie, client)));
        }
        for (netns_cookie, client) in left {
            if let Some(lane) = self.lanes.remove(&netns_cookie) {
                self.hangs.add(netns_cookie, lane.state.is_over.clone());
            }
            processes.remove(client);
            if self.log_limit.allows() {
                warn!("a client's socket hangs: its error queues are not woken any more");
            }
        }
    }

    fn give(&mut self, batch: Vec<Notice>, processes: &Processes) {
        let Some(process) = batch.first().and_then(|first| processes.get(first.client)) else { return };
        self.leave_hanging(processes);
        let netns_cookie = process.netns_cookie;
        if !self.lanes.contains_key(&netns_cookie) && !self.hangs.is_full_of(netns_cookie) {
            // A namespace without clients needs no thread.
            let there = processes.namespaces();
            self.lanes.retain(|of, _| there.contains(of));
            self.lanes.extend(Lane::start(processes).map(|lane| (netns_cookie, lane)));
        }
        if let Some(batches) = self.lanes.get(&netns_cookie).and_then(|lane| lane.batches.as_ref()) {
            // A namespace that makes too many notices loses its own.
            let _ = batches.try_send(batch);
        }
    }

    /// Lets all threads finish that are not blocked.
    fn finish(mut self, processes: &Processes) {
        self.lanes.values_mut().for_each(|lane| lane.batches = None);
        while self.lanes.values().any(|lane| !lane.state.is_over.load(SeqCst)) {
            self.leave_hanging(processes);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Answers notices until the worker of the uplink `device` has gone.
pub(super) fn run(notices: &Receiver<Notice>, processes: &Processes, device: &str) {
    let watched = Watched::enter("ktsn-notifier", device);
    let receive = || {
        watched.waits();
        let notice = notices.recv().ok();
        watched.works();
        notice
    };
    let mut lanes = Lanes::default();
    let mut next = receive();
    while let Some(first) = next.take() {
        watched.works();
        let mut batch = vec![first];
        while batch.len() < MARKERS_A_HOLD && next.is_none() {
            match notices.try_recv() {
                Ok(notice) if is_same_socket(&notice, &first) => batch.push(notice),
                Ok(other) => next = Some(other),
                Err(_) => break,
            }
        }
        lanes.give(batch, processes);
        if next.is_none() {
            next = receive();
        }
    }
    lanes.finish(processes);
}

fn is_same_socket(one: &Notice, other: &Notice) -> bool {
    let name =
        |notice: &Notice| (notice.client, notice.stream, notice.token, notice.descriptor, notice.cookie);
    name(one) == name(other)
}

/// Marks a batch of one socket's notices. False: the descriptor's number refers to something else than the socket.
fn notify(process: &Process, batch: &[Notice]) -> bool {
    let Some(first) = batch.first() else { return true };
    // Declared first, dropped last: the socket is closed before the program may go on closing.
    let Some(holding) = process.markers.begin(first.stream, first.token) else { return true };
    let Ok(descriptor) = pidfd_getfd(&process.pidfd, first.descriptor, PidfdGetfdFlags::empty()) else {
        return true;
    };
    let target = match Target::new(descriptor, first.cookie, first.local) {
        Ok(target) => target,
        Err(other) => {
            // The number may refer to another file now. Its close may take as long as its file system likes, and counts against the
            // client's namespace like a blocked socket.
            drop(holding);
            close(other);
            return false;
        }
    };
    for notice in batch {
        // In the order of the events that they report.
        for kind in [kind::SCHEDULED, kind::SOFTWARE, kind::ERROR] {
            if notice.kinds & kind != 0 {
                let Notice { sequence, slot, .. } = *notice;
                let nonce = process.markers.nonce();
                // Refused (no memory, a filter, lo down): the program finds it when it reads.
                let _ = target.mark(&Marker { nonce, sequence, slot, kind });
            }
        }
    }
    true
}

#[cfg(test)]
#[path = "notifier_tests.rs"]
mod tests;
