// SPDX-License-Identifier: Apache-2.0
//! Rule 4c for frames: where a datagram to that station would go, with the tunnel's headers around all of it.

use super::*;
use ktsn_resolve::{
    Bridged, Member, MemberAt, Neighbour, NextHop, OuterDf, OuterDs, OuterTtl, Replica, Side, Tunnel,
    VxlanBridged, next_replica, resolve_link_replica,
};
use ktsn_wire::{Ipv4Packet, Vni, VxlanPacket};

const HERE: MacAddress = MacAddress([2, 0, 0, 0, 0, 0xa]);
const UNKNOWN: MacAddress = MacAddress([2, 0, 0, 0, 0, 0xb]);
const ALL: MacAddress = MacAddress([0xff; 6]);
const PORT: u16 = 8472;

fn segment(flood: &[&str], flood_interface: bool, known: &[&str]) -> AttachmentTables {
    let neighbour = |address: &&str| Neighbour { address: ip(address), mac: MacAddress([2, 0, 0, 0, 7, 7]) };
    let route = |prefix: &str| Route { prefix: prefix.parse().unwrap(), via: Via::OnLink, source: None };
    let uplink = Link {
        port: PortIndex(0),
        if_index: 1,
        mac: MacAddress([2, 0, 0, 0, 7, 1]),
        mtu: 1500,
        addresses: vec![(ip("192.168.0.1"), 24)],
        routes: vec![route("192.168.0.0/24")],
        neighbours: known.iter().map(neighbour).collect(),
    };
    let at = |at, vtep| Member { at, vtep: ip(vtep) };
    let prefix = MemberAt::Prefix("10.0.0.64/26".parse().unwrap());
    let overlay = VxlanBridged::new(Bridged {
        tunnel: Tunnel {
            ttl: OuterTtl::Inherit,
            ds: OuterDs::Inherit,
            df: OuterDf::Inherit,
            ..Tunnel::new(Vni::new(42).unwrap(), PORT, ip("192.168.0.1"))
        },
        members: vec![
            at(MemberAt::Mac(PEER), "192.168.0.2"),
            at(MemberAt::Mac(HERE), "192.168.0.1"),
            at(prefix, "192.168.0.3"),
        ],
        flood: flood.iter().map(|end| ip(end)).collect(),
        flood_interface,
    });
    AttachmentTables::new(
        link(1, 1450),
        LinkTable::new(uplink).unwrap().into(),
        Overlay::VxlanBridged(overlay.unwrap()),
        Some(vec!["10.0.0.0/24".parse().unwrap()]),
    )
    .unwrap()
}

fn v4(destination: [u8; 4]) -> Vec<u8> {
    let mut packet = vec![0x45, 0xb9, 0, 28, 0, 0, 0x40, 0, 9, 17, 0, 0, 10, 0, 0, 1];
    packet.extend(destination);
    packet.extend([0x30, 0x39, 0, 7, 0, 8, 0, 0]);
    packet
}

/// Outer destination, and the octets behind the tunnel's headers; `None`: it leaves by the interface.
fn left(tables: &Tables, frame: &[u8]) -> Result<Option<(IpAddr, u16, Vec<u8>)>, Refusal> {
    let way = ktsn_resolve::resolve_link(tables, &flow(LinkShape::Frame), frame)?;
    let mut out = vec![0; 2000];
    let octets = way.write(frame, 7, &mut out).expect("room");
    assert_eq!((octets, way.wire_octets()), (way.frame_octets, octets.max(60) as u32 + 24));
    assert_eq!(way.write(frame, 7, &mut vec![0; octets - 1]), None);
    if way.egress == Egress::Interface {
        assert_eq!((&out[..octets], way.port), (frame, PortIndex(1)));
        return Ok(None);
    }
    assert_eq!((way.port, way.sdu_octets as usize), (PortIndex(0), octets - 14));
    let outer = Ipv4Packet::new(&out[14..octets]).expect("a whole packet with a right checksum");
    let udp = ktsn_wire::UdpDatagram::new(outer.payload()).expect("a datagram");
    let vxlan = VxlanPacket::new(udp.payload()).expect("VXLAN");
    assert_eq!(
        (udp.destination_port(), vxlan.vni(), udp.source_port() >= 49_152),
        (PORT, Vni::new(42).unwrap(), true)
    );
    let checked = udp.verify(outer.source().into(), outer.destination().into());
    assert!(outer.is_checksum_right() && checked == ktsn_wire::UdpChecksum::Right, "{checked:?}");
    Ok(Some((outer.destination().into(), udp.source_port(), vxlan.payload().to_vec())))
}

#[test]
fn a_frame_goes_where_its_station_is() {
    let all = ["192.168.0.2", "192.168.0.3", "192.168.0.4"];
    let tables = tables(segment(&["192.168.0.4"], false, &all));
    let ether = |mac, rest: &[u8]| frame(mac, rest);
    let ip_frame = |mac, last| frame(mac, &[&[8, 0][..], &v4([10, 0, 0, last])].concat());
    for (sent, end) in [
        (ether(PEER, b"\x22\xf0hello"), Some("192.168.0.2")),
        (ether(PEER, b"\x81\x00\xe0\x07\x22\xf0hi"), Some("192.168.0.2")),
        (ether(HERE, b"\x22\xf0hello"), None),
        (ether(UNKNOWN, b"\x22\xf0hello"), Some("192.168.0.4")),
        (ether(ALL, &arp(9)), Some("192.168.0.4")),
        (ip_frame(PEER, 70), Some("192.168.0.2")),
        (ip_frame(UNKNOWN, 70), Some("192.168.0.3")),
        (ip_frame(UNKNOWN, 9), Some("192.168.0.4")),
    ] {
        let left = left(&tables, &sent).unwrap();
        assert_eq!(left.as_ref().map(|left| left.0), end.map(ip), "{sent:x?}");
        assert!(left.is_none_or(|left| left.2 == sent), "{sent:x?}");
    }
    // A flow keeps its port whatever else is in it; other flows have others.
    let port = |sent: &[u8]| left(&tables, sent).unwrap().unwrap().1;
    assert_eq!(port(&ether(PEER, b"\x22\xf0one")), port(&ether(PEER, b"\x22\xf0another")));
    assert_ne!(port(&ip_frame(PEER, 70)), port(&ip_frame(PEER, 71)));
    // Reserved groups are the node's bridge's.
    let named =
        segment(&["192.168.0.4"], false, &all).naming(vec![MacAddress([1, 0x80, 0xc2, 0, 0, 0xe])], true);
    let lldp = frame(MacAddress([1, 0x80, 0xc2, 0, 0, 0xe]), b"\x88\xcc");
    assert_eq!(left(&super::tables(named.unwrap()), &lldp), Ok(None));
}

/// What a rule of the node names meets that rule: by the interface, whether its destination was listed or not.
#[test]
fn what_is_left_to_the_kernel_leaves_by_the_interface() {
    let segment = segment(&["192.168.0.4"], true, &["192.168.0.2", "192.168.0.4"]);
    let segment = segment.with_left_to_kernel(vec!["10.0.0.64/26".parse().unwrap()]).unwrap();
    let listed = segment.clone().naming(vec![PEER], true).unwrap();
    for tables in [tables(segment), tables(listed)] {
        let to = |last| left(&tables, &frame(PEER, &[&[8, 0][..], &v4([10, 0, 0, last])].concat())).unwrap();
        assert!(to(70).is_none() && to(9).is_some());
        assert!(left(&tables, &frame(PEER, b"\x22\xf0no IP")).unwrap().is_some());
    }
}

/// Under network policies a frame that leaves by the uplink needs a permitted IP destination; by the interface none does.
#[test]
fn what_network_policies_forbid_does_not_leave_by_the_uplink() {
    let segment = segment(&["192.168.0.4"], true, &["192.168.0.2", "192.168.0.4"]);
    let segment = segment.permitting(Some(&["10.0.0.64/26".parse().unwrap()])).unwrap();
    let left_to = segment.clone().with_left_to_kernel(vec!["10.0.0.0/24".parse().unwrap()]).unwrap();
    let to = |last| frame(PEER, &[&[8, 0][..], &v4([10, 0, 0, last])].concat());
    let forbidden = Err(Refusal::Drop(DropReason::NetworkPolicy, None));
    let tables = tables(segment);
    assert!(left(&tables, &to(70)).unwrap().is_some());
    assert_eq!(left(&tables, &to(9)), forbidden);
    assert_eq!(left(&tables, &frame(PEER, b"\x22\xf0no IP")), forbidden);
    assert_eq!(left(&super::tables(left_to), &to(9)), Ok(None), "it meets the node's rules");
}

#[test]
fn the_tunnel_inherits_what_an_ip_packet_says_and_defaults_else() {
    let tables = tables(segment(&[], false, &["192.168.0.2"]));
    for (rest, expected) in [
        ([&[8, 0][..], &v4([10, 0, 0, 9])].concat(), (0xb9, 9, true)),
        (b"\x22\xf0hello".to_vec(), (0, 64, false)),
        (arp(9), (0, 64, false)),
    ] {
        let sent = frame(PEER, &rest);
        let way = ktsn_resolve::resolve_link(&tables, &flow(LinkShape::Frame), &sent).unwrap();
        let mut out = vec![0; 200];
        let octets = way.write(&sent, 0x1234, &mut out).unwrap();
        let outer = Ipv4Packet::new(&out[14..octets]).unwrap();
        assert_eq!((out[15], outer.ttl(), out[20] & 0x40 != 0), expected);
        assert_eq!(u16::from_be_bytes([out[18], out[19]]), 0x1234, "as Linux: with don't-fragment too");
    }
}

#[test]
fn copies_and_refusals_are_those_of_datagrams() {
    let tables = tables(segment(
        &["192.168.0.4", "192.168.0.2", "192.168.0.3"],
        true,
        &["192.168.0.3", "192.168.0.4"],
    ));
    let (flow, sent) = (flow(LinkShape::Frame), frame(ALL, b"\x22\xf0x"));
    let first = ktsn_resolve::resolve_link(&tables, &flow, &sent).unwrap();
    let third = Replica::Vtep(ip("192.168.0.3"));
    assert_eq!((first.replica, first.skipped), (Some(third), 1), "192.168.0.2 has no neighbour");
    let order: Vec<_> =
        std::iter::successors(Some(third), |last| next_replica(&tables, AttachmentIndex(0), *last)).collect();
    assert_eq!(order, [third, Replica::Vtep(ip("192.168.0.4")), Replica::Interface]);
    for replica in order {
        let copy = resolve_link_replica(&tables, &flow, &sent, replica).unwrap();
        assert_eq!(copy.replica, Some(replica));
        assert_eq!(copy.egress == Egress::Interface, replica == Replica::Interface);
    }
    let missing = |frame: &[u8]| ktsn_resolve::resolve_link(&tables, &flow, frame).err();
    let hop = NextHop { side: Side::Uplink, address: ip("192.168.0.2") };
    assert_eq!(missing(&frame(PEER, b"\x22\xf0x")), Some(Refusal::Drop(DropReason::NoNeighbour, Some(hop))));
    let gone = Replica::Vtep(ip("192.168.0.9"));
    let copy = resolve_link_replica(&tables, &flow, &sent, gone).err();
    assert_eq!(copy, Some(Refusal::Drop(DropReason::NoRoute, None)));
}

/// What fits the interface fits the tunnel, as long as the uplink's MTU allows it.
#[test]
fn lengths_are_the_tunnels() {
    let mut narrow = segment(&["192.168.0.4"], false, &["192.168.0.4"]);
    assert_eq!(link_frame_max(&narrow), 1464);
    let sized = |octets: usize| {
        let mut frame = frame(ALL, b"\x22\xf0");
        frame.resize(octets, 0);
        frame
    };
    let all = tables(narrow.clone());
    assert!(left(&all, &sized(1464)).unwrap().is_some());
    assert_eq!(left(&all, &sized(1465)), Err(Refusal::Drop(DropReason::TooLong, None)));
    narrow = segment(&["192.168.0.4"], false, &["192.168.0.4"]);
    let wide =
        AttachmentTables::new(link(1, 9000), narrow.uplink().clone().into(), narrow.overlay().clone(), None);
    let wide = wide.unwrap().with_vlan(Some(tci(0, 7))).unwrap();
    assert_eq!(link_frame_max(&wide), 1460, "with the tag that is added");
    let wide = tables(wide);
    let octets = |sent: &[u8]| {
        ktsn_resolve::resolve_link(&wide, &flow(LinkShape::Frame), sent).map(|way| way.frame_octets)
    };
    assert_eq!(octets(&sized(1460)), Ok(1514));
    assert_eq!(octets(&sized(1461)), Err(Refusal::Drop(DropReason::TooLong, None)));
}
