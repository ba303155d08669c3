// SPDX-License-Identifier: Apache-2.0
//! One rtnetlink socket: dumps, requests, and hints from notifications.
//!
//! In: requests; whatever the kernel tells the groups of links, addresses, routes and neighbours. Out: dumped
//! messages, and [`Hints`] of what changed. Messages that do not come from the kernel are ignored: a pod's root may
//! write to sockets of its namespace.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use netlink_packet_route::link::{LinkAttribute, LinkExtentMask, LinkMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily as SocketFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// RTMGRP_LINK, _NEIGH, _IPV4_IFADDR, _IPV4_ROUTE, _IPV6_IFADDR, _IPV6_ROUTE (rtnetlink(7)), and the groups 24 and 25,
/// RTNLGRP_IPV4_NETCONF and _IPV6_NETCONF: forwarding switched on or off.
const GROUPS: u32 = 0x1 | 0x4 | 0x10 | 0x40 | 0x100 | 0x400 | 1 << 23 | 1 << 24;
/// The kernel fills at most 32 KiB at once.
const BUFFER_OCTETS: usize = 64 * 1024;
thread_local! {
    /// Where messages are received: the namespaces of many pods take turns in one thread.
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; BUFFER_OCTETS].into());
}
/// Room for notifications while nobody reads.
const SOCKET_BUFFER_OCTETS: usize = 1 << 20;
/// How long the kernel may take for the next part of a dump.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often an interrupted dump is begun again.
const DUMP_TRIES: u32 = 5;
/// Header of a message: length, type and flags, sequence number, port (netlink(7)).
const HEADER_OCTETS: usize = 16;
const SEQUENCE_AT: usize = 8;
const PORT_AT: usize = 12;

/// What changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hints {
    /// A link, an address or a route, or notifications were lost.
    pub(super) layout: bool,
    /// A neighbour.
    pub(super) neighbours: bool,
    /// An entry of a forwarding table that is learnt.
    pub(super) forwarding: bool,
}

impl Hints {
    pub(super) fn any(self) -> bool {
        self.layout || self.neighbours || self.forwarding
    }
    pub(super) fn all() -> Self {
        Self { layout: true, neighbours: true, forwarding: true }
    }
    pub(super) fn join(&mut self, other: Self) {
        self.layout |= other.layout;
        self.neighbours |= other.neighbours;
        self.forwarding |= other.forwarding;
    }
    fn note(&mut self, message: &RouteNetlinkMessage, learnt: &[u32]) {
        match message {
            RouteNetlinkMessage::NewNeighbour(m) | RouteNetlinkMessage::DelNeighbour(m) => {
                match m.header.family {
                    AddressFamily::Inet | AddressFamily::Inet6 => self.neighbours = true,
                    // Forwarding entries of bridges come here as well.
                    AddressFamily::Bridge => self.forwarding |= learnt.contains(&m.header.ifindex),
                    _ => {}
                }
            }
            _ => self.layout = true,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Netlink {
    socket: OwnedFd,
    port: u32,
    sequence: u32,
    hints: Hints,
    /// Devices whose forwarding tables matter.
    learnt: Vec<u32>,
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Where the reading of one receive call stands.
enum Read {
    /// Something was read.
    Some,
    /// Nothing is there.
    Nothing,
}

impl Netlink {
    /// Opens a socket in the calling thread's namespace and listens.
    pub(crate) fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(SocketFamily::NETLINK, SocketType::RAW, flags, None)?;
        // Without the right to exceed the system's limit the ordinary call takes what it gets.
        if rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, SOCKET_BUFFER_OCTETS).is_err() {
            rustix::net::sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BUFFER_OCTETS)?;
        }
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, GROUPS))?;
        let name = SocketAddrNetlink::try_from(rustix::net::getsockname(&socket)?)?;
        Ok(Self { socket, port: name.pid(), sequence: 0, hints: Hints::default(), learnt: Vec::new() })
    }

    /// Devices whose forwarding tables matter from now on.
    pub(super) fn watch_forwarding(&mut self, devices: Vec<u32>) {
        self.learnt = devices;
    }

    /// What changed since the last call, as far as it was read.
    pub(super) fn take_hints(&mut self) -> Hints {
        std::mem::take(&mut self.hints)
    }

    /// Reads all that is there.
    pub(super) fn drain(&mut self) -> io::Result<()> {
        while let Read::Some = self.receive(|_, _| {})? {}
        Ok(())
    }

    /// Asks the kernel to do something; its refusal, if any, is read and ignored later.
    pub(super) fn ask(&mut self, message: RouteNetlinkMessage) -> io::Result<()> {
        self.send(message, NLM_F_REQUEST | NLM_F_CREATE)
    }

    /// Has the kernel make something new.
    pub(crate) fn make(&mut self, message: RouteNetlinkMessage) -> io::Result<()> {
        self.ask_for(message, NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE, |_| {}).map(drop)
    }

    /// Asks one question; what `parse` takes of the answer is kept.
    pub(super) fn query<T>(
        &mut self,
        request: &RouteNetlinkMessage,
        parse: impl Fn(RouteNetlinkMessage) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        let mut entries = Vec::new();
        // The acknowledgement comes last and ends it.
        self.ask_for(request.clone(), NLM_F_REQUEST | NLM_F_ACK, |message| entries.extend(parse(message)))?;
        Ok(entries)
    }

    /// Dumps a table, once more when it changed meanwhile; what `parse` takes is kept.
    pub(super) fn dump<T>(
        &mut self,
        request: &RouteNetlinkMessage,
        parse: impl Fn(RouteNetlinkMessage) -> Option<T>,
    ) -> io::Result<Vec<T>> {
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
    fn ask_for(
        &mut self,
        request: RouteNetlinkMessage,
        flags: u16,
        mut take: impl FnMut(RouteNetlinkMessage),
    ) -> io::Result<bool> {
        self.send(request, flags)?;
        let (mut done, mut whole) = (false, true);
        let mut failed = None;
        while !done {
            let read = self.receive(|header, payload| {
                whole &= header.flags & NLM_F_DUMP_INTR == 0;
                match payload {
                    NetlinkPayload::InnerMessage(message) => take(message),
                    NetlinkPayload::Done(_) => done = true,
                    NetlinkPayload::Error(error) => {
                        done = true;
                        if error.code.is_some() {
                            failed = Some(error.to_io());
                        }
                    }
                    _ => {}
                }
            })?;
            if let (Read::Nothing, false) = (read, done) {
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

    fn send(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1).max(1);
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        header.sequence_number = self.sequence;
        let mut packet = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        packet.finalize();
        let mut octets = vec![0; packet.buffer_len()];
        packet.serialize(&mut octets);
        rustix::net::send(&self.socket, &octets, SendFlags::empty())?;
        Ok(())
    }

    /// One receive call: its messages go to `take` when they answer, into the hints when they notify.
    fn receive(
        &mut self,
        take: impl FnMut(&NetlinkHeader, NetlinkPayload<RouteNetlinkMessage>),
    ) -> io::Result<Read> {
        BUFFER.with_borrow_mut(|buffer| self.receive_in(buffer, take))
    }

    fn receive_in(
        &mut self,
        buffer: &mut [u8],
        mut take: impl FnMut(&NetlinkHeader, NetlinkPayload<RouteNetlinkMessage>),
    ) -> io::Result<Read> {
        let flags = RecvFlags::DONTWAIT;
        let (octets, sender) = match rustix::net::recvfrom(&self.socket, &mut *buffer, flags) {
            Ok((octets, _, sender)) => (octets, sender),
            Err(Errno::AGAIN) => return Ok(Read::Nothing),
            Err(Errno::INTR) => return Ok(Read::Some),
            Err(Errno::NOBUFS) => {
                // Notifications were lost: everything may have changed.
                self.hints = Hints::all();
                return Ok(Read::Some);
            }
            Err(error) => return Err(error.into()),
        };
        let from_kernel =
            sender.and_then(|sender| SocketAddrNetlink::try_from(sender).ok()).is_some_and(|s| s.pid() == 0);
        if !from_kernel {
            return Ok(Read::Some);
        }
        let mut rest = &buffer[..octets.min(BUFFER_OCTETS)];
        while let Some((message, behind)) = first_message(rest) {
            rest = behind;
            // Answers carry our port and number; the rest announces what somebody changed.
            let is_answer = number(message, PORT_AT) == Some(self.port)
                && number(message, SEQUENCE_AT) == Some(self.sequence);
            match NetlinkMessage::<RouteNetlinkMessage>::deserialize(message).map(NetlinkMessage::into_parts)
            {
                Ok((header, payload)) if is_answer => take(&header, payload),
                Ok((_, NetlinkPayload::InnerMessage(announced))) => self.hints.note(&announced, &self.learnt),
                Ok((_, NetlinkPayload::Overrun(_))) => self.hints = Hints::all(),
                // An answer to an earlier request that was given up, or a refusal.
                Ok(_) => {}
                // What the parser does not know: a change of something, or an entry that cannot concern us.
                Err(_) => self.hints.layout |= !is_answer,
            }
        }
        Ok(Read::Some)
    }
}

/// The question for all links, without their counters, which would be most of the answer.
pub(super) fn all_links() -> RouteNetlinkMessage {
    let mut request = LinkMessage::default();
    request.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
    RouteNetlinkMessage::GetLink(request)
}

/// A 32-bit number of a message's header, in the machine's order.
pub(super) fn number(message: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(message.get(at..at + 4)?.try_into().ok()?))
}

/// Splits off one message; lengths are rounded up to 4.
pub(super) fn first_message(octets: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = usize::try_from(number(octets, 0)?).ok()?;
    if length < HEADER_OCTETS || length > octets.len() {
        return None;
    }
    let next = length.next_multiple_of(4).min(octets.len());
    Some((octets.get(..length)?, octets.get(next..)?))
}
