// SPDX-License-Identifier: Apache-2.0
//! What the worker needs from the outside world: clocks, sleep, and news while it sleeps.
//!
//! The worker's loop runs unchanged on the real [`Host`] and on a virtual one in simulations and tests.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ktsn_time::{Monotonic, Nanos, Now, Tai};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, clock_gettime, timerfd_create,
    timerfd_settime,
};

use crate::now::{monotonic_now, nanos, tai_now};
use crate::rehearsal::Rehearsal;

/// Why the worker woke. A doorbell is named by the number under which it is watched.
#[derive(Debug, Default)]
pub struct Woken {
    /// Numbers of the doorbells that can be read; at most 64 a time, the rest stays.
    pub doorbells: Vec<u64>,
    /// Nothing happened, the time was reached.
    pub timed_out: bool,
}

impl Woken {
    /// Nothing happened.
    pub fn clear(&mut self) {
        self.doorbells.clear();
        self.timed_out = false;
    }
}

/// Events taken in one go.
pub(super) const EVENTS: usize = 64;
/// Events that one sleep ends with; the others end the next one.
const HEARD_AFTER_SLEEP: usize = 16;
const TOKEN_COMMAND: u64 = u64::MAX;
const TOKEN_CLOCK: u64 = u64::MAX - 1;

/// Clocks, sleep and news.
pub trait Environment {
    /// CLOCK_MONOTONIC.
    fn monotonic(&mut self) -> Monotonic;
    /// CLOCK_TAI.
    fn tai(&mut self) -> Tai;
    /// Both, read together.
    fn now(&mut self) -> Now {
        Now { tai: self.tai(), monotonic: self.monotonic() }
    }
    /// CLOCK_REALTIME, nanoseconds: for reports to programs only; nothing is decided by it.
    fn realtime(&mut self) -> u64 {
        self.tai().as_nanos()
    }
    /// Sleeps until `until` or until something happens; fills `woken`.
    fn sleep(&mut self, until: Monotonic, woken: &mut Woken);
    /// CPU time that the worker's thread has used, as the kernel counts it; `None` where that is unknown.
    fn cpu_time(&mut self) -> Option<Nanos> {
        None
    }
    /// True when [`Self::rehearse`] does anything.
    fn can_rehearse(&self) -> bool {
        false
    }
    /// Hands a frame that goes nowhere to the kernel. The code and data of the kernel's transmit path are in the caches then, and the
    /// processor is awake.
    fn rehearse(&mut self) {}
    /// Sleeps until `until`, whatever happens.
    fn doze(&mut self, until: Monotonic);
    /// Reads the doorbells that rang, without sleeping: fills `woken` with at most `most` of them.
    fn read_doorbells(&mut self, most: usize, woken: &mut Woken);
    /// Begins to watch a doorbell.
    ///
    /// # Errors
    /// The kernel's.
    fn watch(&mut self, doorbell: BorrowedFd<'_>, number: u64) -> Result<(), Errno>;
    /// Switches a watched doorbell off or on again.
    fn mute(&mut self, doorbell: BorrowedFd<'_>, number: u64, muted: bool);
    /// Stops watching.
    fn unwatch(&mut self, doorbell: BorrowedFd<'_>);
}

/// The machine that ktsnd runs on.
pub struct Host {
    epoll: OwnedFd,
    command: OwnedFd,
    clock: OwnedFd,
    rehearsal: Option<Rehearsal>,
}

impl Host {
    /// The host, with `command` (an eventfd) as the way to wake the worker.
    ///
    /// # Errors
    /// The kernel's, when descriptors run out.
    pub fn new(command: OwnedFd) -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let clock = timerfd_create(TimerfdClockId::Realtime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        let add = |fd: &OwnedFd, token| {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
        };
        add(&command, TOKEN_COMMAND)?;
        add(&clock, TOKEN_CLOCK)?;
        let host = Self { epoll, command, clock, rehearsal: None };
        host.arm_clock();
        Ok(host)
    }

    /// With a frame that can be rehearsed.
    #[must_use]
    pub(crate) fn with_rehearsal(self, rehearsal: Option<Rehearsal>) -> Self {
        Self { rehearsal, ..self }
    }

    /// A timer that never ends but is cancelled when the clock is set.
    fn arm_clock(&self) {
        let never = rustix::time::Timespec { tv_sec: i64::MAX >> 2, tv_nsec: 0 };
        let zero = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        let _ = timerfd_settime(
            &self.clock,
            TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET,
            &Itimerspec { it_interval: zero, it_value: never },
        );
    }

    fn drain(&self, most: usize, woken: &mut Woken) {
        let mut space = [const { MaybeUninit::uninit() }; EVENTS];
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let space = &mut space[..most.clamp(1, EVENTS)];
        let Ok((events, _)) = epoll::wait(&self.epoll, space, Some(&zero)) else { return };
        let mut word = [0u8; 8];
        for event in events {
            match event.data.u64() {
                TOKEN_COMMAND => {
                    let _ = rustix::io::read(&self.command, &mut word);
                }
                TOKEN_CLOCK => {
                    let _ = rustix::io::read(&self.clock, &mut word);
                    self.arm_clock();
                }
                number => woken.doorbells.push(number),
            }
        }
    }
}

impl Environment for Host {
    #[inline]
    fn monotonic(&mut self) -> Monotonic {
        monotonic_now()
    }
    #[inline]
    fn tai(&mut self) -> Tai {
        tai_now()
    }
    #[inline]
    fn realtime(&mut self) -> u64 {
        nanos(clock_gettime(ClockId::Realtime))
    }

    fn sleep(&mut self, until: Monotonic, woken: &mut Woken) {
        woken.clear();
        let span = until.since(self.monotonic()).max(Nanos::ZERO).get();
        let timeout = Timespec { tv_sec: span / 1_000_000_000, tv_nsec: span % 1_000_000_000 };
        // ppoll takes nanoseconds on every kernel; epoll_wait only where epoll_pwait2 exists.
        let epoll = self.epoll.as_fd();
        let ready = poll(&mut [PollFd::from_borrowed_fd(epoll, PollFlags::IN)], Some(&timeout));
        woken.timed_out = matches!(ready, Ok(0));
        if !woken.timed_out {
            self.drain(HEARD_AFTER_SLEEP, woken);
        }
    }

    fn cpu_time(&mut self) -> Option<Nanos> {
        Some(Nanos::new(i64::try_from(nanos(clock_gettime(ClockId::ThreadCPUTime))).unwrap_or(i64::MAX)))
    }

    fn can_rehearse(&self) -> bool {
        self.rehearsal.is_some()
    }

    fn rehearse(&mut self) {
        if let Some(rehearsal) = &mut self.rehearsal {
            rehearsal.run();
        }
    }

    fn doze(&mut self, until: Monotonic) {
        let span = until.since(self.monotonic()).max(Nanos::ZERO).get();
        let timeout = Timespec { tv_sec: span / 1_000_000_000, tv_nsec: span % 1_000_000_000 };
        let _ = poll(&mut [], Some(&timeout));
    }

    fn read_doorbells(&mut self, most: usize, woken: &mut Woken) {
        woken.clear();
        self.drain(most, woken);
    }

    fn watch(&mut self, doorbell: BorrowedFd<'_>, number: u64) -> Result<(), Errno> {
        epoll::add(&self.epoll, doorbell, epoll::EventData::new_u64(number), epoll::EventFlags::IN)
    }

    fn mute(&mut self, doorbell: BorrowedFd<'_>, number: u64, muted: bool) {
        let flags = if muted { epoll::EventFlags::empty() } else { epoll::EventFlags::IN };
        let _ = epoll::modify(&self.epoll, doorbell, epoll::EventData::new_u64(number), flags);
    }

    fn unwatch(&mut self, doorbell: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.epoll, doorbell);
    }
}
