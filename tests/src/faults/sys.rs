// SPDX-License-Identifier: Apache-2.0
//! The packet socket of the tap, and one receive call with the kernel's own receive stamp.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

/// Octets of one frame kept at most.
pub(crate) const FRAME_OCTETS_MAX: usize = 2048;

fn answer(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn set(fd: &OwnedFd, level: i32, option: i32, value: libc::c_int) -> io::Result<()> {
    let size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `value` lives through the call and `size` is its size.
    answer(unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const value).cast(), size) })
        .map(|_| ())
}

/// A packet socket on `device` of this thread's namespace that hears what comes in, stamped by the kernel.
pub(crate) fn open(device: &str) -> io::Result<OwnedFd> {
    let protocol = (libc::ETH_P_ALL as u16).to_be();
    // SAFETY: no pointer is passed.
    let raw = answer(unsafe {
        libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0)
    })?;
    // SAFETY: the kernel has just made this descriptor; no other code knows it.
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    set(&fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
    set(&fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 256 << 20)?;
    set(&fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
    let index = std::ffi::CString::new(device)?;
    // SAFETY: a nul-terminated string that lives through the call.
    let index = unsafe { libc::if_nametoindex(index.as_ptr()) };
    if index == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all zeros is a valid sockaddr_ll.
    let mut name: libc::sockaddr_ll = unsafe { zeroed() };
    name.sll_family = libc::AF_PACKET as u16;
    name.sll_protocol = protocol;
    name.sll_ifindex = index as i32;
    let size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: `name` is a sockaddr_ll of that size.
    answer(unsafe { libc::bind(fd.as_raw_fd(), (&raw const name).cast(), size) })?;
    Ok(fd)
}

/// From now on [`receive`] puts a tag back that the kernel has taken out of a frame.
pub(crate) fn keep_tags(fd: &OwnedFd) -> io::Result<()> {
    set(fd, libc::SOL_PACKET, libc::PACKET_AUXDATA, 1)
}

/// From now on the socket keeps only frames whose two octets at `offset` are `port`.
pub(crate) fn keep_port(fd: &OwnedFd, offset: u32, port: u16) -> io::Result<()> {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        step(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, 0, 0, offset),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, u32::from(port)),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, FRAME_OCTETS_MAX as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    let size = size_of::<libc::sock_fprog>() as libc::socklen_t;
    // SAFETY: `filter` and the program that it points to live through the call; the kernel copies both.
    answer(unsafe {
        let (option, value) = (libc::SO_ATTACH_FILTER, (&raw const filter).cast());
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, option, value, size)
    })
    .map(|_| ())
}

/// The frame with its tag, if the kernel has taken one out; its octets.
fn with_tag(frame: &mut [u8; FRAME_OCTETS_MAX], count: usize, auxdata: &libc::tpacket_auxdata) -> usize {
    if auxdata.tp_status & libc::TP_STATUS_VLAN_VALID == 0 || count < 12 || count + 4 > frame.len() {
        return count;
    }
    frame.copy_within(12..count, 16);
    frame[12..14].copy_from_slice(&auxdata.tp_vlan_tpid.to_be_bytes());
    frame[14..16].copy_from_slice(&auxdata.tp_vlan_tci.to_be_bytes());
    count + 4
}

/// One frame: its octets in `frame` (their count) and the kernel's stamp, nanoseconds of CLOCK_REALTIME.
pub(crate) fn receive(fd: &OwnedFd, frame: &mut [u8; FRAME_OCTETS_MAX]) -> io::Result<(usize, i64)> {
    let (count, stamp, auxdata) = receive_stamped(fd, frame)?;
    Ok((auxdata.map_or(count, |auxdata| with_tag(frame, count, &auxdata)), stamp))
}

/// From now on the kernel stamps what the socket receives, and keeps much of it.
pub(crate) fn stamp(fd: &OwnedFd) -> io::Result<()> {
    set(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 256 << 20)?;
    set(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)
}

/// A message: its octets in `octets` (their count), the kernel's stamp, and what it says about a frame.
pub(crate) fn receive_stamped(
    fd: &OwnedFd,
    octets: &mut [u8],
) -> io::Result<(usize, i64, Option<libc::tpacket_auxdata>)> {
    let mut control = [0u64; 16];
    let mut iov = libc::iovec { iov_base: octets.as_mut_ptr().cast(), iov_len: octets.len() };
    // SAFETY: all zeros is a valid msghdr.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    // SAFETY: every pointer of `message` is to memory that lives through the call, with its true length.
    let count = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the kernel filled `message` and its control octets; the walk stays inside them.
    let (stamp, auxdata) = unsafe {
        let mut item = libc::CMSG_FIRSTHDR(&raw const message);
        let (mut stamp, mut auxdata) = (None, None);
        while !item.is_null() {
            if (*item).cmsg_level == libc::SOL_SOCKET && (*item).cmsg_type == libc::SCM_TIMESTAMPNS {
                let time: libc::timespec = std::ptr::read_unaligned(libc::CMSG_DATA(item).cast());
                stamp = Some(time.tv_sec * 1_000_000_000 + time.tv_nsec);
            }
            if (*item).cmsg_level == libc::SOL_PACKET && (*item).cmsg_type == libc::PACKET_AUXDATA {
                auxdata = Some(std::ptr::read_unaligned(libc::CMSG_DATA(item).cast()));
            }
            item = libc::CMSG_NXTHDR(&raw const message, item);
        }
        (stamp, auxdata)
    };
    Ok((count, stamp.ok_or_else(|| io::Error::other("a frame without stamp"))?, auxdata))
}
