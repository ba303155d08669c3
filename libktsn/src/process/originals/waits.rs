// SPDX-License-Identifier: Apache-2.0
//! The originals of the calls that wait for several descriptors.
//!
//! In: the arguments of a hooked call. Out: what the original answers, `errno` included. Where a C library has no such function, or there is
//! no `dlsym`, the raw system call takes its place; its arguments differ from the function's.

use core::ffi::{c_int, c_void};
use core::mem::transmute;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::{MISSING, answer, next};
use crate::process::abi::{EpollEvent, PollFd, TimeSpec, TimeValue};
use crate::process::sys::{call, number, word};

/// Octets of the kernel's signal mask.
const MASK_OCTETS: usize = 8;

macro_rules! waits {
    ($($(#[$doc:meta])* $function:ident($($argument:ident: $kind:ty),*) = $symbol:literal, $raw:expr;)+) => {
        mod slots {
            use super::AtomicUsize;
            $(#[allow(non_upper_case_globals)] pub(super) static $function: AtomicUsize = AtomicUsize::new(0);)+
        }

        /// Looks all of them up.
        pub(super) fn find_all() {
            $(slots::$function.store(match next($symbol) { 0 => MISSING, at => at }, Relaxed);)+
        }

        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// The arguments are those of a call of the C function.
            pub(crate) unsafe fn $function($($argument: $kind),*) -> c_int {
                let mut at = slots::$function.load(Relaxed);
                if at == 0 {
                    // A constructor that runs before ours.
                    at = match next($symbol) { 0 => MISSING, at => at };
                    slots::$function.store(at, Relaxed);
                }
                if at == MISSING {
                    return answer($raw) as c_int;
                }
                // SAFETY: `at` is the address of the C function of this name, which has this signature.
                let original: unsafe extern "C" fn($($kind),*) -> c_int = unsafe { transmute(at) };
                // SAFETY: the caller's promise.
                unsafe { original($($argument),*) }
            }
        )+
    };
}

waits! {
    /// `poll(2)`.
    poll(entries: *mut PollFd, count: usize, timeout: c_int) = c"poll", raw_ppoll(
        entries, count, &millis(timeout), core::ptr::null());
    /// `ppoll(2)`.
    ppoll(entries: *mut PollFd, count: usize, timeout: *const TimeSpec, mask: *const c_void) = c"ppoll",
        // SAFETY: null or the caller's.
        raw_ppoll(entries, count, &unsafe { timeout.as_ref() }.copied(), mask);
    /// `select(2)`; the raw call leaves the timeout as it is.
    select(count: c_int, to_read: *mut c_void, to_write: *mut c_void, exceptions: *mut c_void, timeout: *mut TimeValue)
        = c"select", raw_pselect(count, [to_read, to_write, exceptions],
            // SAFETY: null or the caller's.
            unsafe { timeout.as_ref() }.map(|at| TimeSpec { seconds: at.seconds, nanos: at.micros.wrapping_mul(1000) }),
            core::ptr::null());
    /// `pselect(2)`.
    pselect(count: c_int, to_read: *mut c_void, to_write: *mut c_void, exceptions: *mut c_void,
        timeout: *const TimeSpec, mask: *const c_void)
        // SAFETY: null or the caller's.
        = c"pselect", raw_pselect(count, [to_read, to_write, exceptions], unsafe { timeout.as_ref() }.copied(), mask);
    /// `epoll_ctl(2)`.
    epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut EpollEvent) = c"epoll_ctl",
        // SAFETY: the caller's promise.
        unsafe { call(number::EPOLL_CTL, [word(set), word(operation), word(fd), event as usize]) };
    /// `epoll_wait(2)`.
    epoll_wait(set: c_int, events: *mut EpollEvent, count: c_int, timeout: c_int) = c"epoll_wait",
        // SAFETY: the caller's promise.
        unsafe { call(number::EPOLL_PWAIT, [word(set), events as usize, word(count), word(timeout), 0, MASK_OCTETS]) };
    /// `epoll_pwait(2)`.
    epoll_pwait(set: c_int, events: *mut EpollEvent, count: c_int, timeout: c_int, mask: *const c_void)
        = c"epoll_pwait",
        // SAFETY: the caller's promise.
        unsafe {
            call(number::EPOLL_PWAIT,
                [word(set), events as usize, word(count), word(timeout), mask as usize, MASK_OCTETS])
        };
    /// `epoll_pwait2(2)`; musl and older C libraries have none.
    epoll_pwait2(set: c_int, events: *mut EpollEvent, count: c_int, timeout: *const TimeSpec, mask: *const c_void)
        = c"epoll_pwait2",
        // SAFETY: the caller's promise.
        unsafe {
            call(number::EPOLL_PWAIT2,
                [word(set), events as usize, word(count), timeout as usize, mask as usize, MASK_OCTETS])
        };
}

/// A timeout in milliseconds; `None` = without end.
fn millis(timeout: c_int) -> Option<TimeSpec> {
    let millis = i64::from(timeout);
    (timeout >= 0)
        .then(|| TimeSpec { seconds: millis / 1000, nanos: (millis % 1000).wrapping_mul(1_000_000) })
}

/// The system call, which writes to its timeout.
fn raw_ppoll(entries: *mut PollFd, count: usize, timeout: &Option<TimeSpec>, mask: *const c_void) -> isize {
    let limit = *timeout;
    let limit: *const TimeSpec = limit.as_ref().map_or(core::ptr::null(), |limit| limit);
    // SAFETY: the program's arguments, and a timeout of ours.
    unsafe { call(number::PPOLL, [entries as usize, count, limit as usize, mask as usize, MASK_OCTETS]) }
}

/// The system call, which writes to its timeout.
fn raw_pselect(
    count: c_int,
    sets: [*mut c_void; 3],
    timeout: Option<TimeSpec>,
    mask: *const c_void,
) -> isize {
    let limit: *const TimeSpec = timeout.as_ref().map_or(core::ptr::null(), |limit| limit);
    let mask = [mask as usize, MASK_OCTETS];
    let [to_read, to_write, exceptions] = sets.map(|set| set as usize);
    let arguments = [word(count), to_read, to_write, exceptions, limit as usize, mask.as_ptr() as usize];
    // SAFETY: the program's arguments; timeout and mask are ours.
    unsafe { call(number::PSELECT6, arguments) }
}

/// Calls the C library's checking function of this name, which ends the program: the length exceeds the object.
pub(crate) fn overflow(name: &core::ffi::CStr, arguments: [usize; 7]) -> isize {
    let at = next(name);
    if at == 0 {
        super::set_errno(crate::process::abi::ENOSYS);
        return -1;
    }
    // SAFETY: a C function of at most seven words of arguments, the first of which are its own; on the supported architectures
    // further ones do no harm.
    let original: unsafe extern "C" fn(usize, usize, usize, usize, usize, usize, usize) -> isize =
        unsafe { transmute(at) };
    let [a, b, c, d, e, f, g] = arguments;
    // SAFETY: as above.
    unsafe { original(a, b, c, d, e, f, g) }
}
