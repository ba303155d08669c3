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

use std::cell::RefCell;
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

/// A wait for the kernel is shown from this span on.
pub(crate) const KERNEL_WAIT_SHOWN: Nanos = Nanos::from_seconds(1);
/// The likely cause of a long wait.
pub(crate) const RTNL: &str = "probably a driver holds the kernel's RTNL lock (a self-test or a change by ethtool, a reset, a \
                               firmware update), and what needs the lock waits until that ends";

/// The name of a worker's thread.
pub(crate) const WORKER: &str = "ktsn-worker";
/// The name of the thread that answers clients of the control API.
pub(crate) const CONTROL: &str = "ktsn-control";

/// A sign of life that a thread gives while it works. A thread that waits for work reports that, and need not give any.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    beats: AtomicU64,
    is_waiting: AtomicBool,
    /// Since when the thread waits for the kernel, and for what; `None`: it does not.
    kernel: Mutex<Option<(Monotonic, &'static str)>>,
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

    fn kernel(&self) -> MutexGuard<'_, Option<(Monotonic, &'static str)>> {
        self.kernel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sign(&self) -> Sign {
        if self.is_waiting.load(Relaxed) || self.kernel().is_some() {
            Sign::Waits
        } else {
            Sign::Beats(self.beats.load(Relaxed))
        }
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

    /// Since when the thread waits for the kernel, and for what.
    fn kernel(&self) -> Option<(Monotonic, &'static str)> {
        match self {
            Self::Pulse(pulse) => *pulse.kernel(),
            Self::Asked { .. } => None,
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
    /// A wait for the kernel was logged.
    is_wait_logged: bool,
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
        entries.all.push(Entry { number, name, device, life, silence, is_wait_logged: false });
        number
    }

    fn threads(&self) -> Vec<ThreadView> {
        let view = |entry: &Entry| ThreadView {
            name: entry.name,
            device: entry.device.clone(),
            silent: span(entry.silence.unanswered()),
            is_stuck: entry.silence.unanswered() >= STUCK_AFTER,
            kernel: entry.life.kernel().map(|(since, what)| (monotonic_now().since(since), what)),
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
                error!(
                    thread = name,
                    device,
                    "the thread is stuck: it has not answered for {}",
                    in_words(span(now))
                );
            } else if before >= STUCK_AFTER && now == 0 {
                warn!(thread = name, device, "the thread answers again");
            }
            if name == WORKER && now >= ABORT_AFTER {
                lost = Some(device.clone());
            }
            let waited = entry.life.kernel().map(|(since, what)| (monotonic_now().since(since), what));
            match waited.filter(|(waited, _)| *waited >= KERNEL_WAIT_SHOWN) {
                Some((waited, what)) if !entry.is_wait_logged => {
                    entry.is_wait_logged = true;
                    let waited = in_words(waited);
                    warn!(
                        thread = name,
                        device, "the thread waits for the kernel, for {waited} by now, {what}; {RTNL}"
                    );
                }
                None if entry.is_wait_logged => {
                    entry.is_wait_logged = false;
                    warn!(thread = name, device, "the kernel has answered");
                }
                _ => {}
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
        PULSE.with_borrow_mut(|own| *own = Some(pulse.clone()));
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

thread_local! {
    /// The pulse of this thread, where it must live.
    static PULSE: RefCell<Option<Arc<Pulse>>> = const { RefCell::new(None) };
}

/// Runs `f`, which may wait for the kernel's RTNL lock: for as long as a driver holds it. A thread that waits so is not stuck: no
/// restart helps. `Health` shows for how long, and for what. No worker, and not the thread that answers clients, may call this.
pub(crate) fn kernel<T>(what: &'static str, f: impl FnOnce() -> T) -> T {
    debug_assert!(
        !matches!(std::thread::current().name(), Some(WORKER | CONTROL)),
        "{what}: a thread that must not wait for RTNL asks the kernel"
    );
    let pulse = PULSE.with_borrow(Clone::clone);
    let is_outermost = pulse.as_ref().is_some_and(|pulse| pulse.kernel().is_none());
    if let Some(pulse) = pulse.as_ref().filter(|_| is_outermost) {
        *pulse.kernel() = Some((monotonic_now(), what));
    }
    #[cfg(debug_assertions)]
    fault::rtnl();
    let result = f();
    if let Some(pulse) = pulse.filter(|_| is_outermost) {
        *pulse.kernel() = None;
        pulse.works();
    }
    result
}

/// A span for people: `1.5 s`, `10 min`.
pub(crate) fn in_words(span: Nanos) -> String {
    let milliseconds = span.get() / 1_000_000;
    match (milliseconds / 60_000, milliseconds % 60_000) {
        (0, ms) if ms < 1_000 => format!("{ms} ms"),
        (0, ms) if ms % 1_000 == 0 => format!("{} s", ms / 1_000),
        (0, ms) => format!("{:.1} s", ms as f64 / 1_000.0),
        (minutes, 0) => format!("{minutes} min"),
        (minutes, ms) => format!("{minutes} min {} s", ms / 1_000),
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
    /// For how long it has waited for the kernel, and for what.
    pub(crate) kernel: Option<(Nanos, &'static str)>,
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
        let (name, device) = ("ktsn-supervisor", String::new());
        views.push(ThreadView { name, device, silent, is_stuck, kernel: None });
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

    #[test]
    fn a_thread_that_waits_for_the_kernel_is_not_stuck_and_is_shown() {
        let roll = roll();
        let watched = Watched::enter_in(roll, "test", "eth7");
        watched.works();
        kernel("for a test", || {
            kernel("inside of it", || {
                for _ in 0..10 * ABORT_AFTER {
                    assert!(roll.look().is_none() && !is_stuck(roll));
                }
            });
            assert_eq!(roll.threads()[0].kernel.map(|(_, what)| what), Some("for a test"));
        });
        assert_eq!(roll.threads()[0].kernel, None);
        // Afterwards it has to show that it lives.
        for _ in 0..=STUCK_AFTER + 1 {
            roll.look();
        }
        assert!(is_stuck(roll));
    }

    #[test]
    fn spans_are_said_in_units_for_people() {
        let said = [250, 1000, 1250, 60_000, 72_000, 600_000].map(|ms| in_words(Nanos::from_millis(ms)));
        assert_eq!(said, ["250 ms", "1 s", "1.2 s", "1 min", "1 min 12 s", "10 min"]);
    }
}
