// SPDX-License-Identifier: Apache-2.0
//! poll and ppoll with UDP or packet sockets among their descriptors.
//!
//! In: the program's array. Out: what the kernel answers. The array is the program's memory: it is read only after the kernel has read it.

use core::ffi::c_void;

use ktsn_time::Span;

use super::listeners::{self, Set};
use super::wait::{Call, Waited, expect_or_make, is_forbidden, poll};
use crate::process::abi::{POLLIN, POLLRDNORM, PollFd, TimeSpec};
use crate::process::signals::Mask;
use crate::{call::memory, process::originals};

/// Longer arrays are the kernel's: looking through them takes longer than a wake-up.
const ENTRIES_MAX: usize = 1024;

/// A poll of the program.
struct Polled<'a> {
    entries: *mut PollFd,
    count: usize,
    make: &'a mut dyn FnMut() -> isize,
}

/// The listeners whose arrivals a poll waits for: sockets that had one before. None where the array is not served or cannot be read.
///
/// # Safety
/// `entries` and `count` are what the program passed.
unsafe fn listeners_of(entries: *const PollFd, count: usize) -> Set {
    let mut set = Set::default();
    if count > ENTRIES_MAX || !memory::is_readable(entries as usize, count.wrapping_mul(size_of::<PollFd>()))
    {
        return set;
    }
    for index in 0..count {
        // SAFETY: readable, as just found; it need not be aligned.
        let entry = unsafe { entries.wrapping_add(index).read_unaligned() };
        if entry.events & (POLLIN | POLLRDNORM) != 0
            && let Some(listener) = listeners::known(entry.fd)
        {
            set.add(listener);
        }
    }
    set
}

/// Polls, or waits for what is expected. `timeout`: `None` = without end. `mask`: the call's own. `make` is the call as it is.
///
/// # Safety
/// `entries`, `count` and `mask` are what the program passed.
pub(crate) unsafe fn wait(
    entries: *mut PollFd,
    count: usize,
    timeout: Option<Span>,
    mask: *const c_void,
    mut make: impl FnMut() -> isize,
) -> isize {
    // SAFETY: the caller's promise.
    let set = unsafe { listeners_of(entries, count) };
    if timeout == Some(Span::ZERO) || count > ENTRIES_MAX {
        return make();
    }
    if set.is_empty() {
        let answer = make();
        if answer > 0 {
            // From its first arrival on a socket is a listener.
            Polled { entries, count, make: &mut make }.arrived(answer);
        }
        return answer;
    }
    let before = originals::errno();
    let at_once = TimeSpec::of(Span::ZERO);
    // SAFETY: the caller's promise.
    let answer = unsafe { originals::ppoll(entries, count, &raw const at_once, mask) };
    if is_forbidden(answer) {
        originals::set_errno(before);
        return make();
    }
    if answer != 0 {
        return answer as isize;
    }
    let mut call = Polled { entries, count, make: &mut make };
    // SAFETY: the kernel has just read the mask, of which it knows the first word.
    let own = (!mask.is_null()).then(|| Mask::new(unsafe { mask.cast::<u64>().read_unaligned() }));
    expect_or_make(&mut call, set, timeout, own.as_ref(), before).0
}

impl Call for Polled<'_> {
    fn attempt(&mut self, mask: &Mask) -> Option<isize> {
        let at_once = TimeSpec::of(Span::ZERO);
        // SAFETY: the program's array, as it passed it; the rest is ours.
        let answer = unsafe {
            originals::ppoll(self.entries, self.count, &raw const at_once, (&raw const *mask).cast())
        };
        (answer != 0).then_some(answer as isize)
    }

    fn wait(&mut self, timeout: Option<Span>, mask: &Mask) -> Waited {
        // SAFETY: the program's array, as it passed it.
        unsafe { poll(self.entries, self.count, timeout, mask) }
    }

    fn make(&mut self) -> isize {
        (self.make)()
    }

    fn arrived(&self, _answer: isize) -> Set {
        let mut set = Set::default();
        for index in 0..self.count {
            // SAFETY: the program's array, which the kernel has just written.
            let entry = unsafe { self.entries.wrapping_add(index).read_unaligned() };
            if entry.revents & (POLLIN | POLLRDNORM) != 0
                && let Some(listener) = listeners::of_call(entry.fd)
            {
                set.add(listener);
            }
        }
        set
    }

    fn time_out(&mut self) -> isize {
        0
    }
}
