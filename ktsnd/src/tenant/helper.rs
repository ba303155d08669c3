// SPDX-License-Identifier: Apache-2.0
//! A thread that does what may take as long as a program likes, and that can be left behind.
//!
//! In: jobs, one at a time, which are system calls on programs' sockets: a program may hold the lock of a socket for
//! ever (a page that faults slowly under its `sendmsg`). Out: the answer, or word that there is none yet; then this
//! thread is left to itself and the next job gets a fresh one. Those left behind count as closers that hang, of which there
//! is a most, unless the asker counts them itself. The asker never waits longer than that.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use super::socket::{can_close_unknown, one_hangs, one_hangs_no_more};

/// How long a job may take.
pub(super) const PATIENCE: Duration = Duration::from_millis(50);
/// How long it may take with what it waits for a CPU, before it begins or in its midst: that is nobody's fault.
const CPU_PATIENCE: Duration = Duration::from_secs(1);

/// What the threads have in common.
type Work<J, A> = Arc<dyn Fn(J) -> A + Send + Sync>;

/// A thread for jobs `J` with answers `A`.
pub(super) struct Helper<J, A> {
    name: &'static str,
    work: Work<J, A>,
    thread: Option<Thread<J, A>>,
}

struct Thread<J, A> {
    jobs: Sender<J>,
    answers: Receiver<A>,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// The thread that is at the job, or was last; 0 before it has begun.
    at_it: AtomicI32,
    /// It was left behind, and counts as a closer.
    is_closer: AtomicBool,
    is_over: AtomicBool,
}

impl State {
    /// Whether its thread waits for somebody else, in the job: what runs, or could if there were a CPU, does not.
    fn hangs(&self) -> bool {
        let thread = self.at_it.load(SeqCst);
        // `PID (NAME) STATE …`; one that cannot be read is taken for one that waits.
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
        thread != 0 && !stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('R'))
    }

    /// It counts as a closer no more.
    fn is_no_closer(&self) {
        if self.is_closer.swap(false, SeqCst) {
            one_hangs_no_more();
        }
    }
}

/// A thread that was left behind: it does what it is given once it goes on, and ends after that.
pub(super) struct Behind<J> {
    jobs: Sender<J>,
    state: Arc<State>,
}

impl<J> Behind<J> {
    /// One more job, for whenever it goes on.
    pub(super) fn give(&self, job: J) {
        // It ends only when this sender has gone.
        let _ = self.jobs.send(job);
    }

    /// For asking later whether it went on.
    pub(super) fn into_hang(self) -> Hang {
        Hang(self.state)
    }

    /// The same, where the asker has a bound of its own for such threads: it counts as a closer no more.
    pub(super) fn into_bounded_hang(self) -> Hang {
        self.state.is_no_closer();
        self.into_hang()
    }
}

/// Whether a thread that was left behind still hangs.
pub(super) struct Hang(Arc<State>);

impl Hang {
    pub(super) fn is_over(&self) -> bool {
        self.0.is_over.load(SeqCst)
    }
}

/// Runs at the end of a thread, however it ends.
struct AtEnd(Arc<State>);

impl Drop for AtEnd {
    fn drop(&mut self) {
        self.0.is_over.store(true, SeqCst);
        self.0.is_no_closer();
    }
}

impl<J: Send + 'static, A: Send + 'static> Helper<J, A> {
    /// A helper whose thread, called `name`, begins with the first job.
    pub(super) fn new(name: &'static str, work: impl Fn(J) -> A + Send + Sync + 'static) -> Self {
        Self { name, work: Arc::new(work), thread: None }
    }

    /// Whether a job may be given: there is a thread, and room for one more that hangs.
    pub(super) fn is_ready(&mut self) -> bool {
        if !can_close_unknown() {
            return false;
        }
        if self.thread.is_none() {
            self.thread = spawn(self.name, self.work.clone()).ok();
        }
        self.thread.is_some()
    }

    /// Does a job, after [`Self::is_ready`] said yes.
    ///
    /// # Errors
    /// The thread, left behind with this job; `None` if it ended by itself.
    pub(super) fn ask(&mut self, job: J) -> Result<A, Option<Behind<J>>> {
        let Some(thread) = self.thread.take() else { return Err(None) };
        thread.state.at_it.store(0, SeqCst);
        if thread.jobs.send(job).is_err() {
            return Err(None);
        }
        let asked = Instant::now();
        loop {
            let is_late = match thread.answers.recv_timeout(PATIENCE) {
                Ok(answer) => {
                    self.thread = Some(thread);
                    return Ok(answer);
                }
                Err(RecvTimeoutError::Disconnected) => return Err(None),
                Err(RecvTimeoutError::Timeout) => thread.state.hangs() || asked.elapsed() > CPU_PATIENCE,
            };
            // One that has just answered waits, too: for its next job.
            if is_late && let Ok(answer) = thread.answers.try_recv() {
                self.thread = Some(thread);
                return Ok(answer);
            }
            if is_late {
                one_hangs();
                thread.state.is_closer.store(true, SeqCst);
                return Err(Some(Behind { jobs: thread.jobs, state: thread.state }));
            }
        }
    }
}

fn spawn<J: Send + 'static, A: Send + 'static>(
    name: &'static str,
    work: Work<J, A>,
) -> io::Result<Thread<J, A>> {
    let (jobs, given) = channel::<J>();
    let (told, answers) = channel();
    let state = Arc::new(State::default());
    let own = state.clone();
    std::thread::Builder::new().name(name.into()).stack_size(256 << 10).spawn(move || {
        let at_end = AtEnd(own);
        for job in given {
            at_end.0.at_it.store(rustix::thread::gettid().as_raw_nonzero().get(), SeqCst);
            // Nobody listens to one that was left behind.
            let _ = told.send(work(job));
        }
    })?;
    Ok(Thread { jobs, answers, state })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_hangs_is_left_behind_and_ends_later() {
        let (release, held) = channel::<()>();
        let held = std::sync::Mutex::new(held);
        let mut helper = Helper::new("ktsn-test", move |job: u32| {
            if job == 13 {
                let _ = held.lock().unwrap().recv();
            }
            job + 1
        });
        assert!(helper.is_ready());
        assert_eq!(helper.ask(1).ok(), Some(2));
        assert!(helper.is_ready());
        let began = Instant::now();
        let Err(Some(behind)) = helper.ask(13) else { panic!("it hangs") };
        assert!(began.elapsed() >= PATIENCE);
        behind.give(14);
        let hang = behind.into_hang();
        assert!(!hang.is_over() && helper.is_ready());
        assert_eq!(helper.ask(2).ok(), Some(3), "another takes its place");
        release.send(()).unwrap();
        let began = Instant::now();
        while !hang.is_over() {
            assert!(began.elapsed() < Duration::from_secs(5));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Its thread has no CPU of its own: what it needs of one is not the program's doing.
    #[test]
    fn who_is_at_work_does_not_hang() {
        let mut helper = Helper::new("ktsn-test", move |span: Duration| {
            let began = Instant::now();
            while began.elapsed() < span {
                std::hint::black_box(());
            }
            span
        });
        assert!(helper.is_ready());
        assert_eq!(helper.ask(3 * PATIENCE).ok(), Some(3 * PATIENCE));
        assert!(helper.is_ready());
        assert!(helper.ask(2 * CPU_PATIENCE).is_err(), "not for ever");
    }
}
