// SPDX-License-Identifier: Apache-2.0
//! Socket options that rustix does not know.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

const SO_NETNS_COOKIE: libc::c_int = 71;
const SO_PEERPIDFD: libc::c_int = 77;
const SO_PASSRIGHTS: libc::c_int = 83;

fn option<T: Copy>(fd: impl AsFd, level: libc::c_int, name: libc::c_int) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut octets = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `octets` octets to `value`, which is that large and lives until after the call.
    let result = unsafe {
        libc::getsockopt(fd.as_fd().as_raw_fd(), level, name, value.as_mut_ptr().cast(), &raw mut octets)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was zeroed before, and `T` is a plain number or array of octets at every call in this file.
    Ok(unsafe { value.assume_init() })
}

/// The cookie of the namespace that the socket was made in.
pub(super) fn netns_cookie(fd: impl AsFd) -> io::Result<u64> {
    option(fd, libc::SOL_SOCKET, SO_NETNS_COOKIE)
}

/// SO_MARK.
pub(super) fn mark(fd: impl AsFd) -> io::Result<u32> {
    option(fd, libc::SOL_SOCKET, libc::SO_MARK)
}

/// The interface that the socket is bound to, as an index; 0 = none.
pub(super) fn bound_interface(fd: impl AsFd) -> io::Result<u32> {
    option(fd, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX)
}

/// The peer process as it was when it connected: (pid, user). The pid is 0 when it is not visible from here.
pub(super) fn peer_credentials(fd: impl AsFd) -> io::Result<(i32, u32)> {
    let credentials: libc::ucred = option(fd, libc::SOL_SOCKET, libc::SO_PEERCRED)?;
    Ok((credentials.pid, credentials.uid))
}

/// A descriptor of the peer process (Linux 6.5), readable when it ends.
pub(super) fn peer_pidfd(fd: impl AsFd) -> io::Result<OwnedFd> {
    let raw: libc::c_int = option(fd, libc::SOL_SOCKET, SO_PEERPIDFD)?;
    if raw < 0 {
        return Err(io::Error::from(io::ErrorKind::NotFound));
    }
    // SAFETY: the kernel installed this descriptor for us just now; nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Makes the kernel refuse descriptors that somebody passes on `fd`'s connection (Linux 6.16).
pub(super) fn refuse_rights(fd: impl AsFd) -> io::Result<()> {
    let off: libc::c_int = 0;
    // SAFETY: the kernel reads one int from `off`, which lives until after the call.
    let result = unsafe {
        libc::setsockopt(
            fd.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const off).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
