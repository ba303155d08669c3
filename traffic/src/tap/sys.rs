// SPDX-License-Identifier: Apache-2.0
//! libc's packet socket functions. In: a device's index. Out: frames with the kernel's stamps, and how many it dropped.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Frames taken by one system call.
const FRAMES: usize = 64;
/// Octets of the largest frame (loopback's).
const FRAME_OCTETS: usize = 1 << 16;
/// Room for the control messages of a frame.
const CONTROL_OCTETS: usize = 128;
/// linux/if_packet.h; not in every libc.
const PACKET_IGNORE_OUTGOING: i32 = 23;

fn checked(status: i32) -> io::Result<i32> {
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(status) }
}

/// The index of a device of the calling thread's network namespace.
pub(super) fn index(interface: &str) -> io::Result<i32> {
    let name = CString::new(interface)?;
    // SAFETY: `name` is a terminated string that outlives the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => i32::try_from(index).map_err(io::Error::other),
    }
}

/// A packet socket that sees what one device receives.
pub(super) struct Tap(OwnedFd);

impl Tap {
    /// With `has_outgoing` also what the machine sends out of the device.
    pub(super) fn open(index: i32, buffer_octets: i32, has_outgoing: bool) -> io::Result<Self> {
        // Protocol 0: nothing is delivered before bind names the device, so no frame of another one comes in.
        // SAFETY: socket takes integers only.
        let fd = checked(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) })?;
        // SAFETY: `fd` was just made and has no other owner.
        let tap = Self(unsafe { OwnedFd::from_raw_fd(fd) });
        tap.set(libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
        tap.set(libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, i32::from(!has_outgoing))?;
        // Beyond rmem_max only with a right; without it the system gives what it allows.
        if tap.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, buffer_octets).is_err() {
            tap.set(libc::SOL_SOCKET, libc::SO_RCVBUF, buffer_octets)?;
        }
        // SAFETY: sockaddr_ll is plain data for which all-zero is valid.
        let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = index;
        let length = mem::size_of_val(&address) as libc::socklen_t;
        // SAFETY: `address` is valid for `length` octets across the call.
        checked(unsafe { libc::bind(tap.0.as_raw_fd(), (&raw const address).cast(), length) })?;
        tap.drops()?;
        Ok(tap)
    }

    fn set(&self, level: i32, name: i32, value: i32) -> io::Result<()> {
        let length = mem::size_of::<i32>() as libc::socklen_t;
        // SAFETY: `value` is valid for `length` octets across the call.
        let status =
            unsafe { libc::setsockopt(self.0.as_raw_fd(), level, name, (&raw const value).cast(), length) };
        checked(status).map(drop)
    }

    /// Frames that the kernel dropped for want of room, since the last call.
    pub(super) fn drops(&self) -> io::Result<u64> {
        let mut statistics = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut length = mem::size_of_val(&statistics) as libc::socklen_t;
        // SAFETY: `statistics` and `length` are valid and borrowed exclusively across the call.
        checked(unsafe {
            libc::getsockopt(
                self.0.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut statistics).cast(),
                &raw mut length,
            )
        })?;
        Ok(u64::from(statistics.tp_drops))
    }

    /// Takes what has arrived, at most a batch; never waits. A device that went down has nothing to give.
    pub(super) fn receive(&self, batch: &mut Batch) -> io::Result<usize> {
        batch.arm();
        let headers = batch.headers.as_mut_ptr();
        // SAFETY: `arm` has pointed every header at buffers that the batch owns, of the lengths it wrote, and they
        // do not move: they are boxed slices, borrowed exclusively across the call.
        let taken = unsafe {
            libc::recvmmsg(
                self.0.as_raw_fd(),
                headers,
                FRAMES as u32,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        batch.taken = match checked(taken) {
            Ok(taken) => usize::try_from(taken).unwrap_or(0),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => 0,
            Err(error) if error.raw_os_error() == Some(libc::ENETDOWN) => 0,
            Err(error) => return Err(error),
        };
        Ok(batch.taken)
    }
}

#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL_OCTETS]);

/// Buffers of one system call.
pub(super) struct Batch {
    headers: Box<[libc::mmsghdr]>,
    parts: Box<[libc::iovec]>,
    controls: Box<[Control]>,
    frames: Box<[u8]>,
    taken: usize,
}

impl Batch {
    pub(super) fn new() -> Self {
        // SAFETY: mmsghdr is plain data for which all-zero is valid.
        let header: libc::mmsghdr = unsafe { mem::zeroed() };
        let part = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Self {
            headers: vec![header; FRAMES].into(),
            parts: vec![part; FRAMES].into(),
            controls: vec![Control([0; CONTROL_OCTETS]); FRAMES].into(),
            frames: vec![1; FRAMES * FRAME_OCTETS].into(),
            taken: 0,
        }
    }

    /// Points every header at its buffers; the kernel shortens lengths on each call.
    fn arm(&mut self) {
        let buffers = self.frames.chunks_exact_mut(FRAME_OCTETS).zip(self.controls.iter_mut());
        for ((header, part), (frame, control)) in
            self.headers.iter_mut().zip(self.parts.iter_mut()).zip(buffers)
        {
            *part = libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: FRAME_OCTETS };
            header.msg_hdr.msg_iov = std::ptr::from_mut(part);
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = CONTROL_OCTETS as _;
        }
    }

    /// Calls `act` with each frame and its stamp (nanoseconds of `CLOCK_REALTIME`), in order of arrival.
    pub(super) fn each(&self, mut act: impl FnMut(&[u8], Option<u64>)) {
        let frames = self.frames.chunks_exact(FRAME_OCTETS);
        for (header, frame) in self.headers.iter().take(self.taken).zip(frames) {
            let octets = (header.msg_len as usize).min(FRAME_OCTETS);
            act(&frame[..octets], stamp(&header.msg_hdr));
        }
    }
}

/// The stamp among the control messages of a received `message`.
fn stamp(message: &libc::msghdr) -> Option<u64> {
    // SAFETY: the kernel has filled msg_control and set msg_controllen to what it wrote; CMSG_FIRSTHDR and
    // CMSG_NXTHDR stay inside that. The data of SCM_TIMESTAMPNS is one timespec; it is read unaligned.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_TIMESTAMPNS {
                let at: libc::timespec = std::ptr::read_unaligned(libc::CMSG_DATA(header).cast());
                return u64::try_from(at.tv_sec * 1_000_000_000 + at.tv_nsec).ok();
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    None
}
