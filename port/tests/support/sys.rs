// SPDX-License-Identifier: Apache-2.0
//! Kernel receive stamps and the real-time class: calls that no safe wrapper offers.
//!
//! In: a socket, a buffer. Out: a frame's length and its stamp.

use std::mem::zeroed;
use std::os::fd::{AsRawFd, OwnedFd};

/// Room for one `SCM_TIMESTAMPNS` message, aligned as control messages must be.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// The kernel stamps each frame on arrival (`SO_TIMESTAMPNS`).
pub(crate) fn ask_for_stamps(socket: &OwnedFd) {
    let on: libc::c_int = 1;
    // SAFETY: the pointer and the length describe `on`, which the kernel only reads during the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPNS,
            std::ptr::from_ref(&on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    assert_eq!(result, 0, "SO_TIMESTAMPNS: {}", std::io::Error::last_os_error());
}

/// One frame and its CLOCK_REALTIME stamp in nanoseconds; `None` when the socket's timeout has passed.
pub(crate) fn receive_stamped(socket: &OwnedFd, buffer: &mut [u8]) -> Option<(usize, u64)> {
    let mut control = Control([0; 64]);
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: `msghdr` is a plain C struct for which all zeros is valid.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len();
    // SAFETY: every pointer in `message` lives and is exclusive during the call, and the lengths are theirs.
    let octets = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, 0) };
    if octets < 0 {
        let error = std::io::Error::last_os_error();
        let over = matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR));
        assert!(over, "recvmsg: {error}");
        return None;
    }
    // SAFETY: the kernel filled `message`, whose control buffer still lives.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message).as_ref() }?;
    assert_eq!((header.cmsg_level, header.cmsg_type), (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS));
    // SAFETY: level and type say that the data is a `timespec`; read unaligned, so its place does not matter.
    let stamp: libc::timespec = unsafe { libc::CMSG_DATA(header).cast::<libc::timespec>().read_unaligned() };
    Some((octets as usize, stamp.tv_sec as u64 * 1_000_000_000 + stamp.tv_nsec as u64))
}

/// Puts the calling thread into SCHED_FIFO.
pub(crate) fn set_fifo(priority: i32) -> std::io::Result<()> {
    let parameter = libc::sched_param { sched_priority: priority };
    // SAFETY: the pointer is to a live `sched_param`, which the kernel only reads; 0 is the calling thread.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameter) };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
