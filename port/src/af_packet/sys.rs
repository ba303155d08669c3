// SPDX-License-Identifier: Apache-2.0
//! The two calls on a packet socket that no safe wrapper offers: binding to a device, and the qdisc bypass.
//!
//! In: an AF_PACKET socket. Out: that socket, ready to send. Nothing is ever received: protocol 0 stays.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Frames go straight to the device's transmit function.
pub(super) fn set_qdisc_bypass(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    let on: libc::c_int = 1;
    // SAFETY: the pointer and the length describe `on`, which the kernel only reads during the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_QDISC_BYPASS,
            std::ptr::from_ref(&on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

/// Binds to the device with protocol 0: sends need no address, and nothing is received.
pub(super) fn bind_for_sending(socket: BorrowedFd<'_>, ifindex: u32) -> Result<(), Errno> {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: 0,
        sll_ifindex: i32::try_from(ifindex).map_err(|_| Errno::NODEV)?,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    // SAFETY: the pointer and the length describe `address`, which the kernel only reads during the call.
    let result = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            std::ptr::from_ref(&address).cast(),
            size_of_val(&address) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}
