// SPDX-License-Identifier: Apache-2.0
//! System calls of the two ends: taps with virtio headers, packet sockets with the kernel's stamps.
//!
//! In: plain values, descriptors. Out: descriptors, octets, stamps (nanoseconds of CLOCK_REALTIME) or the kernel's errno. No state.

use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

/// Octets in front of each frame of a tap: struct virtio_net_hdr_v1, as a guest with VIRTIO_F_VERSION_1 has it.
pub(super) const HEADER_OCTETS: usize = 12;
/// Octets of the largest frame, with room for a tag.
const FRAME_OCTETS: usize = 1 << 11;
const CONTROL_OCTETS: usize = 256;
/// linux/if_packet.h, linux/net_tstamp.h, linux/if_tun.h; not in every libc.
const PACKET_IGNORE_OUTGOING: i32 = 23;
const TX_SOFTWARE: i32 = 1 << 1;
const SOFTWARE: i32 = 1 << 4;
const TIMESTAMP_ONLY: i32 = 1 << 11;
const TUNSETOFFLOAD: u64 = 0x4004_54d0;
const TUNSETVNETHDRSZ: u64 = 0x4004_54d8;
/// Checksums, and segments of TCP over both families, with ECN.
pub(super) const OFFLOADS: u32 = 0x01 | 0x02 | 0x04 | 0x08;

fn checked(status: i32) -> io::Result<i32> {
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(status) }
}

/// Gives a thread SCHED_FIFO with this priority.
pub(super) fn make_fifo(thread: i32, priority: u8) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: i32::from(priority) };
    // SAFETY: `parameters` lives across the call.
    checked(unsafe { libc::sched_setscheduler(thread, libc::SCHED_FIFO, &raw const parameters) }).map(drop)
}

/// Makes a descriptor of `/dev/net/tun`, or of a macvtap's device node, a tap of this name with virtio headers and these offloads.
pub(super) fn become_tap(tap: &File, name: &str, offloads: u32) -> io::Result<()> {
    // SAFETY: ifreq is plain data for which all-zero is valid.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (to, from) in request.ifr_name[..15].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
    // SAFETY: TUNSETIFF takes an ifreq, which lives through the call; its name ends with a zero.
    checked(unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) })?;
    let octets = HEADER_OCTETS as i32;
    // SAFETY: TUNSETVNETHDRSZ reads an int, which lives through the call.
    checked(unsafe { libc::ioctl(tap.as_raw_fd(), TUNSETVNETHDRSZ as _, &raw const octets) })?;
    // SAFETY: TUNSETOFFLOAD takes a number.
    checked(unsafe { libc::ioctl(tap.as_raw_fd(), TUNSETOFFLOAD as _, libc::c_ulong::from(offloads)) })?;
    Ok(())
}

fn set(socket: &OwnedFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    let octets = mem::size_of::<i32>() as libc::socklen_t;
    // SAFETY: `value` is valid for its octets across the call.
    checked(unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), octets) })
        .map(drop)
}

/// A packet socket of the device with this index, for sending (`timed`: with the kernel's transmit stamps), or for receiving with
/// receive stamps.
pub(super) fn packet_socket(ifindex: u32, receives: bool, timed: bool) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: socket takes integers only. Protocol 0: nothing is delivered before bind.
    let socket = checked(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
    // SAFETY: the descriptor was just made and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    if receives {
        set(&socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
        set(&socket, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)?;
        set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 16 << 20)?;
    }
    if timed {
        set(&socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, TX_SOFTWARE | SOFTWARE | TIMESTAMP_ONLY)?;
    }
    // SAFETY: sockaddr_ll is plain data for which all-zero is valid.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = if receives { (libc::ETH_P_ALL as u16).to_be() } else { 0 };
    address.sll_ifindex = i32::try_from(ifindex).map_err(io::Error::other)?;
    let octets = mem::size_of_val(&address) as libc::socklen_t;
    // SAFETY: `address` is valid for its octets across the call.
    checked(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), octets) })?;
    Ok(socket)
}

/// Frames that the kernel did not keep for a packet socket, since the last call.
pub(super) fn packet_drops(socket: &OwnedFd) -> io::Result<u64> {
    let mut statistics = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    let mut octets = mem::size_of_val(&statistics) as libc::socklen_t;
    let (to, octets) = ((&raw mut statistics).cast(), &raw mut octets);
    // SAFETY: `statistics` and `octets` are valid and borrowed exclusively across the call.
    checked(unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_STATISTICS, to, octets)
    })?;
    Ok(u64::from(statistics.tp_drops))
}

#[repr(C, align(8))]
struct Control([u8; CONTROL_OCTETS]);

/// Room for one frame and what the kernel says of it.
pub(super) struct Room {
    frame: Box<[u8; FRAME_OCTETS]>,
    control: Box<Control>,
}

impl Room {
    pub(super) fn new() -> Self {
        // Touched here: a page fault in the loop would be measured.
        Self { frame: Box::new([1; FRAME_OCTETS]), control: Box::new(Control([1; CONTROL_OCTETS])) }
    }

    pub(super) fn frame(&mut self) -> &mut [u8] {
        &mut self.frame[..]
    }

    /// Takes a message of a socket without waiting: how many octets it has, and the stamp of the control message of this type.
    /// `None`: there is none.
    fn receive(
        &mut self,
        socket: &OwnedFd,
        flags: i32,
        kind: i32,
    ) -> io::Result<Option<(usize, Option<u64>)>> {
        let mut part = libc::iovec { iov_base: self.frame.as_mut_ptr().cast(), iov_len: FRAME_OCTETS };
        // SAFETY: msghdr is plain data for which all-zero is valid.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = self.control.0.as_mut_ptr().cast();
        message.msg_controllen = CONTROL_OCTETS as _;
        let flags = flags | libc::MSG_DONTWAIT;
        // SAFETY: the message names buffers that are valid for the lengths given and borrowed exclusively across the call.
        let octets = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
        match usize::try_from(octets) {
            Ok(octets) => Ok(Some((octets.min(FRAME_OCTETS), stamp(&message, kind)))),
            Err(_) => {
                let error = io::Error::last_os_error();
                let is_nothing =
                    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
                if is_nothing { Ok(None) } else { Err(error) }
            }
        }
    }

    /// A frame of a packet socket with its receive stamp.
    pub(super) fn receive_frame(&mut self, socket: &OwnedFd) -> io::Result<Option<(&[u8], Option<u64>)>> {
        let taken = self.receive(socket, 0, libc::SCM_TIMESTAMPNS)?;
        Ok(taken.map(|(octets, stamp)| (&self.frame[..octets], stamp)))
    }

    /// The transmit stamp of the frame that was sent last.
    pub(super) fn transmit_stamp(&mut self, socket: &OwnedFd) -> io::Result<Option<u64>> {
        let taken = self.receive(socket, libc::MSG_ERRQUEUE, libc::SCM_TIMESTAMPING)?;
        Ok(taken.and_then(|(_, stamp)| stamp))
    }
}

/// The stamp among the control messages of a received `message`.
fn stamp(message: &libc::msghdr, kind: i32) -> Option<u64> {
    // SAFETY: the kernel has filled msg_control and set msg_controllen to what it wrote; CMSG_FIRSTHDR and CMSG_NXTHDR stay inside that.
    // The data of both types begins with a timespec, the kernel's stamp; it is read unaligned.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == kind {
                let at: libc::timespec = std::ptr::read_unaligned(libc::CMSG_DATA(header).cast());
                return u64::try_from(at.tv_sec * 1_000_000_000 + at.tv_nsec).ok().filter(|at| *at > 0);
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    None
}
