// SPDX-License-Identifier: Apache-2.0
//! System calls for a datagram that the kernel is to send at its transmit time.
//!
//! In: descriptors, addresses of the program's octets, a clock and a time. Out: values or an errno number. They never touch the program's
//! `errno` and never allocate. [`sleep_until`] blocks as long as the caller says; no other one does.

use core::ffi::c_int;

use rustix::fd::AsRawFd;

use super::{RIGHTS_HEADER, Rights, SCM_RIGHTS, call, checked, number, option_int, option_octets, word};
use crate::process::abi::{self, MessageHeader, Segment};

/// TIMER_ABSTIME of clock_nanosleep(2).
const ABSOLUTE: usize = 1;
const SO_NETNS_COOKIE: c_int = 71;

/// Sends one message of several pieces with a descriptor; never blocks, never raises SIGPIPE.
///
/// # Safety
/// The kernel may read each piece, or finds that it cannot: the octets are this library's, or the program gave them to be sent.
pub(crate) unsafe fn send_pieces(socket: c_int, pieces: &[Segment], passed: c_int) -> Result<(), c_int> {
    let rights = Rights {
        octets: RIGHTS_HEADER.wrapping_add(size_of::<c_int>()),
        level: abi::SOL_SOCKET,
        kind: SCM_RIGHTS,
        fds: [passed, 0],
    };
    let header = MessageHeader {
        name: core::ptr::null(),
        name_octets: 0,
        segments: pieces.as_ptr(),
        segments_count: pieces.len(),
        control: (&raw const rights).cast(),
        control_octets: size_of::<Rights>(),
        flags: 0,
    };
    let flags = word(abi::MSG_DONTWAIT | abi::MSG_NOSIGNAL);
    // SAFETY: header, pieces and rights are ours and outlive the call, which reads them; the caller answers for the octets.
    let result = unsafe { call(number::SENDMSG, [word(socket), (&raw const header) as usize, flags]) };
    checked(result).map(drop)
}

/// The errno that the kernel has for a datagram to this address (empty: the peer) with this control data before it would make it; 0 =
/// none. Nothing is sent: MSG_CONFIRM with MSG_PROBE and no octets ends behind the route.
pub(crate) fn refusal(fd: c_int, name: &[u8], control: &[u8], flags: c_int) -> c_int {
    // SAFETY: all zeros are a header of nothing.
    let mut header: MessageHeader = unsafe { core::mem::zeroed() };
    if !name.is_empty() {
        (header.name, header.name_octets) = (name.as_ptr().cast(), name.len() as u32);
    }
    (header.control, header.control_octets) = (control.as_ptr().cast(), control.len());
    let flags = flags | abi::MSG_CONFIRM | abi::MSG_PROBE | abi::MSG_DONTWAIT | abi::MSG_NOSIGNAL;
    // SAFETY: the header is ours; the name was found readable when the message was read, and the control data can be read.
    let result = unsafe { call(number::SENDMSG, [word(fd), (&raw const header) as usize, word(flags)]) };
    checked(result).err().unwrap_or(0)
}

/// Sleeps until the clock shows `at`, nanoseconds: a signal ends the sleep, and so may a change of the clock. False where the kernel knows
/// no such clock.
pub(crate) fn sleep_until(clock: c_int, at: u64) -> bool {
    const SECOND: u64 = 1_000_000_000;
    let until = [(at / SECOND).cast_signed(), (at % SECOND).cast_signed()];
    let arguments = [word(clock), ABSOLUTE, until.as_ptr() as usize, 0];
    // SAFETY: the kernel reads one timespec (two 64-bit words) from `until`.
    let result = unsafe { call(number::CLOCK_NANOSLEEP, arguments) };
    result == 0 || result == (abi::EINTR as isize).wrapping_neg()
}

/// The path MTU to an address (not empty) as a new socket of this namespace finds it; `None` where it cannot be found: the socket belongs
/// to another namespace, or there is no descriptor left.
pub(crate) fn path_mtu(socket: c_int, name: &[u8]) -> Option<usize> {
    let cookie = |fd: c_int| {
        let mut value = [0; 8];
        (option_octets(fd, abi::SOL_SOCKET, SO_NETNS_COOKIE, &mut value) == Ok(8)).then_some(value)
    };
    let family = u16::from_ne_bytes(*name.first_chunk()?);
    let asked = super::socket(family, abi::SOCK_DGRAM).ok()?;
    let asked_fd = asked.as_raw_fd();
    if cookie(asked_fd)? != cookie(socket)? {
        return None;
    }
    let interface = option_int(socket, abi::SOL_SOCKET, abi::SO_BINDTOIFINDEX).unwrap_or(0);
    if interface != 0 && !super::set_option_int(asked_fd, abi::SOL_SOCKET, abi::SO_BINDTOIFINDEX, interface) {
        return None;
    }
    // SAFETY: the kernel reads the octets of `name`.
    let result = unsafe { call(number::CONNECT, [word(asked_fd), name.as_ptr() as usize, name.len()]) };
    (result == 0).then(|| connected_mtu(asked_fd)).flatten()
}

/// The MTU of an interface in the socket's namespace; `None` where there is none.
pub(crate) fn interface_mtu(socket: c_int, index: u32) -> Option<usize> {
    const SIOCGIFNAME: usize = 0x8910;
    const SIOCGIFMTU: usize = 0x8921;
    // struct ifreq: the name, then the index, and then the MTU.
    let mut request = [0u32; 10];
    request[4] = index;
    for number in [SIOCGIFNAME, SIOCGIFMTU] {
        // SAFETY: the kernel reads and writes one struct ifreq, which is ours.
        let result = unsafe { call(number::IOCTL, [word(socket), number, request.as_mut_ptr() as usize]) };
        if result < 0 {
            return None;
        }
    }
    Some(request[4] as usize)
}

/// The path MTU of a socket that is connected.
pub(crate) fn connected_mtu(socket: c_int) -> Option<usize> {
    let v6 = option_int(socket, abi::SOL_IPV6, abi::IPV6_MTU);
    let mtu = v6.filter(|mtu| *mtu > 0).or_else(|| option_int(socket, abi::SOL_IP, abi::IP_MTU))?;
    usize::try_from(mtu).ok().filter(|mtu| *mtu > 0)
}
