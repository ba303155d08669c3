// SPDX-License-Identifier: Apache-2.0
//! The clock watcher: a thread that asks the clock's source whether the clock is good, and notices when it is set.
//!  
//! In: readings of a [`Source`], the kernel's notification that CLOCK_REALTIME was set (TFD_TIMER_CANCEL_ON_SET), and CLOCK_TAI
//! beside CLOCK_MONOTONIC, which tells a step of TAI from a leap second. Out: the
//! current state, and a call at each change. It reads clocks and never sets one. The node notifies workers; none of them waits
//! for this thread.

pub(crate) mod fuzzing;
mod judge;
mod parse;
mod source;
mod tai;

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ktsn_time::{Monotonic, Nanos};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use judge::{Judge, Reading};
pub(crate) use source::Source;
use tai::{TaiChange, TaiReading, compare};
use tracing::warn;

use crate::now::monotonic_now;
use crate::supervise::Watched;

/// What is known of the clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClockView {
    /// Why it is not good; `None`: it is.
    pub(crate) fault: Option<String>,
    /// Since when it has been so.
    pub(crate) since: Monotonic,
    pub(crate) transitions: u64,
    pub(crate) steps: u64,
    pub(crate) error: Option<Nanos>,
}

impl Default for ClockView {
    /// Good until a reading says otherwise: the first comes before any frame.
    fn default() -> Self {
        Self { fault: None, since: monotonic_now(), transitions: 0, steps: 0, error: None }
    }
}

impl ClockView {
    fn follow(&mut self, judge: &Judge, has_changed: bool) {
        if has_changed {
            self.since = monotonic_now();
        }
        self.fault = judge.fault().map(str::to_owned);
        (self.transitions, self.steps, self.error) = (judge.transitions(), judge.steps(), judge.error());
    }
}

/// The view, shared with its readers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known(Arc<Mutex<ClockView>>);

impl Known {
    fn lock(&self) -> MutexGuard<'_, ClockView> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current state.
    pub(crate) fn view(&self) -> ClockView {
        self.lock().clone()
    }

    /// Whether it is good now.
    pub(crate) fn is_good(&self) -> bool {
        self.lock().fault.is_none()
    }
}

/// The reason why the watcher woke up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    TimePassed,
    ClockSet,
    Stop,
}

/// Asks the source until it must stop; `wait` waits for the given time, or for an event.
fn watch(
    ask: &mut dyn FnMut() -> Reading,
    read_tai: &mut dyn FnMut() -> TaiReading,
    period: Duration,
    wait: &mut dyn FnMut(Duration) -> Woken,
    known: &Known,
    report: &dyn Fn(),
) {
    let mut judge = Judge::default();
    let mut before = read_tai();
    let mut was_set = false;
    loop {
        let now = read_tai();
        let change = compare(std::mem::replace(&mut before, now), now, std::mem::take(&mut was_set));
        log_change(change);
        if change.step.is_some() {
            let has_changed = judge.step();
            known.lock().follow(&judge, has_changed);
            if has_changed {
                report();
            }
        }
        let has_changed = judge.read(ask());
        known.lock().follow(&judge, has_changed);
        if has_changed {
            report();
        }
        match wait(if judge.is_contradicted() { period / 2 } else { period }) {
            Woken::TimePassed => {}
            Woken::ClockSet => was_set = true,
            Woken::Stop => return,
        }
    }
}

/// Says what no reading of the source says.
fn log_change(change: TaiChange) {
    let stepped = change.step.map_or("CLOCK_TAI went on, as at a leap second".to_owned(), |moved| {
        format!("CLOCK_TAI was set, by {:.3} s", moved.get() as f64 / 1e9)
    });
    match change.utc_offset {
        Some((before, now)) => warn!(before, now, "TAI - UTC is another one now; {stepped}"),
        None if change.step.is_some() => warn!("{stepped}"),
        None => {}
    }
}

/// A timer that never ends, but is cancelled when the clock is set.
struct Steps(OwnedFd);

impl Steps {
    fn new() -> rustix::io::Result<Self> {
        let timer = timerfd_create(TimerfdClockId::Realtime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        let steps = Self(timer);
        steps.arm()?;
        Ok(steps)
    }

    fn arm(&self) -> rustix::io::Result<()> {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let never = Timespec { tv_sec: i64::MAX >> 2, tv_nsec: 0 };
        let flags = TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET;
        timerfd_settime(&self.0, flags, &Itimerspec { it_interval: zero, it_value: never }).map(drop)
    }

    fn wait(&self, stop: &OwnedFd, span: Duration) -> Woken {
        let timeout = Timespec { tv_sec: span.as_secs() as i64, tv_nsec: i64::from(span.subsec_nanos()) };
        let (was_set, is_over) = {
            let mut events = [
                PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
            ];
            if poll(&mut events, Some(&timeout)).is_err() {
                return Woken::TimePassed;
            }
            (!events[0].revents().is_empty(), !events[1].revents().is_empty())
        };
        if is_over {
            return Woken::Stop;
        }
        if was_set {
            // ECANCELED is the event; the timer is armed again for the next one.
            let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
            let _ = self.arm();
            return Woken::ClockSet;
        }
        Woken::TimePassed
    }
}

/// The watcher's thread; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Watcher {
    known: Known,
    stop: Arc<OwnedFd>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Watcher {
    /// Begins to watch; `report` is called after each change, from the thread.
    ///
    /// # Errors
    /// The kernel's, when descriptors or threads run out.
    pub(crate) fn start(mut source: Source, report: impl Fn() + Send + 'static) -> std::io::Result<Self> {
        let known = Known::default();
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (stopped, steps, told) = (stop.clone(), Steps::new()?, known.clone());
        // The first reading comes before the first frame.
        let mut first = Some(source.read());
        told.lock().fault = first.as_ref().and_then(|reading| reading.fault.clone());
        let thread =
            std::thread::Builder::new().name("ktsn-clock".into()).stack_size(256 << 10).spawn(move || {
                let watched = Watched::enter("ktsn-clock", "");
                let period = source.period();
                let mut wait = |span| {
                    watched.waits();
                    let woken = steps.wait(&stopped, span);
                    watched.works();
                    woken
                };
                let mut ask = || first.take().unwrap_or_else(|| source.read());
                watch(&mut ask, &mut TaiReading::now, period, &mut wait, &told, &report);
            })?;
        Ok(Self { known, stop, thread: Some(thread) })
    }

    /// What is known of the clock.
    pub(crate) fn known(&self) -> Known {
        self.known.clone()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// A source and a wait that follow a script: `g` good, `b` bad; while the watcher waits `s` the clock is set, `l` a leap second
    /// comes, `t` TAI - UTC is set.
    fn follow(script: &str) -> (Vec<bool>, ClockView) {
        let (known, changes) = (Known::default(), RefCell::new(Vec::new()));
        let letters = RefCell::new(script.chars().peekable());
        let mut ask = || match letters.borrow_mut().next() {
            Some('g') => Reading::good(None),
            _ => Reading::bad("unsynchronised"),
        };
        let clocks = RefCell::new(TaiReading { distance: Nanos::ZERO, at: Monotonic::ZERO, utc_offset: 37 });
        let mut wait = |_| {
            let is_next = |letter| letters.borrow_mut().next_if_eq(&letter).is_some();
            if is_next('s') {
                Woken::ClockSet
            } else if is_next('l') {
                clocks.borrow_mut().utc_offset += 1;
                Woken::ClockSet
            } else if is_next('t') {
                let mut clocks = clocks.borrow_mut();
                clocks.utc_offset -= 1;
                clocks.distance = clocks.distance.saturating_sub(Nanos::from_seconds(1));
                Woken::TimePassed
            } else if letters.borrow_mut().peek().is_some() {
                Woken::TimePassed
            } else {
                Woken::Stop
            }
        };
        watch(&mut ask, &mut || *clocks.borrow(), Duration::ZERO, &mut wait, &known, &|| {
            changes.borrow_mut().push(known.is_good());
        });
        (changes.into_inner(), known.view())
    }

    #[test]
    fn each_change_is_told_once() {
        let (changes, view) = follow("gggbgbbbgggggg");
        assert_eq!(changes, [true, false, true]);
        assert_eq!((view.fault, view.transitions, view.steps), (None, 2, 0));
    }

    #[test]
    fn a_step_is_a_change_and_counted() {
        let (changes, view) = follow("gsggg");
        assert_eq!(changes, [true, false]);
        assert!(view.fault.is_some_and(|why| why.contains("set")) && view.steps == 1);
        let (changes, view) = follow("gsgggggsgggg");
        assert_eq!(changes, [true, false, true, false, true]);
        assert_eq!((view.fault, view.steps, view.transitions), (None, 2, 4));
    }

    #[test]
    fn a_leap_second_is_no_step_and_a_new_tai_offset_is_one() {
        let (changes, view) = follow("glgggg");
        assert_eq!((changes, view.fault, view.steps), (vec![true], None, 0));
        let (changes, view) = follow("gtgggggtggggg");
        assert_eq!(changes, [true, false, true, false, true]);
        assert_eq!((view.fault, view.steps), (None, 2));
    }

    #[test]
    fn a_watcher_stops_when_it_is_dropped() {
        let watcher = Watcher::start(Source::new(Default::default(), None), || {}).unwrap();
        let known = watcher.known();
        drop(watcher);
        assert_eq!(known.view().steps, 0);
    }
}
