// SPDX-License-Identifier: Apache-2.0
//! What belongs to this process alone: one page that the kernel empties in a child made by fork.
//!
//! In: nothing. Out: the words that say which regions are in use, which process owns the tables, how far a connection to ktsnd is. A
//! fork's child finds zeros: no region, no owner, no lock held by a thread that it does not have. A vfork's child
//! shares the page with its parent, and may use the region, but never changes the tables: its pid is another.

use core::ffi::c_void;
use core::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use crate::process::sys;

const PAGE_OCTETS: usize = 4096;
/// Attachments of its namespace that a process can use; those beyond are the kernel's.
pub(crate) const PLACES_COUNT: usize = 4;

/// The words on the page; all zero in a fresh process and in a fork's child.
#[repr(C)]
pub(crate) struct Page {
    /// The pid that may change the tables; 0 = no process has claimed them since fork.
    owner: AtomicU32,
    /// 1 while a thread moves the state machine of a connection to ktsnd.
    lock: AtomicU32,
    /// One for each attachment of the namespace: index of its region, plus 1; 0 = none. With [`crate::process::region::GIVEN_UP`]
    /// it is in use no more.
    pub(crate) places: [AtomicU32; PLACES_COUNT],
    /// One above the highest place that was ever taken.
    pub(crate) places_end: AtomicU32,
    /// Index of the region that waits for the daemon's reply, plus 1; 0 = none.
    pub(crate) waiting: AtomicU32,
    /// When the wait for that reply ends (CLOCK_MONOTONIC, ns).
    pub(crate) reply_until: AtomicU64,
    /// No attempt to attach before this instant (CLOCK_MONOTONIC, ns).
    pub(crate) retry_at: AtomicU64,
    /// When the last region was found missing (CLOCK_MONOTONIC, ns); 0 = there is one, or no step has looked since.
    pub(crate) absent_since: AtomicU64,
}

static PAGE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// The page, once a stream has ever been made in this process or an ancestor.
pub(crate) fn get() -> Option<&'static Page> {
    // SAFETY: either null or a mapping of a whole page that is never given back; all words are atomics, and zero is
    // a valid value of each.
    unsafe { PAGE.load(Acquire).cast::<Page>().as_ref() }
}

/// The page, made when it is missing; `None` when the kernel has no such pages, and then nothing is ever taken.
pub(crate) fn make() -> Option<&'static Page> {
    if let Some(page) = get() {
        return Some(page);
    }
    let new = sys::wiped_page(PAGE_OCTETS)?;
    if PAGE.compare_exchange(core::ptr::null_mut(), new, AcqRel, Acquire).is_err() {
        sys::unmap(new as usize, PAGE_OCTETS);
    }
    get()
}

/// Whether this process may change the tables of descriptors and sockets; a vfork's child may not.
pub(crate) fn may_change() -> bool {
    get().is_none_or(Page::may_change)
}

impl Page {
    /// Whether this process may change the tables: it owns them, or has forked off and no process owns its copy yet.
    pub(crate) fn may_change(&self) -> bool {
        let owner = self.owner.load(Relaxed);
        owner == 0 || owner == sys::pid()
    }

    /// Whether fork emptied the page and nothing has been done about it.
    pub(crate) fn is_fresh(&self) -> bool {
        self.owner.load(Acquire) == 0
    }

    /// Makes this process the owner. Only under the lock.
    pub(crate) fn own(&self) {
        self.owner.store(sys::pid(), Release);
    }

    /// The lock, or `None` at once when another thread (or the code below this signal handler) has it.
    pub(crate) fn try_lock(&'static self) -> Option<Locked> {
        self.lock.compare_exchange(0, 1, Acquire, Relaxed).ok().map(|_| Locked(self))
    }
}

/// The right to move the state machine of a connection to ktsnd.
pub(crate) struct Locked(&'static Page);

impl Drop for Locked {
    fn drop(&mut self) {
        self.0.lock.store(0, Release);
    }
}
