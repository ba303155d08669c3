// SPDX-License-Identifier: Apache-2.0
//! The system's allocator, counted per thread so that the test harness's own threads do not disturb.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// How often this thread has asked for memory.
pub(crate) fn allocations() -> u64 {
    COUNT.with(Cell::get)
}

fn count() {
    // A thread that is being torn down has no counter any more; it is not under test either.
    let _ = COUNT.try_with(|count| count.set(count.get() + 1));
}

struct Counting;

// SAFETY: every call is passed on unchanged to `System`, which upholds the trait's contract; counting
// touches a const-initialised thread local without a destructor and so allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` came from `System` through `alloc` or `realloc` with this `layout`.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as for `dealloc`; the caller's promise about `size` is passed on.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
