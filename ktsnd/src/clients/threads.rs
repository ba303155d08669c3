// SPDX-License-Identifier: Apache-2.0
//! The examiner's helpers: threads that a program may block for as long as it likes.
//!  
//! In: jobs. Out: answers, later; a descriptor that the caller chose becomes readable then. No thread waits for one that a
//! program blocks.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};

use super::credit::cpu_time;
use super::examiner::{Done, Helpers, Job, work};
use super::hangs::waits;
use super::socket::Examine;

/// A thread that waits for work.
const IDLE_MAX: usize = 8;

struct Thread {
    /// Its number in the kernel, once it runs.
    tid: Arc<AtomicI32>,
    jobs: Sender<(u64, Job)>,
    has_begun: Arc<AtomicBool>,
}

/// Threads, one for each job.
pub(super) struct Threads {
    examine: Examine,
    idle: Vec<Thread>,
    /// The busy threads, by the number of their job.
    busy: BTreeMap<u64, Thread>,
    tell: Sender<Done>,
    told: Receiver<Done>,
    /// Written to when there is an answer.
    wake: Arc<OwnedFd>,
}

impl Threads {
    pub(super) fn new(examine: Examine, wake: Arc<OwnedFd>) -> Self {
        let (tell, told) = channel();
        Self { examine, idle: Vec::new(), busy: BTreeMap::new(), tell, told, wake }
    }

    fn spawn(&self) -> Option<Thread> {
        let (jobs, given) = channel::<(u64, Job)>();
        let (has_begun, tid) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicI32::new(0)));
        let own = tid.clone();
        let (examine, tell, wake, begun) =
            (self.examine, self.tell.clone(), self.wake.clone(), has_begun.clone());
        let run = move || {
            own.store(rustix::thread::gettid().as_raw_nonzero().get(), SeqCst);
            for (job_number, job) in given {
                begun.store(true, SeqCst);
                let before = cpu_time();
                let answer = work(job, examine);
                let spent = cpu_time().saturating_sub(before);
                begun.store(false, SeqCst);
                if tell.send(Done { job_number, answer, spent }).is_err() {
                    return;
                }
                let _ = rustix::io::write(&*wake, &1u64.to_ne_bytes());
            }
        };
        std::thread::Builder::new().name("ktsn-examiner".into()).stack_size(256 << 10).spawn(run).ok()?;
        Some(Thread { tid, jobs, has_begun })
    }
}

impl Helpers for Threads {
    fn is_ready(&mut self) -> bool {
        if self.idle.is_empty() {
            self.idle.extend(self.spawn());
        }
        !self.idle.is_empty()
    }

    fn begin(&mut self, job_number: u64, job: Job) {
        let Some(thread) = self.idle.pop() else { return };
        thread.has_begun.store(false, SeqCst);
        // The thread lives as long as its sender.
        let _ = thread.jobs.send((job_number, job));
        self.busy.insert(job_number, thread);
    }

    fn next_done(&mut self) -> Option<Done> {
        let done = self.told.try_recv().ok()?;
        let thread = self.busy.remove(&done.job_number);
        if self.idle.len() < IDLE_MAX {
            self.idle.extend(thread);
        }
        Some(done)
    }

    fn is_asleep(&self, job_number: u64) -> bool {
        let thread = self.busy.get(&job_number);
        thread.is_some_and(|thread| thread.has_begun.load(SeqCst) && waits(thread.tid.load(SeqCst)))
    }
}
