// SPDX-License-Identifier: Apache-2.0
//! Every small world there is: modes × families × tunnel families × a second entry of the overlay × routes, neighbours and
//! lists that are there or not × what is sent to × bound address and hop limit. [`page`] says what the design page says of it;
//! the frames that leave are taken apart and must be just those, and the client's table must say the same.

mod page;

use std::net::IpAddr;

use ktsn_model::{BypassReason, DropReason, IpPrefix};
use ktsn_resolve::{
    AskedFamilies, AttachmentIndex, AttachmentTables, Bridged, Flow, Forwarding, Link, LinkTable, Marks,
    Member, MemberAt, Neighbour, Overlay, Peer, PortIndex, Refusal, Replica, Resolved, Route, Tables, Tunnel,
    Verdict, Via, Vxlan, VxlanBridged, VxlanRouted, destinations, next_replica, resolve_replica,
};
use ktsn_wire::{MacAddress, Pcp, Tci, Vid, Vni, dissect};

use page::{
    Allowed, Answer, Bound, Flood, Known, Mode, Place, PodRoute, Question, Second, Seen, Underlay, World,
    mac, underlay,
};

const PORT: u16 = 8472;
const INDEX: AttachmentIndex = AttachmentIndex(0);

fn prefix(text: &str) -> IpPrefix {
    text.parse().unwrap()
}

/// Of two texts that of the family.
fn of(is_v6: bool, v4: &str, v6: &str) -> IpPrefix {
    prefix(if is_v6 { v6 } else { v4 })
}

fn far(world: &World) -> IpPrefix {
    of(world.is_v6, "10.1.1.0/24", "fd01:0:0:1::/64")
}

fn everything(is_v6: bool) -> IpPrefix {
    of(is_v6, "0.0.0.0/0", "::/0")
}

fn interface(world: &World) -> LinkTable {
    let place = |place: Place| place.address(world.is_v6);
    let on_link =
        Route { prefix: of(world.is_v6, "10.1.0.0/24", "fd01::/64"), via: Via::OnLink, source: None };
    let default = |via| Route { prefix: everything(world.is_v6), via, source: None };
    let routes = match world.pod_route {
        PodRoute::Nothing => vec![],
        PodRoute::Subnet => vec![on_link],
        PodRoute::Gateway => vec![on_link, default(Via::Gateway(place(Place::Gateway)))],
        PodRoute::Elsewhere => vec![default(Via::Elsewhere), on_link],
        PodRoute::Asked => vec![default(Via::Asked), on_link],
        PodRoute::Rules => vec![on_link],
    };
    let stations = [
        (Place::Gateway, page::GATEWAY),
        (Place::Near, page::NEAR),
        (Place::Station, page::STATION),
        (Place::Prefixed, page::PREFIXED),
        (Place::LinkLocal, page::LINK_LOCAL),
    ];
    let neighbours = stations.iter().filter(|_| world.knows_link);
    let mut addresses = vec![(place(Place::Own), if world.is_v6 { 64 } else { 24 })];
    if world.is_v6 {
        addresses.insert(0, ("fe80::5".parse().unwrap(), 64));
    }
    let neighbours = neighbours.map(|&(at, last)| Neighbour { address: place(at), mac: mac(last) }).collect();
    link(1, page::POD, page::INTERFACE_MTU, addresses, routes, neighbours)
}

fn link(
    port: u16,
    last: u8,
    mtu: u32,
    addresses: Vec<(IpAddr, u8)>,
    routes: Vec<Route>,
    neighbours: Vec<Neighbour>,
) -> LinkTable {
    let (port, if_index) = (PortIndex(port), u32::from(port) + 1);
    LinkTable::new(Link { port, if_index, mac: mac(last), mtu, addresses, routes, neighbours }).unwrap()
}

fn uplink(world: &World) -> LinkTable {
    let is_plain = matches!(world.mode, Mode::Plain { .. });
    let is_v6 = if is_plain { world.is_v6 } else { world.over_v6 };
    let ends = if is_plain { far(world) } else { of(is_v6, "192.168.50.0/24", "fd50::/64") };
    let router = underlay(is_v6, 9);
    let route = |prefix, via| vec![Route { prefix, via, source: None }];
    let routes = match world.underlay {
        Underlay::Nothing => vec![],
        Underlay::OnLink => route(ends, Via::OnLink),
        Underlay::Router => route(ends, Via::Gateway(router)),
        Underlay::Default => route(everything(is_v6), Via::Gateway(router)),
        Underlay::Elsewhere => route(ends, Via::Elsewhere),
    };
    let hosts = if is_plain {
        [Place::Far, Place::Inner].map(|place| place.address(world.is_v6))
    } else {
        [2, 3].map(|last| underlay(is_v6, last))
    };
    let all = [(hosts[0], page::UPLINK + 2), (hosts[1], page::UPLINK + 3), (router, page::ROUTER)];
    let neighbours = all.iter().map(|&(address, last)| Neighbour { address, mac: mac(last) });
    let neighbours = match world.known {
        Known::Nobody => vec![],
        Known::SecondAndRouter => neighbours.skip(1).collect(),
        Known::Everybody => neighbours.collect(),
    };
    let address = vec![(underlay(is_v6, 1), if is_v6 { 64 } else { 24 })];
    link(0, page::UPLINK, page::UPLINK_MTU, address, routes, neighbours)
}

fn overlay(world: &World) -> Overlay {
    let end = |last| underlay(world.over_v6, last);
    let tunnel = Tunnel::new(Vni::new(7).unwrap(), PORT, end(1));
    let second = match world.second {
        Second::Absent => None,
        Second::Remote => Some((end(3), mac(page::INNER_DEVICE))),
        Second::Here => Some((end(1), mac(page::INNER_DEVICE))),
        Second::Unknown => Some((end(3), MacAddress::ZERO)),
    };
    match world.mode {
        Mode::Plain { .. } => Overlay::None,
        Mode::Routed => {
            let first = Peer { prefix: far(world), vtep: end(2), mac: mac(page::FAR_DEVICE) };
            let inner = of(world.is_v6, "10.1.1.128/25", "fd01:0:0:1:8000::/65");
            let second = second.map(|(vtep, mac)| Peer { prefix: inner, vtep, mac });
            let peers = [first].into_iter().chain(second).collect();
            let device_mac = mac(page::DEVICE);
            Overlay::VxlanRouted(VxlanRouted::new(Vxlan { tunnel, device_mac, peers }).unwrap())
        }
        Mode::Bridged { flood, copy_here } => {
            let first = Member { at: MemberAt::Mac(mac(page::STATION)), vtep: end(2) };
            let prefixed = IpPrefix::host(Place::Prefixed.address(world.is_v6));
            let second = second.map(|(vtep, _)| Member { at: MemberAt::Prefix(prefixed), vtep });
            let flood = match flood {
                Flood::Nobody => vec![],
                Flood::First => vec![end(2)],
                Flood::All => vec![end(3), end(1), end(2)],
            };
            let members = [first].into_iter().chain(second).collect();
            let bridged = Bridged { tunnel, members, flood, flood_interface: copy_here };
            Overlay::VxlanBridged(VxlanBridged::new(bridged).unwrap())
        }
    }
}

fn tables(world: &World) -> Tables {
    let destinations = match world.allowed {
        Allowed::Default => None,
        Allowed::Everything => Some(vec![everything(world.is_v6)]),
        Allowed::Far => Some(vec![far(world)]),
    };
    let tag = Tci { pcp: Pcp::new(3).unwrap(), dei: false, vid: Vid::new(9).unwrap() };
    let attachment =
        AttachmentTables::new(interface(world), uplink(world).into(), overlay(world), destinations);
    let is_asked = world.pod_route == PodRoute::Rules;
    let asked = AskedFamilies { is_v4: is_asked && !world.is_v6, is_v6: is_asked && world.is_v6 };
    let mut attachment = attachment.unwrap().with_vlan(world.is_tagged.then_some(tag)).unwrap().asking(asked);
    if let Mode::Plain { forwards, has_gateway } = world.mode {
        let place = |place: Place| place.address(world.is_v6);
        let mut own = vec![place(Place::Node), underlay(world.is_v6, 1)];
        own.extend(has_gateway.then_some(place(Place::Gateway)));
        let (is_v4, is_v6) = (forwards && !world.is_v6, forwards && world.is_v6);
        attachment = attachment.forwarded(Forwarding { own, is_v4, is_v6 }).unwrap();
    }
    Tables::new(1, vec![Some(attachment)]).unwrap()
}

/// The frame as it is on the wire, taken apart.
fn seen(resolved: &Resolved, payload: &[u8]) -> Seen {
    let mut out = [0; 256];
    let octets = resolved.template.write_frame(payload, &mut out).unwrap();
    assert_eq!(octets, resolved.template.frame_octets(payload.len()), "as long as it said");
    let frame = dissect(&out[..octets], Some(PORT)).unwrap();
    assert_eq!(frame.payload(), payload);
    let inner = &frame.inner;
    assert_eq!((inner.datagram.source_port(), inner.datagram.destination_port()), (5001, 6001));
    Seen {
        by_uplink: resolved.port == PortIndex(0),
        macs: (inner.source_mac, inner.destination_mac),
        is_tagged: inner.vlan.is_some(),
        addresses: (inner.source, inner.destination),
        hop_limit: inner.hop_limit,
        tunnel: frame.tunnel.map(|tunnel| {
            let outer = &tunnel.outer;
            (outer.source_mac, outer.destination_mac, outer.source, outer.destination)
        }),
    }
}

/// All frames, as a worker asks for them.
fn all(tables: &Tables, flow: &Flow) -> Result<Vec<Resolved>, Refusal> {
    let mut found = vec![resolve_replica(tables, flow, Replica::First)?];
    let mut last = found[0].replica;
    while let Some(next) = last.and_then(|last| next_replica(tables, INDEX, last)) {
        found.extend(resolve_replica(tables, flow, next).ok());
        last = Some(next);
    }
    Ok(found)
}

fn check(tables: &Tables, question: &Question) {
    let world = &question.world;
    let bound = match question.bound {
        Bound::Nothing => None,
        Bound::Own => Some(Place::Own.address(world.is_v6)),
        Bound::Foreign => Some(Place::Near.address(world.is_v6)),
    };
    let flow = Flow {
        is_connected: false,
        uid: 0,
        attachment: INDEX,
        bound,
        source_port: 5001,
        destination: question.to.address(world.is_v6),
        destination_port: 6001,
        scope: 0,
        traffic_class: 0,
        hop_limit: question.hop_limit,
        marks: Marks::default(),
    };
    let fits = match (all(tables, &flow), question.answer()) {
        (Err(Refusal::Bypass(BypassReason::OwnAddress)), Answer::OwnAddress)
        | (Err(Refusal::Bypass(BypassReason::NotAllowed)), Answer::NotAllowed)
        | (Err(Refusal::Bypass(BypassReason::RoutingRules)), Answer::RoutingRules)
        | (Err(Refusal::Unanswered), Answer::Unanswered { .. }) => true,
        (Err(Refusal::Drop(reason, hop)), Answer::Dropped { no_route, no_neighbour, no_end }) => {
            match (reason, hop) {
                (DropReason::NoRoute, None) => no_route,
                (DropReason::NoNeighbour, None) => no_end,
                (DropReason::NoNeighbour, Some(hop)) => no_neighbour.contains(&hop.address),
                _ => false,
            }
        }
        (Ok(ours), Answer::Leaves { frames, payload_max }) => {
            let longest = |found: &Resolved| u32::from(found.payload_max) == payload_max;
            let payload = [7; 30];
            ours.iter().all(longest)
                && ours.iter().map(|found| seen(found, &payload)).collect::<Vec<_>>() == frames
        }
        _ => false,
    };
    let (to, bound, hop_limit) = (question.to, question.bound, question.hop_limit);
    assert!(
        fits,
        "{world:?}, to {to:?}, {bound:?}, {hop_limit}: {:?}, but the page says {:?}",
        all(tables, &flow).map(|ours| ours.iter().map(|found| seen(found, &[7; 30])).collect::<Vec<_>>()),
        question.answer()
    );
}

/// What a client reads of it: the same verdict, and the same largest payload.
fn check_client(tables: &Tables, world: &World) {
    let rules = destinations(tables, INDEX);
    for to in Place::ALL {
        let address = to.address(world.is_v6);
        let rule = rules.iter().find(|rule| {
            let (network, bits) = rule.prefix.mapped();
            let mapped = match address {
                IpAddr::V4(address) => address.to_ipv6_mapped(),
                IpAddr::V6(address) => address,
            };
            IpPrefix::new(network.into(), bits).unwrap().contains(mapped.into())
        });
        let said = rule.map_or(Verdict::Bypass(BypassReason::NotAllowed), |rule| rule.verdict);
        let answer = Question { world: *world, to, bound: Bound::Nothing, hop_limit: 0 }.answer();
        let fits = match (said, &answer) {
            (Verdict::Bypass(reason), Answer::OwnAddress) => reason == BypassReason::OwnAddress,
            (Verdict::Bypass(reason), Answer::NotAllowed) => reason == BypassReason::NotAllowed,
            (Verdict::Bypass(reason), Answer::RoutingRules) => reason == BypassReason::RoutingRules,
            (Verdict::Take { payload_max: told } | Verdict::Broadcast { payload_max: told }, answer) => {
                match answer {
                    Answer::Leaves { payload_max, .. } => u32::from(told) == *payload_max,
                    Answer::Dropped { .. } => true,
                    _ => false,
                }
            }
            (Verdict::Asked { payload_max: told }, Answer::Unanswered { payload_max }) => {
                u32::from(told) == *payload_max
            }
            (Verdict::Bypass(_) | Verdict::Asked { .. }, _) => false,
        };
        assert!(fits, "{world:?}, to {to:?}: the client reads {said:?}, but the page says {answer:?}");
    }
}

/// Every combination of what a mode looks at; how many questions that were.
fn every(modes: &[Mode], seconds: &[Second], asked: &[(Bound, u8)]) -> usize {
    let mut count = 0;
    let families = [(false, false), (false, true), (true, false), (true, true)];
    use PodRoute::{Asked, Elsewhere, Gateway, Nothing, Rules, Subnet};
    let pod_routes = [Nothing, Subnet, Gateway, Elsewhere, Asked, Rules];
    let underlays =
        [Underlay::Nothing, Underlay::OnLink, Underlay::Router, Underlay::Default, Underlay::Elsewhere];
    let lists = [Allowed::Default, Allowed::Everything, Allowed::Far];
    for &mode in modes {
        let is_plain = matches!(mode, Mode::Plain { .. });
        let families = families.iter().filter(|(_, over_v6)| !is_plain || !over_v6);
        for (&(is_v6, over_v6), &second) in families.flat_map(|f| seconds.iter().map(move |s| (f, s))) {
            for (pod_route, allowed) in pod_routes.iter().flat_map(|r| lists.map(|list| (*r, list))) {
                for underlay in underlays {
                    for known in [Known::Nobody, Known::SecondAndRouter, Known::Everybody] {
                        for (knows_link, is_tagged) in [(false, false), (true, false), (true, true)] {
                            let world = World {
                                mode,
                                is_v6,
                                over_v6,
                                second,
                                pod_route,
                                knows_link,
                                underlay,
                                known,
                                allowed,
                                is_tagged,
                            };
                            count += everywhere(&world, asked);
                        }
                    }
                }
            }
        }
    }
    count
}

fn everywhere(world: &World, asked: &[(Bound, u8)]) -> usize {
    let tables = tables(world);
    for to in Place::ALL {
        for &(bound, hop_limit) in asked {
            check(&tables, &Question { world: *world, to, bound, hop_limit });
        }
    }
    check_client(&tables, world);
    Place::ALL.len() * asked.len()
}

const ASKED: [(Bound, u8); 5] =
    [(Bound::Nothing, 0), (Bound::Own, 0), (Bound::Foreign, 0), (Bound::Nothing, 1), (Bound::Own, 2)];

#[test]
fn every_small_world_without_an_overlay() {
    let mut modes = Vec::new();
    for forwards in [false, true] {
        modes.extend([false, true].map(|has_gateway| Mode::Plain { forwards, has_gateway }));
    }
    assert_eq!(every(&modes, &[Second::Absent], &ASKED), 4 * 2 * 18 * 5 * 3 * 3 * 15 * 5);
}

#[test]
fn every_small_world_with_a_routed_overlay() {
    let seconds = [Second::Absent, Second::Remote, Second::Here, Second::Unknown];
    assert_eq!(every(&[Mode::Routed], &seconds, &ASKED), 4 * 4 * 18 * 5 * 3 * 3 * 15 * 5);
}

#[test]
fn every_small_world_with_a_segment() {
    let mut modes = Vec::new();
    for flood in [Flood::Nobody, Flood::First, Flood::All] {
        modes.extend([false, true].map(|copy_here| Mode::Bridged { flood, copy_here }));
    }
    let seconds = [Second::Absent, Second::Remote, Second::Here];
    let asked = [(Bound::Nothing, 0), (Bound::Own, 1)];
    assert_eq!(every(&modes, &seconds, &asked), 6 * 4 * 3 * 18 * 5 * 3 * 3 * 15 * 2);
}
