// SPDX-License-Identifier: Apache-2.0
//! The exported functions by which a program waits for descriptors: poll, select, epoll.
//!
//! In: C calls. Out: C answers, which are the kernel's. Where the program asked for it ([`receive`]), the thread is awake when a periodic
//! arrival is expected; otherwise each hook costs one load.

use core::ffi::{c_int, c_void};

use ktsn_time::Span;

use crate::process::abi::{EpollEvent, PollFd, TimeSpec, TimeValue};
use crate::receive::{polls, selects, sets};
use crate::{call::memory, process::originals, process::sys, receive};

/// A timeout in milliseconds; `None` = without end.
fn span_of(millis: c_int) -> Option<Span> {
    u64::try_from(millis).ok().map(|millis| Span::from_nanos(millis.wrapping_mul(1_000_000)))
}

/// The timeout of a `struct timespec`: `None` where the kernel refuses it, `Some(None)` = without end.
///
/// # Safety
/// `timeout` is what the program passed; the kernel reads it, too.
unsafe fn span_at(timeout: *const TimeSpec) -> Option<Option<Span>> {
    if timeout.is_null() {
        return Some(None);
    }
    if !memory::is_readable(timeout as usize, size_of::<TimeSpec>()) {
        return None;
    }
    // SAFETY: readable, as just found; it need not be aligned.
    unsafe { timeout.read_unaligned() }.span().map(Some)
}

/// `poll(2)`.
///
/// # Safety
/// The arguments are those of a call of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn poll(entries: *mut PollFd, count: usize, timeout: c_int) -> c_int {
    // SAFETY: the program's arguments.
    let mut make = || unsafe { originals::poll(entries, count, timeout) as isize };
    if !receive::is_on() {
        return make() as c_int;
    }
    // SAFETY: the program's arguments.
    unsafe { polls::wait(entries, count, span_of(timeout), core::ptr::null(), &mut make) as c_int }
}

/// `ppoll(2)`.
///
/// # Safety
/// The arguments are those of a call of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ppoll(
    entries: *mut PollFd,
    count: usize,
    timeout: *const TimeSpec,
    mask: *const c_void,
) -> c_int {
    // SAFETY: the program's arguments.
    let mut make = || unsafe { originals::ppoll(entries, count, timeout, mask) as isize };
    // SAFETY: the program's arguments.
    match if receive::is_on() { unsafe { span_at(timeout) } } else { None } {
        // SAFETY: the program's arguments.
        Some(span) => unsafe { polls::wait(entries, count, span, mask, &mut make) as c_int },
        None => make() as c_int,
    }
}

/// glibc's `poll` with the size of the array's object.
///
/// # Safety
/// The arguments are those of a call of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __poll_chk(
    entries: *mut PollFd,
    count: usize,
    timeout: c_int,
    size: usize,
) -> c_int {
    if count > size / size_of::<PollFd>() {
        let words = [entries as usize, count, sys::word(timeout), size, 0, 0, 0];
        return originals::overflow(c"__poll_chk", words) as c_int;
    }
    // SAFETY: the program's arguments.
    unsafe { poll(entries, count, timeout) }
}

/// glibc's `ppoll` with the size of the array's object.
///
/// # Safety
/// The arguments are those of a call of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __ppoll_chk(
    entries: *mut PollFd,
    count: usize,
    timeout: *const TimeSpec,
    mask: *const c_void,
    size: usize,
) -> c_int {
    if count > size / size_of::<PollFd>() {
        let words = [entries as usize, count, timeout as usize, mask as usize, size, 0, 0];
        return originals::overflow(c"__ppoll_chk", words) as c_int;
    }
    // SAFETY: the program's arguments.
    unsafe { ppoll(entries, count, timeout, mask) }
}

/// `select(2)`: as in Linux, the timeout says afterwards what is left of it.
///
/// # Safety
/// The arguments are those of a call of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn select(
    count: c_int,
    to_read: *mut c_void,
    to_write: *mut c_void,
    exceptions: *mut c_void,
    timeout: *mut TimeValue,
) -> c_int {
    // SAFETY: the program's arguments.
    let mut make = || unsafe { originals::select(count, to_read, to_write, exceptions, timeout) as isize };
    let octets = size_of::<TimeValue>();
    if !receive::is_on() {
        return make() as c_int;
    }
    let span = if timeout.is_null() {
        None
    } else {
        let at = timeout as usize;
        if !memory::is_readable(at, octets) || !memory::is_writable(at, octets) {
            return make() as c_int;
        }
        // SAFETY: readable, as just found; it need not be aligned.
        match unsafe { timeout.read_unaligned() }.span() {
            Some(span) => Some(span),
            None => return make() as c_int,
        }
    };
    let all = [to_read, to_write, exceptions];
    // SAFETY: the program's arguments.
    let ended = unsafe { selects::wait(count, all, span, core::ptr::null(), &mut make) };
    if let Some(left) = ended.left {
        // SAFETY: a timeout was given, and is writable, as found above.
        unsafe { timeout.write_unaligned(TimeValue::of(left)) };
    }
    ended.answer as c_int
}

/// `pselect(2)`.
///
/// # Safety
/// The arguments are those of a call of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pselect(
    count: c_int,
    to_read: *mut c_void,
    to_write: *mut c_void,
    exceptions: *mut c_void,
    timeout: *const TimeSpec,
    mask: *const c_void,
) -> c_int {
    // SAFETY: the program's arguments.
    let mut make =
        || unsafe { originals::pselect(count, to_read, to_write, exceptions, timeout, mask) as isize };
    // SAFETY: the program's arguments.
    match if receive::is_on() { unsafe { span_at(timeout) } } else { None } {
        Some(span) => {
            // SAFETY: the program's arguments.
            let ended =
                unsafe { selects::wait(count, [to_read, to_write, exceptions], span, mask, &mut make) };
            ended.answer as c_int
        }
        None => make() as c_int,
    }
}

/// `epoll_ctl(2)`: the kernel is always asked first.
///
/// # Safety
/// The arguments are those of a call of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut EpollEvent) -> c_int {
    // SAFETY: the program's arguments.
    let answer = unsafe { originals::epoll_ctl(set, operation, fd, event) };
    if answer == 0 && receive::is_on() {
        // SAFETY: the kernel has accepted them.
        unsafe { sets::controlled(set, operation, fd, event) };
    }
    answer
}

/// `epoll_wait(2)`.
///
/// # Safety
/// The arguments are those of a call of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_wait(
    set: c_int,
    events: *mut EpollEvent,
    count: c_int,
    timeout: c_int,
) -> c_int {
    // SAFETY: the program's arguments.
    let mut make = || unsafe { originals::epoll_wait(set, events, count, timeout) as isize };
    if !receive::is_on() {
        return make() as c_int;
    }
    // SAFETY: the program's arguments.
    let mut attempt = || unsafe { originals::epoll_wait(set, events, count, 0) as isize };
    let mask = core::ptr::null();
    // SAFETY: the program's arguments.
    unsafe { sets::wait(set, events, span_of(timeout), mask, &mut attempt, &mut make) as c_int }
}

/// `epoll_pwait(2)`.
///
/// # Safety
/// The arguments are those of a call of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_pwait(
    set: c_int,
    events: *mut EpollEvent,
    count: c_int,
    timeout: c_int,
    mask: *const c_void,
) -> c_int {
    // SAFETY: the program's arguments.
    let mut make = || unsafe { originals::epoll_pwait(set, events, count, timeout, mask) as isize };
    if !receive::is_on() {
        return make() as c_int;
    }
    // SAFETY: the program's arguments.
    let mut attempt = || unsafe { originals::epoll_pwait(set, events, count, 0, mask) as isize };
    // SAFETY: the program's arguments.
    unsafe { sets::wait(set, events, span_of(timeout), mask, &mut attempt, &mut make) as c_int }
}

/// `epoll_pwait2(2)`.
///
/// # Safety
/// The arguments are those of a call of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_pwait2(
    set: c_int,
    events: *mut EpollEvent,
    count: c_int,
    timeout: *const TimeSpec,
    mask: *const c_void,
) -> c_int {
    // SAFETY: the program's arguments.
    let mut make = || unsafe { originals::epoll_pwait2(set, events, count, timeout, mask) as isize };
    let at_once = TimeSpec::of(Span::ZERO);
    // SAFETY: the program's arguments.
    match if receive::is_on() { unsafe { span_at(timeout) } } else { None } {
        Some(span) => {
            // SAFETY: the program's arguments.
            let mut attempt =
                || unsafe { originals::epoll_pwait2(set, events, count, &raw const at_once, mask) as isize };
            // SAFETY: the program's arguments.
            unsafe { sets::wait(set, events, span, mask, &mut attempt, &mut make) as c_int }
        }
        None => make() as c_int,
    }
}
