// SPDX-License-Identifier: Apache-2.0
//! What programs pass in the target, and tables that change.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ktsn_resolve::{AttachmentIndex, AttachmentTables, Link, LinkTable, Overlay, PortIndex, Tables};
use ktsn_wire::MacAddress;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fstat, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg,
    socket_with, sockopt,
};
use rustix::pipe::{PipeFlags, pipe_with};

use super::peer::Peer;
use crate::clients::directory::ServedAttachment;
use crate::clients::sys;
use crate::config::{Attachment, AttachmentConfig, ClientLimits};
use crate::worker::Outbox;

/// SO_NETNS_COOKIE of attachment 2. The kernel's own are small.
pub(super) const FOREIGN_NETNS: u64 = 1 << 60;
/// Descriptors that a message of the target carries at most.
const DESCRIPTORS_MAX: usize = 16;

/// Something that a program passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// A UDP socket of the process's namespace, without a port.
    Udp,
    /// One with a port.
    Bound,
    /// A UDP socket that a helper finds in the namespace of attachment 2.
    UdpForeign,
    /// A TCP socket.
    Tcp,
    /// A TCP socket that a helper finds in the namespace of attachment 2.
    TcpForeign,
    /// A connected socket whose peer has closed it.
    Closed,
    /// A packet socket; nothing where the process may make none.
    Packet,
    /// A memfd of so many octets, with all seals or none.
    Memfd(u32, bool),
    /// An eventfd.
    Event,
    /// /dev/null.
    Null,
    /// The write end of a pipe whose closing is noticed.
    Pipe,
    /// The program's end of the connection itself.
    Itself,
    /// The region that it was given, or nothing.
    Region,
    /// The doorbell that it was given, or nothing.
    Doorbell,
}

/// The descriptors of all kinds, each made once.
pub(super) struct Shelf {
    udp: OwnedFd,
    made: Vec<(Passed, OwnedFd)>,
    /// Both ends of a pipe.
    pipe: (OwnedFd, Option<OwnedFd>),
}

fn inet(kind: SocketType) -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::INET, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

fn memfd(octets: u32, is_sealed: bool) -> Result<OwnedFd, Errno> {
    let memfd = memfd_create("passed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&memfd, u64::from(octets))?;
    if is_sealed {
        fcntl_add_seals(&memfd, SealFlags::all())?;
    }
    Ok(memfd)
}

impl Shelf {
    pub(super) fn new() -> Result<Self, Errno> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Self { udp: inet(SocketType::DGRAM)?, made: Vec::new(), pipe: (reader, Some(writer)) })
    }

    pub(super) fn netns_cookie(&self) -> u64 {
        sys::netns_cookie(&self.udp).expect("SO_NETNS_COOKIE")
    }

    /// A copy of what is passed; `None` where there is none.
    pub(super) fn get(&mut self, kind: Passed, peer: &Peer) -> Option<OwnedFd> {
        match kind {
            Passed::Udp => return self.udp.try_clone().ok(),
            Passed::Pipe => return self.pipe.1.as_ref()?.try_clone().ok(),
            Passed::Itself => return peer.fd.try_clone().ok(),
            Passed::Region => return peer.region.as_ref()?.memfd.try_clone().ok(),
            Passed::Doorbell => return peer.region.as_ref()?.doorbell.try_clone().ok(),
            _ => {}
        }
        if let Some((_, fd)) = self.made.iter().find(|(made, _)| *made == kind) {
            return fd.try_clone().ok();
        }
        let fd = make(kind)?;
        self.made.push((kind, fd.try_clone().ok()?));
        Some(fd)
    }

    /// Whether all copies of the pipe's end that were passed are closed. Afterwards no more can be passed.
    pub(super) fn is_all_closed(&mut self) -> bool {
        self.pipe.1 = None;
        rustix::io::read(&self.pipe.0, &mut [0u8; 1]) == Ok(0)
    }
}

fn make(kind: Passed) -> Option<OwnedFd> {
    match kind {
        Passed::UdpForeign | Passed::TcpForeign => {
            let is_udp = kind == Passed::UdpForeign;
            let socket = inet(if is_udp { SocketType::DGRAM } else { SocketType::STREAM }).ok()?;
            sockopt::set_socket_broadcast(&socket, true).ok()?;
            Some(socket)
        }
        Passed::Bound => {
            let socket = inet(SocketType::DGRAM).ok()?;
            let any: std::net::SocketAddr = ([0, 0, 0, 0], 0).into();
            rustix::net::bind(&socket, &any).ok()?;
            Some(socket)
        }
        Passed::Tcp => inet(SocketType::STREAM).ok(),
        Passed::Closed => Some(std::os::unix::net::UnixStream::pair().ok()?.0.into()),
        Passed::Packet => {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None).ok()
        }
        Passed::Memfd(octets, is_sealed) => memfd(octets, is_sealed).ok(),
        Passed::Event => eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok(),
        Passed::Null => std::fs::File::open("/dev/null").ok().map(OwnedFd::from),
        Passed::Udp | Passed::Pipe | Passed::Itself | Passed::Region | Passed::Doorbell => None,
    }
}

/// One message with descriptors, without waiting.
pub(super) fn send(to: &OwnedFd, octets: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let descriptors = descriptors.get(..DESCRIPTORS_MAX).unwrap_or(descriptors);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::NOBUFS);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(to.as_fd(), &[IoSlice::new(octets)], &mut ancillary, flags).map(|_| ())
}

/// What a program may do to its region before it is sealed.
pub(super) fn spoil(memfd: &OwnedFd, how: u8) {
    let _ = match how {
        0 => fcntl_add_seals(memfd, SealFlags::SEAL),
        1 => fcntl_add_seals(memfd, SealFlags::FUTURE_WRITE | SealFlags::SEAL),
        _ => {
            let octets = fstat(memfd).map_or(0, |stat| stat.st_size.cast_unsigned());
            fallocate(memfd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, octets)
        }
    };
}

/// An attachment in no namespace, with interface `index` + 1.
pub(in crate::clients) fn served<P>(
    index: AttachmentIndex,
    mtu: u32,
    clients: ClientLimits,
    worker: Outbox<P>,
) -> ServedAttachment<P> {
    let raw = AttachmentConfig {
        name: Some(format!("net{}", index.0)),
        netns: Some("pod".to_owned()),
        interface: Some("eth0".to_owned()),
        ..AttachmentConfig::default()
    };
    let attachment = Attachment::check("attachment", raw).expect("an attachment");
    ServedAttachment {
        index,
        attachment: Attachment { clients, ..attachment },
        uplink: "up0".to_owned(),
        interface_port: PortIndex(1),
        netns_cookie: 0,
        interface_index: u32::from(index.0) + 1,
        mtu,
        stats: Arc::default(),
        worker,
    }
}

/// Tables: variant 0 without an attachment, 1 without the first one, else with all, by turns with one of two destinations.
pub(super) fn tables(generation: u64, variant: u8) -> Tables {
    let destination = if variant.is_multiple_of(2) { "10.0.0.0/24" } else { "10.0.0.0/25" };
    let link = |port| {
        let link = Link {
            port: PortIndex(port),
            if_index: 2,
            mac: MacAddress([2, 0, 0, 0, 0, 5]),
            mtu: 100,
            addresses: vec![([10, 0, 0, 1].into(), 24)],
            routes: vec![],
            neighbours: vec![],
        };
        LinkTable::new(link).expect("a table")
    };
    let attachment = || {
        let destinations = vec![destination.parse().expect("a prefix")];
        AttachmentTables::new(link(1), link(0).into(), Overlay::None, Some(destinations)).expect("tables")
    };
    let all = match variant {
        0 => vec![],
        1 => vec![None, Some(attachment()), Some(attachment())],
        _ => vec![Some(attachment()), Some(attachment()), Some(attachment())],
    };
    Tables::new(generation, all).expect("tables")
}
