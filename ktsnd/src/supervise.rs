// SPDX-License-Identifier: Apache-2.0
//! Supervision: no thread of ktsnd dies or hangs unseen.
//!
//! In: a sign of life of each thread that must live. Out: which of them is stuck, for `Health`; the end of the process
//! after a panic anywhere, or when a worker stays stuck. The supervisor has a thread of its own, takes no part in any
//! other work, and never waits for a thread that it watches. Reasons: docs/design/supervision.md.

#[cfg(debug_assertions)]
pub(crate) mod fault;
mod panics;
mod silence;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ktsn_time::{Monotonic, Nanos};
use tracing::{error, warn};

use crate::now::monotonic_now;
pub use panics::abort_on_panic;
use silence::{Sign, Silence};

/// How often the supervisor checks all threads.
const ROUND: Duration = Duration::from_millis(ROUND_MS as u64);
const ROUND_MS: i64 = 250;
/// A thread that has not answered for this many rounds is stuck: no living one takes a second.
const STUCK_AFTER: u32 = 4;
/// A worker that stays stuck for this many rounds ends the process: 10 s.
const ABORT_AFTER: u32 = 40;
/// The supervisor itself is stuck when its last round is older.
const OWN_SILENCE: Nanos = Nanos::from_millis(1500);

/// The name of a worker's thread.
pub(crate) const WORKER: &str = "ktsn-worker";

/// A sign of life that a thread gives while it works. A thread that waits for work reports that, and need not give any.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    beats: AtomicU64,
    is_waiting: AtomicBool,
}

impl Pulse {
    /// The thread is about to wait for work, for as long as it takes.
    pub(crate) fn waits(&self) {
        self.is_waiting.store(true, Relaxed);
    }

    /// The thread works: each step of its loop says so.
    pub(crate) fn works(&self) {
        // One thread writes.
        self.beats.store(self.beats.load(Relaxed).wrapping_add(1), Relaxed);
        self.is_waiting.store(false, Relaxed);
    }

    fn sign(&self) -> Sign {
        if self.is_waiting.load(Relaxed) { Sign::Waits } else { Sign::Beats(self.beats.load(Relaxed)) }
    }
}

/// How a thread shows that it lives.
enum Life {
    /// A thread that shows its life by a pulse.
    Pulse(Arc<Pulse>),
    /// A thread that shows its life by a counter, which goes up soon after `ask`.
    Asked { beats: Box<dyn Fn() -> u64 + Send>, ask: Box<dyn Fn() + Send> },
}

impl Life {
    fn sign(&self) -> Sign {
        match self {
            Self::Pulse(pulse) => pulse.sign(),
            Self::Asked { beats, .. } => Sign::Beats(beats()),
        }
    }

    fn ask(&self) {
        if let Self::Asked { ask, .. } = self {
            ask();
        }
    }
}

struct Entry {
    number: u64,
    name: &'static str,
    device: String,
    life: Life,
    silence: Silence,
}

/// Every thread that must live.
#[derive(Default)]
struct Roll(Mutex<Entries>);

#[derive(Default)]
struct Entries {
    all: Vec<Entry>,
    entered: u64,
}

/// The threads of this process.
static ROLL: Roll = Roll(Mutex::new(Entries { all: Vec::new(), entered: 0 }));
/// When the supervisor last checked, CLOCK_MONOTONIC; 0 = there is none.
static LOOKED_AT: AtomicU64 = AtomicU64::new(0);

impl Roll {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        // Entries are plain values that are right after each step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, name: &'static str, device: &str, life: Life) -> u64 {
        let mut entries = self.lock();
        entries.entered += 1;
        let number = entries.entered;
        let (device, silence) = (device.to_owned(), Silence::default());
        entries.all.push(Entry { number, name, device, life, silence });
        number
    }

    fn threads(&self) -> Vec<ThreadView> {
        let view = |entry: &Entry| ThreadView {
            name: entry.name,
            device: entry.device.clone(),
            silent: span(entry.silence.unanswered()),
            is_stuck: entry.silence.unanswered() >= STUCK_AFTER,
        };
        self.lock().all.iter().map(view).collect()
    }

    /// Checks every thread. Returns the uplink of a worker that has been stuck for too long, if there is one.
    fn look(&self) -> Option<String> {
        let mut lost = None;
        for entry in &mut self.lock().all {
            let before = entry.silence.unanswered();
            let is_to_ask = entry.silence.look(entry.life.sign());
            if is_to_ask {
                entry.life.ask();
            }
            let now = entry.silence.unanswered();
            let (name, device) = (entry.name, &entry.device);
            if now == STUCK_AFTER && before < now {
                error!(thread = name, device, "the thread is stuck: it has not answered for {}", span(now));
            } else if before >= STUCK_AFTER && now == 0 {
                warn!(thread = name, device, "the thread answers again");
            }
            if name == WORKER && now >= ABORT_AFTER {
                lost = Some(device.clone());
            }
        }
        lost
    }
}

/// A thread's place among those that must live; it is removed when this is dropped. The thread itself holds it.
pub(crate) struct Watched {
    roll: &'static Roll,
    number: u64,
    name: &'static str,
    pulse: Arc<Pulse>,
}

impl Watched {
    /// The calling thread must live from now on. `device`: the uplink that it serves, or empty.
    pub(crate) fn enter(name: &'static str, device: &str) -> Self {
        Self::enter_in(&ROLL, name, device)
    }

    fn enter_in(roll: &'static Roll, name: &'static str, device: &str) -> Self {
        let pulse = Arc::new(Pulse::default());
        Self { roll, number: roll.enter(name, device, Life::Pulse(pulse.clone())), name, pulse }
    }

    /// The worker of `device`, which answers when it is asked: `beats` goes up soon after `ask`.
    pub(crate) fn worker(
        device: &str,
        beats: impl Fn() -> u64 + Send + 'static,
        ask: impl Fn() + Send + 'static,
    ) -> Self {
        Self::worker_in(&ROLL, device, beats, ask)
    }

    fn worker_in(
        roll: &'static Roll,
        device: &str,
        beats: impl Fn() -> u64 + Send + 'static,
        ask: impl Fn() + Send + 'static,
    ) -> Self {
        let life = Life::Asked { beats: Box::new(beats), ask: Box::new(ask) };
        Self { roll, number: roll.enter(WORKER, device, life), name: WORKER, pulse: Arc::default() }
    }

    /// The thread is about to wait for work, without limit.
    pub(crate) fn waits(&self) {
        self.pulse.waits();
    }

    /// The thread works: each step of its loop says so.
    pub(crate) fn works(&self) {
        self.pulse.works();
        test_fault_point(self.name);
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.roll.lock().all.retain(|entry| entry.number != self.number);
    }
}

/// Tests can let the named thread panic or hang here. In a release build it does nothing.
#[inline]
pub(crate) fn test_fault_point(name: &str) {
    #[cfg(debug_assertions)]
    fault::point(name);
    #[cfg(not(debug_assertions))]
    let _ = name;
}

/// What `Health` reports about a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ThreadView {
    pub(crate) name: &'static str,
    pub(crate) device: String,
    /// Age of the request that it has not answered.
    pub(crate) silent: Nanos,
    pub(crate) is_stuck: bool,
}

/// The span of this many rounds.
fn span(looks: u32) -> Nanos {
    Nanos::from_millis(ROUND_MS).saturating_mul(i64::from(looks))
}

/// Every thread that must live, the supervisor included.
pub(crate) fn threads() -> Vec<ThreadView> {
    let mut views = ROLL.threads();
    let looked_at = LOOKED_AT.load(Relaxed);
    if looked_at != 0 {
        let age = monotonic_now().since(Monotonic::from_nanos(looked_at));
        let is_stuck = age > OWN_SILENCE;
        let silent = if is_stuck { age } else { Nanos::ZERO };
        views.push(ThreadView { name: "ktsn-supervisor", device: String::new(), silent, is_stuck });
    }
    views
}

/// For how long the worker of an uplink has been stuck; `None`: it is not.
pub(crate) fn stuck_worker(device: &str) -> Option<Nanos> {
    let stuck = |thread: &ThreadView| thread.is_stuck && thread.name == WORKER && thread.device == device;
    ROLL.threads().into_iter().find(stuck).map(|thread| thread.silent)
}

/// The supervisor's thread; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Supervisor {
    stop: Option<Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Supervisor {
    /// Begins to watch.
    ///
    /// # Errors
    /// The kernel's, when there is no thread to be had.
    pub(crate) fn start() -> std::io::Result<Self> {
        let (stop, stopped) = channel::<()>();
        let thread = std::thread::Builder::new().name("ktsn-supervisor".into()).stack_size(256 << 10).spawn(
            move || {
                while stopped.recv_timeout(ROUND) == Err(RecvTimeoutError::Timeout) {
                    #[cfg(debug_assertions)]
                    fault::look();
                    LOOKED_AT.store(monotonic_now().as_nanos(), Relaxed);
                    if let Some(device) = ROLL.look() {
                        error!(
                            device,
                            "the worker stays stuck: ktsnd ends, so that what started it can start it again"
                        );
                        std::process::abort();
                    }
                }
                LOOKED_AT.store(0, Relaxed);
            },
        )?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No supervisor looks at it: the test does, as often as it wants.
    fn roll() -> &'static Roll {
        Box::leak(Box::default())
    }

    fn is_stuck(roll: &Roll) -> bool {
        roll.threads().iter().any(|thread| thread.is_stuck)
    }

    #[test]
    fn a_thread_that_stops_in_its_work_is_stuck_until_it_goes_on() {
        let roll = roll();
        let watched = Watched::enter_in(roll, "test", "eth7");
        watched.works();
        for _ in 0..STUCK_AFTER + 1 {
            assert!(roll.look().is_none() && !is_stuck(roll));
        }
        roll.look();
        let view = &roll.threads()[0];
        assert!(view.is_stuck && view.silent >= Nanos::from_seconds(1) && view.device == "eth7", "{view:?}");
        watched.works();
        roll.look();
        assert!(!is_stuck(roll) && roll.threads()[0].silent == Nanos::ZERO);
        // Only a worker ends the process.
        let is_lost = (0..10 * ABORT_AFTER).any(|_| roll.look().is_some());
        assert!(is_stuck(roll) && !is_lost);
        // One that waits for work may wait for ever.
        watched.waits();
        for _ in 0..100 {
            roll.look();
            assert!(!is_stuck(roll));
        }
        drop(watched);
        assert_eq!(roll.threads(), []);
    }

    #[test]
    fn a_worker_that_sleeps_for_long_is_asked_and_one_that_stays_stuck_is_lost() {
        let roll = roll();
        let (beats, asked) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let is_deaf = Arc::new(AtomicBool::new(false));
        let (seen, answers, asking, deaf) = (beats.clone(), beats.clone(), asked.clone(), is_deaf.clone());
        let ask = move || {
            asking.fetch_add(1, Relaxed);
            if !deaf.load(Relaxed) {
                answers.fetch_add(1, Relaxed);
            }
        };
        let _watched = Watched::worker_in(roll, "eth7", move || seen.load(Relaxed), ask);
        for _ in 0..20 {
            assert!(roll.look().is_none() && !is_stuck(roll));
        }
        assert_eq!(asked.load(Relaxed), 10, "each second look");
        for _ in 0..20 {
            beats.fetch_add(1, Relaxed);
            roll.look();
        }
        assert_eq!(asked.load(Relaxed), 10, "never while it works");
        is_deaf.store(true, Relaxed);
        for _ in 0..=STUCK_AFTER {
            roll.look();
        }
        assert!(is_stuck(roll));
        let lost = (0..ABORT_AFTER).find_map(|_| roll.look());
        assert_eq!(lost.as_deref(), Some("eth7"));
    }
}
