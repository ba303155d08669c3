// SPDX-License-Identifier: Apache-2.0
//! The functions that stand behind the hooks: the program's own C library, or whatever else was preloaded after us.
//!
//! In: the arguments of a hooked call. Out: exactly what the original answers, `errno` included. They are looked up
//! once, by the constructor, because `dlsym` is not safe in a signal handler; what cannot be found is replaced by
//! the raw system call.

use core::ffi::{CStr, c_char, c_int, c_long, c_ulong, c_void};
use core::mem::transmute;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::process::abi::{ENOSYS, MessageHeader, MultipleHeader, Segment};
use crate::process::sys::{self, number};

mod waits;

pub(crate) use waits::{
    epoll_ctl, epoll_pwait, epoll_pwait2, epoll_wait, overflow, poll, ppoll, pselect, select,
};

// SAFETY: declarations only: the C library's own prototype, and those of our shim (shim/variadic.c).
unsafe extern "C" {
    fn __errno_location() -> *mut c_int;
    fn ktsn_next_symbol(name: *const c_char) -> *mut c_void;
    fn ktsn_any_symbol(name: *const c_char) -> *mut c_void;
}

/// Looked up and not there.
const MISSING: usize = 1;

/// The next definition of `name` after this library; 0 when there is none.
fn next(name: &CStr) -> usize {
    // SAFETY: the shim passes the string on to dlsym, which reads it up to its NUL.
    unsafe { ktsn_next_symbol(name.as_ptr()) as usize }
}

/// The first definition of `name` in the program (for data such as `environ`, which the program may hold itself).
pub(crate) fn any(name: &CStr) -> *mut c_void {
    // SAFETY: as for `next`.
    unsafe { ktsn_any_symbol(name.as_ptr()) }
}

/// The program's errno.
pub(crate) fn errno() -> c_int {
    // SAFETY: the C library's own location for the calling thread, always valid.
    unsafe { *__errno_location() }
}

/// Sets the program's errno.
pub(crate) fn set_errno(value: c_int) {
    // SAFETY: as for `errno`.
    unsafe { *__errno_location() = value };
}

/// What a C function returns for the result of a raw system call.
fn answer(result: isize) -> c_long {
    if result < 0 {
        set_errno(result.wrapping_neg() as c_int);
        -1
    } else {
        result as c_long
    }
}

macro_rules! originals {
    ($($(#[$doc:meta])* $function:ident($($argument:ident: $kind:ty),*) -> $answer:ty = $symbol:literal, $number:expr;)+) => {
        mod slots {
            use super::AtomicUsize;
            $(#[allow(non_upper_case_globals)] pub(super) static $function: AtomicUsize = AtomicUsize::new(0);)+
        }

        /// Looks all originals up.
        pub(crate) fn find_all() {
            waits::find_all();
            $(slots::$function.store(match next($symbol) { 0 => MISSING, at => at }, Relaxed);)+
        }

        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// The arguments are the program's own and go where it wanted them to go.
            pub(crate) unsafe fn $function($($argument: $kind),*) -> $answer {
                let mut at = slots::$function.load(Relaxed);
                if at == 0 {
                    // A constructor that runs before ours.
                    at = match next($symbol) { 0 => MISSING, at => at };
                    slots::$function.store(at, Relaxed);
                }
                if at == MISSING {
                    let mut words = [0usize; 6];
                    let values: &[usize] = &[$($argument as usize),*];
                    for (word, value) in words.iter_mut().zip(values) {
                        *word = *value;
                    }
                    // SAFETY: the system call takes the function's arguments in the same order.
                    return answer(unsafe { sys::call($number, words) }) as $answer;
                }
                // SAFETY: `at` is the address of the C function of this name, which has this signature.
                let original: unsafe extern "C" fn($($kind),*) -> $answer = unsafe { transmute(at) };
                // SAFETY: the caller's promise.
                unsafe { original($($argument),*) }
            }
        )+
    };
}

originals! {
    /// `socket(2)`.
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int = c"socket", number::SOCKET;
    /// `bind(2)`.
    bind(fd: c_int, name: *const c_void, octets: u32) -> c_int = c"bind", number::BIND;
    /// `connect(2)`.
    connect(fd: c_int, name: *const c_void, octets: u32) -> c_int = c"connect", number::CONNECT;
    /// `setsockopt(2)`.
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, octets: u32) -> c_int
        = c"setsockopt", number::SETSOCKOPT;
    /// `getsockopt(2)`.
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, octets: *mut u32) -> c_int
        = c"getsockopt", number::GETSOCKOPT;
    /// `sendmsg(2)`.
    sendmsg(fd: c_int, message: *const MessageHeader, flags: c_int) -> isize = c"sendmsg", number::SENDMSG;
    /// `sendmmsg(2)`.
    sendmmsg(fd: c_int, messages: *mut MultipleHeader, count: u32, flags: c_int) -> c_int
        = c"sendmmsg", number::SENDMMSG;
    /// `recvmsg(2)`.
    recvmsg(fd: c_int, message: *mut MessageHeader, flags: c_int) -> isize = c"recvmsg", number::RECVMSG;
    /// `recv(2)`.
    recv(fd: c_int, buffer: *mut c_void, octets: usize, flags: c_int) -> isize = c"recv", number::RECVFROM;
    /// `recvfrom(2)`.
    recvfrom(fd: c_int, buffer: *mut c_void, octets: usize, flags: c_int, name: *mut c_void, name_octets: *mut u32)
        -> isize = c"recvfrom", number::RECVFROM;
    /// `recvmmsg(2)`.
    recvmmsg(fd: c_int, messages: *mut MultipleHeader, count: u32, flags: c_int, timeout: *mut c_void) -> c_int
        = c"recvmmsg", number::RECVMMSG;
    /// `read(2)`.
    read(fd: c_int, buffer: *mut c_void, octets: usize) -> isize = c"read", number::READ;
    /// `readv(2)`.
    readv(fd: c_int, segments: *const Segment, count: c_int) -> isize = c"readv", number::READV;
    /// `fork(2)`.
    fork() -> c_int = c"fork", number::FORK;
    /// `close(2)`.
    close(fd: c_int) -> c_int = c"close", number::CLOSE;
    /// `close_range(2)`; musl and older C libraries have none.
    close_range(first: u32, last: u32, flags: c_int) -> c_int = c"close_range", number::CLOSE_RANGE;
    /// `dup(2)`.
    dup(fd: c_int) -> c_int = c"dup", number::DUP;
    /// `dup2(2)`.
    dup2(fd: c_int, new: c_int) -> c_int = c"dup2", number::DUP2;
    /// `dup3(2)`.
    dup3(fd: c_int, new: c_int, flags: c_int) -> c_int = c"dup3", number::DUP3;
    /// `fcntl(2)`: the original is variadic, and on both architectures a variadic call passes three words alike.
    fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int = c"fcntl", number::FCNTL;
    /// `ioctl(2)`: variadic as well; musl's request is an int, whose upper half the kernel does not look at.
    ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int = c"ioctl", number::IOCTL;
    /// `fcntl64`, glibc's name of the same call for programs with 64-bit file offsets.
    fcntl64(fd: c_int, command: c_int, argument: c_long) -> c_int = c"fcntl64", number::FCNTL;
}

static TEST_CANCEL: AtomicUsize = AtomicUsize::new(0);

/// Looks the C library's function up (by the constructor).
pub(crate) fn find_test_cancel() {
    TEST_CANCEL.store(any(c"pthread_testcancel") as usize, Relaxed);
}

/// The send functions are cancellation points, also where no system call is made. A cancelled thread does not come
/// back, so nothing may be held here.
pub(crate) fn test_cancel() {
    let at = TEST_CANCEL.load(Relaxed);
    if at != 0 {
        // SAFETY: the address of pthread_testcancel, which has this signature.
        let test_cancel: unsafe extern "C" fn() = unsafe { transmute(at) };
        // SAFETY: it looks at the calling thread's own state only.
        unsafe { test_cancel() }
    }
}

/// `closefrom(3)` where the kernel has no `close_range`: the original, or ENOSYS ignored as the function has no result.
///
/// # Safety
/// The argument is the program's own.
pub(crate) unsafe fn closefrom(first: c_int) {
    let at = next(c"closefrom");
    if at == 0 {
        set_errno(ENOSYS);
        return;
    }
    // SAFETY: glibc's closefrom has this signature.
    let original: unsafe extern "C" fn(c_int) = unsafe { transmute(at) };
    // SAFETY: the caller's promise.
    unsafe { original(first) }
}
