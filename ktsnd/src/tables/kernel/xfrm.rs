// SPDX-License-Identifier: Apache-2.0
//! The node's IPsec policies (XFRM), as far as they concern what leaves by an uplink.
//!
//! In: XFRM netlink: a dump, and announcements that something changed. Out: whether a tunnel's datagrams would be
//! encrypted (or blocked) on the kernel's way. On doubt they would. A kernel without XFRM netlink has no policies. Reads
//! only.

pub(crate) mod fuzzing;

use std::io;
use std::net::IpAddr;
use std::task::{Context, Poll};

use ktsn_model::IpPrefix;
use netlink_packet_xfrm::constants::{
    AF_INET, AF_INET6, XFRM_MSG_GETPOLICY, XFRM_MSG_NEWPOLICY, XFRM_POLICY_ALLOW, XFRM_POLICY_OUT,
    XFRMA_IF_ID, XFRMA_MARK, XFRMA_TMPL,
};
use netlink_packet_xfrm::{
    Address, Mark, UserPolicyInfo, XFRM_USER_POLICY_ID_LEN, XFRM_USER_POLICY_INFO_LEN,
};
use rtnetlink::packet_core::{DecodeError, NlasIterator, parse_u32};
use rustix::net::{Protocol, netlink};

use super::netlink::{Hints, Listener, Netlink};
use super::raw::{Raw, RawProtocol};

/// XFRMNLGRP_POLICY (linux/xfrm.h) as a bit.
const GROUP_POLICY: u32 = 1 << 3;
const PROTOCOL_UDP: u8 = 17;
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
pub(crate) struct Tunnelled {
    pub(crate) local: IpAddr,
    pub(crate) vtep: IpAddr,
    pub(crate) port: u16,
    /// Number of the device that they leave by.
    pub(crate) device: u32,
}

/// XFRM netlink.
#[derive(Clone, Debug)]
pub(super) struct Xfrm;

impl RawProtocol for Xfrm {
    const PROTOCOL: Protocol = netlink::XFRM;
    const GROUPS: u32 = GROUP_POLICY;

    fn note(_: u16, hints: &mut Hints) {
        *hints = Hints::all();
    }
}

type Message = Raw<Xfrm>;

/// The node's outgoing IPsec policies as they were last read.
#[derive(Debug)]
pub(crate) struct Policies {
    /// `None`: this kernel has no XFRM, or cannot be asked.
    socket: Option<Listener<Message>>,
    list: Vec<Policy>,
    /// The list could not be read.
    is_unknown: bool,
}

impl Policies {
    /// Opens a socket in the calling thread's namespace and reads the policies.
    pub(crate) fn open() -> io::Result<Self> {
        let socket = match Netlink::open() {
            Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => None,
            opened => Some(Listener::new(opened?)?),
        };
        let mut policies = Self { socket, list: Vec::new(), is_unknown: false };
        if let Some(socket) = &mut policies.socket {
            socket.netlink.hints = Hints::all();
        }
        policies.refresh()?;
        Ok(policies)
    }

    /// The policies of a node on which they cannot be read: everything counts as covered.
    pub(crate) fn unknown() -> Self {
        Self { socket: None, list: Vec::new(), is_unknown: true }
    }

    /// Whether something was announced that no dump has shown yet, or the last dump failed.
    pub(crate) fn is_behind(&self) -> bool {
        self.socket.as_ref().is_some_and(|socket| socket.netlink.hints.any())
    }

    /// Ready when the first announcement came.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.socket.as_mut().map_or(Poll::Pending, |socket| socket.poll(context))
    }

    /// Reads the policies when something was announced; whether they are others now.
    pub(crate) fn refresh(&mut self) -> io::Result<bool> {
        let Some(Listener { netlink, .. }) = &mut self.socket else { return Ok(false) };
        if !std::mem::take(&mut netlink.hints).any() {
            return Ok(false);
        }
        let before = (std::mem::take(&mut self.list), self.is_unknown);
        self.list = dump(netlink).inspect_err(|_| {
            netlink.hints = Hints::all();
            self.is_unknown = true;
        })?;
        self.is_unknown = false;
        Ok(before != (self.list.clone(), false))
    }

    /// Whether any datagram may be meant.
    pub(crate) fn protect_anything(&self) -> bool {
        self.is_unknown || self.list.iter().any(|policy| policy.protects)
    }

    /// Whether the kernel would encrypt or block these datagrams, or may: the first policy that matches decides.
    pub(crate) fn cover(&self, what: &Tunnelled) -> bool {
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

/// All outgoing policies, the one that wins first.
fn dump(netlink: &mut Netlink<Message>) -> io::Result<Vec<Policy>> {
    // A zero identifier: every policy.
    let request = Message::new(XFRM_MSG_GETPOLICY, vec![0; XFRM_USER_POLICY_ID_LEN]);
    let all = netlink
        .dump(&request, |message| (message.kind == XFRM_MSG_NEWPOLICY).then(|| policy(&message.octets)))?;
    let all: Result<Vec<Option<Policy>>, DecodeError> = all.into_iter().collect();
    let mut list: Vec<Policy> = all.map_err(io::Error::other)?.into_iter().flatten().collect();
    if list.len() > POLICIES_MAX {
        return Err(io::Error::other("more policies than can be looked at"));
    }
    list.sort_by_key(|policy| policy.priority);
    Ok(list)
}

/// An outgoing policy that concerns ordinary devices; `None`: another one.
fn policy(octets: &[u8]) -> Result<Option<Policy>, DecodeError> {
    let info = UserPolicyInfo::parse(octets)?;
    let selector = info.selector;
    let prefix = |address: &Address, bits| prefix(selector.family, address, bits);
    let source = prefix(&selector.saddr, selector.prefixlen_s);
    let destination = prefix(&selector.daddr, selector.prefixlen_d);
    let (Some(source), Some(destination), XFRM_POLICY_OUT) = (source, destination, info.direction) else {
        return Ok(None);
    };
    let mut policy = Policy {
        priority: info.priority,
        source,
        destination,
        destination_port: (selector.dport, selector.dport_mask),
        protocol: selector.proto,
        device: selector.ifindex.cast_unsigned(),
        protects: info.action != XFRM_POLICY_ALLOW,
        is_partial: selector.sport_mask != 0,
    };
    for attribute in NlasIterator::new(octets.get(XFRM_USER_POLICY_INFO_LEN..).unwrap_or_default()) {
        let attribute = attribute?;
        match attribute.kind() {
            XFRMA_TMPL => policy.protects = true,
            XFRMA_MARK => policy.is_partial |= Mark::parse(attribute.value())?.mask != 0,
            // Of an xfrm device, which is a route's business.
            XFRMA_IF_ID if parse_u32(attribute.value())? != 0 => return Ok(None),
            _ => {}
        }
    }
    Ok(Some(policy))
}

/// `None` for a selector of another family.
fn prefix(family: u16, address: &Address, bits: u8) -> Option<IpPrefix> {
    let address = match family {
        AF_INET => IpAddr::V4(address.to_ipv4()),
        AF_INET6 => IpAddr::V6(address.to_ipv6()),
        _ => return None,
    };
    IpPrefix::covering(address, bits).ok()
}
