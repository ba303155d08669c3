// SPDX-License-Identifier: Apache-2.0
//! libc's socket functions. In: descriptors that the caller keeps open, addresses, octets. Out: counts and errno.
#![allow(unsafe_code)]

use super::Received;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// The kernel's `struct sock_txtime`.
#[repr(C)]
struct SockTxTime {
    clock: i32,
    flags: u32,
}

fn checked(status: i32) -> io::Result<()> {
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn octets(count: isize) -> io::Result<usize> {
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// A UDP socket of the address's family, closed on exec.
pub(super) fn socket(peer: SocketAddr) -> io::Result<OwnedFd> {
    let family = if peer.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: socket takes integers only.
    let fd = unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    checked(fd)?;
    // SAFETY: `fd` was just made and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Calls `act` with the address in the kernel's form.
fn with_address(
    address: SocketAddr,
    act: impl FnOnce(*const libc::sockaddr, libc::socklen_t) -> i32,
) -> io::Result<()> {
    match address {
        SocketAddr::V4(address) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                sin_zero: [0; 8],
            };
            checked(act((&raw const raw).cast(), mem::size_of_val(&raw) as libc::socklen_t))
        }
        SocketAddr::V6(address) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: address.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                sin6_scope_id: address.scope_id(),
            };
            checked(act((&raw const raw).cast(), mem::size_of_val(&raw) as libc::socklen_t))
        }
    }
}

pub(super) fn connect(fd: RawFd, peer: SocketAddr) -> io::Result<()> {
    // SAFETY: `with_address` passes a sockaddr that is valid for the length given.
    with_address(peer, |address, length| unsafe { libc::connect(fd, address, length) })
}

pub(super) fn bind(fd: RawFd, local: SocketAddr) -> io::Result<()> {
    // SAFETY: `with_address` passes a sockaddr that is valid for the length given.
    with_address(local, |address, length| unsafe { libc::bind(fd, address, length) })
}

fn set<T>(fd: RawFd, name: i32, value: &T) -> io::Result<()> {
    let length = mem::size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is valid for `length` octets across the call.
    checked(unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, name, std::ptr::from_ref(value).cast(), length) })
}

pub(super) fn set_int(fd: RawFd, name: i32, value: i32) -> io::Result<()> {
    set(fd, name, &value)
}

pub(super) fn set_tx_time(fd: RawFd, clock: i32) -> io::Result<()> {
    set(fd, libc::SO_TXTIME, &SockTxTime { clock, flags: 0 })
}

pub(super) fn set_receive_timeout(fd: RawFd, nanos: i64) -> io::Result<()> {
    let timeout = libc::timeval { tv_sec: nanos / 1_000_000_000, tv_usec: nanos % 1_000_000_000 / 1_000 };
    set(fd, libc::SO_RCVTIMEO, &timeout)
}

pub(super) fn send(fd: RawFd, payload: &[u8]) -> io::Result<usize> {
    // SAFETY: `payload` is valid for its length; a null address means the connected peer.
    octets(unsafe { libc::sendto(fd, payload.as_ptr().cast(), payload.len(), 0, std::ptr::null(), 0) })
}

/// Room for one control message of 16 octets, aligned as `cmsghdr` needs it.
#[repr(C, align(8))]
struct Control([u8; 64]);

pub(super) fn send_at(fd: RawFd, payload: &[u8], tx_time: u64) -> io::Result<usize> {
    let mut part = libc::iovec { iov_base: payload.as_ptr().cast_mut().cast(), iov_len: payload.len() };
    let mut control = Control([0; 64]);
    // SAFETY: msghdr is plain data for which all-zero is valid.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    // SAFETY: CMSG_SPACE only computes.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(8) } as _;
    // SAFETY: msg_control points to 64 aligned octets, msg_controllen (24) is less; so the first header and its
    // 8 octets of data lie inside. sendmsg only reads `part`, `control` and `payload`, which outlive the call.
    let sent = unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_TXTIME;
        (*header).cmsg_len = libc::CMSG_LEN(8) as _;
        std::ptr::write_unaligned(libc::CMSG_DATA(header).cast::<u64>(), tx_time);
        libc::sendmsg(fd, &raw const message, 0)
    };
    octets(sent)
}

pub(super) fn send_message(fd: RawFd, payload: &[u8]) -> io::Result<usize> {
    let mut part = libc::iovec { iov_base: payload.as_ptr().cast_mut().cast(), iov_len: payload.len() };
    // SAFETY: msghdr is plain data for which all-zero is valid.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    // SAFETY: sendmsg only reads `part` and `payload`, which outlive the call.
    octets(unsafe { libc::sendmsg(fd, &raw const message, 0) })
}

/// Datagrams with their transmit times, for one call.
pub(super) struct Burst {
    /// One after the other, of equal length.
    pub(super) payloads: Box<[u8]>,
    pub(super) payload_octets: usize,
    controls: Box<[Control]>,
    parts: Box<[libc::iovec]>,
}

impl Burst {
    pub(super) fn new(payload: &[u8], count: usize) -> Self {
        let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Self {
            payloads: payload.repeat(count).into_boxed_slice(),
            payload_octets: payload.len(),
            controls: (0..count).map(|_| Control([0; 64])).collect(),
            parts: vec![empty; count].into_boxed_slice(),
        }
    }

    /// Calls `send` with the headers of all datagrams, the one of index `i` for `tx_times(i)`.
    pub(super) fn with<R>(
        &mut self,
        tx_times: impl Fn(usize) -> u64,
        send: impl FnOnce(&mut [libc::mmsghdr]) -> R,
    ) -> R {
        let mut messages = Vec::with_capacity(self.parts.len());
        let payloads = self.payloads.chunks_mut(self.payload_octets.max(1));
        for (index, ((payload, control), part)) in
            payloads.zip(&mut self.controls).zip(&mut self.parts).enumerate()
        {
            *part = libc::iovec { iov_base: payload.as_mut_ptr().cast(), iov_len: payload.len() };
            // SAFETY: mmsghdr is plain data for which all-zero is valid.
            let mut message: libc::mmsghdr = unsafe { mem::zeroed() };
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
            message.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
            // SAFETY: CMSG_SPACE and CMSG_LEN only compute; msg_control points to 64 aligned octets, msg_controllen
            // (24) is less, so the first header and its 8 octets of data lie inside.
            unsafe {
                message.msg_hdr.msg_controllen = libc::CMSG_SPACE(8) as _;
                let header = libc::CMSG_FIRSTHDR(&raw const message.msg_hdr);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_TXTIME;
                (*header).cmsg_len = libc::CMSG_LEN(8) as _;
                std::ptr::write_unaligned(libc::CMSG_DATA(header).cast::<u64>(), tx_times(index));
            }
            messages.push(message);
        }
        send(&mut messages)
    }
}

pub(super) fn send_burst(fd: RawFd, messages: &mut [libc::mmsghdr]) -> io::Result<usize> {
    let count = u32::try_from(messages.len()).map_err(io::Error::other)?;
    // SAFETY: the headers were made by `Burst::with`; its buffers outlive this call; the kernel writes msg_len only.
    let sent = unsafe { libc::sendmmsg(fd, messages.as_mut_ptr(), count, 0) };
    octets(sent as isize)
}

/// Receives with `flags`; `MSG_DONTWAIT` among them never waits.
pub(super) fn receive(fd: RawFd, buffer: &mut [u8], flags: i32) -> io::Result<Received> {
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut control = Control([0; 64]);
    // SAFETY: msghdr is plain data for which all-zero is valid.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = mem::size_of::<Control>() as _;
    // SAFETY: `part`, `control` and `buffer` are valid for the lengths given and borrowed exclusively.
    let octets = octets(unsafe { libc::recvmsg(fd, &raw mut message, flags) })?;
    Ok(Received { octets, stamp_realtime: stamp(&message) })
}

/// The stamp among the control messages of a received `message`.
fn stamp(message: &libc::msghdr) -> Option<u64> {
    // SAFETY: the kernel has filled msg_control and set msg_controllen to what it wrote; CMSG_FIRSTHDR and
    // CMSG_NXTHDR stay inside that. The data of SCM_TIMESTAMPNS is one timespec; it is read unaligned.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let is_stamp =
                (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_TIMESTAMPNS;
            if is_stamp {
                let at: libc::timespec = std::ptr::read_unaligned(libc::CMSG_DATA(header).cast());
                return u64::try_from(at.tv_sec * 1_000_000_000 + at.tv_nsec).ok();
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    None
}

pub(super) fn epoll_create() -> io::Result<OwnedFd> {
    // SAFETY: epoll_create1 takes integers only.
    let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    checked(fd)?;
    // SAFETY: `fd` was just made and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(super) fn epoll_add(epoll: RawFd, fd: RawFd, name: u64) -> io::Result<()> {
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: name };
    // SAFETY: `event` is valid across the call, which only reads it.
    checked(unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) })
}

/// Events that one wait returns at most.
const EVENTS: usize = 16;

/// The events of one wait.
pub(super) struct Events {
    events: [libc::epoll_event; EVENTS],
    count: usize,
}

impl Events {
    /// The names under which the sockets were added.
    pub(super) fn indices(&self) -> impl Iterator<Item = usize> {
        self.events[..self.count].iter().map(|event| usize::try_from(event.u64).unwrap_or(usize::MAX))
    }
}

pub(super) fn epoll_wait(epoll: RawFd, milliseconds: i32) -> io::Result<Events> {
    let mut events = Events { events: [libc::epoll_event { events: 0, u64: 0 }; EVENTS], count: 0 };
    // SAFETY: `events` has room for EVENTS entries and is borrowed exclusively.
    let count = unsafe { libc::epoll_wait(epoll, events.events.as_mut_ptr(), EVENTS as i32, milliseconds) };
    events.count = octets(count as isize)?;
    Ok(events)
}

/// A socket address as the kernel wrote it.
#[derive(Clone, Copy)]
pub(super) struct Address {
    storage: libc::sockaddr_storage,
    length: libc::socklen_t,
}

pub(super) fn receive_from(fd: RawFd, buffer: &mut [u8]) -> io::Result<(usize, Address)> {
    // SAFETY: sockaddr_storage is plain data for which all-zero is valid.
    let storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
    let mut from = Address { storage, length: mem::size_of::<libc::sockaddr_storage>() as libc::socklen_t };
    // SAFETY: `buffer` and the address are valid for the lengths given and borrowed exclusively.
    let received = unsafe {
        let address = (&raw mut from.storage).cast();
        libc::recvfrom(fd, buffer.as_mut_ptr().cast(), buffer.len(), 0, address, &raw mut from.length)
    };
    Ok((octets(received)?, from))
}

pub(super) fn send_to(fd: RawFd, payload: &[u8], to: &Address) -> io::Result<usize> {
    // SAFETY: `payload` is valid for its length, and the address for the length that the kernel gave it.
    octets(unsafe {
        let address = (&raw const to.storage).cast();
        libc::sendto(fd, payload.as_ptr().cast(), payload.len(), 0, address, to.length)
    })
}

/// Whether `fd` can be read within `nanos`.
pub(super) fn poll_in(fd: RawFd, nanos: i64) -> io::Result<bool> {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let longest = libc::timespec { tv_sec: nanos / 1_000_000_000, tv_nsec: nanos % 1_000_000_000 };
    // SAFETY: `poll` and `longest` are valid across the call; a null mask leaves the thread's own.
    octets(unsafe { libc::ppoll(&raw mut poll, 1, &raw const longest, std::ptr::null()) } as isize)
        .map(|ready| ready > 0)
}
