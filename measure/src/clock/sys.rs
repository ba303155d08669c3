// SPDX-License-Identifier: Apache-2.0
//! The system calls of clocks and scheduling. In: plain values. Out: plain values. No state but the stop flag.
#![allow(unsafe_code)]

use std::io;
use std::mem;
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

fn checked(status: i32) -> io::Result<()> {
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Timers of the calling thread fire without slack.
pub(super) fn no_timer_slack() {
    // SAFETY: PR_SET_TIMERSLACK takes one integer and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64, 0, 0, 0) };
}

/// Pins the calling thread to one CPU.
pub(super) fn pin(cpu: usize) -> io::Result<()> {
    let size = mem::size_of::<libc::cpu_set_t>();
    if cpu >= size * 8 {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: cpu_set_t is plain data for which all-zero is valid; `cpu` is inside the set (checked above).
    let set = unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        set
    };
    // SAFETY: `set` is valid for `size` octets; pid 0 is the calling thread.
    checked(unsafe { libc::sched_setaffinity(0, size, &raw const set) })
}

/// Runs the calling thread under SCHED_FIFO.
pub(super) fn set_fifo(priority: u8) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: i32::from(priority) };
    // SAFETY: `parameters` lives across the call; pid 0 is the calling thread.
    checked(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) })
}

/// Keeps all present and future memory of the process resident.
pub(super) fn lock_memory() -> io::Result<()> {
    // SAFETY: mlockall changes residency only.
    checked(unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) })
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
