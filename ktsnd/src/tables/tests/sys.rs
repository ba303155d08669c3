// SPDX-License-Identifier: Apache-2.0
//! What a test needs of sockets that no safe interface has: packet sockets that hear, sockets of another user.

use std::ffi::CString;
use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A socket that hears every frame of `device` in this thread's namespace, and never waits.
pub(super) fn hear(device: &str) -> io::Result<OwnedFd> {
    let name = CString::new(device)?;
    let protocol = (libc::ETH_P_ALL as u16).to_be();
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: plain calls; the descriptor is new and owned by nothing else.
    let socket = unsafe {
        let socket = checked(libc::socket(libc::AF_PACKET, kind, i32::from(protocol)))?;
        OwnedFd::from_raw_fd(socket)
    };
    // SAFETY: `sockaddr_ll` is plain old data, for which zeros are a value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol;
    // SAFETY: `name` ends with a zero.
    address.sll_ifindex = unsafe { libc::if_nametoindex(name.as_ptr()) } as i32;
    let octets = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address is valid for `octets`.
    checked(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), octets) })?;
    Ok(socket)
}

/// Makes what `make` makes as the user `uid`: a socket belongs to the user that made it.
pub(super) fn as_user<T>(uid: u32, make: impl FnOnce() -> T) -> T {
    let become_user = |uid: u32| {
        // SAFETY: the system call changes this thread's user only; -1 leaves the real and the saved one.
        let result = unsafe { libc::syscall(libc::SYS_setresuid, -1, uid, -1) };
        assert_eq!(result, 0, "setresuid {uid}");
    };
    become_user(uid);
    let made = make();
    become_user(0);
    made
}

/// SO_BINDTODEVICE.
pub(super) fn bind_to_device(socket: &UdpSocket, device: &str) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, device.as_bytes())
}

/// IP_TOS or IPV6_TCLASS.
pub(super) fn set_traffic_class(socket: &UdpSocket, is_v4: bool, class: u8) -> io::Result<()> {
    let (level, name) =
        if is_v4 { (libc::IPPROTO_IP, libc::IP_TOS) } else { (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) };
    set(socket, level, name, &i32::from(class).to_ne_bytes())
}

fn set(socket: &UdpSocket, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    let octets = value.len() as libc::socklen_t;
    // SAFETY: the value is valid for `octets`.
    checked(unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, value.as_ptr().cast(), octets) })
        .map(drop)
}
