// SPDX-License-Identifier: Apache-2.0
//! Random worlds: tables as plain lists, with few, crowded addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ktsn_model::IpPrefix;
use ktsn_resolve::{
    InterfaceRoute, Link, Member, MemberAt, Neighbour, OuterDf, OuterDs, OuterTtl, Peer, PortIndex, Route,
    RouteAnswer, Via,
};
use ktsn_wire::{DsField, MacAddress, Pcp, Tci, Vid, Vni};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::reference::{Kind, Plain, width};

/// Few, crowded addresses, so that prefixes nest and everything meets everything.
pub(crate) fn address() -> impl Strategy<Value = IpAddr> {
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

pub(crate) fn unicast() -> impl Strategy<Value = IpAddr> {
    address().prop_filter("an address a host can have", |a| {
        !a.is_multicast() && !a.is_unspecified() && !a.is_loopback() && *a != IpAddr::V4(Ipv4Addr::BROADCAST)
    })
}

pub(crate) fn prefix() -> impl Strategy<Value = IpPrefix> {
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
    let unknown = prop_oneof![Just(Via::Elsewhere), Just(Via::Asked)];
    let via = prop_oneof![3 => Just(Via::OnLink), 3 => unicast().prop_map(Via::Gateway), 1 => unknown];
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
pub(crate) fn plain() -> impl Strategy<Value = Plain> {
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

/// An answer with a source of the interface's, where chance made none.
fn sourced(answer: Option<RouteAnswer>, interface: &Link) -> Option<RouteAnswer> {
    let Some(RouteAnswer::Interface(route)) = answer else { return answer };
    let source = route.source.or(interface.addresses.first().map(|entry| entry.0));
    Some(RouteAnswer::Interface(InterfaceRoute { source, ..route }))
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
    let asked = prop_oneof![6 => Just((false, false)), 1 => any::<(bool, bool)>()];
    let mtu = proptest::option::of(select(vec![500, 1280, 1500]));
    let route = (proptest::option::of(unicast()), proptest::option::of(unicast()), mtu, 0..3_u8);
    let answer = prop_oneof![
        1 => Just(None),
        1 => Just(Some(RouteAnswer::Elsewhere)),
        4 => route.prop_map(|(gateway, source, mtu, hops)| {
            let hop_limit = (hops != 0).then_some(hops);
            Some(RouteAnswer::Interface(InterfaceRoute { gateway, source, mtu, hop_limit }))
        }),
    ];
    let asked = (asked, answer);
    let lists = (vec(prefix(), 0..6), vec(unicast(), 0..3), vlan, asked, vec(prefix(), 0..2));
    (link(1), link(2), overlay, any::<bool>(), lists, kind, outer).prop_map(
        |(
            interface,
            uplink,
            (local, peers),
            udp_checksum,
            (destinations, own, vlan, asked, delivered),
            kind,
            outer,
        )| Plain {
            kind: kind_of(kind, &interface, local),
            answer: sourced(asked.1, &interface),
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
            asked: asked.0,
            delivered,
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
