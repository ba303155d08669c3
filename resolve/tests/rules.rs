// SPDX-License-Identifier: Apache-2.0
//! The promises that a reader of `docs/design/resolve.md` would look for first, one test each.

use std::net::IpAddr;
use std::sync::Arc;

use ktsn_model::{BypassReason, DropReason};
use ktsn_resolve::{
    AttachmentIndex, AttachmentTables, DestinationRule, Flow, InterfaceRoute, Link, LinkTable, Marks,
    Neighbour, NextHop, Overlay, Peer, PortIndex, Refusal, Route, RouteAnswer, Side, TableError, Tables,
    Tunnel, Verdict, Via, Vxlan, VxlanRouted, destinations, resolve, resolve_answered,
};
use ktsn_wire::{MacAddress, Pcp, Tci, Vid, Vni};

const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 9]);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn link(mtu: u32, address: &str, routes: &[(&str, Via)]) -> Link {
    let route =
        |&(prefix, via): &(&str, Via)| Route { prefix: str::parse(prefix).unwrap(), via, source: None };
    Link {
        port: PortIndex(0),
        if_index: 2,
        mac: MAC,
        mtu,
        addresses: vec![(ip(address), 24)],
        routes: routes.iter().map(route).collect(),
        neighbours: vec![],
    }
}

fn uplink(local: &str, vtep: &str) -> Arc<LinkTable> {
    let mut uplink = link(1500, local, &[("0.0.0.0/0", Via::OnLink), ("::/0", Via::OnLink)]);
    uplink.neighbours.push(Neighbour { address: ip(vtep), mac: MAC });
    LinkTable::new(uplink).unwrap().into()
}

fn overlay(local: &str, vtep: &str, mac: MacAddress) -> Overlay {
    let overlay = VxlanRouted::new(Vxlan {
        tunnel: Tunnel { udp_checksum: false, ..Tunnel::new(Vni::new(1).unwrap(), 8472, ip(local)) },
        device_mac: MAC,
        peers: vec![Peer { prefix: "10.244.1.0/24".parse().unwrap(), vtep: ip(vtep), mac }],
    });
    Overlay::VxlanRouted(overlay.unwrap())
}

fn interface() -> LinkTable {
    LinkTable::new(link(1500, "10.244.0.5", &[("0.0.0.0/0", Via::Gateway(ip("10.244.0.1")))])).unwrap()
}

fn attachment(local: &str, vtep: &str) -> AttachmentTables {
    AttachmentTables::new(interface(), uplink(local, vtep), overlay(local, vtep, MAC), None).unwrap()
}

/// An attachment with another interface, and with these destinations.
fn attachment_with(interface: LinkTable, destinations: &[&str]) -> AttachmentTables {
    let (local, vtep) = ("192.168.0.1", "192.168.0.2");
    let destinations = destinations.iter().map(|prefix| prefix.parse().unwrap()).collect();
    AttachmentTables::new(interface, uplink(local, vtep), overlay(local, vtep, MAC), Some(destinations))
        .unwrap()
}

fn tables(attachment: AttachmentTables) -> Tables {
    Tables::new(1, vec![Some(attachment)]).unwrap()
}

fn flow(destination: &str) -> Flow {
    Flow {
        is_connected: false,
        uid: 0,
        attachment: AttachmentIndex(0),
        bound: None,
        source_port: 1,
        destination: ip(destination),
        destination_port: 2,
        scope: 0,
        traffic_class: 0,
        hop_limit: 0,
        marks: Marks::default(),
    }
}

fn refusal(tables: &Tables, flow: &Flow) -> Option<Refusal> {
    resolve(tables, flow).err()
}

#[test]
fn vxlan_takes_50_octets_of_the_uplinks_mtu_over_ipv4_and_70_over_ipv6() {
    for (local, vtep, tunnel) in [("192.168.0.1", "192.168.0.2", 50), ("2001:db8::1", "2001:db8::2", 70)] {
        let tables = tables(attachment(local, vtep));
        let resolved = resolve(&tables, &flow("10.244.1.7")).unwrap();
        assert_eq!(resolved.payload_max, 1500 - tunnel - 28);
        // A payload of that size makes a frame that just fits the uplink.
        assert_eq!(resolved.template.frame_octets(resolved.payload_max.into()), 14 + 1500);
    }
}

#[test]
fn the_peers_prefixes_are_the_default_destinations() {
    let tables = tables(attachment("192.168.0.1", "192.168.0.2"));
    assert_eq!(refusal(&tables, &flow("10.244.2.7")), Some(Refusal::Bypass(BypassReason::NotAllowed)));
    let rules = destinations(&tables, AttachmentIndex(0));
    let take = DestinationRule {
        prefix: "10.244.1.0/24".parse().unwrap(),
        verdict: Verdict::Take { payload_max: 1422 },
    };
    assert!(rules.contains(&take), "{rules:?}");
    let taken = rules.iter().filter(|rule| matches!(rule.verdict, Verdict::Take { .. }));
    assert_eq!(taken.count(), 1);
    let own = DestinationRule {
        prefix: "10.244.0.5/32".parse().unwrap(),
        verdict: Verdict::Bypass(BypassReason::OwnAddress),
    };
    assert!(rules.contains(&own));
}

#[test]
fn a_source_that_is_not_the_interfaces_is_refused() {
    let tables = tables(attachment("192.168.0.1", "192.168.0.2"));
    for bound in ["10.244.0.6", "127.0.0.1", "192.168.0.1", "fe80::1"] {
        let spoofed = Flow { bound: Some(ip(bound)), ..flow("10.244.1.7") };
        assert_eq!(refusal(&tables, &spoofed), Some(Refusal::Bypass(BypassReason::NotAllowed)), "{bound}");
    }
    for bound in ["10.244.0.5", "0.0.0.0", "::", "::ffff:10.244.0.5"] {
        let own = Flow { bound: Some(ip(bound)), ..flow("10.244.1.7") };
        assert_eq!(refusal(&tables, &own), None, "{bound}");
    }
}

#[test]
fn a_hop_limit_of_one_ends_at_the_first_router() {
    let tables = tables(attachment("192.168.0.1", "192.168.0.2"));
    let one = Flow { hop_limit: 1, ..flow("10.244.1.7") };
    assert_eq!(refusal(&tables, &one), Some(Refusal::Drop(DropReason::NoRoute, None)));
    assert_eq!(refusal(&tables, &Flow { hop_limit: 2, ..one }), None);
}

/// What Linux does where a router or a sysctl gave the interface another hop limit than the namespace has.
#[test]
fn a_default_hop_limit_is_the_interfaces() {
    let mut interface = link(1500, "fd00::5", &[("::/0", Via::OnLink)]);
    interface.addresses.push((ip("10.244.0.5"), 24));
    interface.routes.push(Route { prefix: "0.0.0.0/0".parse().unwrap(), via: Via::OnLink, source: None });
    interface.neighbours = ["fd00::9", "10.244.0.9"].map(|at| Neighbour { address: ip(at), mac: MAC }).into();
    let interface = LinkTable::new(interface).unwrap().with_hop_limit_v6(Some(77));
    let tables = tables(attachment_with(interface, &["0.0.0.0/0", "::/0"]));
    let sent = |to: &str, is_default_hop_limit| {
        let marks = Marks { is_default_hop_limit, ..Marks::default() };
        let resolved = resolve(&tables, &Flow { hop_limit: 55, marks, ..flow(to) }).unwrap();
        let mut frame = [0; 100];
        resolved.template.write_frame(b"hops", &mut frame).unwrap();
        frame[if to.contains(':') { 21 } else { 22 }]
    };
    assert_eq!((sent("fd00::9", true), sent("fd00::9", false)), (77, 55));
    assert_eq!((sent("10.244.0.9", true), sent("10.244.0.9", false)), (55, 55), "IPv4 has none for a device");
    assert_eq!(sent("ff05::9", true), 55, "groups have a default of their own");
}

/// The hop limit of an asked flow's route is that of datagrams without one of their own.
#[test]
fn a_routes_hop_limit_is_a_default() {
    let mut interface = link(1500, "fd00::5", &[("::/0", Via::Asked), ("0.0.0.0/0", Via::Asked)]);
    interface.addresses.push((ip("10.244.0.5"), 24));
    interface.neighbours = ["fd00::9", "10.244.0.9"].map(|at| Neighbour { address: ip(at), mac: MAC }).into();
    let interface = LinkTable::new(interface).unwrap().with_hop_limit_v6(Some(77));
    let tables = tables(attachment_with(interface, &["0.0.0.0/0", "::/0"]));
    for (to, source, at) in [("10.244.0.9", "10.244.0.5", 22), ("fd00::9", "fd00::5", 21)] {
        let sent = |hop_limit, is_default_hop_limit, routes| {
            let marks = Marks { is_default_hop_limit, ..Marks::default() };
            let route =
                InterfaceRoute { source: Some(ip(source)), hop_limit: routes, ..InterfaceRoute::default() };
            let flow = Flow { hop_limit, marks, ..flow(to) };
            let resolved =
                resolve_answered(&tables, &flow, &RouteAnswer::Interface(route)).expect("an answer");
            let mut frame = [0; 100];
            resolved.template.write_frame(b"hops", &mut frame).unwrap();
            frame[at]
        };
        assert_eq!((sent(64, true, Some(21)), sent(0, false, Some(21))), (21, 21), "{to}: the route's");
        assert_eq!(sent(64, false, Some(21)), 64, "{to}: the program's");
        let devices = if at == 21 { 77 } else { 64 };
        assert_eq!(sent(64, true, None), devices, "{to}: the device's");
    }
}

#[test]
fn a_missing_neighbour_is_named() {
    let tables = tables(attachment_with(interface(), &["0.0.0.0/0"]));
    let gateway = NextHop { side: Side::Interface, address: ip("10.244.0.1") };
    let expected = Refusal::Drop(DropReason::NoNeighbour, Some(gateway));
    assert_eq!(refusal(&tables, &flow("198.51.100.1")), Some(expected));
}

#[test]
fn an_attachment_that_is_not_there_is_bypassed() {
    let tables = tables(attachment("192.168.0.1", "192.168.0.2"));
    for index in [1, u16::MAX] {
        let flow = Flow { attachment: AttachmentIndex(index), ..flow("10.244.1.7") };
        assert_eq!(refusal(&tables, &flow), Some(Refusal::Bypass(BypassReason::NotAttached)));
        assert_eq!(destinations(&tables, flow.attachment), vec![]);
    }
}

#[test]
fn impossible_tables_are_refused() {
    let mut bad_bits = link(1500, "10.0.0.1", &[]);
    bad_bits.addresses[0].1 = 33;
    assert_eq!(LinkTable::new(bad_bits), Err(TableError::Bits { address: ip("10.0.0.1"), bits: 33 }));
    let mut many = link(1500, "10.0.0.1", &[]);
    many.routes = vec![Route { prefix: "::/0".parse().unwrap(), via: Via::OnLink, source: None }; 8193];
    assert!(matches!(LinkTable::new(many), Err(TableError::TooMany { what: "routes", .. })));
    let mixed = VxlanRouted::new(Vxlan {
        tunnel: Tunnel::new(Vni::new(1).unwrap(), 8472, ip("10.0.0.1")),
        device_mac: MAC,
        peers: vec![Peer { prefix: "10.1.0.0/16".parse().unwrap(), vtep: ip("2001:db8::1"), mac: MAC }],
    });
    assert_eq!(mixed, Err(TableError::TunnelFamily { vtep: ip("2001:db8::1"), local: ip("10.0.0.1") }));
    let reserved = Tci { pcp: Pcp::new(0).unwrap(), dei: false, vid: Vid::new(4095).unwrap() };
    let attachment = attachment_with(interface(), &["0.0.0.0/0"]).with_vlan(Some(reserved));
    assert_eq!(attachment, Err(TableError::ReservedVlan));
}

#[test]
fn broadcast_and_multicast_end_where_the_standards_say() {
    let mut interface = link(1500, "10.244.0.5", &[("0.0.0.0/0", Via::OnLink)]);
    interface.addresses.extend([(ip("10.3.0.2"), 31), (ip("10.3.0.8"), 30), (ip("10.4.0.1"), 32)]);
    let tables = tables(attachment_with(LinkTable::new(interface).unwrap(), &["0.0.0.0/0"]));
    // Groups need no neighbour, hosts do. A /31 has no broadcast address (RFC 3021), 240.0.0.0/4 is no multicast.
    for group in ["10.244.0.255", "10.3.0.11", "255.255.255.255", "224.0.0.1", "239.255.255.255"] {
        assert_eq!(refusal(&tables, &flow(group)), None, "{group}");
    }
    for host in ["10.3.0.3", "10.3.0.9", "10.4.0.2", "240.0.0.1", "223.255.255.255", "10.244.1.255"] {
        let next_hop = NextHop { side: Side::Interface, address: ip(host) };
        let expected = match host {
            "10.244.1.255" => None, // in a peer's prefix: a host there for all we know
            _ => Some(Refusal::Drop(DropReason::NoNeighbour, Some(next_hop))),
        };
        assert_eq!(refusal(&tables, &flow(host)), expected, "{host}");
    }
}

#[test]
fn a_peer_without_a_known_tunnel_end_is_dropped_and_never_leaves_by_the_interface() {
    let overlay = overlay("192.168.0.1", "0.0.0.0", MacAddress::ZERO);
    let attachment =
        AttachmentTables::new(interface(), uplink("192.168.0.1", "192.168.0.2"), overlay, None).unwrap();
    let tables = tables(attachment);
    let missing = Some(Refusal::Drop(DropReason::NoNeighbour, None));
    assert_eq!(refusal(&tables, &flow("10.244.1.5")), missing);
    // The client takes it all the same: it must not go to the kernel behind the schedule's back.
    let rules = destinations(&tables, AttachmentIndex(0));
    let covers = |rule: &&DestinationRule| rule.prefix.contains(ip("10.244.1.5"));
    assert!(matches!(rules.iter().find(covers).unwrap().verdict, Verdict::Take { .. }));
}

/// Two attachments of one namespace whose lists say the same: the namespace's own routes decide, the longest first.
#[test]
fn what_the_namespace_routes_to_another_attachment_is_that_ones() {
    let routes = [
        ("0.0.0.0/0", Via::Gateway(ip("10.244.0.1"))),
        ("10.244.1.0/25", Via::Elsewhere),
        ("10.244.1.64/26", Via::OnLink),
        ("10.244.1.7/32", Via::Elsewhere),
    ];
    let alone =
        attachment_with(LinkTable::new(link(1500, "10.244.0.5", &routes)).unwrap(), &["10.244.0.0/16"]);
    let shared = alone.clone().with_routes_of_others(["10.244.1.0/25".parse().unwrap()]);
    for (destination, takes_alone, takes_shared) in [
        ("10.244.1.200", true, true), // the default route's
        ("10.244.1.5", true, false),  // the other attachment's route
        ("10.244.1.70", true, true),  // a longer one is ours
        ("10.244.1.7", true, true), // leads to an interface that has no attachment: the overlay's, as before
    ] {
        for (attachment, takes) in [(&alone, takes_alone), (&shared, takes_shared)] {
            let tables = Tables::new(1, vec![Some(attachment.clone())]).unwrap();
            let answer = resolve(&tables, &flow(destination)).map(|_| ()).err();
            let refused = Refusal::Bypass(BypassReason::NotAllowed);
            assert_eq!(answer, (!takes).then_some(refused), "{destination}");
            let said = destinations(&tables, AttachmentIndex(0)).iter().any(|rule| {
                rule.prefix.contains(ip(destination)) && matches!(rule.verdict, Verdict::Bypass(_))
            });
            assert!(takes || said, "{destination}: the client is told so");
        }
    }
}

/// What is left to the kernel is neither taken nor listed as taken, tunnel or not, and the rest of the peer's prefix is.
#[test]
fn what_is_left_to_the_kernel_is_not_allowed() {
    let left = |prefixes: &[&str]| {
        let prefixes = prefixes.iter().map(|prefix| prefix.parse().unwrap()).collect();
        let attachment = attachment("192.168.0.1", "192.168.0.2");
        Tables::new(1, vec![Some(attachment.with_left_to_kernel(prefixes).unwrap())]).unwrap()
    };
    let kernels = Some(Refusal::Bypass(BypassReason::NotAllowed));
    let some = left(&["10.244.1.128/25", "10.244.1.7/32"]);
    for (destination, answer) in [
        ("10.244.1.6", None),
        ("10.244.1.7", kernels),
        ("10.244.1.127", None),
        ("10.244.1.200", kernels),
        ("10.244.2.1", kernels),
    ] {
        assert_eq!(refusal(&some, &flow(destination)), answer, "{destination}");
        let rules = destinations(&some, AttachmentIndex(0));
        let first = rules.iter().find(|rule| rule.prefix.contains(ip(destination)));
        let takes = first.is_some_and(|rule| matches!(rule.verdict, Verdict::Take { .. }));
        assert_eq!(takes, answer.is_none(), "{destination}: {rules:?}");
    }
    // A wider one than the peer's covers all of it.
    let all = left(&["10.0.0.0/8"]);
    assert_eq!(refusal(&all, &flow("10.244.1.6")), kernels);
    let takes = |rule: &DestinationRule| matches!(rule.verdict, Verdict::Take { .. });
    assert!(!destinations(&all, AttachmentIndex(0)).iter().any(takes));
    let many = vec!["10.0.0.0/8".parse().unwrap(); 4097];
    let tables = attachment("192.168.0.1", "192.168.0.2");
    assert!(matches!(tables.with_left_to_kernel(many), Err(TableError::TooMany { .. })));
}

/// Network policies drop what would leave past the node's packet filter, and leave alone what meets it.
#[test]
fn what_network_policies_forbid_is_dropped_where_it_would_pass_by_the_packet_filter() {
    let under = |permitted: Option<&[&str]>| {
        let permitted: Option<Vec<_>> =
            permitted.map(|all| all.iter().map(|prefix| prefix.parse().unwrap()).collect());
        let attachment = attachment("192.168.0.1", "192.168.0.2");
        Tables::new(1, vec![Some(attachment.permitting(permitted.as_deref()).unwrap())]).unwrap()
    };
    let forbidden = Some(Refusal::Drop(DropReason::NetworkPolicy, None));
    let (free, none, some) = (under(None), under(Some(&[])), under(Some(&["10.244.1.128/25"])));
    for (destination, when_some) in [("10.244.1.6", forbidden), ("10.244.1.200", None)] {
        assert_eq!(refusal(&free, &flow(destination)), None, "{destination}");
        assert_eq!(refusal(&none, &flow(destination)), forbidden, "{destination}");
        assert_eq!(refusal(&some, &flow(destination)), when_some, "{destination}");
        // It is taken all the same: the kernel's way would be another one, in silence.
        let rules = destinations(&none, AttachmentIndex(0));
        let first = rules.iter().find(|rule| rule.prefix.contains(ip(destination))).unwrap();
        assert!(matches!(first.verdict, Verdict::Take { .. }), "{destination}");
    }
    // What is the kernel's stays the kernel's, and what leaves by the interface leaves.
    for destination in ["10.244.2.1", "224.0.0.5"] {
        assert_eq!(refusal(&none, &flow(destination)), refusal(&free, &flow(destination)), "{destination}");
    }
    let many = vec!["10.0.0.0/8".parse().unwrap(); 4097];
    let tables = attachment("192.168.0.1", "192.168.0.2");
    assert!(matches!(tables.permitting(Some(&many)), Err(TableError::TooMany { .. })));
}
