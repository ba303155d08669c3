// SPDX-License-Identifier: Apache-2.0
//! The kernel's own answer for one flow: RTM_GETROUTE, as `ip route get` asks it.
//!
//! In: what the kernel would look at for a UDP datagram. Out: the device, the next hop and the source that it would use, or that the
//! datagram would not leave as one plain frame. The kernel evaluates its rules and tables; nothing is changed by that.

use std::io;
use std::net::IpAddr;

use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteMetric, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rustix::io::Errno;

use super::netlink::Netlink;
use super::routes::{gateway, ip};

/// IPPROTO_UDP.
const UDP: u8 = 17;
/// The metric that is a route's MTU.
const RTAX_MTU: u32 = 2;
/// The bits of a type of service that routes look at (INET_DSCP_MASK).
const DSCP: u8 = 0xfc;

/// What is asked about a UDP datagram without a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) destination: IpAddr,
    /// The source where the socket has one.
    pub(crate) source: Option<IpAddr>,
    /// Source and destination port.
    pub(crate) ports: (u16, u16),
    pub(crate) traffic_class: u8,
    /// The user that the socket belongs to.
    pub(crate) uid: u32,
    /// The device that the socket is bound to; 0: none.
    pub(crate) device: u32,
}

impl Question {
    /// About a datagram of which nothing but its destination is known.
    pub(crate) fn to(destination: IpAddr) -> Self {
        Self { destination, source: None, ports: (0, 1), traffic_class: 0, uid: 0, device: 0 }
    }
}

/// How the kernel would send it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) device: u32,
    pub(crate) gateway: Option<IpAddr>,
    pub(crate) source: Option<IpAddr>,
    /// The MTU of the route, where it is not its device's.
    pub(crate) mtu: Option<u32>,
    /// The hop limit of the route, where it has one.
    pub(crate) hop_limit: Option<u8>,
}

/// The kernel's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// One plain frame to one next hop.
    Plain(Answer),
    /// To the namespace itself, encapsulated, or in a way that is not known here.
    Other,
    /// The kernel has no route for it: unreachable, prohibited, a blackhole.
    Refused,
}

/// Asks.
///
/// # Errors
/// The kernel did not answer.
pub(crate) fn ask(netlink: &mut Netlink, question: &Question) -> io::Result<Reply> {
    let request = RouteNetlinkMessage::GetRoute(request(question));
    let answers = netlink.query(&request, |message| match message {
        RouteNetlinkMessage::NewRoute(message) => Some(reply(&message)),
        _ => None,
    });
    match answers {
        Ok(answers) if !netlink.has_unread => Ok(answers.first().copied().unwrap_or(Reply::Other)),
        Ok(_) => Ok(Reply::Other),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::ACCESS | Errno::INVAL | Errno::AGAIN) => {
                Ok(Reply::Refused)
            }
            _ => Err(error),
        },
    }
}

/// Asks about a datagram of an IPv6 socket that is connected. Linux keeps the route that `connect` found: for the socket's address
/// where it was bound before, else for no address, or for the chosen one where there was no route. Nobody can tell a bound socket then,
/// so both must agree, or the datagram is the socket's own.
///
/// # Errors
/// The kernel did not answer.
pub(crate) fn ask_connected(netlink: &mut Netlink, question: &Question) -> io::Result<Reply> {
    let from_its_address = ask(netlink, question)?;
    let from_any = ask(netlink, &Question { source: None, ..*question })?;
    Ok(match (from_its_address, from_any) {
        (reply, Reply::Refused) => reply,
        (Reply::Plain(own), Reply::Plain(any)) if (Answer { source: own.source, ..any }) == own => {
            from_its_address
        }
        _ => Reply::Other,
    })
}

fn address(of: IpAddr) -> RouteAddress {
    match of {
        IpAddr::V4(of) => RouteAddress::Inet(of),
        IpAddr::V6(of) => RouteAddress::Inet6(of),
    }
}

fn request(question: &Question) -> RouteMessage {
    let Question { destination, source, ports, traffic_class, uid, device } = *question;
    let (family, bits) = match destination {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    };
    let mut message = RouteMessage::default();
    message.header = RouteHeader {
        address_family: family,
        destination_prefix_length: bits,
        source_prefix_length: if source.is_some() { bits } else { 0 },
        tos: traffic_class & DSCP,
        ..RouteHeader::default()
    };
    message.attributes = vec![
        RouteAttribute::Destination(address(destination)),
        RouteAttribute::Uid(uid),
        RouteAttribute::IpProto(UDP),
        RouteAttribute::Dport(ports.1),
    ];
    // Port 0 is refused. No socket sends from it.
    message.attributes.extend((ports.0 != 0).then_some(RouteAttribute::Sport(ports.0)));
    message.attributes.extend(source.map(|source| RouteAttribute::Source(address(source))));
    message.attributes.extend((device != 0).then_some(RouteAttribute::Oif(device)));
    message
}

/// Reads the kernel's answer.
pub(crate) fn reply(message: &RouteMessage) -> Reply {
    let (mut device, mut source, mut mtu, mut hop_limit, mut is_locked) = (None, None, None, None, false);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Oif(index) => device = Some(*index),
            RouteAttribute::PrefSource(of) => source = ip(of),
            RouteAttribute::Encap(_) | RouteAttribute::EncapType(_) | RouteAttribute::MultiPath(_) => {
                return Reply::Other;
            }
            RouteAttribute::Metrics(metrics) => {
                for metric in metrics {
                    match metric {
                        RouteMetric::Mtu(octets) => mtu = Some(*octets).filter(|octets| *octets != 0),
                        RouteMetric::Hoplimit(hops) => {
                            hop_limit = u8::try_from(*hops).ok().filter(|hops| *hops != 0);
                        }
                        // Don't-fragment depends on it.
                        RouteMetric::Lock(metrics) => is_locked |= metrics & 1 << RTAX_MTU != 0,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    match (message.header.kind, device) {
        (RouteType::Unicast, _) if is_locked => Reply::Other,
        (RouteType::Unicast, Some(device)) => {
            Reply::Plain(Answer { device, gateway: gateway(&message.attributes), source, mtu, hop_limit })
        }
        (RouteType::BlackHole | RouteType::Unreachable | RouteType::Prohibit, _) => Reply::Refused,
        _ => Reply::Other,
    }
}
