// SPDX-License-Identifier: Apache-2.0
//! Socket options that rustix does not know.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

const SO_NETNS_COOKIE: libc::c_int = 71;
const SO_PEERPIDFD: libc::c_int = 77;
const SO_PASSRIGHTS: libc::c_int = 83;
const UDP_CORK: libc::c_int = 1;

/// SO_TXTIME of a socket, as the kernel has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SockTxtime {
    /// Linux clock id.
    pub clock: u32,
    /// SOF_TXTIME flags.
    pub flags: u32,
}

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

/// SO_PRIORITY.
pub(super) fn priority(fd: impl AsFd) -> u32 {
    option(fd, libc::SOL_SOCKET, libc::SO_PRIORITY).unwrap_or(0)
}

/// UDP_SEGMENT; 0 for any other socket.
pub(super) fn segment(fd: impl AsFd) -> u32 {
    option(fd, libc::SOL_UDP, libc::UDP_SEGMENT).unwrap_or(0)
}

/// SO_TXTIME; zeros where it was never set.
pub(super) fn txtime(fd: impl AsFd) -> io::Result<SockTxtime> {
    option(fd, libc::SOL_SOCKET, libc::SO_TXTIME)
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
    // SAFETY: the kernel installed this descriptor for this call; no other code knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Makes the kernel refuse descriptors that a peer passes on `fd`'s connection (Linux 6.16).
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

/// SOF_TIMESTAMPING_* of a socket.
pub(super) fn timestamping(fd: impl AsFd) -> io::Result<u32> {
    option(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPING)
}

/// IPV6_V6ONLY.
pub(super) fn is_v6_only(fd: impl AsFd) -> bool {
    option::<libc::c_int>(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY).is_ok_and(|value| value != 0)
}

/// Whether a UDP socket collects what is sent in one datagram (UDP_CORK), or may have begun one (MSG_MORE). Octets that have not
/// left belong to such a datagram or to queued ones; the two cannot be distinguished.
pub(super) fn is_corked(fd: impl AsFd) -> bool {
    let mut waiting: libc::c_int = 0;
    // SAFETY: SIOCOUTQ writes one int to `waiting`, which lives until after the call.
    let result = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut waiting) };
    let is_option_set = option::<libc::c_int>(fd, libc::IPPROTO_UDP, UDP_CORK).is_ok_and(|value| value != 0);
    is_option_set || (result == 0 && waiting != 0)
}

/// An option with an `int` as its value. Options of SOL_IP and SOL_IPV6 may need the socket's lock.
pub(super) fn int_option(fd: impl AsFd, level: libc::c_int, name: libc::c_int) -> io::Result<libc::c_int> {
    option(fd, level, name)
}

/// Control messages one after the other.
#[derive(Debug, Default)]
pub(super) struct Control(Vec<u8>);

impl Control {
    /// Those that are there already.
    pub(super) fn with(octets: &[u8]) -> Self {
        let mut control = Self(octets.to_vec());
        control.0.resize(control.0.len().next_multiple_of(8), 0);
        control
    }

    /// Adds one.
    pub(super) fn push(&mut self, level: i32, kind: i32, value: &[u8]) {
        let octets = size_of::<libc::cmsghdr>() + value.len();
        self.0.extend_from_slice(&octets.to_ne_bytes());
        self.0.extend_from_slice(&level.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(8), 0);
    }

    /// As `sendmsg(2)` takes them.
    pub(super) fn octets(&self) -> &[u8] {
        &self.0
    }
}

/// Sends one datagram and changes no option of the socket: never waits, no signal.
///
/// `to` is empty where the datagram names no destination. `control` holds complete control messages, as `sendmsg(2)` takes them, and
/// `flags` more flags.
pub(super) fn send_once(
    fd: impl AsFd,
    to: &[u8],
    payload: &[u8],
    control: &[u8],
    flags: i32,
) -> io::Result<()> {
    let mut segment = libc::iovec { iov_base: payload.as_ptr().cast_mut().cast(), iov_len: payload.len() };
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = to.as_ptr().cast_mut().cast();
    message.msg_namelen = to.len() as libc::socklen_t;
    message.msg_iov = &raw mut segment;
    message.msg_iovlen = 1;
    message.msg_control = control.as_ptr().cast_mut().cast();
    message.msg_controllen = control.len();
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the kernel only reads, as many octets as the lengths say, from slices that live until after the call.
    let sent = unsafe { libc::sendmsg(fd.as_fd().as_raw_fd(), &raw const message, flags) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
pub(super) mod tests {
    //! What the tests of markers ask of a socket.

    use super::{AsFd, AsRawFd, MaybeUninit, io};

    /// Sets SO_TIMESTAMPING.
    pub(in super::super) fn set_timestamping(fd: impl AsFd, flags: u32) {
        let octets = size_of::<u32>() as libc::socklen_t;
        let (fd, value) = (fd.as_fd().as_raw_fd(), (&raw const flags).cast());
        // SAFETY: the kernel reads four octets from `flags`, which lives until after the call.
        let result = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, value, octets) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
    }

    /// Sets UDP_CORK.
    pub(in super::super) fn set_cork(fd: impl AsFd, is_on: bool) {
        let (value, octets) = (libc::c_int::from(is_on), size_of::<libc::c_int>() as libc::socklen_t);
        let (fd, value) = (fd.as_fd().as_raw_fd(), (&raw const value).cast());
        // SAFETY: the kernel reads one int from `value`, which lives until after the call.
        let result = unsafe { libc::setsockopt(fd, libc::IPPROTO_UDP, super::UDP_CORK, value, octets) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
    }

    /// Reads one entry of the error queue: its data, and ee_data.
    pub(in super::super) fn read_error(fd: impl AsFd) -> (Vec<u8>, u32) {
        let (mut data, mut control) = (vec![0u8; 256], [0u64; 64]);
        let mut segment = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: data.len() };
        // SAFETY: all-zero is a valid msghdr.
        let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        message.msg_iov = &raw mut segment;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
        // SAFETY: the kernel writes into the two buffers, at most as many octets as the lengths say.
        let octets = unsafe { libc::recvmsg(fd.as_fd().as_raw_fd(), &raw mut message, flags) };
        assert!(octets >= 0, "{}", io::Error::last_os_error());
        data.truncate(octets.cast_unsigned());
        // struct sock_extended_err follows its message's header: errno u32, origin u8, 3 octets, info u32, data u32.
        let octets: Vec<u8> = control.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut at = 0;
        while at + 16 <= message.msg_controllen {
            let word = |at: usize| u32::from_ne_bytes(octets[at..at + 4].try_into().unwrap());
            if [(0, 11), (41, 25), (263, 16)].contains(&(word(at + 8), word(at + 12))) {
                return (data, word(at + 28));
            }
            at += (word(at) as usize).next_multiple_of(8);
        }
        panic!("an entry without sock_extended_err");
    }
}
