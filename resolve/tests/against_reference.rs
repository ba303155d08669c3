// SPDX-License-Identifier: Apache-2.0
//! Random tables and datagrams: the crate against the naive reference, and the client's table against `resolve`.

mod reference;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ktsn_model::{DropReason, IpPrefix};
use ktsn_resolve::limits::DESTINATION_RULES_MAX;
use ktsn_resolve::{
    Attachment, AttachmentIndex, AttachmentTables, Bridged, DestinationRule, Flow, Forwarding, Link,
    LinkTable, Member, MemberAt, Neighbour, NextHop, OuterDf, OuterDs, OuterTtl, Overlay, Peer, PortIndex,
    Refusal, Resolved, Route, Side, Tables, Tunnel, Verdict, Via, Vxlan, VxlanBridged, VxlanRouted,
    destination_table, next_replica, resolve, resolve_ahead, resolve_replica,
};
use ktsn_wire::{DsField, HeaderTemplate, MacAddress, Pcp, Tci, Vid, Vni};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use reference::{Kind, Plain, width};

/// Few, crowded addresses, so that prefixes nest and everything meets everything.
fn address() -> impl Strategy<Value = IpAddr> {
    let special = select(vec![
        "0.0.0.0",
        "127.0.0.1",
        "127.9.9.9",
        "224.0.0.1",
        "239.255.1.2",
        "255.255.255.255",
        "10.0.0.255",
        "::",
        "::1",
        "ff01::1",
        "ff02::1",
        "ff05::1:3",
        "fe80::1",
        "fe80::2",
        "fec0::1",
        "::fffe:1:2",
        "::1:0:0:0",
    ]);
    prop_oneof![
        6 => (0..4_u8, 0..4_u8, 0..8_u8).prop_map(|(b, c, d)| IpAddr::V4(Ipv4Addr::new(10, b, c, d * 35 + b + 3))),
        3 => (0..4_u16, 0..6_u16).prop_map(|(b, c)| IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, b, 0, 0, 0, c))),
        1 => (0..3_u16).prop_map(|c| IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, c))),
        2 => special.prop_map(|text| text.parse().unwrap()),
    ]
}

fn unicast() -> impl Strategy<Value = IpAddr> {
    address().prop_filter("an address a host can have", |a| {
        !a.is_multicast() && !a.is_unspecified() && !a.is_loopback() && *a != IpAddr::V4(Ipv4Addr::BROADCAST)
    })
}

fn prefix() -> impl Strategy<Value = IpPrefix> {
    let v4_bits = select(vec![0, 3, 6, 8, 14, 16, 22, 24, 27, 30, 31, 32]);
    let v6_bits = select(vec![0, 8, 10, 48, 62, 64, 80, 95, 96, 112, 126, 128]);
    (address(), v4_bits, v6_bits).prop_map(|(address, v4_bits, v6_bits)| {
        let bits = if address.is_ipv4() { v4_bits } else { v6_bits };
        IpPrefix::covering(address, bits).unwrap()
    })
}

fn mac() -> impl Strategy<Value = MacAddress> {
    any::<u8>().prop_map(|last| MacAddress([2, 0, 0, 0, 0, last]))
}

/// A tunnel end's MAC address: sometimes it is not known.
fn tunnel_mac() -> impl Strategy<Value = MacAddress> {
    prop_oneof![5 => mac(), 1 => Just(MacAddress::ZERO)]
}

fn unique<T, K: PartialEq>(list: Vec<T>, key: impl Fn(&T) -> K) -> Vec<T> {
    let mut unique: Vec<T> = Vec::new();
    for entry in list {
        if unique.iter().all(|known| key(known) != key(&entry)) {
            unique.push(entry);
        }
    }
    unique
}

fn link(port: u16) -> impl Strategy<Value = Link> {
    let own = (unicast(), select(vec![0, 8, 24, 30, 31, 32]))
        .prop_map(|(address, bits)| (address, bits.min(width(address))));
    let via =
        prop_oneof![3 => Just(Via::OnLink), 3 => unicast().prop_map(Via::Gateway), 1 => Just(Via::Elsewhere)];
    let route = (prefix(), via, proptest::option::of(unicast())).prop_map(|(prefix, via, source)| Route {
        prefix,
        via,
        source,
    });
    let neighbour = (unicast(), mac()).prop_map(|(address, mac)| Neighbour { address, mac });
    let mtu = select(vec![60, 1280, 1450, 1500, 9000, 65_536, 70_000]);
    (mac(), mtu, vec(own, 0..5), vec(route, 0..8), vec(neighbour, 0..30)).prop_map(
        move |(mac, mtu, addresses, routes, neighbours)| Link {
            port: PortIndex(port),
            if_index: 7,
            mac,
            mtu,
            addresses,
            routes,
            neighbours: unique(neighbours, |neighbour| neighbour.address),
        },
    )
}

/// Now and then a node that forwards, with a route to what the pod may send to: chance alone hardly makes one.
fn plain() -> impl Strategy<Value = Plain> {
    (any_plain(), any::<bool>()).prop_map(|(mut plain, is_router)| {
        let all: IpPrefix = "10.0.0.0/8".parse().unwrap();
        let hop = plain.uplink.neighbours.first().map(|neighbour| neighbour.address);
        match (&mut plain.kind, hop) {
            (Kind::Plain(node, is_v4, _), Some(hop)) if is_router => {
                let gateway: IpAddr = "10.2.2.2".parse().unwrap();
                node.push(gateway);
                *is_v4 = true;
                plain.destinations.push(all);
                plain.interface.routes.push(Route { prefix: all, via: Via::Gateway(gateway), source: None });
                plain.uplink.routes.push(Route { prefix: all, via: Via::Gateway(hop), source: None });
            }
            // Tunnel ends that can be reached, and groups.
            (_, Some(hop)) if is_router => {
                for everywhere in ["0.0.0.0/0", "::/0"] {
                    let prefix = everywhere.parse().unwrap();
                    plain.uplink.routes.push(Route { prefix, via: Via::Gateway(hop), source: None });
                }
                plain.destinations.extend([all, "224.0.0.0/4".parse().unwrap()]);
            }
            _ => {}
        }
        plain
    })
}

fn any_plain() -> impl Strategy<Value = Plain> {
    let peers = |v4: bool| {
        let peer = (prefix(), unicast().prop_filter("one family", move |a| a.is_ipv4() == v4), tunnel_mac())
            .prop_map(|(prefix, vtep, mac)| Peer { prefix, vtep, mac });
        (unicast().prop_filter("one family", move |a| a.is_ipv4() == v4), vec(peer, 0..5))
    };
    let overlay = prop_oneof![peers(true), peers(false)];
    let member = |v4: bool| {
        let at = prop_oneof![prefix().prop_map(MemberAt::Prefix), mac().prop_map(MemberAt::Mac)];
        (at, end(v4)).prop_map(|(at, vtep)| Member { at, vtep })
    };
    let segment = |v4: bool| (vec(member(v4), 0..6), vec(end(v4), 0..5), any::<bool>());
    let kind = (0..3_u8, vec(unicast(), 0..3), any::<(bool, bool, bool)>(), segment(true), segment(false));
    let ttl = prop_oneof![any::<u8>().prop_map(OuterTtl::Fixed), Just(OuterTtl::Inherit)];
    let ds = prop_oneof![any::<u8>().prop_map(|ds| OuterDs::Fixed(DsField(ds))), Just(OuterDs::Inherit)];
    let outer = (ttl, ds, select(vec![OuterDf::Unset, OuterDf::Set, OuterDf::Inherit]));
    let vlan = proptest::option::of((0..8_u8, 1..4095_u16)).prop_map(|tag| {
        tag.map(|(pcp, vid)| Tci { pcp: Pcp::new(pcp).unwrap(), dei: false, vid: Vid::new(vid).unwrap() })
    });
    let lists = (vec(prefix(), 0..6), vec(unicast(), 0..3), vlan);
    (link(1), link(2), overlay, any::<bool>(), lists, kind, outer).prop_map(
        |(interface, uplink, (local, peers), udp_checksum, (destinations, own, vlan), kind, outer)| Plain {
            kind: kind_of(kind, &interface, local),
            outer,
            interface,
            uplink,
            peers,
            local,
            vni: Vni::new(1).unwrap(),
            vxlan_port: 8472,
            device_mac: MacAddress([2, 0, 0, 0, 1, 1]),
            udp_checksum,
            destinations,
            own,
            vlan,
        },
    )
}

/// A tunnel end, now and then one that many share.
fn end(v4: bool) -> impl Strategy<Value = IpAddr> {
    let far = if v4 { "10.1.1.4" } else { "fd00:0:0:1::2" };
    prop_oneof![2 => unicast().prop_filter("one family", move |a| a.is_ipv4() == v4), 1 => Just(far.parse().unwrap())]
}

type Segment = (Vec<Member>, Vec<IpAddr>, bool);

fn kind_of(
    (which, mut node, (gateways, v4, v6), over_v4, over_v6): (
        u8,
        Vec<IpAddr>,
        (bool, bool, bool),
        Segment,
        Segment,
    ),
    interface: &Link,
    local: IpAddr,
) -> Kind {
    let (members, mut flood, flood_interface) = if local.is_ipv4() { over_v4 } else { over_v6 };
    match which {
        0 => {
            let all = interface.routes.iter().filter_map(|route| match route.via {
                Via::Gateway(gateway) => Some(gateway),
                _ => None,
            });
            node.extend(all.filter(|_| gateways));
            Kind::Plain(node, v4 || gateways, v6 || gateways)
        }
        1 => Kind::Routed,
        _ => {
            flood.extend(gateways.then_some(local)); // our own end is left out
            Kind::Bridged(members, flood, flood_interface)
        }
    }
}

fn overlay(plain: &Plain) -> Overlay {
    let (ttl, ds, df) = plain.outer;
    let udp_checksum = plain.udp_checksum;
    let tunnel =
        Tunnel { ttl, ds, df, udp_checksum, ..Tunnel::new(plain.vni, plain.vxlan_port, plain.local) };
    match &plain.kind {
        Kind::Plain(..) => Overlay::None,
        Kind::Routed => {
            let (device_mac, peers) = (plain.device_mac, plain.peers.clone());
            Overlay::VxlanRouted(VxlanRouted::new(Vxlan { tunnel, device_mac, peers }).unwrap())
        }
        Kind::Bridged(members, flood, flood_interface) => {
            let (members, flood) = (members.clone(), flood.clone());
            let bridged = Bridged { tunnel, members, flood, flood_interface: *flood_interface };
            Overlay::VxlanBridged(VxlanBridged::new(bridged).unwrap())
        }
    }
}

fn tables(plain: &Plain) -> Tables {
    let attachment = AttachmentTables::new(Attachment {
        interface: LinkTable::new(plain.interface.clone()).unwrap(),
        uplink: LinkTable::new(plain.uplink.clone()).unwrap().into(),
        overlay: overlay(plain),
        destinations: Some(plain.destinations.clone()),
        own: plain.own.clone(),
        vlan: plain.vlan,
    });
    let mut attachment = attachment.unwrap();
    if let Kind::Plain(own, is_v4, is_v6) = &plain.kind {
        let forwarding = Forwarding { own: own.clone(), is_v4: *is_v4, is_v6: *is_v6 };
        attachment = attachment.forwarded(forwarding).unwrap();
    }
    Tables::new(1, vec![None, Some(attachment)]).unwrap()
}

fn flow(destination: IpAddr) -> Flow {
    Flow {
        attachment: AttachmentIndex(1),
        bound: None,
        source_port: 5001,
        destination,
        destination_port: 6001,
        scope: 0,
        traffic_class: 0,
        hop_limit: 0,
    }
}

fn any_flow() -> impl Strategy<Value = Flow> {
    let marks = (select(vec![0, 0xb9, 3]), select(vec![0, 1, 2, 64, 255]), select(vec![0, 0, 7, 8]));
    (address(), proptest::option::weighted(0.3, address()), marks, any::<bool>()).prop_map(
        |(to, bound, (traffic_class, hop_limit, scope), mapped)| {
            let destination = match to {
                IpAddr::V4(to) if mapped => IpAddr::V6(to.to_ipv6_mapped()),
                to => to,
            };
            Flow { bound, traffic_class, hop_limit, scope, ..flow(destination) }
        },
    )
}

fn frame(template: &HeaderTemplate) -> Vec<u8> {
    let mut out = vec![0; 256];
    let octets = template.write_frame_identified(b"octets", 77, &mut out).unwrap();
    out.truncate(octets);
    out
}

/// All frames that a datagram leaves as, as the worker finds them.
fn resolve_all(tables: &Tables, flow: &Flow) -> Result<Vec<Resolved>, Refusal> {
    let first = resolve(tables, flow)?;
    let mut after = first.replica;
    let mut all = vec![first];
    while let Some(replica) = after.and_then(|after| next_replica(tables, flow.attachment, after)) {
        match resolve_replica(tables, flow, replica) {
            Ok(resolved) => {
                assert_eq!((resolved.replica, resolved.skipped), (Some(replica), 0));
                all.push(resolved);
            }
            Err(refusal) => assert!(matches!(refusal, Refusal::Drop(..)), "{refusal:?}"),
        }
        after = Some(replica);
    }
    Ok(all)
}

/// The verdict of a client's table: all addresses as IPv6, first match.
fn first_match(rules: &[DestinationRule], to: IpAddr) -> Option<Verdict> {
    let to = match to {
        IpAddr::V4(to) => to.to_ipv6_mapped(),
        IpAddr::V6(to) => to,
    };
    let matching = rules.iter().find(|rule| {
        let (network, bits) = rule.prefix.mapped();
        IpPrefix::new(IpAddr::V6(network), bits).unwrap().contains(IpAddr::V6(to))
    });
    matching.map(|rule| rule.verdict)
}

const NO_MATCH: Verdict = Verdict::Bypass(ktsn_model::BypassReason::NotAllowed);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn resolve_is_the_reference(plain in plain(), flows in vec(any_flow(), 1..20)) {
        let tables = tables(&plain);
        for flow in flows {
            let expected = reference::resolve(&plain, &flow);
            match (resolve_all(&tables, &flow), expected) {
                (Ok(ours), Ok(theirs)) => {
                    prop_assert_eq!(ours.len(), theirs.len(), "{:?}", flow);
                    for (ours, theirs) in ours.iter().zip(theirs) {
                        prop_assert_eq!((ours.port, ours.payload_max, ours.egress), (theirs.port, theirs.payload_max, theirs.egress));
                        let template = HeaderTemplate::new(&theirs.repr).unwrap();
                        prop_assert_eq!(frame(&ours.template), frame(&template));
                        prop_assert!(usize::from(ours.payload_max) <= ours.template.payload_octets_max());
                    }
                }
                (ours, theirs) => prop_assert_eq!(ours.map(|_| ()), theirs.map(|_| ()), "{:?}", flow),
            }
        }
    }

    #[test]
    fn what_waits_for_a_mac_address_will_leave_so(mut plain in plain(), flows in vec(any_flow(), 1..20)) {
        for flow in flows {
            let ahead = resolve_ahead(&tables(&plain), &flow);
            let mut refused = None;
            let now = loop {
                match resolve(&tables(&plain), &flow) {
                    Err(refusal @ Refusal::Drop(DropReason::NoNeighbour, Some(NextHop { side, address }))) => {
                        refused.get_or_insert((refusal, side));
                        let link = if side == Side::Uplink { &mut plain.uplink } else { &mut plain.interface };
                        link.neighbours.push(Neighbour { address, mac: MacAddress([2, 0, 0, 0, 0, 99]) });
                    }
                    now => break now,
                }
            };
            let Some((refusal, side)) = refused else { continue };
            match (ahead, now) {
                // Who it is decides where on the segment the frame goes.
                (Err(ahead), _) if side == Side::Interface && matches!(plain.kind, Kind::Bridged(..)) => {
                    prop_assert_eq!(ahead, refusal);
                }
                (Ok(ahead), Ok(now)) => {
                    prop_assert_eq!((ahead.port, ahead.payload_max, ahead.egress), (now.port, now.payload_max, now.egress));
                    prop_assert_eq!((ahead.replica, ahead.skipped), (now.replica, now.skipped));
                    prop_assert_eq!(ahead.template.wire_octets(40), now.template.wire_octets(40));
                    prop_assert_eq!(ahead.template.sdu_octets(40), now.template.sdu_octets(40));
                }
                (ahead, now) => prop_assert_eq!(ahead.map(|_| ()), now.map(|_| ()), "{:?}", flow),
            }
        }
    }

    #[test]
    fn clients_decide_as_resolve_would(plain in plain(), destinations in vec(address(), 1..40)) {
        let tables = tables(&plain);
        let table = destination_table(&tables, AttachmentIndex(1));
        prop_assert!(table.rules.len() <= DESTINATION_RULES_MAX);
        let mapped: Vec<_> = table.rules.iter().map(|rule| rule.prefix.mapped()).collect();
        prop_assert!(mapped.is_sorted_by_key(|(_, bits)| std::cmp::Reverse(*bits)));
        for to in destinations {
            let verdict = first_match(&table.rules, to).unwrap_or(NO_MATCH);
            match (resolve(&tables, &flow(to)), verdict) {
                (Ok(resolved), Verdict::Take { payload_max }) => prop_assert_eq!(resolved.payload_max, payload_max),
                (Ok(resolved), Verdict::Broadcast { payload_max }) => {
                    prop_assert!(to.is_ipv4() && resolved.payload_max == payload_max, "{}", to);
                }
                (Err(Refusal::Drop(..)), Verdict::Take { .. } | Verdict::Broadcast { .. }) => {}
                (Err(Refusal::Bypass(reason)), Verdict::Bypass(said)) => prop_assert_eq!(reason, said, "{}", to),
                (answer, verdict) => prop_assert!(false, "{}: {:?} but the table says {:?}", to, answer, verdict),
            }
        }
    }

    #[test]
    fn a_full_table_never_takes_more(
        mut plain in plain(),
        many in vec((0..200_u8, 0..200_u8, select(vec![16_u8, 24, 28, 32])), 60..300),
        probes in vec((0..200_u8, 0..200_u8, any::<u8>()), 40),
    ) {
        plain.interface.routes.clear();
        plain.destinations.extend(many.iter().map(|&(b, c, bits)| {
            IpPrefix::covering(IpAddr::V4(Ipv4Addr::new(10, b, c, 1)), bits).unwrap()
        }));
        plain.own.extend(many.iter().step_by(3).map(|&(b, c, _)| IpAddr::V4(Ipv4Addr::new(10, b, c, 1))));
        let tables = tables(&plain);
        let table = destination_table(&tables, AttachmentIndex(1));
        prop_assert!(table.rules.len() <= DESTINATION_RULES_MAX);
        let hits = many.iter().map(|&(b, c, _)| (b, c, 1));
        for (b, c, d) in probes.into_iter().chain(hits) {
            let to = IpAddr::V4(Ipv4Addr::new(10, b, c, d));
            let taken = first_match(&table.rules, to).unwrap_or(NO_MATCH);
            if let Verdict::Take { payload_max } | Verdict::Broadcast { payload_max } = taken {
                match resolve(&tables, &flow(to)) {
                    Ok(resolved) => prop_assert!(payload_max <= resolved.payload_max),
                    Err(Refusal::Drop(..)) => {}
                    bypass => prop_assert!(false, "{} is taken, but {:?}", to, bypass),
                }
            }
        }
    }
}

/// Random input that only ever meets one rule would prove little.
#[test]
fn random_input_reaches_every_answer() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
    // Each world throws some of its addresses away.
    let config = Config { max_local_rejects: u32::MAX, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let mut seen = std::collections::BTreeMap::<String, u32>::new();
    for _ in 0..4000 {
        let plain = plain().new_tree(&mut runner).unwrap().current();
        for _ in 0..6 {
            let flow = any_flow().new_tree(&mut runner).unwrap().current();
            let answer = match reference::resolve(&plain, &flow) {
                Ok(frames) if frames.len() > 1 => "copies".to_owned(),
                Ok(frames) => {
                    let (leaves, kind) = (&frames[0], &plain.kind);
                    let kind = match kind {
                        Kind::Plain(..) => "plain",
                        Kind::Routed => "routed",
                        Kind::Bridged(..) => "bridged",
                    };
                    format!(
                        "{kind} {:?} group={}",
                        leaves.egress,
                        leaves.repr.ethernet.destination.is_multicast()
                    )
                }
                Err(Refusal::Bypass(reason)) => reason.word().to_owned(),
                Err(Refusal::Drop(reason, hop)) => format!("{reason} {:?}", hop.map(|hop| hop.side)),
            };
            *seen.entry(answer).or_default() += 1;
        }
    }
    for answer in [
        "plain Uplink group=false",
        "routed Uplink group=false",
        "bridged Uplink group=false",
        "bridged Interface group=false",
        "plain Interface group=false",
        "routed Interface group=true",
        "copies",
        "own_address",
        "not_allowed",
        "no_route None",
        "no_neighbour Some(Interface)",
        "no_neighbour Some(Uplink)",
    ] {
        assert!(seen.get(answer).is_some_and(|count| *count >= 5), "{answer}: {seen:?}");
    }
}
