// SPDX-License-Identifier: Apache-2.0
//! Looks at passed descriptors for the registrar, on threads that may take as long as a program likes.
//!
//! In: the descriptors of one message, or a connection that is over, and whose it is. Out: what the last descriptor is, at once
//! or, where that takes longer than looking at an honest one does, later. A program may hold up a thread for ever: with a socket whose lock it holds, with a
//! file whose closing waits for its file system. So a process has one thread at a time, and a namespace a few (`hangs.rs`).

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use super::connection;
use super::hangs::is_full;
use super::helper::{CPU_PATIENCE, PATIENCE, waits};
use super::socket::{NotASocket, SocketFacts};
use super::sys;

/// How a descriptor is looked at, and closed: [`super::socket::examine`].
pub(super) type Examine = fn(OwnedFd) -> Result<SocketFacts, NotASocket>;
/// What the descriptor of a message is; `None` without one.
pub(super) type Facts = Option<Result<SocketFacts, NotASocket>>;

/// How long the registrar waits for an answer; everybody else waits meanwhile.
const AT_ONCE: Duration = Duration::from_millis(10);
/// How long it waits for one namespace, of each [`WINDOW`]: honest answers take microseconds.
const WAITED_MAX: Duration = Duration::from_millis(50);
const WINDOW: Duration = Duration::from_secs(1);
/// Threads that wait for work.
const IDLE_MAX: usize = 4;

/// Against whom it counts when a descriptor hangs: he cannot choose that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    /// SO_NETNS_COOKIE of the connection, which is its caller's, if that namespace is served; else 0.
    pub netns_cookie: u64,
    /// The process; 0 = not visible.
    pub pid: u32,
}

enum Job {
    /// Say what the last one is, close all.
    Look(Vec<OwnedFd>),
    /// Close what still lies in this connection, and the connection.
    End(Arc<OwnedFd>),
}

struct Thread {
    id: u64,
    /// The kernel's number of it, once it runs.
    tid: Arc<AtomicI32>,
    jobs: Sender<Job>,
    has_begun: Arc<AtomicBool>,
}

/// A thread's answer.
struct Told {
    id: u64,
    facts: Facts,
    took: Duration,
}

/// A thread at work.
struct Busy {
    thread: Thread,
    owner: Owner,
    /// The connection that waits for the answer; 0 = none.
    number: u64,
    since: Instant,
    /// It takes so long that the registrar was told.
    is_hanging: bool,
}

/// The registrar's examiner.
pub(super) struct Examiner {
    examine: Examine,
    idle: Vec<Thread>,
    busy: Vec<Busy>,
    next_id: u64,
    tell: Sender<Told>,
    told: Receiver<Told>,
    /// Written to when there is an answer.
    wake: Arc<OwnedFd>,
    /// Answers that came while another one was waited for.
    early: Vec<(u64, Facts)>,
    /// Since when, and how long, each namespace was waited for.
    waited: BTreeMap<u64, (Instant, Duration)>,
    /// Connections that are over, while their owner holds up as many threads as it may.
    line: Vec<(Owner, Arc<OwnedFd>)>,
}

impl Examiner {
    pub(super) fn new(examine: Examine, wake: Arc<OwnedFd>) -> Self {
        let (tell, told) = channel();
        let (idle, busy, line) = (Vec::new(), Vec::new(), Vec::new());
        let (early, waited) = (Vec::new(), BTreeMap::new());
        Self { examine, idle, busy, next_id: 1, tell, told, wake, early, waited, line }
    }

    /// Whether a message of this owner may be read: what came with it could be closed.
    pub(super) fn may(&mut self, owner: Owner) -> bool {
        let is_its = |busy: &&Busy| busy.owner.netns_cookie == owner.netns_cookie;
        let is_at_it = |busy: &Busy| owner.pid != 0 && busy.owner.pid == owner.pid;
        if is_full(self.busy.iter().filter(is_its).count(), self.busy.len()) || self.busy.iter().any(is_at_it)
        {
            return false;
        }
        if self.idle.is_empty() {
            let thread = self.spawn();
            self.idle.extend(thread);
        }
        !self.idle.is_empty()
    }

    /// Looks at descriptors for a connection, after [`Self::may`] said yes; `None`: the answer comes later.
    pub(super) fn look(&mut self, owner: Owner, number: u64, descriptors: Vec<OwnedFd>) -> Option<Facts> {
        self.give(owner, number, Job::Look(descriptors));
        let (id, tid) = self.busy.last().map(|busy| (busy.thread.id, busy.thread.tid.clone()))?;
        self.waited.retain(|_, (since, _)| since.elapsed() < WINDOW);
        if self.waited.get(&owner.netns_cookie).is_some_and(|(_, waited)| *waited >= WAITED_MAX) {
            return None;
        }
        let asked = Instant::now();
        loop {
            if let Ok(told) = self.told.recv_timeout(AT_ONCE) {
                let number = self.is_done(told.id);
                if told.id == id {
                    self.wait_for(owner, told.took);
                    return Some(told.facts);
                }
                self.early.extend(number.map(|number| (number, told.facts)));
            } else if waits(tid.load(SeqCst)) || asked.elapsed() >= CPU_PATIENCE {
                self.wait_for(owner, AT_ONCE);
                return None;
            }
        }
    }

    /// What an owner's namespace had others wait for, without what the machine had them wait for.
    fn wait_for(&mut self, owner: Owner, took: Duration) {
        self.waited.entry(owner.netns_cookie).or_insert_with(|| (Instant::now(), Duration::ZERO)).1 += took;
    }

    /// A thread is idle again; the connection that waits for its answer.
    fn is_done(&mut self, id: u64) -> Option<u64> {
        let at = self.busy.iter().position(|busy| busy.thread.id == id)?;
        let busy = self.busy.swap_remove(at);
        if self.idle.len() < IDLE_MAX {
            self.idle.push(busy.thread);
        }
        (busy.number != 0).then_some(busy.number)
    }

    /// Closes a connection that was shut down, with what lies in it.
    pub(super) fn end(&mut self, owner: Owner, connection: Arc<OwnedFd>) {
        if connection::is_empty(&connection) {
            return;
        }
        if self.may(owner) {
            self.give(owner, 0, Job::End(connection));
        } else {
            // Each keeps a descriptor open; who waited instead would be held up.
            self.line.push((owner, connection));
        }
    }

    fn give(&mut self, owner: Owner, number: u64, job: Job) {
        let Some(thread) = self.idle.pop() else { return };
        thread.has_begun.store(false, SeqCst);
        // It lives as long as we hold its sender.
        let _ = thread.jobs.send(job);
        self.busy.push(Busy { thread, owner, number, since: Instant::now(), is_hanging: false });
    }

    /// Answers since the last call, with the connection that each is for.
    pub(super) fn answers(&mut self) -> Vec<(u64, Facts)> {
        let mut answers = std::mem::take(&mut self.early);
        while let Ok(told) = self.told.try_recv() {
            answers.extend(self.is_done(told.id).map(|number| (number, told.facts)));
        }
        for (owner, connection) in std::mem::take(&mut self.line) {
            if self.may(owner) {
                self.end(owner, connection);
            } else {
                self.line.push((owner, connection));
            }
        }
        answers
    }

    /// Who holds up a thread since a moment ago, each told once, with the connection that waits for it.
    pub(super) fn begins_to_hang(&mut self) -> Vec<(Owner, u64)> {
        let mut hanging = Vec::new();
        for busy in self.busy.iter_mut().filter(|busy| !busy.is_hanging) {
            let has_begun = || busy.thread.has_begun.load(SeqCst) && waits(busy.thread.tid.load(SeqCst));
            let took = busy.since.elapsed();
            if took >= CPU_PATIENCE || (took >= PATIENCE && has_begun()) {
                busy.is_hanging = true;
                hanging.push((busy.owner, busy.number));
            }
        }
        hanging
    }

    /// Whether it may turn out soon that somebody hangs.
    pub(super) fn is_watching(&self) -> bool {
        self.busy.iter().any(|busy| !busy.is_hanging)
    }

    /// Whether something of this process hangs.
    pub(super) fn is_hanging(&self, pid: u32) -> bool {
        pid != 0 && self.busy.iter().any(|busy| busy.is_hanging && busy.owner.pid == pid)
    }

    fn spawn(&mut self) -> Option<Thread> {
        let (jobs, given) = channel::<Job>();
        let id = self.next_id;
        self.next_id += 1;
        let (has_begun, tid) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicI32::new(0)));
        let own = tid.clone();
        let (examine, tell, wake, begun) =
            (self.examine, self.tell.clone(), self.wake.clone(), has_begun.clone());
        let run = move || {
            own.store(rustix::thread::gettid().as_raw_nonzero().get(), SeqCst);
            for job in given {
                begun.store(true, SeqCst);
                let (began, sleeps) = (Instant::now(), sys::sleeps_of_thread());
                let facts = work(job, examine);
                begun.store(false, SeqCst);
                // Where it only waited for a CPU that is nobody's fault.
                let has_slept = sys::sleeps_of_thread() != sleeps;
                let took = if has_slept { began.elapsed() } else { Duration::ZERO };
                if tell.send(Told { id, facts, took }).is_err() {
                    return;
                }
                let _ = rustix::io::write(&*wake, &1u64.to_ne_bytes());
            }
        };
        std::thread::Builder::new().name("ktsn-examiner".into()).stack_size(256 << 10).spawn(run).ok()?;
        Some(Thread { id, tid, jobs, has_begun })
    }
}

fn work(job: Job, examine: Examine) -> Facts {
    match job {
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
    }
}

impl Drop for Examiner {
    fn drop(&mut self) {
        // The process ends; the kernel closes these then, in nobody's way.
        std::mem::forget(std::mem::take(&mut self.line));
    }
}
