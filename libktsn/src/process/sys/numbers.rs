// SPDX-License-Identifier: Apache-2.0
//! The numbers of our descriptors: never 0, 1 or 2.
//!
//! In: what the kernel opens, which gives out the lowest free number. Out: descriptors that are in the way of no program. A program whose
//! standard streams are closed still reads and writes there, and gets an error from each call.

use core::ffi::c_int;

use rustix::fd::{AsRawFd, OwnedFd};

use super::{call, is_open, number, owned, word};
use crate::process::abi::{self, EMFILE};
use crate::process::limit::AFTER_STREAMS;

pub(super) const AF_UNIX: u16 = 1;
pub(super) const SOCK_SEQPACKET: c_int = 5;

/// A new socket, non-blocking, closed by exec. No standard stream has its number; EMFILE where no other one is left.
pub(crate) fn socket(family: u16, kind: c_int) -> Result<OwnedFd, c_int> {
    let socket = new_socket(family, kind)?;
    if socket.as_raw_fd() >= AFTER_STREAMS { Ok(socket) } else { move_high(socket, AFTER_STREAMS) }
}

/// A new socket with the lowest free number. It has no peer: reading and writing are errors.
fn new_socket(family: u16, kind: c_int) -> Result<OwnedFd, c_int> {
    const SOCK_FLAGS: c_int = 0o2_004_000; // SOCK_CLOEXEC | SOCK_NONBLOCK
    // SAFETY: takes and gives plain values.
    owned(unsafe { call(number::SOCKET, [usize::from(family), word(kind | SOCK_FLAGS)]) })
}

/// Sockets without peer on the numbers of standard streams that are closed, until the value is dropped.
pub(super) fn take_streams() -> [Option<OwnedFd>; AFTER_STREAMS as usize] {
    [0, 1, 2].map(|stream| if is_open(stream) { None } else { new_socket(AF_UNIX, SOCK_SEQPACKET).ok() })
}

/// A second descriptor of the same file, closed by exec, with a number of at least `min`.
pub(crate) fn duplicate(fd: c_int, min: c_int) -> Result<OwnedFd, c_int> {
    // SAFETY: takes and gives plain values.
    owned(unsafe { call(number::FCNTL, [word(fd), word(abi::F_DUPFD_CLOEXEC), word(min)]) })
}

/// Moves a descriptor out of the way, to a number of at least `min`. Where the program's limit allows none, it stays, but as no standard
/// stream: EMFILE where there is no other number.
pub(crate) fn move_high(fd: OwnedFd, min: c_int) -> Result<OwnedFd, c_int> {
    match duplicate(fd.as_raw_fd(), min) {
        Ok(moved) => Ok(moved),
        Err(_) if fd.as_raw_fd() >= AFTER_STREAMS => Ok(fd),
        Err(_) => duplicate(fd.as_raw_fd(), AFTER_STREAMS).map_err(|_| EMFILE),
    }
}

/// Closes a number that is no [`OwnedFd`].
pub(crate) fn close(fd: c_int) {
    // SAFETY: takes and gives plain values; the caller answers for the number.
    unsafe { call(number::CLOSE, [word(fd)]) };
}
