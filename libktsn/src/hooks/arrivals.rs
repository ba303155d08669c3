// SPDX-License-Identifier: Apache-2.0
//! The exported functions by which a program receives.
//!
//! In: C calls. Out: C answers. The error queues of timed sockets are KTSN's ([`error_queue`]); waiting is, where the program asked for it
//! ([`receive`]); everything else is the kernel's. Each hook costs a few loads where neither is the case.

use core::ffi::{c_int, c_void};

use crate::attach::txtime;
use crate::process::abi::{
    EAGAIN, EINTR, ENOSYS, ENOTSOCK, EPERM, MSG_DONTWAIT, MSG_ERRQUEUE, MSG_WAITFORONE, MessageHeader,
    MultipleHeader, SEGMENTS_MAX, Segment,
};
use crate::receive::calls;
use crate::{errors::error_queue, process::originals, process::sys, receive};

use super::fail;

/// What an error queue answered, as the C function returns it; `None` when the kernel answers.
fn from_error_queue(answer: error_queue::Answer) -> Option<isize> {
    match answer {
        error_queue::Answer::Kernel => None,
        error_queue::Answer::Octets(octets) => Some(octets.cast_signed()),
        error_queue::Answer::Fail(errno) => Some(fail(errno) as isize),
    }
}

/// `recvmsg(2)`: error queues of timed sockets are ours, and waiting where it was asked for.
///
/// # Safety
/// The arguments are those of a call of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn recvmsg(fd: c_int, message: *mut MessageHeader, flags: c_int) -> isize {
    if flags & MSG_ERRQUEUE != 0
        // SAFETY: the program's arguments.
        && let Some(answer) = from_error_queue(unsafe { error_queue::recvmsg(fd, message, flags) })
    {
        return answer;
    }
    match calls::served(fd, flags) {
        // SAFETY: as above.
        Some(listener) => calls::receive(
            fd,
            listener,
            || unsafe { originals::recvmsg(fd, message, flags | MSG_DONTWAIT) },
            || unsafe { originals::recvmsg(fd, message, flags) },
        ),
        // SAFETY: as above.
        None => unsafe { originals::recvmsg(fd, message, flags) },
    }
}

/// `recv(2)`: error queues of timed sockets are ours, and waiting where it was asked for.
///
/// # Safety
/// The arguments are those of a call of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn recv(fd: c_int, buffer: *mut c_void, octets: usize, flags: c_int) -> isize {
    if flags & MSG_ERRQUEUE != 0 {
        let nowhere = core::ptr::null_mut();
        // SAFETY: the program's arguments; without a name, `recvfrom` is `recv`.
        let answer = unsafe { error_queue::recvfrom(fd, buffer, octets, flags, nowhere, nowhere.cast()) };
        if let Some(answer) = from_error_queue(answer) {
            return answer;
        }
    }
    match calls::served(fd, flags) {
        // SAFETY: as above.
        Some(listener) => calls::receive(
            fd,
            listener,
            || unsafe { originals::recv(fd, buffer, octets, flags | MSG_DONTWAIT) },
            || unsafe { originals::recv(fd, buffer, octets, flags) },
        ),
        // SAFETY: as above.
        None => unsafe { originals::recv(fd, buffer, octets, flags) },
    }
}

/// `recvfrom(2)`: error queues of timed sockets are ours, and waiting where it was asked for.
///
/// # Safety
/// The arguments are those of a call of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    octets: usize,
    flags: c_int,
    name: *mut c_void,
    name_octets: *mut u32,
) -> isize {
    if flags & MSG_ERRQUEUE != 0 {
        // SAFETY: the program's arguments.
        let answer = unsafe { error_queue::recvfrom(fd, buffer, octets, flags, name, name_octets) };
        if let Some(answer) = from_error_queue(answer) {
            return answer;
        }
    }
    match calls::served(fd, flags) {
        // SAFETY: as above.
        Some(listener) => calls::receive(
            fd,
            listener,
            || unsafe { originals::recvfrom(fd, buffer, octets, flags | MSG_DONTWAIT, name, name_octets) },
            || unsafe { originals::recvfrom(fd, buffer, octets, flags, name, name_octets) },
        ),
        // SAFETY: as above.
        None => unsafe { originals::recvfrom(fd, buffer, octets, flags, name, name_octets) },
    }
}

/// `recvmmsg(2)`: an error queue is read message by message, as the kernel does it; a read never waits there.
///
/// # Safety
/// The arguments are those of a call of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn recvmmsg(
    fd: c_int,
    messages: *mut MultipleHeader,
    count: u32,
    flags: c_int,
    timeout: *mut c_void,
) -> c_int {
    if flags & MSG_ERRQUEUE == 0 || messages.is_null() || txtime::stream_or_adopt(fd).is_none() {
        // SAFETY: the program's arguments.
        return unsafe { receive_several(fd, messages, count, flags, timeout) };
    }
    let before = originals::errno();
    let count = count.min(SEGMENTS_MAX as u32);
    for index in 0..count {
        let message = messages.wrapping_add(index as usize);
        // SAFETY: within the program's array of `count` headers.
        let octets = unsafe { recvmsg(fd, &raw mut (*message).header, flags) };
        if octets < 0 {
            if index == 0 {
                return -1;
            }
            originals::set_errno(before);
            return index.cast_signed();
        }
        // SAFETY: as above; recvmmsg reports lengths there.
        unsafe { (&raw mut (*message).octets).write_unaligned(octets as u32) };
    }
    count.cast_signed()
}

/// `recvmmsg(2)` of ordinary messages. It is served where it waits for one message alone; a timeout counts from the kernel's own begin.
///
/// # Safety
/// The arguments are those of a call of the C function.
unsafe fn receive_several(
    fd: c_int,
    messages: *mut MultipleHeader,
    count: u32,
    flags: c_int,
    timeout: *mut c_void,
) -> c_int {
    // SAFETY: the program's arguments.
    let make = || unsafe { originals::recvmmsg(fd, messages, count, flags, timeout) as isize };
    let waits_for_one = timeout.is_null() && (count == 1 || count > 1 && flags & MSG_WAITFORONE != 0);
    match if waits_for_one { calls::served(fd, flags) } else { None } {
        Some(listener) => calls::receive(
            fd,
            listener,
            // SAFETY: the program's arguments.
            || unsafe { originals::recvmmsg(fd, messages, count, flags | MSG_DONTWAIT, timeout) as isize },
            make,
        ) as c_int,
        None => make() as c_int,
    }
}

/// `read(2)`. Of no octets it is the kernel's: a `recv` of none takes a datagram, a `read` of none does not.
///
/// # Safety
/// The arguments are those of a call of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn read(fd: c_int, buffer: *mut c_void, octets: usize) -> isize {
    match if octets == 0 { None } else { calls::served(fd, 0) } {
        Some(listener) => calls::receive(
            fd,
            listener,
            // SAFETY: the program's arguments.
            || unsafe { read_at_once(fd, buffer, octets) },
            // SAFETY: the program's arguments.
            || unsafe { originals::read(fd, buffer, octets) },
        ),
        // SAFETY: the program's arguments.
        None => unsafe { originals::read(fd, buffer, octets) },
    }
}

/// A `read` that does not wait; where the number is no socket any more, or a sandbox forbids `recv`, the `read` itself.
///
/// # Safety
/// The arguments are those of a call of `read`.
unsafe fn read_at_once(fd: c_int, buffer: *mut c_void, octets: usize) -> isize {
    let before = originals::errno();
    // SAFETY: the caller's promise.
    let answer = unsafe { originals::recv(fd, buffer, octets, MSG_DONTWAIT) };
    if answer >= 0 {
        return answer;
    }
    match originals::errno() {
        ENOTSOCK => receive::forget(fd), // a close that no hook saw
        EPERM | ENOSYS => {}             // by a sandbox: no socket has these errors
        _ => return answer,
    }
    originals::set_errno(before);
    // SAFETY: the caller's promise.
    unsafe { originals::read(fd, buffer, octets) }
}

/// `readv(2)`.
///
/// # Safety
/// The arguments are those of a call of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn readv(fd: c_int, segments: *const Segment, count: c_int) -> isize {
    match calls::served(fd, 0) {
        Some(listener) => calls::receive(
            fd,
            listener,
            // SAFETY: the program's arguments.
            || unsafe { readv_at_once(fd, segments, count) },
            // SAFETY: the program's arguments.
            || unsafe { originals::readv(fd, segments, count) },
        ),
        // SAFETY: the program's arguments.
        None => unsafe { originals::readv(fd, segments, count) },
    }
}

/// A `readv` that does not wait; where the kernel cannot do that, the `readv` itself.
///
/// # Safety
/// The arguments are those of a call of `readv`.
unsafe fn readv_at_once(fd: c_int, segments: *const Segment, count: c_int) -> isize {
    originals::test_cancel();
    // SAFETY: the caller's promise.
    let answer = unsafe { sys::readv_at_once(fd, segments, count) };
    if answer >= 0 {
        return answer;
    }
    let errno = answer.wrapping_neg() as c_int;
    if errno == EAGAIN || errno == EINTR {
        return fail(errno) as isize;
    }
    // Not known to this kernel or descriptor; any other error is found again.
    // SAFETY: the caller's promise.
    unsafe { originals::readv(fd, segments, count) }
}

/// glibc's `recv` with the size of the buffer's object, which programs call that were built with `_FORTIFY_SOURCE`.
///
/// # Safety
/// The arguments are those of a call of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __recv_chk(
    fd: c_int,
    buffer: *mut c_void,
    octets: usize,
    size: usize,
    flags: c_int,
) -> isize {
    if octets > size {
        let words = [sys::word(fd), buffer as usize, octets, size, sys::word(flags), 0, 0];
        return originals::overflow(c"__recv_chk", words);
    }
    // SAFETY: the program's arguments.
    unsafe { recv(fd, buffer, octets, flags) }
}

/// glibc's `recvfrom` with the size of the buffer's object.
///
/// # Safety
/// The arguments are those of a call of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __recvfrom_chk(
    fd: c_int,
    buffer: *mut c_void,
    octets: usize,
    size: usize,
    flags: c_int,
    name: *mut c_void,
    name_octets: *mut u32,
) -> isize {
    if octets > size {
        let names = [name as usize, name_octets as usize];
        let words = [sys::word(fd), buffer as usize, octets, size, sys::word(flags), names[0], names[1]];
        return originals::overflow(c"__recvfrom_chk", words);
    }
    // SAFETY: the program's arguments.
    unsafe { recvfrom(fd, buffer, octets, flags, name, name_octets) }
}

/// glibc's `read` with the size of the buffer's object.
///
/// # Safety
/// The arguments are those of a call of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __read_chk(fd: c_int, buffer: *mut c_void, octets: usize, size: usize) -> isize {
    if octets > size {
        return originals::overflow(c"__read_chk", [sys::word(fd), buffer as usize, octets, size, 0, 0, 0]);
    }
    // SAFETY: the program's arguments.
    unsafe { read(fd, buffer, octets) }
}
