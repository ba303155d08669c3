// SPDX-License-Identifier: Apache-2.0
//! The exported functions: the only place where the program enters and leaves this library.
//!
//! In: C calls. Out: C answers. Each hook asks safe code for a verdict and acts on it. `errno` is the program's:
//! nothing below touches it (all own system calls are raw), the originals set it when they fail, and a hook sets it
//! exactly when it fails itself.

use core::ffi::{c_int, c_long, c_ulong, c_void};

use crate::attach::hwtstamp::{self, Answer};
use crate::attach::txtime;
use crate::process::abi::{
    EBADF, EINVAL, F_DUPFD, F_DUPFD_CLOEXEC, F_SETFL, FIONBIO, IP_MULTICAST_IF, IP_TTL, IPV6_UNICAST_HOPS,
    MessageHeader, MultipleHeader, SO_RCVTIMEO, SO_TXTIME, SOL_IP, SOL_IPV6, SOL_SOCKET,
};
use crate::send::verdict::{SendCall, Verdict};
use crate::{
    process::env, process::limit, process::originals, process::page, receive, send, send::multiple,
    streams::fds,
};

pub mod arrivals;
mod descriptors;
mod start;
pub mod waits;

/// Fails with an errno.
fn fail(errno: c_int) -> c_int {
    originals::set_errno(errno);
    -1
}

/// `socket(2)`: a new descriptor is nothing that the table knows.
///
/// # Safety
/// The arguments are those of a call of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: the program's arguments.
    let fd = unsafe { originals::socket(domain, kind, protocol) };
    fds::set_not_ours(fd);
    receive::forget(fd);
    fd
}

/// `bind(2)`.
///
/// # Safety
/// The arguments are those of a call of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn bind(fd: c_int, name: *const c_void, octets: u32) -> c_int {
    // SAFETY: the program's arguments.
    let answer = unsafe { originals::bind(fd, name, octets) };
    if answer == 0 {
        txtime::addresses_changed(fd);
    }
    answer
}

/// `connect(2)`.
///
/// # Safety
/// The arguments are those of a call of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn connect(fd: c_int, name: *const c_void, octets: u32) -> c_int {
    // SAFETY: the program's arguments.
    let answer = unsafe { originals::connect(fd, name, octets) };
    if answer == 0 {
        txtime::addresses_changed(fd);
    }
    answer
}

/// `setsockopt(2)`: the kernel is always asked first, except for the option that it does not have.
///
/// # Safety
/// The arguments are those of a call of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    octets: u32,
) -> c_int {
    if let Some(errno) = receive::period::set_option(fd, level, name, value as usize, octets) {
        return if errno == 0 { 0 } else { fail(errno) };
    }
    let before = originals::errno();
    // SAFETY: the program's arguments.
    let answer = unsafe { originals::setsockopt(fd, level, name, value, octets) };
    if (level, name) != (SOL_SOCKET, SO_TXTIME) {
        if answer == 0 {
            if (level, name) == (SOL_SOCKET, SO_RCVTIMEO) {
                receive::note_changed(fd);
            }
            // SAFETY: the kernel has just read it, as far as any option is long that matters here.
            txtime::option_changed(fd, level, name, unsafe { option_value(level, name, value, octets) });
        }
        return answer;
    }
    let kernel_errno = if answer == 0 { 0 } else { originals::errno() };
    if value.is_null() || octets != 8 {
        return answer;
    }
    // SAFETY: not null and 8 octets long, as the kernel has just found.
    let asked = txtime::from_octets(unsafe { value.cast::<[u8; 8]>().read_unaligned() });
    if !txtime::concerns_ktsn(asked, kernel_errno) {
        return answer;
    }
    if txtime::known(fd).is_none() {
        descriptors::forget(fd); // a close that no hook saw: the stream of this number is another socket's
    }
    match txtime::configured(fd, asked, kernel_errno) {
        0 => {
            originals::set_errno(before);
            0
        }
        errno => fail(errno),
    }
}

/// The value of an option that cannot be asked for again whole: IP_MULTICAST_IF, IP_TTL, IPV6_UNICAST_HOPS.
///
/// # Safety
/// The arguments are those of a `setsockopt` that the kernel accepted.
unsafe fn option_value<'a>(level: c_int, name: c_int, value: *const c_void, octets: u32) -> &'a [u8] {
    // `sizeof(struct ip_mreqn)`, `sizeof(int)`: the kernel reads no more.
    let longest = match (level, name) {
        (SOL_IP, IP_MULTICAST_IF) => 12,
        (SOL_IP, IP_TTL) | (SOL_IPV6, IPV6_UNICAST_HOPS) => 4,
        _ => 0,
    };
    if longest == 0 || value.is_null() {
        return &[];
    }
    // SAFETY: so long as it is, up to the longest form: the kernel has read as much.
    unsafe { core::slice::from_raw_parts(value.cast(), (octets as usize).min(longest)) }
}

/// `getsockopt(2)`: the period of a socket's arrivals is ours, and SO_TXTIME that the daemon granted is answered as the kernel answers its own.
///
/// # Safety
/// The arguments are those of a call of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    octets: *mut u32,
) -> c_int {
    if let Some(errno) = receive::period::option(fd, level, name, value as usize, octets as usize) {
        return if errno == 0 { 0 } else { fail(errno) };
    }
    let before = originals::errno();
    // SAFETY: the program's arguments.
    let answer = unsafe { originals::getsockopt(fd, level, name, value, octets) };
    if answer == 0
        && (level, name) == (SOL_SOCKET, SO_TXTIME)
        && let Some(granted) = txtime::granted(fd)
    {
        // SAFETY: the kernel has just written the length, and so many octets (8 at most), to these pointers.
        unsafe {
            let len = (*octets as usize).min(granted.len());
            value.cast::<u8>().copy_from_nonoverlapping(granted.as_ptr(), len);
        }
        originals::set_errno(before);
    }
    answer
}

/// `sendmsg(2)`.
///
/// # Safety
/// The arguments are those of a call of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sendmsg(fd: c_int, message: *const MessageHeader, flags: c_int) -> isize {
    // SAFETY: the program's arguments.
    match unsafe { send::sendmsg(fd, message, flags) } {
        Verdict::Kernel => {
            let before = originals::errno();
            // SAFETY: as above.
            let answer = unsafe { originals::sendmsg(fd, message, flags) };
            // SAFETY: as above.
            if answer < 0 && originals::errno() == EINVAL && unsafe { txtime::is_recalled(fd, message) } {
                originals::set_errno(before);
                // SAFETY: as above. It is a stream now, so there is no third time.
                return unsafe { sendmsg(fd, message, flags) };
            }
            answer
        }
        // SAFETY: as above.
        Verdict::KernelStripped => unsafe { multiple::sendmsg_stripped(fd, message, flags) },
        Verdict::KernelCounted { is_stripped } => match txtime::stream_or_adopt(fd) {
            // SAFETY: as above.
            Some(stream) => unsafe {
                multiple::sendmsg_counted(SendCall { stream, fd, flags }, message, is_stripped)
            },
            // Closed by another thread meanwhile: the kernel says so.
            // SAFETY: as above.
            None => unsafe { originals::sendmsg(fd, message, flags) },
        },
        Verdict::Taken(octets) => octets.cast_signed(),
        Verdict::Fail(errno) => fail(errno) as isize,
    }
}

/// `sendmmsg(2)`: on a timed socket the messages that are KTSN's are handed over together.
///
/// # Safety
/// The arguments are those of a call of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sendmmsg(
    fd: c_int,
    messages: *mut MultipleHeader,
    count: u32,
    flags: c_int,
) -> c_int {
    let before = originals::errno();
    let mut stream = txtime::stream_or_adopt(fd);
    if stream.is_none() {
        // SAFETY: the program's arguments.
        let answer = unsafe { originals::sendmmsg(fd, messages, count, flags) };
        let is_refused = answer < 0 && originals::errno() == EINVAL;
        // SAFETY: as above; the first message is the refused one.
        if !is_refused || !unsafe { txtime::is_recalled(fd, messages.cast()) } {
            return answer;
        }
        stream = txtime::stream_or_adopt(fd);
        originals::set_errno(before);
    }
    match (stream, page::get()) {
        // SAFETY: the program's arguments.
        (Some(stream), Some(page)) => unsafe {
            multiple::sendmmsg(SendCall { stream, fd, flags }, page, messages, count)
        },
        // SAFETY: as above.
        _ => unsafe { originals::sendmmsg(fd, messages, count, flags) },
    }
}

/// `close(2)`.
///
/// # Safety
/// The arguments are those of a call of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if descriptors::is_hidden(fd) {
        return fail(EBADF);
    }
    // Before the call: afterwards another thread may already use the number.
    descriptors::forget(fd);
    if fd == 2 {
        env::note_closed(2, 2);
    }
    // SAFETY: the program's arguments.
    unsafe { originals::close(fd) }
}

/// `close_range(2)`.
///
/// # Safety
/// The arguments are those of a call of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn close_range(first: u32, last: u32, flags: c_int) -> c_int {
    // SAFETY: the program's arguments.
    unsafe { descriptors::close_range(first, last, flags) }
}

/// `closefrom(3)`.
///
/// # Safety
/// The arguments are those of a call of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn closefrom(first: c_int) {
    let before = originals::errno();
    let from = u32::try_from(first).unwrap_or(0);
    // SAFETY: the program's arguments.
    if unsafe { descriptors::close_range(from, u32::MAX, 0) } == 0 {
        return;
    }
    originals::set_errno(before);
    descriptors::forget_range(from, u32::MAX);
    // SAFETY: as above.
    unsafe { originals::closefrom(first) }
}

/// `dup(2)`.
///
/// # Safety
/// The arguments are those of a call of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    if descriptors::is_hidden(fd) {
        return fail(EBADF);
    }
    // SAFETY: the program's arguments.
    descriptors::copy(fd, unsafe { originals::dup(fd) })
}

/// `dup2(2)`.
///
/// # Safety
/// The arguments are those of a call of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup2(fd: c_int, new: c_int) -> c_int {
    if descriptors::is_hidden(fd) {
        return fail(EBADF);
    }
    // SAFETY: the program's arguments.
    env::note_replaced(descriptors::copy(
        fd,
        descriptors::replace(new, || unsafe { originals::dup2(fd, new) }),
    ))
}

/// `dup3(2)`.
///
/// # Safety
/// The arguments are those of a call of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup3(fd: c_int, new: c_int, flags: c_int) -> c_int {
    if descriptors::is_hidden(fd) {
        return fail(EBADF);
    }
    // SAFETY: the program's arguments.
    env::note_replaced(descriptors::copy(
        fd,
        descriptors::replace(new, || unsafe { originals::dup3(fd, new, flags) }),
    ))
}

/// After fcntl: a duplicate is another descriptor of the same stream.
fn duplicated(fd: c_int, command: c_int, answer: c_int) -> c_int {
    if command == F_SETFL {
        receive::note_changed(fd);
    }
    if matches!(command, F_DUPFD | F_DUPFD_CLOEXEC) { descriptors::copy(fd, answer) } else { answer }
}

/// `fcntl(2)` with its argument made explicit by the shim.
///
/// # Safety
/// The arguments are those of a call of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn ktsn_fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: the program's arguments.
    duplicated(fd, command, unsafe { originals::fcntl(fd, command, argument) })
}

/// `fcntl64` with its argument made explicit by the shim.
///
/// # Safety
/// The arguments are those of a call of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn ktsn_fcntl64(fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: the program's arguments.
    duplicated(fd, command, unsafe { originals::fcntl64(fd, command, argument) })
}

/// `ioctl(2)` with its argument made explicit by the shim.
///
/// # Safety
/// The arguments are those of a call of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn ktsn_ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let before = originals::errno();
    // SAFETY: the program's arguments.
    let answer = unsafe { originals::ioctl(fd, request, argument) };
    let kernel_errno = if answer < 0 { originals::errno() } else { 0 };
    if request as u32 == FIONBIO {
        receive::note_changed(fd);
    }
    // SAFETY: the program's argument, of that request.
    let ours = unsafe { hwtstamp::answer(fd, request as u32, argument, kernel_errno) };
    match ours {
        Answer::Kernel => answer,
        Answer::Done => {
            originals::set_errno(before);
            0
        }
        Answer::Fail(errno) => fail(errno),
    }
}

/// `fork(2)`: the child finds its limit of descriptors as the program knows it, also where another thread is just
/// attaching.
///
/// # Safety
/// The arguments are those of a call of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fork() -> c_int {
    // SAFETY: it has no arguments.
    let answer = unsafe { originals::fork() };
    if answer == 0 {
        limit::in_child();
        receive::in_child();
    }
    answer
}

#[cfg(not(test))]
mod variadic {
    //! The exported names of the variadic functions: rustc exports only what Rust defines, so each is a jump.

    // SAFETY: declarations only, of the shim (shim/variadic.c); they are only reached by a jump.
    unsafe extern "C" {
        fn ktsn_fcntl_variadic();
        fn ktsn_fcntl64_variadic();
        fn ktsn_ioctl_variadic();
    }

    macro_rules! jump {
        ($name:ident, $to:ident) => {
            /// The exported name; the shim has the body.
            ///
            /// # Safety
            /// The arguments are those of a call of the C function.
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            unsafe extern "C" fn $name() {
                #[cfg(target_arch = "x86_64")]
                core::arch::naked_asm!("jmp {to}", to = sym $to);
                #[cfg(target_arch = "aarch64")]
                core::arch::naked_asm!("b {to}", to = sym $to);
            }
        };
    }

    jump!(fcntl, ktsn_fcntl_variadic);
    jump!(fcntl64, ktsn_fcntl64_variadic);
    jump!(ioctl, ktsn_ioctl_variadic);
}
