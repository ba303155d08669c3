// SPDX-License-Identifier: Apache-2.0
//! Which job of which namespace a helper begins: looking at passed descriptors, sealing regions, closing connections.
//!
//! In: a job, and the namespace that it counts against. Out: an answer, later. A program may hold up a helper for ever: with a
//! socket whose lock it holds, with a file whose closing waits for its file system, with a thread of its own that is stopped
//! while it punches holes. So each namespace has its own line of jobs and a few helpers (`hangs.rs`), and a process one of
//! these; CPU time is accounted by namespace (`credit.rs`). The helpers are threads (`threads.rs`). The registrar never waits
//! here.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connection;
use super::credit::Credit;
use super::hangs::is_full;
use super::helper::CPU_PATIENCE;
use super::socket::{NotASocket, SocketFacts};
use crate::worker::{Client, ClientKey};

/// How a descriptor is looked at, and closed: [`super::socket::examine`].
pub(super) type Examine = fn(OwnedFd) -> Result<SocketFacts, NotASocket>;
/// What the descriptor of a message is; `None` without one.
pub(super) type Facts = Option<Result<SocketFacts, NotASocket>>;

/// Jobs of a line that are looked at: those behind them wait until one of these begins. A namespace with so many is not heard any more.
pub(super) const LINE_MAX: usize = 1024;
/// A job that sleeps for so long hangs: its process is not heard any more.
const HANGS_AFTER: Duration = Duration::from_millis(200);

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

/// A job that is done.
#[derive(Debug)]
pub(super) struct Done {
    /// The number that the job was begun with.
    pub job_number: u64,
    pub answer: Answer,
    /// CPU time of the job.
    pub spent: Duration,
}

/// Those that do the jobs. A job may take as long as a program likes, and keeps its helper until then.
pub(super) trait Helpers: Send {
    /// Whether a job can begin now.
    fn is_ready(&mut self) -> bool;
    /// Begins a job. Only after [`Self::is_ready`].
    fn begin(&mut self, job_number: u64, job: Job);
    /// A job that is done, each once.
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
    /// The registrar was told that it hangs.
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
    /// So many of the first ones belong to processes that were at another job …
    passed: usize,
    /// … when so many jobs were done.
    done: u64,
}

/// The registrar's examiner.
pub(super) struct Examiner {
    helpers: Box<dyn Helpers>,
    /// What the time is.
    now: fn() -> Instant,
    busy: Vec<Busy>,
    next_job_number: u64,
    /// Jobs by namespace.
    lines: BTreeMap<u64, Line>,
    /// Jobs that are done.
    done: u64,
    /// CPU time that each namespace has left, where it has not all.
    credits: BTreeMap<u64, Credit>,
    /// Waiting jobs that were looked at.
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

    /// How many jobs of this owner could begin now: a message is read only where what came with it can be closed. What waits in
    /// the namespace's line could not begin before.
    pub(super) fn room_for(&mut self, owner: Owner) -> usize {
        let is_at_it = |busy: &Busy| owner.pid != 0 && busy.owner.pid == owner.pid;
        if self.busy.iter().any(is_at_it) { 0 } else { self.room_of(owner.netns_cookie) }
    }

    /// The same of a process that has no job.
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

    /// Does a job, at once or in its namespace's turn. The answer is for the connection of this number; 0 = none.
    pub(super) fn give(&mut self, owner: Owner, number: u64, job: Job) {
        self.lines.entry(owner.netns_cookie).or_default().jobs.push_back(Waiting { owner, number, job });
        self.begin_jobs(owner.netns_cookie);
    }

    /// Closes a connection that was shut down, with what lies in it, and gives up a client that no worker has.
    pub(super) fn end(&mut self, owner: Owner, connection: Arc<OwnedFd>, client: Option<Box<Client>>) {
        if client.is_none() && connection::is_empty(&connection) {
            return;
        }
        self.give(owner, 0, Job::End { connection: Some(connection), client });
    }

    /// Whether so many jobs of a namespace wait that it is not to be heard. Its connections can still be ended: closing one may
    /// wait, so it has to wait for a helper.
    pub(super) fn is_line_full(&self, netns_cookie: u64) -> bool {
        self.lines.get(&netns_cookie).is_some_and(|line| line.jobs.len() >= LINE_MAX)
    }

    /// Begins what a namespace may begin now, and looks at no job where it may begin none. A job whose process is at another one
    /// lets the next one pass.
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

    /// Answers since the last call, each with its owner and the connection that it is for.
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

    /// Who holds up a helper since a moment ago, each told once, with the connection that waits for it. A helper that
    /// waits for a CPU hangs no more than others do.
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

    /// Whether something may have to be begun, or be found hanging, without any answer.
    pub(super) fn is_watching(&self) -> bool {
        !self.lines.is_empty() || self.busy.iter().any(|busy| !busy.is_hanging)
    }

    /// Whether something of this process hangs.
    pub(super) fn is_hanging(&self, pid: u32) -> bool {
        pid != 0 && self.busy.iter().any(|busy| busy.is_hanging && busy.owner.pid == pid)
    }

    /// Whether all helpers that a namespace may have hang.
    pub(super) fn is_stuck(&self, netns_cookie: u64) -> bool {
        let is_its = |busy: &&Busy| busy.is_hanging && busy.owner.netns_cookie == netns_cookie;
        is_full(self.busy.iter().filter(is_its).count(), self.busy.len())
    }
}

/// Does a job; `examine` says what a descriptor is, and closes it.
pub(super) fn work(job: Job, examine: Examine) -> Answer {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// Helpers whose jobs end when it is said.
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

    /// A namespace that holds up all its helpers may leave as many jobs behind as it likes: they are not looked at.
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

    /// One process holds up one helper, and leaves jobs behind without end: each is looked at once, and so many at most.
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
