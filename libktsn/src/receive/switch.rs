// SPDX-License-Identifier: Apache-2.0
//! Whether the program asked for expected-arrival receive, and what is found once for it.
//!
//! In: the constructor's word. Out: the switch that every receive call reads first, and the C library's functions.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use crate::process::signals;
use crate::{process::originals, process::page};

/// `KTSN_RECEIVE=expect`.
static IS_ON: AtomicBool = AtomicBool::new(false);
static PUSH: AtomicUsize = AtomicUsize::new(0);
static POP: AtomicUsize = AtomicUsize::new(0);

/// Whether the program asked for it. Every receive call looks here first.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    IS_ON.load(Relaxed)
}

/// The program asked for it (by the constructor).
pub(crate) fn turn_on() {
    PUSH.store(originals::any(c"_pthread_cleanup_push") as usize, Relaxed);
    POP.store(originals::any(c"_pthread_cleanup_pop") as usize, Relaxed);
    signals::find();
    // A vfork's child knows by the owner that the tables are its parent's; the first region comes too late for that.
    if let Some(page) = page::make()
        && let Some(_locked) = page.try_lock()
    {
        page.own();
    }
    IS_ON.store(true, Relaxed);
}

/// Addresses of the C library's `_pthread_cleanup_push` and `_pthread_cleanup_pop`; 0 where it has none.
pub(crate) fn cleanup_functions() -> (usize, usize) {
    (PUSH.load(Relaxed), POP.load(Relaxed))
}
