// SPDX-License-Identifier: Apache-2.0
//! `sendmmsg` on a timed socket, as the kernel does it: message by message, until one fails or its length cannot be written.
//!
//! In: the program's array. Out: how many were sent, each length in its place; -1 with `errno` when the first fails.
//! Messages that are KTSN's are handed over together; one that is the kernel's goes there at its turn, after what
//! stands before it was handed over.

use core::ffi::c_int;

use crate::call::control_messages::{self, Changed};
use crate::call::message::Message;
use crate::process::abi::{EFAULT, ENOBUFS, MessageHeader, MultipleHeader, SEGMENTS_MAX};
use crate::process::page::Page;
use crate::send;
use crate::send::batch::Batch;
use crate::send::verdict::{SendCall, Verdict};
use crate::{call::memory, process::env, process::kernel, process::originals, streams::stamps};

/// One `sendmmsg` with `errno`.
///
/// # Safety
/// `messages` and `count` are what the program passed.
pub(crate) unsafe fn sendmmsg(
    send: SendCall,
    page: &'static Page,
    messages: *mut MultipleHeader,
    count: u32,
) -> c_int {
    let before = originals::errno();
    originals::test_cancel();
    let mut batch = Batch::new(page);
    let count = count.min(SEGMENTS_MAX as u32);
    for index in 0..count {
        batch.expect(count.wrapping_sub(index));
        let message = messages.wrapping_add(index as usize);
        // SAFETY: within the program's array, if it is as long as the program said; nothing is followed unasked.
        let sent = unsafe { one(send, message, &mut batch) };
        if sent < 0 {
            if index == 0 {
                return -1;
            }
            originals::set_errno(before);
            return index.cast_signed();
        }
    }
    count.cast_signed()
}

/// One message and its length, or -1 with `errno`.
///
/// # Safety
/// The caller of [`sendmmsg`] promises the same.
unsafe fn one(send: SendCall, message: *mut MultipleHeader, batch: &mut Batch) -> isize {
    let header = message.cast::<MessageHeader>();
    // SAFETY: the caller's promise.
    let sent = match unsafe { send::message(send, header, batch) } {
        Verdict::Kernel => {
            batch.end();
            // SAFETY: the program's arguments.
            unsafe { originals::sendmsg(send.fd, header, send.flags) }
        }
        Verdict::KernelStripped => {
            batch.end();
            // SAFETY: as above.
            unsafe { sendmsg_stripped(send.fd, header, send.flags) }
        }
        Verdict::KernelCounted { is_stripped } => {
            batch.end();
            // SAFETY: as above.
            unsafe { sendmsg_counted(send, header, is_stripped) }
        }
        Verdict::Taken(octets) => octets.cast_signed(),
        Verdict::Fail(errno) => {
            originals::set_errno(errno);
            -1
        }
    };
    if sent < 0 {
        return -1;
    }
    let length = message.wrapping_byte_add(core::mem::offset_of!(MultipleHeader, octets)).cast::<u32>();
    if !memory::is_writable(length as usize, size_of::<u32>()) {
        originals::set_errno(EFAULT); // sent, and its length is not written: so does the kernel
        return -1;
    }
    // SAFETY: writable, as the kernel has found; it need not be aligned.
    unsafe { length.write_unaligned(sent as u32) };
    sent
}

/// The original `sendmsg` with a copy of the header whose control data has no SCM_TXTIME.
///
/// # Safety
/// `message` is what the program passed.
pub(crate) unsafe fn sendmsg_stripped(fd: c_int, message: *const MessageHeader, flags: c_int) -> isize {
    // SAFETY: the caller's promise.
    unsafe { sendmsg_changed(fd, message, flags, true, None) }.unwrap_or_else(|| {
        originals::set_errno(ENOBUFS);
        -1
    })
}

/// The original `sendmsg` of a datagram whose timestamps have the socket's next key: with it, once the kernel's count
/// is another than ours. Where the kernel takes no key (Linux before 6.13), or there is no room, only we count.
///
/// # Safety
/// `message` is what the program passed.
pub(crate) unsafe fn sendmsg_counted(
    send: SendCall,
    message: *const MessageHeader,
    is_stripped: bool,
) -> isize {
    let is_musl = env::is_musl();
    // SAFETY: the caller's promise.
    let read = unsafe { Message::read_cold(message, is_musl) };
    let key = read
        .and_then(|read| control_messages::parse_cold(read.control, is_musl))
        .map_or(stamps::Key::Is(0), |control| stamps::key(send.stream, &control));
    let number = key.pass(send.stream).filter(|_| kernel::knows_key_messages());
    let changed = number.and_then(|number| {
        // SAFETY: the caller's promise.
        unsafe { sendmsg_changed(send.fd, message, send.flags, is_stripped, Some(number)) }
    });
    let sent = match changed {
        Some(sent) => sent,
        // SAFETY: as above.
        None if is_stripped => unsafe { sendmsg_stripped(send.fd, message, send.flags) },
        // SAFETY: as above.
        None => unsafe { originals::sendmsg(send.fd, message, send.flags) },
    };
    if sent < 0 {
        key.give_back(send.stream);
    }
    sent
}

/// The original `sendmsg` with changed control data ([`Changed::copy`]); `None` where there is no room for it.
///
/// # Safety
/// `message` is what the program passed.
#[inline(never)]
unsafe fn sendmsg_changed(
    fd: c_int,
    message: *const MessageHeader,
    flags: c_int,
    is_stripped: bool,
    key: Option<u32>,
) -> Option<isize> {
    let is_musl = env::is_musl();
    // SAFETY: the caller's promise.
    let read = unsafe { Message::read_cold(message, is_musl) }?;
    let control = Changed::copy(read.control, is_musl, is_stripped, key)?;
    // SAFETY: readable, as it just was.
    let mut header = unsafe { message.read_unaligned() };
    header.control = control.as_slice().as_ptr().cast();
    header.control_octets = control.as_slice().len();
    // SAFETY: the program's header with our own control data, which outlives the call.
    Some(unsafe { originals::sendmsg(fd, &raw const header, flags) })
}
