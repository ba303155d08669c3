// SPDX-License-Identifier: Apache-2.0
//! Expected-arrival receive: a blocking call on a UDP or packet socket is awake when the next periodic datagram comes
//! (`docs/design/expected-arrival.md`).
//!
//! In: receive calls, poll, select and epoll of a program that asked for it (`KTSN_RECEIVE=expect`). Out: what the kernel answers to them; only
//! *when* the thread is awake differs. Without a grant of the daemon every call goes to the kernel as it came.
//!
//! ```text
//! calls, polls, selects, epolls_wait   what the program calls
//!   wait                               sleep, spin, give back: system calls, signals, cancellation
//!     decide                           the next step: pure
//!     listeners, epolls, entries, grant   who listens, who expects, where it is counted, how long may be spun
//!     period                           the period that the program, the environment or the daemon knows
//! ```

use core::ffi::c_int;

pub(crate) mod calls;
pub(crate) mod cleanup;
mod decide;
#[cfg(test)]
mod decide_tests;
mod entries;
mod epolls;
mod grant;
mod guarded;
pub(crate) mod listeners;
pub(crate) mod period;
pub(crate) mod polls;
pub(crate) mod selects;
pub(crate) mod sets;
pub(crate) mod switch;
mod wait;

pub(crate) use switch::is_on;

/// The descriptor is closed, or is something new.
#[inline]
pub(crate) fn forget(fd: c_int) {
    if is_on() {
        listeners::forget(fd);
    }
}

/// `new` is a duplicate of `old`.
#[inline]
pub(crate) fn copy(old: c_int, new: c_int) {
    if is_on() {
        listeners::copy(old, new);
    }
}

/// All descriptors from `first` to `last` are closed.
#[inline]
pub(crate) fn forget_range(first: u32, last: u32) {
    if is_on() {
        listeners::forget_range(first, last);
    }
}

/// Whether a call on this descriptor waits, and for how long, may have changed.
#[inline]
pub(crate) fn note_changed(fd: c_int) {
    if is_on()
        && let Some(listener) = listeners::known(fd)
    {
        listener.note_changed();
    }
}

/// In a fork's child: what other threads of the parent held is free.
pub(crate) fn in_child() {
    if is_on() {
        listeners::in_child();
        wait::in_child();
    }
}
