// SPDX-License-Identifier: Apache-2.0
//! What the ingress program and this crate both know: the numbers of `programs/ingress.h` in Rust.

use std::net::{IpAddr, Ipv6Addr};

use crate::layout::counted;

/// Counters of an attachment.
pub(crate) const TALLIES: usize = 16;
/// Octets of a map's key.
pub(crate) const TARGET_OCTETS: usize = 40;
/// Octets of its value.
pub(crate) const DELIVERY_OCTETS: usize = TARGET_OCTETS + 28;

counted! {
    /// What the ingress program counts for each attachment.
    Tallied {
        /// Frames handed into the pod.
        Taken = "taken",
        /// Octets of the inner frames handed into the pod.
        Octets = "octets",
        /// Left to the kernel: TCP, ICMP, anything but UDP.
        NotUdp = "not_udp",
        /// Left: part of a datagram over the MTU.
        Fragment = "fragment",
        /// Left: inner IP options or extension headers.
        Options = "options",
        /// Left: several datagrams in one packet (GSO, GRO).
        Segmented = "segmented",
        /// Left: lengths, versions or an IP header's checksum are wrong.
        Malformed = "malformed",
        /// Left: the outer checksum is wrong, not finished, or missing over IPv6.
        Checksum = "checksum",
        /// Left: TTL or hop limit ends here.
        HopLimit = "hop_limit",
        /// Left: longer than the pod's interface takes.
        OverMtu = "over_mtu",
        /// Left: for another station of the VXLAN segment, or from an impossible one.
        OtherMac = "other_mac",
        /// Left: the outer header marks congestion, which the inner one must mark then (RFC 6040).
        Congestion = "congestion",
        /// Left: a source address that no router forwards, or one of this node's own.
        Source = "source",
        /// Left: the host end of the pod's veth is not there.
        Gone = "gone",
        /// Dropped: the kernel refused the rest of the changes, or the frame is left as it refused the first.
        Failed = "failed",
        /// Left: from no tunnel end that is known in this network.
        TunnelEnd = "tunnel_end",
    }
}

/// Which frames: those that arrive in this network, from the wire, for this address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// VXLAN network identifier, 24 bits.
    pub vni: u32,
    /// UDP destination port.
    pub port: u16,
    /// Outer destination address.
    pub local: IpAddr,
    /// Inner destination address.
    pub destination: IpAddr,
}

/// A tunnel end that frames of one network may come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct End {
    /// VXLAN network identifier, 24 bits.
    pub vni: u32,
    /// UDP destination port.
    pub port: u16,
    /// Outer destination address: this node's tunnel end.
    pub local: IpAddr,
    /// Outer source address: the other node's.
    pub remote: IpAddr,
}

impl End {
    /// The key of a target with the outer source in the place of the inner destination.
    pub(crate) fn key(&self) -> [u8; TARGET_OCTETS] {
        let Self { vni, port, local, remote } = *self;
        Target { vni, port, local, destination: remote }.key()
    }
}

/// What happens to frames for one [`Target`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Delivery {
    /// The attachment: which device, which counters.
    pub slot: u16,
    /// Longest inner IP packet, octets.
    pub packet_octets_max: u32,
    /// Inner destination MAC address that such frames have.
    pub station: [u8; 6],
    /// Routed: the frame's new addresses; a hop limit goes down by one. `None` (bridged): it stays as it is.
    pub routed: Option<Routed>,
}

/// The MAC addresses that the host would deliver a routed frame with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Routed {
    /// The pod's.
    pub pod: [u8; 6],
    /// The gateway's MAC address.
    pub gateway: [u8; 6],
}

fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// The key of an address.
pub(crate) fn address_key(address: IpAddr) -> [u8; 16] {
    mapped(address).octets()
}

impl Target {
    pub(crate) fn key(&self) -> [u8; TARGET_OCTETS] {
        let mut key = [0; TARGET_OCTETS];
        key[..4].copy_from_slice(&self.vni.to_ne_bytes());
        key[4..6].copy_from_slice(&self.port.to_be_bytes());
        key[8..24].copy_from_slice(&mapped(self.local).octets());
        key[24..].copy_from_slice(&mapped(self.destination).octets());
        key
    }

    pub(crate) fn value(&self, delivery: &Delivery) -> [u8; DELIVERY_OCTETS] {
        let mut value = [0; DELIVERY_OCTETS];
        let (target, rest) = value.split_at_mut(TARGET_OCTETS);
        target.copy_from_slice(&self.key());
        rest[..4].copy_from_slice(&u32::from(delivery.slot).to_ne_bytes());
        rest[4..8].copy_from_slice(&delivery.packet_octets_max.to_ne_bytes());
        rest[8..14].copy_from_slice(&delivery.station);
        if let Some(routed) = delivery.routed {
            rest[14..20].copy_from_slice(&routed.pod);
            rest[20..26].copy_from_slice(&routed.gateway);
            rest[26] = 1;
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_and_we_know_the_same_numbers() {
        let header = include_str!("../../programs/ingress.h");
        let has = |text: String| assert!(header.contains(&text), "{text}");
        has(format!("#define TALLIES {TALLIES}\n"));
        for (number, tallied) in Tallied::ALL.into_iter().enumerate() {
            assert_eq!(tallied as usize, number);
            has(format!("\tTALLY_{} = {number},", tallied.word().to_uppercase()));
        }
        assert_eq!(header.matches("\tTALLY_").count(), Tallied::ALL.len());
    }
}
