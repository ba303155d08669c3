// SPDX-License-Identifier: Apache-2.0
//! What close, dup and their relatives mean for the descriptor table and for our own two descriptors.
//!
//! In: what the program asks. Out: what it may do. Our descriptors behave as if they were not open: closing them is
//! EBADF, closing a range leaves them out. A program that puts something else in their place (dup2) may; the cookie
//! shows it, and the next send attaches again.

use core::ffi::c_int;

use crate::abi::CLOSE_RANGE_CLOEXEC;
use crate::{env, fds, originals, page, region};

/// Whether a descriptor is one of ours, which the program never opened.
pub(crate) fn is_hidden(fd: c_int) -> bool {
    page::get().is_some() && region::owns(fd)
}

/// `close_range` without our descriptors.
///
/// # Safety
/// The arguments are the program's own, which answers for what it closes.
pub(crate) unsafe fn close_range(first: u32, last: u32, flags: c_int) -> c_int {
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
            fds::forget_range(first, last);
            return 0;
        }
        from = ours.wrapping_add(1);
    }
    // SAFETY: the caller's promise.
    let answer = unsafe { originals::close_range(from, last, flags) };
    if answer == 0 && closes {
        fds::forget_range(first, last);
    }
    answer
}
