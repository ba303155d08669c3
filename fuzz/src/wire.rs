// SPDX-License-Identifier: Apache-2.0
//! Target `wire`: every reader of `ktsn-wire` on the same octets.
//!
//! What is accepted must be written again as it was read; what is taken apart must lie inside the input; a header
//! template made from it must write a frame that reads the same.

use ktsn_wire::template::Ends;
use ktsn_wire::{
    Checksum, Dissected, EthernetFrame, HeaderTemplate, Ipv4Packet, Ipv6Packet, Layers, MacAddress, Network,
    Outer, TemplateRepr, UdpChecksum, UdpDatagram, VlanTag, VxlanPacket, dissect, ethernet, ipv4, ipv6, udp,
    vlan, vxlan,
};

const VXLAN_PORTS: [Option<u16>; 3] = [None, Some(4789), Some(8472)];

/// Runs every reader on `data`.
///
/// # Panics
/// When an invariant does not hold.
pub fn wire(data: &[u8]) {
    headers(data);
    ip(data);
    checksums(data);
    if let Ok(text) = core::str::from_utf8(data)
        && let Ok(address) = text.parse::<MacAddress>()
    {
        assert_eq!(address.to_string().parse(), Ok(address), "a MAC address reads what it prints");
    }
    frames(data);
    frames(&repaired(data));
}

fn frames(data: &[u8]) {
    for port in VXLAN_PORTS {
        if let Ok(dissected) = dissect(data, port) {
            taken_apart(data, &dissected, port);
        }
    }
}

/// The frame with its IPv4 header checksums made right where such headers usually lie: without this a mutated IPv4
/// header would hardly ever get past its checksum.
fn repaired(data: &[u8]) -> Vec<u8> {
    const TUNNEL_OCTETS: usize = 8 + 8 + 14;
    let mut frame = data.to_vec();
    for at in [14, 18, 14 + 20 + TUNNEL_OCTETS, 14 + 40 + TUNNEL_OCTETS] {
        let Some(octets) = frame.get_mut(at..) else { break };
        let Ok(packet) = Ipv4Packet::new(octets) else { continue };
        let header_octets = 20 + packet.options().len();
        octets[10..12].fill(0);
        let mut checksum = Checksum::new();
        checksum.add(&octets[..header_octets]);
        octets[10..12].copy_from_slice(&checksum.finish().to_be_bytes());
    }
    frame
}

/// Headers are written as they were read: every bit of those of fixed length, but reserved ones.
fn headers(data: &[u8]) {
    if let Ok(frame) = EthernetFrame::new(data) {
        let out = ethernet::header(frame.destination(), frame.source(), frame.ether_type());
        assert_eq!(out, data[..out.len()], "ethernet is written as read");
    }
    if let Ok(tag) = VlanTag::new(data) {
        let out = vlan::header(tag.tci(), tag.ether_type());
        assert_eq!(out, data[..out.len()], "a tag is written as read");
    }
    if let Ok(datagram) = UdpDatagram::new(data) {
        let out = udp::header(datagram.source_port(), datagram.destination_port());
        assert_eq!(out[..4], data[..4], "ports are written as read");
    }
    if let Ok(packet) = VxlanPacket::new(data) {
        let out = vxlan::header(packet.vni());
        assert_eq!(out[4..7], data[4..7], "a network identifier is written as read");
    }
}

fn ip(data: &[u8]) {
    if let Ok(packet) = Ipv4Packet::new(data) {
        let dont_fragment = data[6] & 0x40 != 0;
        let (source, destination) = (packet.source(), packet.destination());
        let out = ipv4::udp_header(source, destination, packet.ttl(), packet.ds(), dont_fragment);
        let header_octets = 20 + packet.options().len();
        assert_eq!(header_octets + packet.payload().len(), usize::from(packet.total_length()));
        assert_eq!(
            (out[1], out[8], &out[12..]),
            (data[1], data[8], &data[12..20]),
            "ipv4 is written as read"
        );
    }
    if let Ok(packet) = Ipv6Packet::new(data) {
        let (source, destination) = (packet.source(), packet.destination());
        let out = ipv6::udp_header(source, destination, packet.hop_limit(), packet.ds(), packet.flow_label());
        let out = out.expect("a flow label that was read");
        assert_eq!((&out[..4], &out[7..]), (&data[..4], &data[7..40]), "ipv6 is written as read");
        if let Ok((_, rest)) = packet.upper_layer() {
            assert!(packet.payload().ends_with(rest), "the upper layer is the payload's end");
        }
    }
}

/// A sum in two pieces is the sum of the whole, wherever it is cut.
fn checksums(data: &[u8]) {
    let Some((first, octets)) = data.split_first() else { return };
    let (left, right) = octets.split_at(usize::from(*first).min(octets.len()));
    let (mut whole, mut pieces) = (Checksum::new(), Checksum::new());
    whole.add(octets);
    pieces.add(left);
    pieces.add(right);
    assert_eq!(whole.folded(), pieces.folded(), "a checksum does not depend on pieces");
}

fn taken_apart(data: &[u8], dissected: &Dissected<'_>, port: Option<u16>) {
    let payload = dissected.payload();
    assert!(
        data.as_ptr_range().contains(&payload.as_ptr()) || payload.is_empty(),
        "the payload is in the frame"
    );
    assert!(payload.len() + 42 <= data.len(), "headers come before the payload");
    let repr = template_repr(dissected);
    let Ok(template) = HeaderTemplate::new(&repr) else {
        let vid = dissected.inner.vlan.map(|tci| tci.vid);
        assert!(vid.is_some_and(ktsn_wire::Vid::is_reserved), "only a reserved VID is refused");
        return;
    };
    let mut out = vec![0; template.frame_octets(payload.len())];
    let octets = template.write_frame(payload, &mut out).expect("its headers are not longer than those read");
    assert_eq!(octets, out.len());
    let again = dissect(&out, port).expect("a template writes a valid frame");
    assert_eq!(again.payload(), payload);
    let expected = if repr.udp_checksum { UdpChecksum::Right } else { UdpChecksum::Absent };
    assert_eq!(again.inner.checksum(), expected);
    assert_eq!(addresses(&again.inner), addresses(&dissected.inner));
    assert_eq!(again.inner.vlan, dissected.inner.vlan);
    assert_eq!(again.tunnel.is_some(), dissected.tunnel.is_some());
    if let (Some(again), Some(tunnel)) = (again.tunnel, dissected.tunnel) {
        assert_eq!(again.vni, tunnel.vni);
        assert_eq!(again.outer.checksum(), UdpChecksum::Right);
    }
}

fn addresses(layers: &Layers<'_>) -> impl PartialEq + core::fmt::Debug {
    (
        (layers.source_mac, layers.destination_mac),
        (layers.source, layers.destination),
        (layers.datagram.source_port(), layers.datagram.destination_port()),
        (layers.ds, layers.hop_limit),
    )
}

fn template_repr(dissected: &Dissected<'_>) -> TemplateRepr {
    let inner = &dissected.inner;
    TemplateRepr {
        outer: dissected.tunnel.map(|tunnel| Outer {
            ethernet: macs(&tunnel.outer),
            network: network(&tunnel.outer),
            dscp_inherit: tunnel.vni.get() % 2 == 1,
            vxlan_port: tunnel.outer.datagram.destination_port(),
            vni: tunnel.vni,
            udp_checksum: true,
        }),
        ethernet: macs(inner),
        vlan: inner.vlan,
        network: network(inner),
        udp: Ends { source: inner.datagram.source_port(), destination: inner.datagram.destination_port() },
        udp_checksum: !inner.datagram.source_port().is_multiple_of(4),
    }
}

fn macs(layers: &Layers<'_>) -> Ends<MacAddress> {
    Ends { source: layers.source_mac, destination: layers.destination_mac }
}

fn network(layers: &Layers<'_>) -> Network {
    use core::net::IpAddr::{V4, V6};
    let (ttl, hop_limit, ds) = (layers.hop_limit, layers.hop_limit, layers.ds);
    match (layers.source, layers.destination) {
        (V4(source), V4(destination)) => {
            Network::V4 { source, destination, ttl, ds, dont_fragment: ttl % 2 == 0 }
        }
        (V6(source), V6(destination)) => {
            Network::V6 { source, destination, hop_limit, ds, flow_label: 0xf_ffff }
        }
        mixed => panic!("addresses of two families: {mixed:?}"),
    }
}
