// SPDX-License-Identifier: Apache-2.0
//! Random tables and datagrams: the crate against the naive reference, and the client's table against `resolve`.

mod reference;
mod worlds;

use std::net::{IpAddr, Ipv4Addr};

use ktsn_model::{DropReason, IpPrefix};
use ktsn_resolve::limits::DESTINATION_RULES_MAX;
use ktsn_resolve::{
    AskedFamilies, AttachmentIndex, AttachmentTables, Bridged, DestinationRule, Flow, Forwarding, LinkTable,
    Marks, Neighbour, NextHop, Overlay, Refusal, Resolved, RouteAnswer, Side, Tables, Tunnel, Verdict, Vxlan,
    VxlanBridged, VxlanRouted, destination_table, next_replica, resolve, resolve_ahead, resolve_answered,
    resolve_replica,
};
use ktsn_wire::{HeaderTemplate, Identifications, MacAddress};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use reference::{Kind, Plain};
use worlds::{address, plain};

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
    let attachment = AttachmentTables::new(
        LinkTable::new(plain.interface.clone()).unwrap(),
        LinkTable::new(plain.uplink.clone()).unwrap().into(),
        overlay(plain),
        Some(plain.destinations.clone()),
    );
    let asked = AskedFamilies { is_v4: plain.asked.0, is_v6: plain.asked.1 };
    let attachment = attachment.unwrap().with_own(plain.own.clone()).unwrap().with_vlan(plain.vlan).unwrap();
    let mut attachment = attachment.asking(asked).with_local(plain.delivered.clone()).unwrap();
    if let Kind::Plain(own, is_v4, is_v6) = &plain.kind {
        let forwarding = Forwarding { own: own.clone(), is_v4: *is_v4, is_v6: *is_v6 };
        attachment = attachment.forwarded(forwarding).unwrap();
    }
    Tables::new(1, vec![None, Some(attachment)]).unwrap()
}

fn flow(destination: IpAddr) -> Flow {
    Flow {
        is_connected: false,
        uid: 0,
        attachment: AttachmentIndex(1),
        bound: None,
        source_port: 5001,
        destination,
        destination_port: 6001,
        scope: 0,
        traffic_class: 0,
        hop_limit: 0,
        marks: Marks::default(),
    }
}

fn any_flow() -> impl Strategy<Value = Flow> {
    let fields = (select(vec![0, 0xb9, 3]), select(vec![0, 1, 2, 64, 255]), select(vec![0, 0, 7, 8]));
    let marks = (any::<[bool; 3]>(), select(vec![0, 0x8_0000, 0xf_ffff])).prop_map(
        |([dont_fragment, udp_checksum, is_default_hop_limit], flow_label)| Marks {
            dont_fragment,
            flow_label,
            udp_checksum,
            is_default_hop_limit,
        },
    );
    (address(), proptest::option::weighted(0.3, address()), fields, marks, any::<bool>()).prop_map(
        |(to, bound, (traffic_class, hop_limit, scope), marks, mapped)| {
            let destination = match to {
                IpAddr::V4(to) if mapped => IpAddr::V6(to.to_ipv6_mapped()),
                to => to,
            };
            Flow { bound, traffic_class, hop_limit, scope, marks, ..flow(destination) }
        },
    )
}

const NUMBERS: Identifications = Identifications { outer: 76, inner: 77 };

fn frame(template: &HeaderTemplate) -> Vec<u8> {
    let mut out = vec![0; 256];
    let octets = template.write_frame_identified(b"octets", NUMBERS, &mut out).unwrap();
    out.truncate(octets);
    out
}

fn answered(tables: &Tables, flow: &Flow, answer: Option<&RouteAnswer>) -> Result<Resolved, Refusal> {
    answer.map_or_else(|| resolve(tables, flow), |answer| resolve_answered(tables, flow, answer))
}

/// All frames that a datagram leaves as, as the worker finds them.
fn resolve_all(tables: &Tables, flow: &Flow, answer: Option<&RouteAnswer>) -> Result<Vec<Resolved>, Refusal> {
    let first = answered(tables, flow, answer)?;
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
            match (resolve_all(&tables, &flow, plain.answer.as_ref()), expected) {
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
            let ahead = resolve_ahead(&tables(&plain), &flow, plain.answer.as_ref());
            let mut refused = None;
            let now = loop {
                match answered(&tables(&plain), &flow, plain.answer.as_ref()) {
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
                (Err(Refusal::Unanswered), Verdict::Asked { payload_max }) => {
                    let ahead = resolve_ahead(&tables, &flow(to), None);
                    prop_assert!(ahead.is_err() || ahead.is_ok_and(|ahead| ahead.payload_max == payload_max));
                }
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
                Err(Refusal::Unanswered) => "unanswered".to_owned(),
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
        "unanswered",
        "routing_rules",
        "own_address",
        "not_allowed",
        "no_route None",
        "no_neighbour Some(Interface)",
        "no_neighbour Some(Uplink)",
    ] {
        assert!(seen.get(answer).is_some_and(|count| *count >= 5), "{answer}: {seen:?}");
    }
}
