// SPDX-License-Identifier: Apache-2.0
//! What a thread gives back that is cancelled while it waits: its signal mask, its leases, its place among those that wait.
//!
//! In: what the thread holds. Out: nothing; the C library calls [`clean`] before the program's own cleanup handlers, which find the mask that
//! the program set. Both C libraries export `_pthread_cleanup_push`; without it nothing is registered, and leases end by themselves.

use core::ffi::{c_int, c_void};
use core::mem::transmute;

use super::listeners::{Listener, Set};
use super::switch;
use crate::process::signals::{self, Mask};

/// What a waiting thread holds.
#[repr(C)]
pub(crate) struct Held {
    /// The C library's list entry: 32 octets in glibc, 24 in musl.
    buffer: [usize; 8],
    /// The program's mask, while signals are blocked.
    pub(crate) mask: Option<Mask>,
    /// The listeners that the thread owns, and its lease.
    pub(crate) owned: Set,
    /// The lease of all of them.
    pub(crate) lease: u64,
    /// The listener for which it waits in the kernel.
    pub(crate) waiting: Option<Listener>,
}

impl Held {
    /// Nothing.
    pub(crate) const fn new() -> Self {
        Self { buffer: [0; 8], mask: None, owned: Set(0), lease: 0, waiting: None }
    }

    /// Gives everything back.
    pub(crate) fn give_back(&mut self) {
        for listener in core::mem::take(&mut self.owned).iter() {
            listener.give_back(self.lease);
        }
        if let Some(listener) = self.waiting.take() {
            listener.end_waiting();
        }
        if let Some(mask) = self.mask.take() {
            signals::restore(&mask);
        }
    }
}

/// Called by the C library when the thread is cancelled.
extern "C" fn clean(held: *mut c_void) {
    // SAFETY: `with_cleanup` passed a `Held` that outlives the registration.
    unsafe { (*held.cast::<Held>()).give_back() };
}

/// Runs `body`, during which a cancelled thread gives back what is held; afterwards it is given back, too.
///
/// `body` gets a pointer because the handler changes the same value.
pub(crate) fn with_cleanup<R>(mut held: Held, body: impl FnOnce(*mut Held) -> R) -> R {
    let at: *mut Held = &raw mut held;
    let (push, pop) = switch::cleanup_functions();
    if push != 0 && pop != 0 {
        // SAFETY: the address of `_pthread_cleanup_push`, which has this signature in both C libraries.
        let push: unsafe extern "C" fn(*mut c_void, extern "C" fn(*mut c_void), *mut c_void) =
            unsafe { transmute(push) };
        // SAFETY: the buffer is as long as each C library's, and outlives the registration, which `pop` ends.
        unsafe { push((&raw mut (*at).buffer).cast(), clean, at.cast()) };
    }
    let result = body(at);
    if push != 0 && pop != 0 {
        // SAFETY: the address of `_pthread_cleanup_pop`, which has this signature in both C libraries.
        let pop: unsafe extern "C" fn(*mut c_void, c_int) = unsafe { transmute(pop) };
        // SAFETY: the buffer was pushed above, and calls in between have popped theirs.
        unsafe { pop((&raw mut (*at).buffer).cast(), 0) };
    }
    // SAFETY: no handler changes it any more.
    unsafe { (*at).give_back() };
    result
}
