// SPDX-License-Identifier: Apache-2.0
//! The node's IPsec policies (XFRM), as far as they concern what leaves by an uplink.
//!
//! In: XFRM netlink: a dump, and announcements that something changed. Out: whether a tunnel's datagrams would be
//! encrypted (or blocked) on the kernel's way. On doubt they would. A kernel without XFRM netlink has no policies. Reads
//! only.

pub(super) mod fuzzing;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::task::{Context, Poll};

use ktsn_model::IpPrefix;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use tokio::io::unix::AsyncFd;

use super::netlink::{first_message, number};
use super::sys;

/// XFRMNLGRP_POLICY (linux/xfrm.h) as a bit.
const GROUP_POLICY: u32 = 1 << 3;
const MSG_NEWPOLICY: u16 = 0x13;
const MSG_GETPOLICY: u16 = 0x15;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// NLM_F_REQUEST | NLM_F_DUMP.
const DUMP: u16 = 0x1 | 0x300;
const HEADER_OCTETS: usize = 16;
/// `struct xfrm_userpolicy_id`, all zero: every policy.
const ID_OCTETS: usize = 64;
/// `struct xfrm_userpolicy_info`, and where its fields lie.
const INFO_OCTETS: usize = 168;
const PRIORITY_AT: usize = 152;
const DIRECTION_AT: usize = 160;
const ACTION_AT: usize = 161;
/// `struct xfrm_selector`.
const SOURCE_AT: usize = 16;
const DESTINATION_PORT_AT: usize = 32;
const SOURCE_PORT_MASK_AT: usize = 38;
const FAMILY_AT: usize = 40;
const DESTINATION_BITS_AT: usize = 42;
const PROTOCOL_AT: usize = 44;
const DEVICE_AT: usize = 48;
const DIRECTION_OUT: u8 = 1;
const ACTION_ALLOW: u8 = 0;
const ATTRIBUTE_TEMPLATES: u16 = 5;
const ATTRIBUTE_MARK: u16 = 21;
const ATTRIBUTE_IF_ID: u16 = 31;
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
const PROTOCOL_UDP: u8 = 17;
const BUFFER_OCTETS: usize = 64 * 1024;
const PATIENCE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// A node may have as many; beyond, everything counts as covered.
const POLICIES_MAX: usize = 16_384;

/// An outgoing policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Policy {
    /// The lowest wins.
    priority: u32,
    source: IpPrefix,
    destination: IpPrefix,
    /// Port and mask.
    destination_port: (u16, u16),
    /// 0: any.
    protocol: u8,
    /// 0: any.
    device: u32,
    /// Encrypts or blocks; else it lets pass as it is.
    protects: bool,
    /// Looks at something that is not known here: the source port, or a mark.
    is_partial: bool,
}

/// A tunnel's datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tunnelled {
    pub(super) local: IpAddr,
    pub(super) vtep: IpAddr,
    pub(super) port: u16,
    /// Number of the device that they leave by.
    pub(super) device: u32,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Policies {
    /// `None`: this kernel has no XFRM.
    socket: Option<AsyncFd<OwnedFd>>,
    list: Vec<Policy>,
    /// Something was announced, or the last dump failed.
    is_behind: bool,
    /// The list could not be read.
    is_unknown: bool,
}

impl Policies {
    /// Opens it in the calling thread's namespace and reads the policies.
    pub(super) fn open() -> io::Result<Self> {
        let mut policies = Self { socket: socket()?, list: Vec::new(), is_behind: true, is_unknown: false };
        policies.refresh()?;
        Ok(policies)
    }

    /// Of a node whose policies nobody can read: everything counts as covered.
    pub(super) fn unknown() -> Self {
        Self { socket: None, list: Vec::new(), is_behind: false, is_unknown: true }
    }

    /// Whether something was announced that no dump has shown yet.
    pub(super) fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Ready when the first announcement came.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(socket) = &self.socket else { return Poll::Pending };
        let before = self.is_behind;
        while let Poll::Ready(Ok(mut guard)) = socket.poll_read_ready(context) {
            let mut buffer = [0; 4096];
            loop {
                match rustix::net::recv(socket.get_ref(), &mut buffer[..], RecvFlags::DONTWAIT) {
                    Ok(_) | Err(Errno::NOBUFS) => self.is_behind = true,
                    Err(Errno::INTR) => {}
                    Err(_) => break,
                }
            }
            guard.clear_ready();
        }
        if self.is_behind && !before { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Reads the policies when something was announced; whether they are others now.
    pub(super) fn refresh(&mut self) -> io::Result<bool> {
        let Some(socket) = self.socket.as_ref().filter(|_| self.is_behind) else { return Ok(false) };
        self.is_behind = false;
        let before = (std::mem::take(&mut self.list), self.is_unknown);
        match dump(socket.get_ref()) {
            Ok((list, announced)) => {
                (self.list, self.is_unknown) = (list, false);
                self.is_behind = announced;
            }
            Err(error) => {
                (self.is_behind, self.is_unknown) = (true, true);
                return Err(error);
            }
        }
        self.list.sort_by_key(|policy| policy.priority);
        Ok(before != (self.list.clone(), self.is_unknown))
    }

    /// Whether any datagram may be meant.
    pub(super) fn protect_anything(&self) -> bool {
        self.is_unknown || self.list.iter().any(|policy| policy.protects)
    }

    /// Whether the kernel would encrypt or block these datagrams, or may: the first policy that matches decides.
    pub(super) fn cover(&self, what: &Tunnelled) -> bool {
        let first =
            self.list.iter().find(|policy| policy.matches(what) && (policy.protects || !policy.is_partial));
        self.is_unknown || first.is_some_and(|policy| policy.protects)
    }
}

impl Policy {
    fn matches(&self, what: &Tunnelled) -> bool {
        let (port, mask) = self.destination_port;
        self.source.contains(what.local)
            && self.destination.contains(what.vtep)
            && (what.port ^ port) & mask == 0
            && matches!(self.protocol, 0 | PROTOCOL_UDP)
            && (self.device == 0 || self.device == what.device)
    }
}

fn socket() -> io::Result<Option<AsyncFd<OwnedFd>>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let made = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::XFRM));
    let socket = match made {
        Ok(socket) => socket,
        Err(Errno::PROTONOSUPPORT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, GROUP_POLICY))?;
    sys::readiness(socket).map(Some)
}

/// All outgoing policies, and whether a change was announced meanwhile.
fn dump(socket: &OwnedFd) -> io::Result<(Vec<Policy>, bool)> {
    const SEQUENCE: u32 = 0x6b74;
    let mut request = [0; HEADER_OCTETS + ID_OCTETS];
    request[..4].copy_from_slice(&((HEADER_OCTETS + ID_OCTETS) as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&MSG_GETPOLICY.to_ne_bytes());
    request[6..8].copy_from_slice(&DUMP.to_ne_bytes());
    request[8..12].copy_from_slice(&SEQUENCE.to_ne_bytes());
    rustix::net::send(socket, &request, SendFlags::empty())?;
    let (mut list, mut buffer, mut announced) = (Vec::new(), vec![0; BUFFER_OCTETS], false);
    loop {
        let octets = match rustix::net::recv(socket, &mut buffer[..], RecvFlags::DONTWAIT) {
            Ok((octets, _)) => octets,
            Err(Errno::AGAIN) => {
                let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)];
                if poll(&mut fds, Some(&PATIENCE))? == 0 {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "the kernel does not answer"));
                }
                continue;
            }
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        let mut rest = &buffer[..octets.min(BUFFER_OCTETS)];
        while let Some((message, behind)) = first_message(rest) {
            rest = behind;
            if number(message, 8) != Some(SEQUENCE) {
                announced = true;
                continue;
            }
            match u16_at(message, 4) {
                Some(NLMSG_DONE) => return Ok((list, announced)),
                Some(NLMSG_ERROR) => {
                    let code = number(message, HEADER_OCTETS).unwrap_or(0).cast_signed();
                    return Err(io::Error::from_raw_os_error(-code));
                }
                Some(MSG_NEWPOLICY) => list.extend(message.get(HEADER_OCTETS..).and_then(policy)),
                _ => {}
            }
            if list.len() > POLICIES_MAX {
                return Err(io::Error::other("more policies than can be looked at"));
            }
        }
    }
}

/// An outgoing policy that concerns ordinary devices.
fn policy(octets: &[u8]) -> Option<Policy> {
    let (info, attributes) = octets.split_at_checked(INFO_OCTETS)?;
    if info[DIRECTION_AT] != DIRECTION_OUT {
        return None;
    }
    let family = u16_at(info, FAMILY_AT)?;
    let [destination_bits, source_bits] = [info[DESTINATION_BITS_AT], info[DESTINATION_BITS_AT + 1]];
    let mut policy = Policy {
        priority: number(info, PRIORITY_AT)?,
        source: prefix(family, info.get(SOURCE_AT..)?, source_bits)?,
        destination: prefix(family, info, destination_bits)?,
        destination_port: (be16_at(info, DESTINATION_PORT_AT)?, be16_at(info, DESTINATION_PORT_AT + 2)?),
        protocol: info[PROTOCOL_AT],
        device: number(info, DEVICE_AT)?,
        protects: info[ACTION_AT] != ACTION_ALLOW,
        is_partial: be16_at(info, SOURCE_PORT_MASK_AT)? != 0,
    };
    let mut rest = attributes;
    while let (Some(length), Some(kind)) = (u16_at(rest, 0), u16_at(rest, 2)) {
        let value = rest.get(4..usize::from(length))?;
        match kind {
            ATTRIBUTE_TEMPLATES => policy.protects |= !value.is_empty(),
            ATTRIBUTE_MARK => policy.is_partial |= number(value, 4) != Some(0),
            // Of an xfrm device, which is a route's business.
            ATTRIBUTE_IF_ID if number(value, 0) != Some(0) => return None,
            _ => {}
        }
        rest = rest.get(usize::from(length).next_multiple_of(4)..).unwrap_or_default();
    }
    Some(policy)
}

/// `None` for a selector of another family.
fn prefix(family: u16, octets: &[u8], bits: u8) -> Option<IpPrefix> {
    let address = match family {
        AF_INET => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(octets.get(..4)?).ok()?)),
        AF_INET6 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(octets.get(..16)?).ok()?)),
        _ => return None,
    };
    IpPrefix::covering(address, bits).ok()
}

fn u16_at(octets: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(octets.get(at..at + 2)?.try_into().ok()?))
}

fn be16_at(octets: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(octets.get(at..at + 2)?.try_into().ok()?))
}
