// SPDX-License-Identifier: Apache-2.0
//! Frames of packet sockets: the rules of `docs/design/resolve.md`, and what is written against a naive builder.

use std::net::IpAddr;

use ktsn_model::DropReason;
use ktsn_resolve::{
    Attachment, AttachmentIndex, AttachmentTables, Egress, Link, LinkFlow, LinkResolved, LinkShape,
    LinkTable, Overlay, PortIndex, Refusal, Route, TableError, Tables, Via, destination_table, limits,
    link_frame_max,
};
use ktsn_wire::{EtherType, MacAddress, Pcp, Tci, Vid};
use proptest::prelude::*;

const OWN: MacAddress = MacAddress([2, 0, 0, 0, 0, 5]);
const PEER: MacAddress = MacAddress([2, 0, 0, 0, 0, 9]);
const IF_INDEX: u32 = 2;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn link(port: u16, mtu: u32) -> LinkTable {
    let route = Route { prefix: "0.0.0.0/0".parse().unwrap(), via: Via::OnLink, source: None };
    LinkTable::new(Link {
        port: PortIndex(port),
        if_index: IF_INDEX,
        mac: OWN,
        mtu,
        addresses: vec![(ip("10.0.0.1"), 24)],
        routes: vec![route],
        neighbours: vec![],
    })
    .unwrap()
}

fn attachment(mtu: u32, vlan: Option<Tci>) -> AttachmentTables {
    AttachmentTables::new(Attachment {
        interface: link(1, mtu),
        uplink: link(0, 1500).into(),
        overlay: Overlay::None,
        destinations: Some(vec!["10.0.0.0/24".parse().unwrap()]),
        own: vec![],
        vlan,
    })
    .unwrap()
}

fn tables(attachment: AttachmentTables) -> Tables {
    Tables::new(1, vec![Some(attachment)]).unwrap()
}

fn flow(shape: LinkShape) -> LinkFlow {
    LinkFlow { attachment: AttachmentIndex(0), if_index: IF_INDEX, shape }
}

fn tci(pcp: u8, vid: u16) -> Tci {
    Tci { pcp: Pcp::new(pcp).unwrap(), dei: false, vid: Vid::new(vid).unwrap() }
}

fn frame(destination: MacAddress, rest: &[u8]) -> Vec<u8> {
    [&destination.0[..], &OWN.0, rest].concat()
}

/// Nothing of packet sockets is ever left to the kernel here, and without an overlay no neighbour is needed.
fn resolve_link(tables: &Tables, flow: &LinkFlow, payload: &[u8]) -> Result<LinkResolved, DropReason> {
    ktsn_resolve::resolve_link(tables, flow, payload).map_err(|refusal| match refusal {
        Refusal::Drop(reason, None) => reason,
        other => panic!("{other:?}"),
    })
}

fn written(tables: &Tables, flow: &LinkFlow, payload: &[u8]) -> Result<Vec<u8>, DropReason> {
    let way = resolve_link(tables, flow, payload)?;
    let mut out = vec![0; 2000];
    let octets = way.write(payload, 0, &mut out).expect("room");
    assert_eq!((octets, way.port, way.egress), (way.frame_octets, PortIndex(1), Egress::Interface));
    assert_eq!(way.write(payload, 0, &mut vec![0; octets - 1]), None);
    assert_eq!(way.wire_octets(), octets.max(60) as u32 + 24);
    out.truncate(octets);
    Ok(out)
}

fn payload(ether_type: u16) -> LinkShape {
    LinkShape::Payload { destination: PEER, ether_type: EtherType(ether_type) }
}

#[test]
fn a_whole_frame_leaves_as_it_is() {
    let tables = tables(attachment(1500, None));
    for rest in [&[0x22, 0xf0, 1, 2, 3][..], &[0x81, 0, 0xe0, 7, 0x88, 0x92, 9], &[0, 3, 0xaa, 0xaa, 3]] {
        let frame = frame(PEER, rest);
        assert_eq!(written(&tables, &flow(LinkShape::Frame), &frame), Ok(frame));
    }
}

#[test]
fn a_header_is_made_for_a_payload() {
    let tables = tables(attachment(1500, None));
    assert_eq!(written(&tables, &flow(payload(0x22f0)), b"hello"), Ok(frame(PEER, b"\x22\xf0hello")));
    // A program may bring the tag in its payload.
    let tagged = written(&tables, &flow(payload(0x8100)), b"\xc0\x07\x22\xf0hi").unwrap();
    assert_eq!(tagged, frame(PEER, b"\x81\x00\xc0\x07\x22\xf0hi"));
}

/// [802.1Q 6.9] A configured tag is added where there is none, and never a second one.
#[test]
fn the_attachments_tag() {
    let tables = tables(attachment(1500, Some(tci(6, 7))));
    let raw = flow(LinkShape::Frame);
    let plain = frame(PEER, b"\x22\xf0hello");
    assert_eq!(written(&tables, &raw, &plain), Ok(frame(PEER, b"\x81\x00\xc0\x07\x22\xf0hello")));
    assert_eq!(
        written(&tables, &flow(payload(0x22f0)), b"hello"),
        Ok(frame(PEER, b"\x81\x00\xc0\x07\x22\xf0hello"))
    );
    for own in [&b"\x81\x00\xe0\x07\x22\xf0"[..], b"\x81\x00\xe0\x00\x22\xf0"] {
        let way = resolve_link(&tables, &raw, &frame(PEER, own)).unwrap();
        assert!(way.is_own_tag && way.tag.unwrap().pcp.get() == 7);
        assert_eq!(written(&tables, &raw, &frame(PEER, own)), Ok(frame(PEER, own)));
    }
    assert_eq!(written(&tables, &raw, &frame(PEER, b"\x81\x00\xe0\x08\x22\xf0")), Err(DropReason::Policed));
    let way = resolve_link(&tables, &raw, &plain).unwrap();
    assert_eq!((way.is_own_tag, way.tag, way.sdu_octets), (false, Some(tci(6, 7)), 5));
    assert_eq!((way.frame_octets, way.wire_octets()), (23, 84));
}

/// The kernel allows four octets more for a frame with a tag (packet(7), PACKET_VNET_HDR aside).
#[test]
fn lengths_are_the_kernels() {
    let of = |vlan| tables(attachment(100, vlan));
    let sized = |rest: &[u8], octets: usize| {
        let mut frame = frame(PEER, rest);
        frame.resize(octets, 0);
        frame
    };
    let raw = flow(LinkShape::Frame);
    assert_eq!(link_frame_max(&attachment(100, None)), 114);
    for vlan in [None, Some(tci(0, 7))] {
        let tables = of(vlan);
        let is_ok = |frame: Vec<u8>| resolve_link(&tables, &raw, &frame).map(|_| ());
        assert_eq!(is_ok(sized(b"\x22\xf0", 114)), Ok(()));
        assert_eq!(is_ok(sized(b"\x22\xf0", 115)), Err(DropReason::TooLong));
        assert_eq!(is_ok(sized(b"\x81\x00\x00\x07\x22\xf0", 118)), Ok(()));
        assert_eq!(is_ok(sized(b"\x81\x00\x00\x07\x22\xf0", 119)), Err(DropReason::TooLong));
        let datagram = flow(payload(0x22f0));
        assert!(resolve_link(&tables, &datagram, &[0; 100]).is_ok());
        assert_eq!(resolve_link(&tables, &datagram, &[0; 101]).map(|_| ()), Err(DropReason::TooLong));
    }
}

#[test]
fn every_refusal_has_a_reason() {
    let plain = attachment(1500, None);
    let good = frame(PEER, b"\x22\xf0");
    let raw = flow(LinkShape::Frame);
    let reason = |tables: &Tables, flow: &LinkFlow, frame: &[u8]| resolve_link(tables, flow, frame).err();
    let tables = tables(plain.clone());
    assert_eq!(reason(&tables, &raw, &good), None);
    assert_eq!(reason(&tables, &LinkFlow { if_index: 3, ..raw }, &good), Some(DropReason::NoRoute));
    let elsewhere = LinkFlow { attachment: AttachmentIndex(1), ..raw };
    assert_eq!(reason(&tables, &elsewhere, &good), Some(DropReason::Detached));
    assert_eq!(reason(&tables, &raw, &good[..13]), Some(DropReason::PeerCorrupt));
    assert_eq!(reason(&tables, &raw, b""), Some(DropReason::PeerCorrupt));
    let mut foreign = good.clone();
    foreign[6] ^= 2;
    assert_eq!(reason(&tables, &raw, &foreign), Some(DropReason::Policed));
    let lldp = frame(MacAddress([1, 0x80, 0xc2, 0, 0, 0x0e]), b"\x88\xcc");
    assert_eq!(reason(&tables, &raw, &lldp), Some(DropReason::Policed));
    let down = AttachmentTables::new(Attachment {
        interface: link(1, 1500).with_state(false),
        uplink: link(0, 1500).into(),
        overlay: Overlay::None,
        destinations: None,
        own: vec![],
        vlan: None,
    });
    let down = Tables::new(1, vec![Some(down.unwrap())]).unwrap();
    assert_eq!(reason(&down, &raw, &good), Some(DropReason::LinkDown));
}

#[test]
fn a_list_holds_for_mac_and_ip() {
    let lldp = MacAddress([1, 0x80, 0xc2, 0, 0, 0x0e]);
    let listed = attachment(1500, None).listed(vec![lldp, PEER]).unwrap();
    assert_eq!(listed.named(), &[lldp, PEER]);
    let tables = tables(listed);
    let other = MacAddress([2, 0, 0, 0, 0, 8]);
    let to = |mac, rest: &[u8]| resolve_link(&tables, &flow(LinkShape::Frame), &frame(mac, rest)).err();
    let v4 = |last| [b"\x08\x00\x45".as_slice(), &[0; 15], &[10, 0, 0, last]].concat();
    assert_eq!(to(PEER, b"\x22\xf0"), None);
    assert_eq!(to(lldp, b"\x88\xcc"), None);
    assert_eq!(to(other, b"\x22\xf0"), Some(DropReason::Policed));
    assert_eq!(to(other, &v4(2)), None);
    assert_eq!(to(other, &v4(1)), Some(DropReason::Policed), "an own address is the kernel's");
    let many = (0..=limits::NAMED_MAX as u8).map(|last| MacAddress([2, 0, 0, 0, 1, last])).collect();
    assert!(matches!(attachment(1500, None).listed(many), Err(TableError::TooMany { .. })));
}

/// MAC addresses take places of the client's table, never so that more is taken.
#[test]
fn the_clients_table_has_room_for_macs() {
    let prefixes = (0..64u8).map(|third| format!("10.{third}.0.0/24").parse().unwrap()).collect();
    let attachment = AttachmentTables::new(Attachment {
        interface: link(1, 1500),
        uplink: link(0, 1500).into(),
        overlay: Overlay::None,
        destinations: Some(prefixes),
        own: vec![],
        vlan: None,
    });
    let named: Vec<_> = (0..16u8).map(|last| MacAddress([2, 0, 0, 0, 1, last])).collect();
    let tables = tables(attachment.unwrap().listed(named).unwrap());
    let table = destination_table(&tables, AttachmentIndex(0));
    assert!(table.rules.len() + 16 <= limits::DESTINATION_RULES_MAX && table.left_out > 0);
}

/// What the frame should be, put together octet by octet.
fn naive(destination: MacAddress, vlan: Option<Tci>, ether_type: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = destination.0.to_vec();
    frame.extend(OWN.0);
    if ether_type != 0x8100
        && let Some(tci) = vlan
    {
        frame.extend([0x81, 0]);
        frame.extend(tci.to_bits().to_be_bytes());
    }
    frame.extend(ether_type.to_be_bytes());
    frame.extend(payload);
    frame
}

proptest! {
    /// SOCK_RAW and SOCK_DGRAM make the same frame, whatever is in it, or refuse it for the same reason.
    #[test]
    fn both_shapes_make_the_same_frame(
        ether_type in prop_oneof![Just(0x0800u16), Just(0x22f0), Just(0x8100), Just(0x88a8), 0x600u16..],
        body in proptest::collection::vec(any::<u8>(), 4..1600),
        pcp in 0u8..8,
        vid in proptest::option::of(1u16..4095),
    ) {
        let vlan = vid.map(|vid| tci(pcp, vid));
        let tables = tables(attachment(1500, vlan));
        let raw = naive(PEER, None, ether_type, &body);
        let from_raw = written(&tables, &flow(LinkShape::Frame), &raw);
        prop_assert_eq!(&written(&tables, &flow(payload(ether_type)), &body), &from_raw);
        if let Ok(frame) = from_raw {
            prop_assert_eq!(frame, naive(PEER, vlan, ether_type, &body));
        }
    }

    /// Nothing that a program writes makes it panic, or leaves with a foreign source.
    #[test]
    fn hostile_frames(frame in proptest::collection::vec(any::<u8>(), 0..80), own: bool) {
        let mut octets = frame;
        if own && octets.len() >= 12 {
            octets[6..12].copy_from_slice(&OWN.0);
        }
        let tables = tables(attachment(1500, Some(tci(1, 1))).listed(vec![]).unwrap());
        if let Ok(frame) = written(&tables, &flow(LinkShape::Frame), &octets) {
            prop_assert_eq!(&frame[6..12], &OWN.0);
        }
    }
}

/// Rule 4c for frames: where a datagram to that station would go, with the tunnel's headers around all of it.
mod segment {
    use super::*;
    use ktsn_resolve::{
        Bridged, Member, MemberAt, Neighbour, NextHop, OuterDf, OuterDs, OuterTtl, Replica, Side, Tunnel,
        VxlanBridged, next_replica, resolve_link_replica,
    };
    use ktsn_wire::{Ipv4Packet, Vni, VxlanPacket};

    const HERE: MacAddress = MacAddress([2, 0, 0, 0, 0, 0xa]);
    const NOBODY: MacAddress = MacAddress([2, 0, 0, 0, 0, 0xb]);
    const ALL: MacAddress = MacAddress([0xff; 6]);
    const PORT: u16 = 8472;

    fn segment(flood: &[&str], flood_interface: bool, known: &[&str]) -> AttachmentTables {
        let neighbour =
            |address: &&str| Neighbour { address: ip(address), mac: MacAddress([2, 0, 0, 0, 7, 7]) };
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
        AttachmentTables::new(Attachment {
            interface: link(1, 1450),
            uplink: LinkTable::new(uplink).unwrap().into(),
            overlay: Overlay::VxlanBridged(overlay.unwrap()),
            destinations: None,
            own: vec![],
            vlan: None,
        })
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
            (ether(NOBODY, b"\x22\xf0hello"), Some("192.168.0.4")),
            (ether(ALL, b"\x08\x06arp"), Some("192.168.0.4")),
            (ip_frame(PEER, 70), Some("192.168.0.2")),
            (ip_frame(NOBODY, 70), Some("192.168.0.3")),
            (ip_frame(NOBODY, 9), Some("192.168.0.4")),
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
            segment(&["192.168.0.4"], false, &all).listed(vec![MacAddress([1, 0x80, 0xc2, 0, 0, 0xe])]);
        let lldp = frame(MacAddress([1, 0x80, 0xc2, 0, 0, 0xe]), b"\x88\xcc");
        assert_eq!(left(&super::tables(named.unwrap()), &lldp), Ok(None));
    }

    /// What a rule of the node names meets that rule: by the interface, whether its destination was listed or not.
    #[test]
    fn what_is_left_to_the_kernel_leaves_by_the_interface() {
        let segment = segment(&["192.168.0.4"], true, &["192.168.0.2", "192.168.0.4"]);
        let segment = segment.leaving(vec!["10.0.0.64/26".parse().unwrap()]).unwrap();
        let listed = segment.clone().listed(vec![PEER]).unwrap();
        for tables in [tables(segment), tables(listed)] {
            let to =
                |last| left(&tables, &frame(PEER, &[&[8, 0][..], &v4([10, 0, 0, last])].concat())).unwrap();
            assert!(to(70).is_none() && to(9).is_some());
            assert!(left(&tables, &frame(PEER, b"\x22\xf0no IP")).unwrap().is_some());
        }
    }

    /// Under network policies a frame that leaves by the uplink needs a permitted IP destination; by the interface none does.
    #[test]
    fn what_network_policies_forbid_does_not_leave_by_the_uplink() {
        let segment = segment(&["192.168.0.4"], true, &["192.168.0.2", "192.168.0.4"]);
        let segment = segment.permitting(Some(&["10.0.0.64/26".parse().unwrap()])).unwrap();
        let left_to = segment.clone().leaving(vec!["10.0.0.0/24".parse().unwrap()]).unwrap();
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
            (b"\x08\x00\x65".to_vec(), (0, 64, false)),
        ] {
            let sent = frame(PEER, &rest);
            let way = ktsn_resolve::resolve_link(&tables, &flow(LinkShape::Frame), &sent).unwrap();
            let mut out = vec![0; 200];
            let octets = way.write(&sent, 0x1234, &mut out).unwrap();
            let outer = Ipv4Packet::new(&out[14..octets]).unwrap();
            assert_eq!((out[15], outer.ttl(), out[20] & 0x40 != 0), expected);
            assert_eq!(u16::from_be_bytes([out[18], out[19]]), if expected.2 { 0 } else { 0x1234 });
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
            std::iter::successors(Some(third), |last| next_replica(&tables, AttachmentIndex(0), *last))
                .collect();
        assert_eq!(order, [third, Replica::Vtep(ip("192.168.0.4")), Replica::Interface]);
        for replica in order {
            let copy = resolve_link_replica(&tables, &flow, &sent, replica).unwrap();
            assert_eq!(copy.replica, Some(replica));
            assert_eq!(copy.egress == Egress::Interface, replica == Replica::Interface);
        }
        let missing = |frame: &[u8]| ktsn_resolve::resolve_link(&tables, &flow, frame).err();
        let hop = NextHop { side: Side::Uplink, address: ip("192.168.0.2") };
        assert_eq!(
            missing(&frame(PEER, b"\x22\xf0x")),
            Some(Refusal::Drop(DropReason::NoNeighbour, Some(hop)))
        );
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
        let wide = AttachmentTables::new(Attachment {
            interface: link(1, 9000),
            uplink: narrow.uplink().clone().into(),
            overlay: narrow.overlay().clone(),
            destinations: None,
            own: vec![],
            vlan: Some(tci(0, 7)),
        });
        let wide = wide.unwrap();
        assert_eq!(link_frame_max(&wide), 1460, "with the tag that is added");
        let wide = tables(wide);
        let octets = |sent: &[u8]| {
            ktsn_resolve::resolve_link(&wide, &flow(LinkShape::Frame), sent).map(|way| way.frame_octets)
        };
        assert_eq!(octets(&sized(1460)), Ok(1514));
        assert_eq!(octets(&sized(1461)), Err(Refusal::Drop(DropReason::TooLong, None)));
    }
}
