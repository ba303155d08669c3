// SPDX-License-Identifier: Apache-2.0
//! One netlink socket: dumps, requests, and hints from notifications.
//!
//! In: requests; what the kernel announces to a [`Family`]'s groups. Out: dumped messages, and [`Hints`] of what
//! changed. Messages that do not come from the kernel are ignored: a pod's root may write to sockets of its namespace.

use std::cell::RefCell;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkBuffer,
    NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload, NetlinkSerializable,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily as SocketFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};
use tokio::io::unix::AsyncFd;

use crate::supervise;
use crate::sys;

/// The kernel fills at most 32 KiB at once.
const BUFFER_OCTETS: usize = 64 * 1024;
thread_local! {
    /// Where messages are received: the namespaces of many pods take turns in one thread.
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; BUFFER_OCTETS].into());
}
/// Room for notifications until they are read.
const SOCKET_BUFFER_OCTETS: usize = 1 << 20;
/// How long the kernel may take for the next part of a dump.
const PATIENCE: Duration = Duration::from_secs(1);
/// Announcements that are read at once.
const ANNOUNCEMENTS_MAX: usize = 64;
/// How often an interrupted dump is begun again.
const DUMP_TRIES: u32 = 5;

/// What changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hints {
    /// A link, an address or a route, or notifications were lost.
    pub(crate) layout: bool,
    /// A neighbour.
    pub(crate) neighbours: bool,
    /// An entry of a forwarding table that is learnt.
    pub(crate) forwarding: bool,
    /// A rule of the namespace's packet filter.
    pub(crate) filter: bool,
    /// An exception of a route: a redirect, or an MTU that a router named.
    pub(crate) exceptions: bool,
}

impl Hints {
    pub(crate) fn any(self) -> bool {
        self.layout || self.neighbours || self.forwarding || self.filter || self.exceptions
    }
    pub(crate) fn all() -> Self {
        Self { layout: true, neighbours: true, forwarding: true, filter: true, exceptions: true }
    }
}

/// The messages of a netlink protocol.
pub(crate) trait Family: NetlinkSerializable + NetlinkDeserializable + Clone {
    /// The protocol's number; `None`: 0, rtnetlink.
    const PROTOCOL: Option<Protocol>;
    /// The groups of announcements, as bits.
    const GROUPS: u32;

    /// Notes what an announcement says. `learnt`: devices whose forwarding tables matter.
    fn note(&self, hints: &mut Hints, learnt: &[u32]);
}

impl Family for RouteNetlinkMessage {
    const PROTOCOL: Option<Protocol> = None;
    /// RTMGRP_LINK, _NEIGH, _IPV4_IFADDR, _IPV4_ROUTE, _IPV4_RULE, _IPV6_IFADDR, _IPV6_ROUTE (rtnetlink(7)), and the groups 19,
    /// RTNLGRP_IPV6_RULE, 24 and 25, RTNLGRP_IPV4_NETCONF and _IPV6_NETCONF: forwarding switched on or off, and 32,
    /// RTNLGRP_NEXTHOP.
    const GROUPS: u32 =
        0x1 | 0x4 | 0x10 | 0x40 | 0x80 | 0x100 | 0x400 | 1 << 18 | 1 << 23 | 1 << 24 | 1 << 31;

    fn note(&self, hints: &mut Hints, learnt: &[u32]) {
        match self {
            Self::NewNeighbour(m) | Self::DelNeighbour(m) => match m.header.family {
                AddressFamily::Inet | AddressFamily::Inet6 => hints.neighbours = true,
                // Forwarding entries of bridges come here as well.
                AddressFamily::Bridge => hints.forwarding |= learnt.contains(&m.header.ifindex),
                _ => {}
            },
            _ => hints.layout = true,
        }
    }
}

/// How much is read of a namespace that others control.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Entries of one dump.
    pub(crate) entries_max: usize,
    /// Octets of one dump.
    pub(crate) octets_max: usize,
    /// No dump goes on after this.
    pub(crate) until: Instant,
}

impl Bounds {
    /// The bound that this much is beyond.
    fn broken(&self, entries: usize, octets: usize) -> Option<String> {
        if entries > self.entries_max {
            return Some(format!("more than {} entries", self.entries_max));
        }
        if octets > self.octets_max {
            return Some(format!("more than {} octets", self.octets_max));
        }
        (Instant::now() > self.until).then(|| "reading takes too long".to_owned())
    }
}

/// A netlink socket.
#[derive(Debug)]
pub(crate) struct Netlink<M = RouteNetlinkMessage> {
    socket: OwnedFd,
    port: u32,
    sequence: u32,
    /// What changed, as far as announcements were read, since these were last cleared.
    pub(crate) hints: Hints,
    /// Devices whose forwarding tables matter.
    pub(crate) learnt: Vec<u32>,
    /// Where others control the namespace. A socket with a dump beyond them is of no more use: the rest of the answer goes with it.
    pub(crate) bounds: Option<Bounds>,
    /// A dump was beyond the bounds.
    pub(crate) is_beyond_bounds: bool,
    /// An answer to the last request had a message that could not be read.
    pub(crate) has_unread: bool,
    messages: PhantomData<M>,
}

impl<M> AsFd for Netlink<M> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl<M: Family> Netlink<M> {
    /// Opens a socket in the calling thread's namespace and listens.
    pub(crate) fn open() -> io::Result<Self> {
        Self::open_in(M::GROUPS)
    }

    /// Opens a socket in the calling thread's namespace that hears of nothing.
    pub(crate) fn open_unsubscribed() -> io::Result<Self> {
        Self::open_in(0)
    }

    fn open_in(groups: u32) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(SocketFamily::NETLINK, SocketType::RAW, flags, M::PROTOCOL)?;
        // Without the right to exceed the system's limit the ordinary call takes what it gets.
        if rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, SOCKET_BUFFER_OCTETS).is_err() {
            rustix::net::sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BUFFER_OCTETS)?;
        }
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, groups))?;
        let name = SocketAddrNetlink::try_from(rustix::net::getsockname(&socket)?)?;
        let (hints, learnt) = (Hints::default(), Vec::new());
        let (port, bounds) = (name.pid(), None);
        let (sequence, is_beyond_bounds, has_unread, messages) = (0, false, false, PhantomData);
        Ok(Self { socket, port, sequence, hints, learnt, bounds, is_beyond_bounds, has_unread, messages })
    }

    /// Reads announcements that are there, up to a bound: who controls the namespace may announce without end. True when all were
    /// read. Where reading fails, dumps will show what changed.
    pub(crate) fn drain(&mut self) -> bool {
        for _ in 0..ANNOUNCEMENTS_MAX {
            match self.receive(|_, _| {}) {
                Ok(Some(_)) => {}
                Ok(None) => return true,
                Err(_) => {
                    self.hints = Hints::all();
                    return true;
                }
            }
        }
        false
    }

    /// Asks the kernel to do something; its refusal, if any, is read and ignored later.
    pub(crate) fn ask(&mut self, message: M) -> io::Result<()> {
        self.send(message, NLM_F_REQUEST | NLM_F_CREATE)
    }

    /// Has the kernel make something new.
    pub(crate) fn make(&mut self, message: M) -> io::Result<()> {
        self.ask_for(message, NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE, |_| {}).map(drop)
    }

    /// Asks one question; what `parse` takes of the answer is kept.
    pub(crate) fn query<T>(&mut self, request: &M, parse: impl Fn(M) -> Option<T>) -> io::Result<Vec<T>> {
        let mut entries = Vec::new();
        // The acknowledgement comes last and ends it.
        self.ask_for(request.clone(), NLM_F_REQUEST | NLM_F_ACK, |message| entries.extend(parse(message)))?;
        Ok(entries)
    }

    /// Dumps a table, once more when it changed meanwhile; what `parse` takes is kept.
    pub(crate) fn dump<T>(&mut self, request: &M, parse: impl Fn(M) -> Option<T>) -> io::Result<Vec<T>> {
        for _ in 0..DUMP_TRIES {
            let mut entries = Vec::new();
            let flags = NLM_F_REQUEST | NLM_F_DUMP;
            if self.ask_for(request.clone(), flags, |message| entries.extend(parse(message)))? {
                return Ok(entries);
            }
        }
        Err(io::Error::other("the table changes faster than it can be read"))
    }

    /// One request with all of its answer; false when a dump was interrupted by a change.
    fn ask_for(&mut self, request: M, flags: u16, mut take: impl FnMut(M)) -> io::Result<bool> {
        self.send(request, flags)?;
        self.has_unread = false;
        let (mut done, mut whole) = (false, true);
        let mut failed = None;
        let (mut entries, mut octets) = (0, 0);
        while !done {
            let read = self.receive(|header, payload| {
                entries += 1;
                whole &= header.flags & NLM_F_DUMP_INTR == 0;
                match payload {
                    NetlinkPayload::InnerMessage(message) => take(message),
                    NetlinkPayload::Done(end) => {
                        done = true;
                        if end.code < 0 {
                            failed = Some(io::Error::from_raw_os_error(end.code.saturating_neg()));
                        }
                    }
                    NetlinkPayload::Error(error) => {
                        done = true;
                        if error.code.is_some() {
                            failed = Some(error.to_io());
                        }
                    }
                    _ => {}
                }
            })?;
            octets += read.unwrap_or(0);
            let bounds = self.bounds.filter(|_| !done);
            if let Some(broken) = bounds.and_then(|bounds| bounds.broken(entries, octets)) {
                self.is_beyond_bounds = true;
                return Err(io::Error::other(broken));
            }
            if read.is_none() && !done {
                self.wait()?;
            }
        }
        failed.map_or(Ok(whole), Err)
    }

    fn wait(&self) -> io::Result<()> {
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        match poll(&mut fds, Some(&patience)) {
            Ok(0) => Err(io::Error::new(io::ErrorKind::TimedOut, "the kernel does not answer")),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn send(&mut self, message: M, flags: u16) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1).max(1);
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        header.sequence_number = self.sequence;
        let mut packet = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        packet.finalize();
        let mut octets = vec![0; packet.buffer_len()];
        packet.serialize(&mut octets);
        // The kernel answers in this call, or begins to.
        supervise::kernel("for the devices, addresses, routes or neighbours of a namespace", || {
            rustix::net::send(&self.socket, &octets, SendFlags::empty())
        })?;
        Ok(())
    }

    /// One receive call: its messages go to `take` when they answer, into the hints when they notify. Returns how many octets it
    /// read; `None` when nothing was there.
    fn receive(&mut self, take: impl FnMut(&NetlinkHeader, NetlinkPayload<M>)) -> io::Result<Option<usize>> {
        BUFFER.with_borrow_mut(|buffer| self.receive_in(buffer, take))
    }

    fn receive_in(
        &mut self,
        buffer: &mut [u8],
        mut take: impl FnMut(&NetlinkHeader, NetlinkPayload<M>),
    ) -> io::Result<Option<usize>> {
        let flags = RecvFlags::DONTWAIT;
        let (octets, sender) = match rustix::net::recvfrom(&self.socket, &mut *buffer, flags) {
            Ok((octets, _, sender)) => (octets, sender),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR) => return Ok(Some(0)),
            Err(Errno::NOBUFS) => {
                // Notifications were lost: everything may have changed.
                self.hints = Hints::all();
                return Ok(Some(0));
            }
            Err(error) => return Err(error.into()),
        };
        let from_kernel =
            sender.and_then(|sender| SocketAddrNetlink::try_from(sender).ok()).is_some_and(|s| s.pid() == 0);
        if !from_kernel {
            return Ok(Some(0));
        }
        let mut rest = &buffer[..octets.min(BUFFER_OCTETS)];
        while let Some((message, behind)) = first_message(rest) {
            rest = behind;
            // Answers carry our port and number; the rest announces changes.
            let is_answer = message.port_number() == self.port && message.sequence_number() == self.sequence;
            match NetlinkMessage::<M>::deserialize(message.buffer).map(NetlinkMessage::into_parts) {
                Ok((header, payload)) if is_answer => take(&header, payload),
                Ok((_, NetlinkPayload::InnerMessage(announced))) => {
                    announced.note(&mut self.hints, &self.learnt);
                }
                Ok((_, NetlinkPayload::Overrun(_))) => self.hints = Hints::all(),
                // An answer to an earlier request that was given up, or a refusal.
                Ok(_) => {}
                // What the parser does not know: a change of something, or an entry that cannot concern us.
                Err(_) if is_answer => self.has_unread = true,
                Err(_) => self.hints.layout = true,
            }
        }
        Ok(Some(octets))
    }
}

/// Splits off one message; lengths are rounded up to 4.
pub(crate) fn first_message(octets: &[u8]) -> Option<(NetlinkBuffer<&[u8]>, &[u8])> {
    let length = NetlinkBuffer::new_checked(octets).ok()?.length() as usize;
    let next = length.next_multiple_of(4).min(octets.len());
    Some((NetlinkBuffer::new(octets.get(..length)?), octets.get(next..)?))
}

/// A socket whose announcements wake a task.
#[derive(Debug)]
pub(crate) struct Listener<M = RouteNetlinkMessage> {
    pub(crate) netlink: Netlink<M>,
    /// A second descriptor of the same socket.
    ready: AsyncFd<OwnedFd>,
}

impl<M: Family> Listener<M> {
    /// Registers the socket with the current runtime.
    pub(crate) fn new(netlink: Netlink<M>) -> io::Result<Self> {
        let ready = sys::readiness(netlink.socket.try_clone()?)?;
        Ok(Self { netlink, ready })
    }

    /// Reads announcements; ready when the first one came that matters.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let before = self.netlink.hints.any();
        while let Poll::Ready(Ok(mut guard)) = self.ready.poll_read_ready(context) {
            if self.netlink.drain() {
                guard.clear_ready();
                continue;
            }
            // The rest is read when it is the socket's turn again.
            guard.retain_ready();
            context.waker().wake_by_ref();
            break;
        }
        if self.netlink.hints.any() && !before { Poll::Ready(()) } else { Poll::Pending }
    }
}
