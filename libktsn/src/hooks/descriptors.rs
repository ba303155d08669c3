// SPDX-License-Identifier: Apache-2.0
//! What close, dup and their relatives mean for the tables of descriptors and for our own two descriptors.
//!
//! In: what the program asks. Out: what it may do. Our descriptors behave as if they were not open: closing them is
//! EBADF, closing a range leaves them out, and where the program puts something else in their place (dup2) they move. What a program does
//! by raw system calls the cookie shows, and the next send attaches again.

use core::ffi::c_int;

use crate::process::abi::CLOSE_RANGE_CLOEXEC;
use crate::streams::fds;
use crate::{
    process::env, process::limit, process::originals, process::page, process::region, process::sys, receive,
};

/// The descriptor is closed, or is something new.
pub(super) fn forget(fd: c_int) {
    receive::forget(fd);
    fds::forget(fd);
}

/// `new` is a duplicate of `old`, or a negative answer; returned as it came.
pub(super) fn copy(old: c_int, new: c_int) -> c_int {
    if new >= 0 && old != new {
        receive::copy(old, new);
    }
    fds::copy(old, new)
}

/// All descriptors from `first` to `last` are closed, except one that is ours.
pub(super) fn forget_range(first: u32, last: u32) {
    if page::may_change() {
        receive::forget_range(first, last);
        fds::forget_range(first, last);
    }
}

/// Whether a descriptor is one of ours, which the program never opened.
pub(super) fn is_hidden(fd: c_int) -> bool {
    page::get().is_some() && region::owns(fd)
}

/// Puts a file at the number `new` by `put` (dup2, dup3), whose answer it returns. A descriptor of ours with that number moves before, so
/// that no frame finds it missing.
pub(super) fn replace(new: c_int, put: impl FnOnce() -> c_int) -> c_int {
    let has_moved = move_away(new);
    let answer = put();
    if has_moved && answer < 0 {
        sys::close(new);
    }
    answer
}

/// Moves our descriptor away from a number; whether there was one. A fork's child and a vfork's have a table of their own, whose copies of
/// our descriptors are not used.
fn move_away(fd: c_int) -> bool {
    let Some(page) = page::get().filter(|page| !page.is_fresh() && page.may_change()) else { return false };
    if !region::owns(fd) {
        return false;
    }
    let Some(_locked) = page.try_lock() else { return false };
    let raised = limit::raise();
    region::move_away(fd, raised.descriptor_min())
}

/// `close_range` without our descriptors.
///
/// # Safety
/// The arguments are the program's own, which answers for what it closes.
pub(super) unsafe fn close_range(first: u32, last: u32, flags: c_int) -> c_int {
    let closes = flags.cast_unsigned() & CLOSE_RANGE_CLOEXEC == 0 && first <= last;
    if closes {
        env::note_closed(first, last);
    }
    let mut from = first;
    while closes
        && page::get().is_some()
        && let Some(ours) = region::first_owned(from, last)
    {
        if ours > from {
            // SAFETY: the caller's promise, for a part of the range.
            let answer = unsafe { originals::close_range(from, ours.wrapping_sub(1), flags) };
            if answer != 0 {
                return answer;
            }
        }
        if ours == last {
            forget_range(first, last);
            return 0;
        }
        from = ours.wrapping_add(1);
    }
    // SAFETY: the caller's promise.
    let answer = unsafe { originals::close_range(from, last, flags) };
    if answer == 0 && closes {
        forget_range(first, last);
    }
    answer
}
