// SPDX-License-Identifier: Apache-2.0
//! Decides which job of which namespace a helper thread begins: examine passed descriptors, seal regions, close connections.
//!  
//! In: a job and the namespace that it counts against. Out: an answer, later. A program can block a helper for ever: with a
//! socket lock that it holds, with a file that is slow to close, with a stopped thread of its own that punches holes. So each
//! namespace has a job queue and a few helpers of its own (`hangs.rs`), and a process may block one of them. CPU time is
//! accounted by namespace (`credit.rs`). The helpers are threads (`threads.rs`). The registrar never waits here.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connection;
use super::credit::Credit;
use super::hangs::{CPU_PATIENCE, is_full};
use super::socket::{Examine, NotASocket, SocketFacts};
use crate::worker::{Client, ClientKey};

/// What the descriptor of a message is; `None` without one.
pub(super) type Facts = Option<Result<SocketFacts, NotASocket>>;

/// Jobs of a queue that are considered; those behind them wait until one of these begins. The registrar stops reading from a
/// namespace with this many.
pub(super) const LINE_MAX: usize = 1024;
/// A job that sleeps for longer hangs: the registrar stops reading from its process.
const HANGS_AFTER: Duration = Duration::from_millis(200);

/// The owner that a job counts against. A program cannot choose it.
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

/// A job.
#[derive(Debug)]
pub(super) enum Job {
    /// Seal the client's region, if there is one; examine the last descriptor; close all descriptors.
    Look { unsealed: Option<Unsealed>, known: Facts, descriptors: Vec<OwnedFd> },
    /// Close what is still unread in this connection, then the connection; release this client's memory.
    End { connection: Option<Arc<OwnedFd>>, client: Option<Box<Client>> },
}

/// The answer of a job.
#[derive(Debug)]
pub(super) enum Answer {
    /// The facts, and the client with its sealed region, or the reason why it has none any more.
    Looked { facts: Facts, sealed: Option<(ClientKey, Result<Box<Client>, ktsn_ring::RegionError>)> },
    /// This client's memory was released.
    Ended(Option<ClientKey>),
}

/// A job that is done.
#[derive(Debug)]
pub(super) struct Done {
    /// The number that the job was begun with.
    pub job_number: u64,
    pub answer: Answer,
    /// CPU time of the job.
    pub spent: Duration,
}

/// The threads that do the jobs. A job may take as long as a program likes. It keeps its thread until then.
pub(super) trait Helpers: Send {
    /// Whether a job can begin now.
    fn is_ready(&mut self) -> bool;
    /// Begins a job. Only after [`Self::is_ready`].
    fn begin(&mut self, job_number: u64, job: Job);
    /// Takes one job that is done; each is returned once.
    fn next_done(&mut self) -> Option<Done>;
    /// Whether the helper of this job waits for a program.
    fn is_asleep(&self, job_number: u64) -> bool;
}

/// A helper at work.
struct Busy {
    job_number: u64,
    owner: Owner,
    /// The connection that waits for the answer; 0 = none.
    number: u64,
    since: Instant,
    /// Whether the registrar knows that it hangs.
    is_hanging: bool,
}

/// A job that waits for its namespace's turn.
struct Waiting {
    owner: Owner,
    number: u64,
    job: Job,
}

/// The jobs of a namespace that wait, in order.
#[derive(Default)]
struct Line {
    jobs: VecDeque<Waiting>,
    /// Of the first jobs, the number that belongs to processes which were busy with another job …
    passed: usize,
    /// … when this number of jobs was done.
    done: u64,
}

/// The registrar's examiner.
pub(super) struct Examiner {
    helpers: Box<dyn Helpers>,
    /// Reads the time.
    now: fn() -> Instant,
    busy: Vec<Busy>,
    next_job_number: u64,
    /// Jobs by namespace.
    lines: BTreeMap<u64, Line>,
    /// Jobs that are done.
    done: u64,
    /// CPU time that each namespace has left; namespaces with their full credit are absent.
    credits: BTreeMap<u64, Credit>,
    /// Waiting jobs that were considered.
    #[cfg(test)]
    looks: usize,
}

impl Examiner {
    pub(super) fn new(helpers: Box<dyn Helpers>, now: fn() -> Instant) -> Self {
        let (lines, credits) = (BTreeMap::new(), BTreeMap::new());
        Self {
            helpers,
            now,
            busy: Vec::new(),
            next_job_number: 1,
            lines,
            done: 0,
            credits,
            #[cfg(test)]
            looks: 0,
        }
    }

    /// How many jobs of this owner could begin now: the registrar reads a message only if the descriptors in it can be closed. Jobs
    /// that wait in the namespace's queue could not begin before.
    pub(super) fn room_for(&mut self, owner: Owner) -> usize {
        let is_at_it = |busy: &Busy| owner.pid != 0 && busy.owner.pid == owner.pid;
        if self.busy.iter().any(is_at_it) { 0 } else { self.room_of(owner.netns_cookie) }
    }

    /// How many jobs a process of this namespace could begin now, if it has none.
    fn room_of(&mut self, netns_cookie: u64) -> usize {
        if !self.has_credit(netns_cookie) {
            return 0;
        }
        let of_one = self.busy.iter().filter(|busy| busy.owner.netns_cookie == netns_cookie).count();
        (of_one..).take_while(|of_one| !is_full(*of_one, self.busy.len() + of_one)).count()
    }

    fn has_credit(&mut self, netns_cookie: u64) -> bool {
        let now = (self.now)();
        let Some(credit) = self.credits.get_mut(&netns_cookie) else { return true };
        credit.refill(now);
        let (has_some, is_full) = (credit.has_some(), credit.is_full());
        if is_full {
            self.credits.remove(&netns_cookie);
        }
        has_some
    }

    /// Does a job, at once or in its namespace's turn. `connection` waits for the answer; 0 = none.
    pub(super) fn give(&mut self, owner: Owner, number: u64, job: Job) {
        self.lines.entry(owner.netns_cookie).or_default().jobs.push_back(Waiting { owner, number, job });
        self.begin_jobs(owner.netns_cookie);
    }

    /// Closes a connection that was shut down with all that is unread in it, and releases a client that no worker has.
    pub(super) fn end(&mut self, owner: Owner, connection: Arc<OwnedFd>, client: Option<Box<Client>>) {
        if client.is_none() && connection::is_empty(&connection) {
            return;
        }
        self.give(owner, 0, Job::End { connection: Some(connection), client });
    }

    /// Whether so many jobs of a namespace wait that the registrar must not read from it. Its connections can still be ended: a close
    /// can block, so it waits for a helper.
    pub(super) fn is_line_full(&self, netns_cookie: u64) -> bool {
        self.lines.get(&netns_cookie).is_some_and(|line| line.jobs.len() >= LINE_MAX)
    }

    /// Begins what a namespace may begin now. If it may begin nothing, no job is considered. A job of a busy process lets the next
    /// one pass.
    fn begin_jobs(&mut self, netns_cookie: u64) {
        let Some(mut line) = self.lines.remove(&netns_cookie) else { return };
        let pids = self.busy.iter().map(|busy| busy.owner.pid);
        let mut at_it: BTreeSet<u32> = pids.filter(|pid| *pid != 0).collect();
        if line.done != self.done {
            (line.done, line.passed) = (self.done, 0);
        }
        let mut room = self.room_of(netns_cookie);
        while room > 0 && line.passed < LINE_MAX {
            let Some(waiting) = line.jobs.get(line.passed) else { break };
            #[cfg(test)]
            {
                self.looks += 1;
            }
            if at_it.contains(&waiting.owner.pid) {
                line.passed += 1;
                continue;
            }
            if !self.helpers.is_ready() {
                break;
            }
            let Some(Waiting { owner, number, job }) = line.jobs.remove(line.passed) else { break };
            let job_number = self.next_job_number;
            self.next_job_number += 1;
            self.helpers.begin(job_number, job);
            self.busy.push(Busy { job_number, owner, number, since: (self.now)(), is_hanging: false });
            if owner.pid != 0 {
                at_it.insert(owner.pid);
            }
            room = self.room_of(netns_cookie);
        }
        if !line.jobs.is_empty() {
            self.lines.insert(netns_cookie, line);
        }
    }

    /// Answers since the last call, each with its owner and its connection.
    pub(super) fn answers(&mut self) -> Vec<(Owner, u64, Answer)> {
        let mut answers = Vec::new();
        while let Some(done) = self.helpers.next_done() {
            let is_it = |busy: &Busy| busy.job_number == done.job_number;
            let Some(at) = self.busy.iter().position(is_it) else { continue };
            let Busy { owner, number, .. } = self.busy.swap_remove(at);
            self.done += 1;
            let now = (self.now)();
            self.credits.entry(owner.netns_cookie).or_insert_with(|| Credit::full(now)).spend(done.spent);
            answers.push((owner, number, done.answer));
        }
        let namespaces: Vec<u64> = self.lines.keys().copied().collect();
        for netns_cookie in namespaces {
            self.begin_jobs(netns_cookie);
        }
        answers
    }

    /// Owners that have blocked a helper since the last call, each reported once, with the connection that waits for it. A helper that
    /// waits for a CPU does not count as blocked.
    pub(super) fn begins_to_hang(&mut self) -> Vec<(Owner, u64)> {
        let (mut hanging, now) = (Vec::new(), (self.now)());
        for busy in self.busy.iter_mut().filter(|busy| !busy.is_hanging) {
            let took = now.duration_since(busy.since);
            if took >= CPU_PATIENCE || (took >= HANGS_AFTER && self.helpers.is_asleep(busy.job_number)) {
                busy.is_hanging = true;
                hanging.push((busy.owner, busy.number));
            }
        }
        hanging
    }

    /// Whether a job may have to be begun, or be found blocked, without any answer.
    pub(super) fn is_watching(&self) -> bool {
        !self.lines.is_empty() || self.busy.iter().any(|busy| !busy.is_hanging)
    }

    /// Whether a job of this process is blocked.
    pub(super) fn is_hanging(&self, pid: u32) -> bool {
        pid != 0 && self.busy.iter().any(|busy| busy.is_hanging && busy.owner.pid == pid)
    }

    /// Whether all helpers that a namespace may have are blocked.
    pub(super) fn is_stuck(&self, netns_cookie: u64) -> bool {
        let is_its = |busy: &&Busy| busy.is_hanging && busy.owner.netns_cookie == netns_cookie;
        is_full(self.busy.iter().filter(is_its).count(), self.busy.len())
    }
}

/// Does a job; `examine` examines a descriptor and closes it.
pub(super) fn work(job: Job, examine: Examine) -> Answer {
    match job {
        Job::Look { unsealed, known, mut descriptors } => {
            let sealed = unsealed.map(|Unsealed { mut client, memfd }| {
                let key = client.key;
                (key, client.seal(&memfd).map(|()| client))
            });
            let last = descriptors.pop();
            // A second descriptor is an error of the client, but its close must not block the registrar.
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
        // The kernel closes these when the process ends; no thread waits for it.
        std::mem::forget(std::mem::take(&mut self.lines));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// Helpers with jobs that end when the test says so.
    #[derive(Clone, Default)]
    struct Slow(Arc<Mutex<Vec<u64>>>);

    impl Helpers for Slow {
        fn is_ready(&mut self) -> bool {
            true
        }

        fn begin(&mut self, _job_number: u64, _job: Job) {}

        fn next_done(&mut self) -> Option<Done> {
            let job_number = self.0.lock().unwrap().pop()?;
            Some(Done { job_number, answer: Answer::Ended(None), spent: Duration::ZERO })
        }

        fn is_asleep(&self, _job_number: u64) -> bool {
            true
        }
    }

    fn give(examiner: &mut Examiner, netns_cookie: u64, pid: u32) {
        examiner.give(Owner { netns_cookie, pid }, 0, Job::End { connection: None, client: None });
    }

    /// A namespace that blocks all its helpers may queue any number of jobs: they are not considered.
    #[test]
    fn a_line_that_cannot_go_on_is_not_walked() {
        let mut examiner = Examiner::new(Box::new(Slow::default()), Instant::now);
        (1..=4).for_each(|pid| give(&mut examiner, 7, pid));
        let before = examiner.looks;
        (5..=20_000).for_each(|pid| give(&mut examiner, 7, pid));
        (0..100).for_each(|_| assert!(examiner.answers().is_empty()));
        assert_eq!(examiner.looks, before);
        assert!(examiner.is_line_full(7) && !examiner.is_line_full(8));
        give(&mut examiner, 8, 30_000);
        assert_eq!((examiner.looks, examiner.busy.len()), (before + 1, 5), "another namespace goes on");
    }

    /// One process blocks one helper and queues jobs without end: each is considered once, up to the limit.
    #[test]
    fn a_bounded_part_of_a_line_is_walked() {
        let slow = Slow::default();
        let mut examiner = Examiner::new(Box::new(slow.clone()), Instant::now);
        (0..500).for_each(|_| give(&mut examiner, 7, 1));
        give(&mut examiner, 7, 2);
        assert_eq!((examiner.looks, examiner.busy.len()), (501, 2), "another process passes");
        (0..5_000).for_each(|_| give(&mut examiner, 7, 1));
        (0..10).for_each(|_| assert!(examiner.answers().is_empty()));
        assert_eq!(examiner.looks, 1 + LINE_MAX + 1);
        // When a job is done, those that were passed come again, in order.
        slow.0.lock().unwrap().push(1);
        assert_eq!(examiner.answers().len(), 1);
        assert_eq!((examiner.busy.len(), examiner.looks), (2, 1 + 2 * LINE_MAX + 2));
        assert_eq!(examiner.lines[&7].jobs.len(), 5_498);
    }
}
