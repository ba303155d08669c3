// SPDX-License-Identifier: Apache-2.0
//! The system calls of clocks and scheduling. In: plain values. Out: plain values. No state but the stop flag.
#![allow(unsafe_code)]

use rustix::io::Errno;
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::thread::{CpuSet, sched_setaffinity, set_current_timer_slack};
use std::io;
use std::mem;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};

static STOP: AtomicBool = AtomicBool::new(false);

const NANOS: i64 = 1_000_000_000;

/// Nanoseconds of `clock`; 0 for a clock that does not exist.
pub(super) fn read(clock: i32) -> u64 {
    let mut at = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `at` is a valid, exclusively borrowed timespec for the whole call.
    unsafe { libc::clock_gettime(clock, &raw mut at) };
    u64::try_from(at.tv_sec * NANOS + at.tv_nsec).unwrap_or(0)
}

/// Sleeps until `nanos` of `clock`; false when a signal came first.
pub(super) fn sleep_until(clock: i32, nanos: u64) -> bool {
    let nanos = i64::try_from(nanos).unwrap_or(i64::MAX);
    let at = libc::timespec { tv_sec: nanos / NANOS, tv_nsec: nanos % NANOS };
    // SAFETY: `at` lives across the call; a null remainder is allowed with TIMER_ABSTIME.
    let status =
        unsafe { libc::clock_nanosleep(clock, libc::TIMER_ABSTIME, &raw const at, std::ptr::null_mut()) };
    status == 0
}

/// The state of the kernel's clock.
pub(super) fn clock_state() -> io::Result<super::ClockState> {
    // SAFETY: timex is plain data for which all-zero is valid; zero modes means nothing is set.
    let mut state: libc::timex = unsafe { mem::zeroed() };
    // SAFETY: `state` is a valid, exclusively borrowed timex.
    let status = unsafe { libc::adjtimex(&raw mut state) };
    if status < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(super::ClockState {
        tai_offset_seconds: state.tai,
        synchronised: status != libc::TIME_ERROR && state.status & libc::STA_UNSYNC == 0,
        error_max_micros: state.maxerror,
    })
}

/// Timers of the calling thread fire without slack.
pub(super) fn no_timer_slack() {
    let _ = set_current_timer_slack(NonZeroU64::new(1));
}

/// Pins the calling thread to one CPU.
pub(super) fn pin(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(Errno::INVAL.into());
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// Runs the calling thread under SCHED_FIFO.
pub(super) fn set_fifo(priority: u8) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: i32::from(priority) };
    // SAFETY: `parameters` lives across the call; pid 0 is the calling thread.
    let status = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Keeps all present and future memory of the process resident.
pub(super) fn lock_memory() -> io::Result<()> {
    Ok(mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE)?)
}

extern "C" fn on_stop(_signal: i32) {
    STOP.store(true, Ordering::Relaxed);
}

/// SIGINT and SIGTERM set the flag; without SA_RESTART, so that waits end.
pub(super) fn stop_on_signals() {
    // SAFETY: sigaction is plain data for which all-zero is valid.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = on_stop as *const () as usize;
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler only stores to an atomic, which is async-signal-safe; `action` lives across the call.
        unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    }
}

pub(super) fn stop_requested() -> bool {
    STOP.load(Ordering::Relaxed)
}
