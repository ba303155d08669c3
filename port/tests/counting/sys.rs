// SPDX-License-Identifier: Apache-2.0
//! An allocator that counts the calling thread's allocations.
//!
//! In: every allocation of the test program. Out: the system's allocator, and a count per thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator with a counter before it.
pub(crate) struct Counting;

// SAFETY: every call is passed unchanged to the system's allocator, which keeps the trait's promises; the counter
// is a thread-local without a destructor and allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps `alloc`'s contract, which is passed on unchanged.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: `start` came from `alloc` above, so from the system's allocator, with this layout.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of this thread since it started.
pub(crate) fn allocation_count() -> u64 {
    COUNT.with(Cell::get)
}
