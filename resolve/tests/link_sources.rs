// SPDX-License-Identifier: Apache-2.0
//! The IP and ARP sources of packet sockets' frames, where addresses are given.

use std::net::IpAddr;

use ktsn_model::DropReason;
use ktsn_resolve::{
    AttachmentIndex, AttachmentTables, DestinationTable, Flow, Link, LinkFlow, LinkShape, LinkTable, Marks,
    Overlay, PortIndex, Refusal, Route, Tables, Via, destination_table, limits, resolve, resolve_link,
};
use ktsn_wire::{EtherType, MacAddress};

const OWN: MacAddress = MacAddress([2, 0, 0, 0, 0, 5]);
const PEER: MacAddress = MacAddress([2, 0, 0, 0, 0, 9]);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A pod whose interface has these addresses, by an attachment's word.
fn attachment(addresses: &[(IpAddr, u8)]) -> AttachmentTables {
    let route = Route { prefix: "0.0.0.0/0".parse().unwrap(), via: Via::OnLink, source: None };
    let link = |port| {
        LinkTable::new(Link {
            port: PortIndex(port),
            if_index: 2,
            mac: OWN,
            mtu: 1500,
            addresses: addresses.to_vec(),
            routes: vec![route],
            neighbours: vec![],
        })
        .unwrap()
    };
    AttachmentTables::new(link(1), link(0).into(), Overlay::None, Some(vec!["10.0.0.0/24".parse().unwrap()]))
        .unwrap()
        .with_own([ip("10.0.0.7")])
        .unwrap()
}

fn tables(attachment: AttachmentTables) -> Tables {
    Tables::new(1, vec![Some(attachment)]).unwrap()
}

fn flow(shape: LinkShape) -> LinkFlow {
    LinkFlow { attachment: AttachmentIndex(0), if_index: 2, shape }
}

fn payload(ether_type: u16) -> LinkShape {
    LinkShape::Payload { destination: PEER, ether_type: EtherType(ether_type) }
}

fn frame(rest: &[u8]) -> Vec<u8> {
    [&PEER.0[..], &OWN.0, rest].concat()
}

fn refused(tables: &Tables, flow: &LinkFlow, octets: &[u8]) -> Option<DropReason> {
    match resolve_link(tables, flow, octets) {
        Ok(_) => None,
        Err(Refusal::Drop(reason, None)) => Some(reason),
        Err(other) => panic!("{other:?}"),
    }
}

/// Where addresses are given, a frame comes from one of them or names none; without given addresses the source is not judged.
#[test]
fn a_foreign_ip_source_is_policed() {
    let open = tables(attachment(&[(ip("10.0.0.1"), 24)]));
    let given = tables(attachment(&[(ip("10.0.0.1"), 24)]).withholding(vec![ip("10.0.0.7")]).unwrap());
    let v4 = |last: u8| [b"\x08\x00\x45".as_slice(), &[0; 11], &[10, 0, 0, last], &[10, 0, 0, 2]].concat();
    let arp = |last: u8| {
        [
            b"\x08\x06\x00\x01\x08\x00\x06\x04\x00\x02".as_slice(),
            &OWN.0,
            &[10, 0, 0, last],
            &[0; 6],
            &[10, 0, 0, 2],
        ]
        .concat()
    };
    let tagged = |rest: Vec<u8>| [&b"\x81\x00\xe0\x07"[..], &rest].concat();
    for (rest, is_own) in [
        (v4(1), true),
        (v4(7), false),
        (v4(9), false),
        (arp(1), true),
        (arp(9), false),
        (tagged(v4(1)), true),
        (tagged(v4(9)), false),
        (tagged(arp(9)), false),
        (b"\x22\xf0".to_vec(), true),
    ] {
        let frame = frame(&rest);
        let raw = flow(LinkShape::Frame);
        let expected = if is_own { None } else { Some(DropReason::Policed) };
        assert_eq!(refused(&given, &raw, &frame), expected, "{rest:x?}");
        assert_eq!(refused(&open, &raw, &frame), None, "{rest:x?}");
    }
    // The header that is made for a payload is judged with it.
    assert_eq!(refused(&given, &flow(payload(0x0800)), &v4(9)[2..]), Some(DropReason::Policed));
    assert_eq!(refused(&given, &flow(payload(0x0800)), &v4(1)[2..]), None);
}

/// What is withheld stays the namespace's own, is no source of a datagram, and is in no client's table.
#[test]
fn a_withheld_address_is_own_and_no_source() {
    let tables = tables(attachment(&[(ip("10.0.0.1"), 24)]).withholding(vec![ip("10.0.0.7")]).unwrap());
    let of = tables.attachment(AttachmentIndex(0)).unwrap();
    assert_eq!(
        (of.withheld(), of.sources().collect::<Vec<_>>()),
        (&[ip("10.0.0.7")][..], vec![ip("10.0.0.1")])
    );
    let flow = |bound: Option<&str>, destination: &str| Flow {
        is_connected: false,
        uid: 0,
        attachment: AttachmentIndex(0),
        bound: bound.map(ip),
        source_port: 1,
        destination: ip(destination),
        destination_port: 2,
        scope: 0,
        traffic_class: 0,
        hop_limit: 0,
        marks: Marks::default(),
    };
    let why = |bound, to| match resolve(&tables, &flow(bound, to)) {
        Err(Refusal::Bypass(reason)) => Some(reason.word()),
        _ => None,
    };
    assert_eq!(why(Some("10.0.0.7"), "10.0.0.2"), Some("not_allowed"));
    assert_eq!(why(Some("10.0.0.1"), "10.0.0.2"), None);
    assert_eq!(why(None, "10.0.0.7"), Some("own_address"));
}

/// Sources take places of the client's table, never so that more is taken.
#[test]
fn the_clients_table_has_room_for_sources() {
    let many: Vec<_> = (1..=100).map(|last| (IpAddr::from([10, 1, 0, last]), 32)).collect();
    let open = tables(attachment(&many));
    let given = tables(attachment(&many).withholding(vec![]).unwrap());
    let rules = |tables: &Tables| -> DestinationTable { destination_table(tables, AttachmentIndex(0)) };
    let told = given.attachment(AttachmentIndex(0)).unwrap().sources().count();
    assert_eq!(
        (told, open.attachment(AttachmentIndex(0)).unwrap().sources().count()),
        (limits::SOURCES_MAX, 0)
    );
    assert!(rules(&given).rules.len() + told <= limits::DESTINATION_RULES_MAX);
    assert!(rules(&given).rules.iter().all(|rule| rules(&open).rules.contains(rule)));
}
