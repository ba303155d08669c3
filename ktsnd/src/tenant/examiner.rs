// SPDX-License-Identifier: Apache-2.0
//! Looks at passed descriptors, seals regions and closes connections, on threads that may take as long as a program likes.
//!
//! In: a job, and the namespace that it counts against. Out: an answer, later; a descriptor of the asker's choice becomes
//! readable then. A program may hold up a thread for ever: with a socket whose lock it holds, with a file whose closing waits
//! for its file system, with a thread of its own that is stopped while it punches holes. So each namespace has its own line
//! of jobs and a few threads (`hangs.rs`), and a process one of these; CPU time is accounted by namespace (`credit.rs`).
//! The registrar never waits here.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use super::connection;
use super::credit::{Credit, cpu_time};
use super::hangs::is_full;
use super::helper::{CPU_PATIENCE, waits};
use super::socket::{NotASocket, SocketFacts};
use crate::worker::{Client, ClientKey};

/// How a descriptor is looked at, and closed: [`super::socket::examine`].
pub(super) type Examine = fn(OwnedFd) -> Result<SocketFacts, NotASocket>;
/// What the descriptor of a message is; `None` without one.
pub(super) type Facts = Option<Result<SocketFacts, NotASocket>>;

/// A job that sleeps for so long hangs: its process is not heard any more.
const HANGS_AFTER: Duration = Duration::from_millis(200);
/// Threads that wait for work.
const IDLE_MAX: usize = 8;

/// Against whom a job counts. A program cannot choose it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    /// SO_NETNS_COOKIE of a namespace that is served; 0 = all others together.
    pub netns_cookie: u64,
    /// The process; 0 = not visible.
    pub pid: u32,
}

/// A client whose program can still punch holes into its region: no other thread may touch the region.
#[derive(Debug)]
pub(super) struct Unsealed {
    pub client: Box<Client>,
    pub memfd: OwnedFd,
}

/// What is to be done.
#[derive(Debug)]
pub(super) enum Job {
    /// Seal the client's region, if there is one; say what the last descriptor is, and close all.
    Look { unsealed: Option<Unsealed>, known: Facts, descriptors: Vec<OwnedFd> },
    /// Close what still lies in this connection, and the connection; give up this client's memory.
    End { connection: Option<Arc<OwnedFd>>, client: Option<Box<Client>> },
}

/// What came of it.
#[derive(Debug)]
pub(super) enum Answer {
    /// The facts; and the client with its sealed region, or without it why there is none any more.
    Looked { facts: Facts, sealed: Option<(ClientKey, Result<Box<Client>, ktsn_ring::RegionError>)> },
    /// This client's memory is the kernel's again.
    Ended(Option<ClientKey>),
}

struct Thread {
    id: u64,
    /// The kernel's number of it, once it runs.
    tid: Arc<AtomicI32>,
    jobs: Sender<Job>,
    has_begun: Arc<AtomicBool>,
}

struct Told {
    id: u64,
    answer: Answer,
    /// CPU time of the job.
    spent: Duration,
}

/// A thread at work.
struct Busy {
    thread: Thread,
    owner: Owner,
    /// The connection that waits for the answer; 0 = none.
    number: u64,
    since: Instant,
    /// The registrar was told that it hangs.
    is_hanging: bool,
}

/// A job that waits for its namespace's turn.
struct Waiting {
    owner: Owner,
    number: u64,
    job: Job,
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
    /// Jobs by namespace, each line in order.
    lines: BTreeMap<u64, VecDeque<Waiting>>,
    /// CPU time that each namespace has left, where it has not all.
    credits: BTreeMap<u64, Credit>,
}

impl Examiner {
    pub(super) fn new(examine: Examine, wake: Arc<OwnedFd>) -> Self {
        let (tell, told) = channel();
        let (idle, busy) = (Vec::new(), Vec::new());
        let (lines, credits) = (BTreeMap::new(), BTreeMap::new());
        Self { examine, idle, busy, next_id: 1, tell, told, wake, lines, credits }
    }

    /// How many jobs of this owner could begin now: a message is read only where what came with it can be closed. What waits in
    /// the namespace's line could not begin before.
    pub(super) fn room_for(&mut self, owner: Owner) -> usize {
        let is_at_it = |busy: &Busy| owner.pid != 0 && busy.owner.pid == owner.pid;
        if self.busy.iter().any(is_at_it) || !self.has_credit(owner.netns_cookie) {
            return 0;
        }
        let of_one = self.busy.iter().filter(|busy| busy.owner.netns_cookie == owner.netns_cookie).count();
        (of_one..).take_while(|of_one| !is_full(*of_one, self.busy.len() + of_one)).count()
    }

    fn has_credit(&mut self, netns_cookie: u64) -> bool {
        let now = Instant::now();
        let Some(credit) = self.credits.get_mut(&netns_cookie) else { return true };
        credit.refill(now);
        let (has_some, is_full) = (credit.has_some(), credit.is_full());
        if is_full {
            self.credits.remove(&netns_cookie);
        }
        has_some
    }

    /// Does a job, at once or in its namespace's turn. The answer is for the connection of this number; 0 = none.
    pub(super) fn give(&mut self, owner: Owner, number: u64, job: Job) {
        self.lines.entry(owner.netns_cookie).or_default().push_back(Waiting { owner, number, job });
        self.begin_jobs(owner.netns_cookie);
    }

    /// Closes a connection that was shut down, with what lies in it, and gives up a client that no worker has.
    pub(super) fn end(&mut self, owner: Owner, connection: Arc<OwnedFd>, client: Option<Box<Client>>) {
        if client.is_none() && connection::is_empty(&connection) {
            return;
        }
        self.give(owner, 0, Job::End { connection: Some(connection), client });
    }

    /// Begins what a namespace may begin now. A job whose process is at another one lets the next one pass.
    fn begin_jobs(&mut self, netns_cookie: u64) {
        let mut at = 0;
        while let Some(owner) = self.lines.get(&netns_cookie).and_then(|line| line.get(at)).map(|w| w.owner) {
            if self.room_for(owner) == 0 {
                at += 1;
                continue;
            }
            let Some(thread) = self.idle.pop().or_else(|| self.spawn()) else { break };
            let Some(waiting) = self.lines.get_mut(&netns_cookie).and_then(|line| line.remove(at)) else {
                break;
            };
            thread.has_begun.store(false, SeqCst);
            // It lives as long as we hold its sender.
            let _ = thread.jobs.send(waiting.job);
            let Waiting { owner, number, .. } = waiting;
            self.busy.push(Busy { thread, owner, number, since: Instant::now(), is_hanging: false });
        }
        self.lines.retain(|_, line| !line.is_empty());
    }

    /// Answers since the last call, each with its owner and the connection that it is for.
    pub(super) fn answers(&mut self) -> Vec<(Owner, u64, Answer)> {
        let mut answers = Vec::new();
        while let Ok(told) = self.told.try_recv() {
            let Some(at) = self.busy.iter().position(|busy| busy.thread.id == told.id) else { continue };
            let Busy { thread, owner, number, .. } = self.busy.swap_remove(at);
            if self.idle.len() < IDLE_MAX {
                self.idle.push(thread);
            }
            let now = Instant::now();
            self.credits.entry(owner.netns_cookie).or_insert_with(|| Credit::full(now)).spend(told.spent);
            answers.push((owner, number, told.answer));
        }
        let namespaces: Vec<u64> = self.lines.keys().copied().collect();
        for netns_cookie in namespaces {
            self.begin_jobs(netns_cookie);
        }
        answers
    }

    /// Who holds up a thread since a moment ago, each told once, with the connection that waits for it. A thread that
    /// waits for a CPU hangs no more than others do.
    pub(super) fn begins_to_hang(&mut self) -> Vec<(Owner, u64)> {
        let mut hanging = Vec::new();
        for busy in self.busy.iter_mut().filter(|busy| !busy.is_hanging) {
            let sleeps = || busy.thread.has_begun.load(SeqCst) && waits(busy.thread.tid.load(SeqCst));
            let took = busy.since.elapsed();
            if took >= CPU_PATIENCE || (took >= HANGS_AFTER && sleeps()) {
                busy.is_hanging = true;
                hanging.push((busy.owner, busy.number));
            }
        }
        hanging
    }

    /// Whether something may have to be begun, or be found hanging, without any answer.
    pub(super) fn is_watching(&self) -> bool {
        !self.lines.is_empty() || self.busy.iter().any(|busy| !busy.is_hanging)
    }

    /// Whether something of this process hangs.
    pub(super) fn is_hanging(&self, pid: u32) -> bool {
        pid != 0 && self.busy.iter().any(|busy| busy.is_hanging && busy.owner.pid == pid)
    }

    /// Whether all threads that a namespace may have hang.
    pub(super) fn is_stuck(&self, netns_cookie: u64) -> bool {
        let is_its = |busy: &&Busy| busy.is_hanging && busy.owner.netns_cookie == netns_cookie;
        is_full(self.busy.iter().filter(is_its).count(), self.busy.len())
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
                let before = cpu_time();
                let answer = work(job, examine);
                let spent = cpu_time().saturating_sub(before);
                begun.store(false, SeqCst);
                if tell.send(Told { id, answer, spent }).is_err() {
                    return;
                }
                let _ = rustix::io::write(&*wake, &1u64.to_ne_bytes());
            }
        };
        std::thread::Builder::new().name("ktsn-examiner".into()).stack_size(256 << 10).spawn(run).ok()?;
        Some(Thread { id, tid, jobs, has_begun })
    }
}

fn work(job: Job, examine: Examine) -> Answer {
    match job {
        Job::Look { unsealed, known, mut descriptors } => {
            let sealed = unsealed.map(|Unsealed { mut client, memfd }| {
                let key = client.key;
                (key, client.seal(&memfd).map(|()| client))
            });
            let last = descriptors.pop();
            // A second descriptor is not ours to look at, but it must not hold us when it is closed.
            for other in descriptors {
                let _ = examine(other);
            }
            Answer::Looked { facts: last.map(examine).or(known), sealed }
        }
        Job::End { connection, client } => {
            if let Some(connection) = connection {
                connection::drain(&connection, examine);
            }
            Answer::Ended(client.map(|client| client.key))
        }
    }
}

impl Drop for Examiner {
    fn drop(&mut self) {
        // The process ends; the kernel closes these then, in nobody's way.
        std::mem::forget(std::mem::take(&mut self.lines));
    }
}
