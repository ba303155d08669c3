// SPDX-License-Identifier: Apache-2.0
//! What the ingress fast path has to do, written once more from the RFCs with `base/wire`'s parsers: VXLAN (RFC 7348), IPv4 (RFC 791,
//! 1812), IPv6 (RFC 8200), UDP (RFC 768), ECN in tunnels (RFC 6040).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ktsn_wire::{
    Checksum, DsField, EtherType, EthernetFrame, Ipv4Packet, Ipv6Packet, MacAddress, UdpChecksum, UdpDatagram,
};

use super::Given;
use crate::ingress::{Delivery, Routed, Target};

/// The MAC address of the device that frames arrive at: the loopback device's.
pub(super) const UPLINK: [u8; 6] = [0; 6];
pub(super) const DEVICE: [u8; 6] = [2, 0, 0, 0, 1, 2];
pub(super) const POD: [u8; 6] = [2, 0, 0, 0, 2, 5];
pub(super) const GATEWAY: [u8; 6] = [2, 0, 0, 0, 2, 1];
/// Longest packet for the pods.
pub(super) const PACKET_OCTETS_MAX: u32 = 1_450;
/// The slot without a device.
pub(super) const UNBOUND_SLOT: u16 = 3;

pub(super) const PORT: u16 = 8472;
pub(super) const LOCAL_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
pub(super) const LOCAL_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));

const fn v4(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 1, 0, last))
}

const fn v6(first: u16, last: u16) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(first, 0, 0, 0, 0, 0, 0, last))
}

const ROUTED: Delivery = Delivery {
    slot: 0,
    packet_octets_max: PACKET_OCTETS_MAX,
    station: DEVICE,
    routed: Some(Routed { pod: POD, gateway: GATEWAY }),
};
const BRIDGED: Delivery = Delivery { slot: 2, station: POD, routed: None, ..ROUTED };

const fn target(vni: u32, local: IpAddr, destination: IpAddr) -> Target {
    Target { vni, port: PORT, local, destination }
}

/// Routed over both families, bridged, and one whose device is gone.
pub(super) const TARGETS: [(Target, Delivery); 9] = [
    (target(1, LOCAL_V4, v4(9)), ROUTED),
    (target(1, LOCAL_V4, v6(0xfd00, 9)), ROUTED),
    (target(1, LOCAL_V6, v4(10)), Delivery { slot: 1, ..ROUTED }),
    (target(1, LOCAL_V6, v6(0xfd00, 10)), Delivery { slot: 1, ..ROUTED }),
    (target(7, LOCAL_V4, v4(9)), BRIDGED),
    (target(7, LOCAL_V4, v6(0xfe80, 9)), BRIDGED),
    (target(7, LOCAL_V6, v4(9)), BRIDGED),
    (target(1, LOCAL_V4, v4(11)), Delivery { slot: UNBOUND_SLOT, ..ROUTED }),
    (target(0x00ff_ffff, LOCAL_V4, v4(9)), Delivery { slot: 4, ..BRIDGED }),
];

/// The tunnel ends that may send: (VNI, local end, remote end). The segment 7 knows fewer than the network 1.
pub(super) const ENDS: [(u32, IpAddr, IpAddr); 6] = [
    (1, LOCAL_V4, underlay_v4(2)),
    (1, LOCAL_V4, underlay_v4(3)),
    (1, LOCAL_V6, underlay_v6(2)),
    (7, LOCAL_V4, underlay_v4(2)),
    (7, LOCAL_V6, underlay_v6(2)),
    // An address of the node is no tunnel end, even where a peer list names it.
    (1, LOCAL_V4, underlay_v4(200)),
];

/// The node's own addresses beside the tunnel ends.
pub(super) const OWN: [IpAddr; 5] =
    [LOCAL_V4, LOCAL_V6, underlay_v4(200), IpAddr::V4(Ipv4Addr::new(10, 1, 1, 200)), v6(0xfd00, 200)];

const fn underlay_v4(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, last))
}

const fn underlay_v6(last: u16) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last))
}

/// What has to happen to a frame.
pub(super) enum Expected {
    /// It goes into the pod like this.
    Taken(Vec<u8>),
    /// It is for a pod, and the kernel's.
    Left,
    /// It is for no pod.
    NotOurs,
}

/// A packet of one UDP datagram, nothing else.
struct Plain<'a> {
    source: IpAddr,
    destination: IpAddr,
    ds: DsField,
    hop_limit: u8,
    datagram: UdpDatagram<'a>,
}

/// Reads a packet that is one plain datagram and fills `octets` to the last.
fn plain(ether_type: EtherType, octets: &[u8]) -> Option<Plain<'_>> {
    let (source, destination, ds, hop_limit, protocol, payload): (IpAddr, IpAddr, _, _, _, _) =
        match ether_type {
            EtherType::IPV4 => {
                let packet = Ipv4Packet::new(octets).ok()?;
                let is_plain =
                    packet.options().is_empty() && !packet.is_fragment() && packet.is_checksum_right();
                if !is_plain || usize::from(packet.total_length()) != octets.len() {
                    return None;
                }
                let (source, destination) = (packet.source().into(), packet.destination().into());
                (source, destination, packet.ds(), packet.ttl(), packet.protocol(), packet.payload())
            }
            EtherType::IPV6 => {
                let packet = Ipv6Packet::new(octets).ok()?;
                if packet.payload().len() + 40 != octets.len()
                    || packet.destination().to_ipv4_mapped().is_some()
                {
                    return None;
                }
                let (source, destination) = (packet.source().into(), packet.destination().into());
                (source, destination, packet.ds(), packet.hop_limit(), packet.next_header(), packet.payload())
            }
            _ => return None,
        };
    let datagram = UdpDatagram::new(payload).ok()?;
    let is_whole = protocol == 17 && usize::from(datagram.length()) == payload.len();
    is_whole.then_some(Plain { source, destination, ds, hop_limit, datagram })
}

/// Sources that no host has (RFC 1812 5.3.7, RFC 4291 2.7).
fn is_odd(source: IpAddr) -> bool {
    match source {
        IpAddr::V4(source) => {
            let first = source.octets()[0];
            first == 0 || source.is_loopback() || first >= 224
        }
        IpAddr::V6(source) => {
            source.is_multicast()
                || source.is_loopback()
                || source.is_unspecified()
                || source.to_ipv4_mapped().is_some()
        }
    }
}

/// The destination that an IP header names, whatever else is wrong with it.
fn destination(ether_type: EtherType, octets: &[u8]) -> Option<IpAddr> {
    match ether_type {
        EtherType::IPV4 => {
            octets.get(..20)?;
            Some(IpAddr::from(<[u8; 4]>::try_from(&octets[16..20]).ok()?))
        }
        EtherType::IPV6 => {
            octets.get(..40)?;
            let address = Ipv6Addr::from(<[u8; 16]>::try_from(&octets[24..40]).ok()?);
            // As a key it is the IPv4 address.
            Some(address.to_ipv4_mapped().map_or(address.into(), IpAddr::from))
        }
        _ => None,
    }
}

pub(super) fn expected(given: &Given) -> Expected {
    reach(given).map_or(Expected::NotOurs, |(outer, inner, delivery)| {
        take(given, &outer, inner, &delivery).map_or(Expected::Left, Expected::Taken)
    })
}

/// The outer packet, the inner frame, and its attachment.
fn reach(given: &Given) -> Option<(Plain<'_>, &[u8], Delivery)> {
    let ethernet = EthernetFrame::new(&given.frame).ok()?;
    if ethernet.destination() != MacAddress(UPLINK) {
        return None;
    }
    let outer = plain(ethernet.ether_type(), ethernet.payload())?;
    if is_odd(outer.source) || outer.source == outer.destination {
        return None;
    }
    // RFC 7348 5: I is set; what is reserved is zero unless a later standard gives it a meaning.
    let (header, inner) = outer.datagram.payload().split_first_chunk::<8>()?;
    if [header[0], header[1], header[2], header[3], header[7]] != [8, 0, 0, 0, 0] {
        return None;
    }
    let frame = EthernetFrame::new(inner).ok()?;
    let wanted = Target {
        vni: u32::from_be_bytes([0, header[4], header[5], header[6]]),
        port: outer.datagram.destination_port(),
        local: outer.destination,
        destination: destination(frame.ether_type(), frame.payload())?,
    };
    let (_, delivery) = TARGETS.into_iter().find(|(target, _)| *target == wanted)?;
    Some((outer, inner, delivery))
}

fn take(given: &Given, outer: &Plain<'_>, inner: &[u8], delivery: &Delivery) -> Option<Vec<u8>> {
    let frame = EthernetFrame::new(inner).ok()?;
    let packet = plain(frame.ether_type(), frame.payload())?;
    let tunnel = outer.datagram.payload();
    let outer_sum = match outer.datagram.verify(outer.source, outer.destination) {
        UdpChecksum::Right => true,
        UdpChecksum::Absent => outer.source.is_ipv4(),
        UdpChecksum::Wrong => false,
    };
    let is_station = |mac: MacAddress| mac.0[0] & 1 == 0 && mac.0 != [0; 6];
    let station = MacAddress(delivery.station);
    let is_local = matches!(packet.source, IpAddr::V6(source) if source.is_unicast_link_local());
    let vni = u32::from_be_bytes([0, tunnel[4], tunnel[5], tunnel[6]]);
    let is_known = ENDS.contains(&(vni, outer.destination, outer.source));
    let is_foreign = [outer.source, packet.source].iter().all(|source| !OWN.contains(source));
    let is_mine = is_known
        && is_foreign
        && delivery.slot != UNBOUND_SLOT
        && given.segment_octets == 0
        && outer_sum
        && outer.ds.0 & 3 != 3
        && frame.destination() == station
        && frame.source() != station
        && is_station(frame.source())
        && !is_odd(packet.source)
        && (packet.source.is_ipv4() || packet.datagram.checksum() != 0)
        && frame.payload().len() <= delivery.packet_octets_max as usize;
    let is_routable = delivery.routed.is_none() || (packet.hop_limit > 1 && !is_local);
    if !is_mine || !is_routable {
        return None;
    }
    let mut out = inner.to_vec();
    if let Some(routed) = delivery.routed {
        out[..6].copy_from_slice(&routed.pod);
        out[6..12].copy_from_slice(&routed.gateway);
        if packet.source.is_ipv4() {
            out[14 + 8] -= 1;
            out[14 + 10..14 + 12].fill(0);
            let mut sum = Checksum::new();
            sum.add(&out[14..14 + 20]);
            let sum = sum.finish();
            out[14 + 10..14 + 12].copy_from_slice(&sum.to_be_bytes());
        } else {
            out[14 + 7] -= 1;
        }
    }
    Some(out)
}
