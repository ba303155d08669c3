// SPDX-License-Identifier: Apache-2.0
//! What neither std nor rustix nor tokio's safe part offers: one socket option, and readiness of a descriptor.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use tokio::io::unix::AsyncFd;

/// SO_NETNS_COOKIE: which network namespace a socket belongs to; unique until the next boot.
pub(super) fn netns_cookie(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut cookie: u64 = 0;
    let mut octets = size_of::<u64>() as libc::socklen_t;
    // SAFETY: `cookie` and `octets` are valid for writes of the sizes told and live through the call; the descriptor
    // is borrowed, so it is open.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut octets,
        )
    };
    if result == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

/// Readiness of a descriptor, told by the current runtime.
pub(crate) fn readiness(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: `OwnedFd` owns an open descriptor and gives it out by reference only, so it is neither closed nor
    // replaced while registered.
    unsafe { AsyncFd::register(descriptor) }.map_err(Into::into)
}
