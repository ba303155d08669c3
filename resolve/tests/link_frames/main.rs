// SPDX-License-Identifier: Apache-2.0
//! Frames of packet sockets: the rules of `docs/design/resolve.md`, and what is written against a naive builder.

mod segment;

use std::net::IpAddr;

use ktsn_model::DropReason;
use ktsn_resolve::{
    AttachmentIndex, AttachmentTables, Egress, Link, LinkFlow, LinkResolved, LinkShape, LinkTable, Overlay,
    PortIndex, Refusal, Route, TableError, Tables, Via, destination_table, limits, link_frame_max,
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
    AttachmentTables::new(
        link(1, mtu),
        link(0, 1500).into(),
        Overlay::None,
        Some(vec!["10.0.0.0/24".parse().unwrap()]),
    )
    .unwrap()
    .with_vlan(vlan)
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

/// EtherType and ARP request for a station of 10.0.0.0/24.
fn arp(last: u8) -> Vec<u8> {
    [b"\x08\x06\0\x01\x08\0\x06\x04\0\x01".as_slice(), &[0; 16], &[10, 0, 0, last]].concat()
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
    let down =
        AttachmentTables::new(link(1, 1500).with_state(false), link(0, 1500).into(), Overlay::None, None);
    let down = Tables::new(1, vec![Some(down.unwrap())]).unwrap();
    assert_eq!(reason(&down, &raw, &good), Some(DropReason::LinkDown));
}

#[test]
fn ip_and_arp_go_by_prefixes_and_the_others_by_mac_addresses() {
    let lldp = MacAddress([1, 0x80, 0xc2, 0, 0, 0x0e]);
    let other = MacAddress([2, 0, 0, 0, 0, 8]);
    let v4 = |last| [b"\x08\x00\x45".as_slice(), &[0; 15], &[10, 0, 0, last]].concat();
    let arp = |last| [b"\x08\x06\0\x01\x08\0\x06\x04\0\x01".as_slice(), &[0; 16], &[10, 0, 0, last]].concat();
    let policed = Some(DropReason::Policed);
    for (is_only, to_others) in [(true, policed), (false, None)] {
        let listed = attachment(1500, None).naming(vec![lldp, PEER], is_only).unwrap();
        assert_eq!((listed.named(), listed.is_mac_listed()), (&[lldp, PEER][..], is_only));
        let tables = tables(listed);
        let to = |mac, rest: &[u8]| resolve_link(&tables, &flow(LinkShape::Frame), &frame(mac, rest)).err();
        assert_eq!(to(PEER, b"\x22\xf0"), None);
        assert_eq!(to(lldp, b"\x88\xcc"), None);
        assert_eq!(to(other, b"\x22\xf0"), to_others);
        for mac in [PEER, other] {
            for packet in [v4, arp as fn(u8) -> Vec<u8>] {
                assert_eq!(to(mac, &packet(2)), None);
                assert_eq!(to(mac, &packet(1)), policed, "an own address is the kernel's");
                let mut elsewhere = packet(2);
                let at = elsewhere.len() - 4;
                elsewhere[at] = 11;
                assert_eq!(to(mac, &elsewhere), policed);
            }
        }
    }
    let many = (0..=limits::NAMED_MAX as u8).map(|last| MacAddress([2, 0, 0, 0, 1, last])).collect();
    assert!(matches!(attachment(1500, None).naming(many, true), Err(TableError::TooMany { .. })));
}

/// MAC addresses take places of the client's table, never so that more is taken.
#[test]
fn the_clients_table_has_room_for_macs() {
    let prefixes = (0..64u8).map(|third| format!("10.{third}.0.0/24").parse().unwrap()).collect();
    let attachment =
        AttachmentTables::new(link(1, 1500), link(0, 1500).into(), Overlay::None, Some(prefixes));
    let named: Vec<_> = (0..16u8).map(|last| MacAddress([2, 0, 0, 0, 1, last])).collect();
    let tables = tables(attachment.unwrap().naming(named, true).unwrap());
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
        let tables = tables(attachment(1500, Some(tci(1, 1))).naming(vec![], true).unwrap());
        if let Ok(frame) = written(&tables, &flow(LinkShape::Frame), &octets) {
            prop_assert_eq!(&frame[6..12], &OWN.0);
        }
    }
}
