// SPDX-License-Identifier: Apache-2.0
//! Head-end replication: each copy is a frame of its own for the gates, one slot stands for all of them, and everything is
//! counted once.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use ktsn_model::{AdminPort, DropReason, GateControlEntry, GateOperation, GateStates, PriorityMap};
use ktsn_port::memory::Memory;
use ktsn_resolve::{
    AttachmentIndex, AttachmentTables, Bridged, Link, LinkTable, Neighbour, Overlay, PortIndex, Route,
    Tables, Tunnel, Via, VxlanBridged,
};
use ktsn_ring::{ClockId, SlotFrame};
use ktsn_sched::GateProgram;
use ktsn_time::{Nanos, Tai};
use ktsn_wire::{MacAddress, Vni, dissect, wire_octets};
use proptest::prelude::*;

use super::world::{AHEAD, App, POD, Wire, World, link, policy};
use super::{MS, US, payload};
use crate::stats::PortStats;
use crate::worker::{AttachmentPolicy, Command, HAND_OVER_AT_START, NewPort};

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);

fn end(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(192, 168, 50, last))
}

/// A segment that floods to `flood`; of these the ends in `known` have a neighbour.
fn segment(generation: u64, flood: &[u8], known: &[u8], flood_interface: bool) -> Tables {
    let on_link = Route { prefix: "192.168.50.0/24".parse().unwrap(), via: Via::OnLink, source: None };
    let neighbour = |last: &u8| Neighbour { address: end(*last), mac: MacAddress([2, 0, 0, 0, 7, *last]) };
    let uplink = Link {
        port: PortIndex(0),
        if_index: 1,
        mac: MacAddress([2, 0, 0, 0, 0, 1]),
        mtu: 1500,
        addresses: vec![(end(1), 24)],
        routes: vec![on_link],
        neighbours: known.iter().map(neighbour).collect(),
    };
    let overlay = VxlanBridged::new(Bridged {
        tunnel: Tunnel::new(Vni::new(42).unwrap(), 8472, end(1)),
        members: Vec::new(),
        flood: flood.iter().map(|last| end(*last)).collect(),
        flood_interface,
    });
    let (interface, uplink) = (link(1, 5, POD, 1450, Vec::new(), POD), LinkTable::new(uplink).unwrap());
    let overlay = Overlay::VxlanBridged(overlay.unwrap());
    let destinations = vec!["0.0.0.0/0".parse().unwrap()];
    let attachment = AttachmentTables::new(interface, uplink.into(), overlay, Some(destinations)).unwrap();
    Tables::new(generation, vec![Some(attachment)]).unwrap()
}

fn set(world: &mut World, tables: Tables) {
    world.outbox.send(Command::Tables(Arc::new(tables))).unwrap();
    world.worker.apply_commands();
}

fn to_group(world: &World, tx_time: u64) -> SlotFrame {
    SlotFrame {
        address: GROUP.to_ipv6_mapped().octets(),
        ..App::frame(ClockId::Monotonic, tx_time, world.clocks.at())
    }
}

/// Last octets of the tunnel ends that frames went to, in order.
fn ends(world: &World) -> Vec<u8> {
    let last = |frame: &[u8]| match dissect(frame, Some(8472)).unwrap().tunnel.unwrap().outer.destination {
        IpAddr::V4(end) => end.octets()[3],
        IpAddr::V6(_) => panic!("IPv4 underlay"),
    };
    world.sent().iter().map(|(_, _, frame)| last(frame)).collect()
}

fn counters(world: &World) -> [u64; 4] {
    let stats = &world.stats;
    [&stats.taken, &stats.sent, &stats.copies, &stats.copies_lost].map(|counter| counter.load(SeqCst))
}

#[test]
fn each_tunnel_end_gets_one_copy_and_the_slot_comes_back() {
    let mut world = World::new(800);
    set(&mut world, segment(2, &[9, 3, 2, 1, 3], &[2, 3, 9], false));
    let app = world.client(64);
    let at = world.clocks.at() + 300 * US;
    assert!(app.push_frame(&to_group(&world, at), b"to all"));
    world.run_until(50, |w| w.sent().len() == 3);
    world.run_until(3, |_| false);
    assert_eq!(ends(&world), [2, 3, 9], "by address, each once, never our own");
    assert!(world.sent()[0].0 >= at);
    for (_, _, frame) in world.sent() {
        assert_eq!(payload(&frame), b"to all");
        assert_eq!(dissect(&frame, Some(8472)).unwrap().inner.hop_limit, 1, "TTL unchanged");
    }
    assert_eq!(counters(&world), [1, 1, 2, 0]);
    assert_eq!(world.port_stats.frames[6].load(SeqCst), 3);
    assert_eq!(world.stats.transmit_error.snapshot().len(), 1, "copies wait for no time of their own");
    let octets: usize = world.sent().iter().map(|(_, _, frame)| frame.len()).sum();
    assert_eq!(world.stats.sent_octets.load(SeqCst), octets as u64);
    let pushed = (0..64).filter(|_| app.push_frame(&to_group(&world, 1), b"")).count();
    assert_eq!(pushed, 64);
}

#[test]
fn copies_without_a_neighbour_are_left_out_and_counted() {
    let mut world = World::new(800);
    set(&mut world, segment(2, &[2, 3, 4, 5, 6], &[4, 6], false));
    let app = world.client(64);
    assert!(app.push_frame(&to_group(&world, 0), b"x"));
    world.run_until(50, |w| w.sent().len() == 2);
    world.run_until(3, |_| false);
    assert_eq!((ends(&world), counters(&world)), (vec![4, 6], [1, 1, 1, 3]));
    // Nobody can be reached: dropped by that reason, once.
    set(&mut world, segment(3, &[2, 3], &[], false));
    assert!(app.push_frame(&to_group(&world, 0), b"x"));
    world.run_until(10, |w| w.dropped(DropReason::NoNeighbour) > 0);
    assert_eq!(counters(&world), [2, 1, 1, 3]);
}

/// A port of the interface, and what reaches it.
fn interface(world: &mut World) -> Wire {
    let wire = Wire::default();
    let (seen, clocks) = (wire.clone(), world.clocks.clone());
    let port = Memory::new(64, 1500).unwrap().with_sink(Box::new(move |frame: &[u8]| {
        seen.lock().unwrap().push((clocks.at(), clocks.tai_now(), frame.to_vec()));
    }));
    let new = NewPort {
        port: Box::new(port),
        priority_map: PriorityMap::default(),
        selection: Box::new(World::time_aware(None)),
        policing: None,
        stats: Arc::new(PortStats::default()),
        is_pod_interface: true,
    };
    world.outbox.send(Command::AddPort(PortIndex(1), new)).unwrap();
    world.worker.apply_commands();
    wire
}

#[test]
fn the_interface_gets_its_copy_last_where_that_is_configured() {
    let mut world = World::new(800);
    let wire = interface(&mut world);
    set(&mut world, segment(2, &[2, 3], &[2, 3], true));
    let app = world.client(64);
    assert!(app.push_frame(&to_group(&world, 0), b"here too"));
    world.run_until(50, |_| !wire.lock().unwrap().is_empty());
    assert_eq!((ends(&world), counters(&world)), (vec![2, 3], [1, 1, 2, 0]));
    let plain = wire.lock().unwrap()[0].2.clone();
    assert_eq!(dissect(&plain, None).unwrap().payload(), b"here too");
    // What is in the tunnel is that very frame.
    let (_, _, tunnelled) = &world.sent()[0];
    assert_eq!(&tunnelled[tunnelled.len() - plain.len()..], &plain[..]);
    // Without anybody to flood to, the interface has it alone.
    set(&mut world, segment(3, &[1], &[], false));
    assert!(app.push_frame(&to_group(&world, 0), b"alone"));
    world.run_until(50, |_| wire.lock().unwrap().len() == 2);
    assert_eq!((world.sent().len(), counters(&world)), (2, [2, 2, 2, 0]));
}

/// A cycle of 1 ms in which class 6 is open from 300 µs on for so long.
fn gated(open: i64) -> (World, u64) {
    let mut world = World::with(800, World::time_aware(Some(100_000_000)));
    let patient = AttachmentPolicy { overrun_limit: Nanos::from_millis(1), ..policy(&world.stats) };
    world.outbox.send(Command::SetAttachment(AttachmentIndex(0), Box::new(patient))).unwrap();
    let entry = |states, micros: i64| GateControlEntry {
        operation: GateOperation::SetGateStates,
        states: GateStates::from_bits(states),
        interval: Nanos::from_micros(micros),
    };
    let admin = AdminPort {
        gate_enabled: true,
        base_time: Tai::from_nanos(0),
        cycle_time: Nanos::from_millis(1),
        control_list: vec![entry(!(1 << 6), 300), entry(0xff, open), entry(!(1 << 6), 700 - open)],
        ..AdminPort::default()
    };
    let program = Box::new(GateProgram::new(&admin).unwrap());
    world.outbox.send(Command::ChangeSchedule(PortIndex(0), program)).unwrap();
    world.worker.apply_commands();
    let now = world.clocks.tai_now();
    let start = now.next_multiple_of(MS);
    world.clocks.monotonic.fetch_add(start - now, SeqCst);
    (world, start)
}

#[test]
fn clause_8_6_8_4_each_copy_needs_its_own_room_in_a_window() {
    // At 100 Mbit/s a copy of 1,000 octets takes 88 µs: two and their guard bands fit into 240 µs, never three.
    let (mut world, start) = gated(240);
    let all: Vec<u8> = (2..9).collect();
    set(&mut world, segment(2, &all, &all, false));
    let app = world.client(64);
    assert!(app.push_frame(&to_group(&world, world.clocks.at() + 10 * US), &[7; 1000]));
    world.run_until(400, |w| w.sent().len() == all.len());
    assert_eq!(ends(&world), all);
    let mut windows = std::collections::BTreeMap::<u64, u64>::new();
    for (_, tai, frame) in world.sent() {
        let offset = tai - start;
        let ends_at = offset % MS + u64::from(wire_octets(frame.len())) * 80;
        assert!(offset % MS >= 300 * US && ends_at <= 540 * US, "{} to {ends_at} ns", offset % MS);
        *windows.entry(offset / MS).or_default() += 1;
    }
    assert_eq!(windows.into_values().collect::<Vec<_>>(), [2, 2, 2, 1]);
    assert_eq!(counters(&world), [1, 1, 6, 0]);
    assert_eq!(world.port_stats.transmission_overrun[6].load(SeqCst), 0);
    assert!(HAND_OVER_AT_START < Nanos::from_micros(64), "the figures above assume it");
}

#[test]
fn an_attachment_that_goes_in_the_middle_leaves_nothing_behind() {
    let (mut world, start) = gated(120);
    let all: Vec<u8> = (2..9).collect();
    set(&mut world, segment(2, &all, &all, false));
    let app = world.client(64);
    assert!(app.push_frame(&to_group(&world, start.saturating_add_signed(-AHEAD)), &[7; 1000]));
    world.run_until(400, |w| w.sent().len() == 3);
    world.outbox.send(Command::RemoveAttachment(AttachmentIndex(0))).unwrap();
    world.run_until(20, |_| false);
    assert_eq!((world.sent().len(), counters(&world)), (3, [1, 1, 2, 4]));
    assert_eq!(world.dropped(DropReason::Detached), 0, "it counts as sent: copies of it were");
    assert_eq!(world.worker_stats.bugs.load(SeqCst), 0);
}

/// Each copy that does not leave is counted once, whether it was queued when its neighbour went or was not yet.
#[test]
fn copies_that_lose_their_neighbours_in_the_middle_are_counted_once() {
    let (mut world, start) = gated(120);
    let all: Vec<u8> = (2..9).collect();
    set(&mut world, segment(2, &all, &all, false));
    let app = world.client(64);
    assert!(app.push_frame(&to_group(&world, start.saturating_add_signed(-AHEAD)), &[7; 1000]));
    world.run_until(400, |w| w.sent().len() == 3);
    set(&mut world, segment(3, &all, &[], false));
    world.run_until(20, |_| false);
    assert_eq!((world.sent().len(), counters(&world)), (3, [1, 1, 2, 4]));
    assert_eq!(world.dropped(DropReason::NoNeighbour), 0, "it counts as sent: copies of it were");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever the tables become between two copies: no end gets two, an end that is there all the time gets one, and the
    /// datagram is counted once.
    #[test]
    fn no_end_gets_two_whatever_changes(
        before in proptest::collection::btree_set(2_u8..60, 1..20),
        after in proptest::collection::btree_set(2_u8..60, 0..20),
        known in proptest::collection::btree_set(2_u8..60, 0..60),
        cut in 0_usize..20,
    ) {
        let list = |set: &std::collections::BTreeSet<u8>| set.iter().copied().collect::<Vec<u8>>();
        let (mut world, start) = gated(120);
        set(&mut world, segment(2, &list(&before), &list(&known), false));
        let app = world.client(64);
        prop_assert!(app.push_frame(&to_group(&world, start.saturating_add_signed(-AHEAD)), &[7; 1000]));
        world.run_until(1_000, |w| w.sent().len() >= cut);
        let at_change = world.sent().len();
        set(&mut world, segment(3, &list(&after), &list(&known), false));
        world.run_until(1_000, |_| false);
        let sent = ends(&world);
        prop_assert!(sent.is_sorted() && sent.windows(2).all(|pair| pair[0] != pair[1]), "{:?}", sent);
        for end in before.intersection(&after).filter(|end| known.contains(end)) {
            prop_assert!(sent.contains(end), "{} of {:?}, changed after {}", end, sent, at_change);
        }
        prop_assert!(sent.iter().all(|end| known.contains(end)));
        let [taken, counted, copies, _] = counters(&world);
        let dropped: u64 = world.stats.dropped.iter().map(|counter| counter.load(SeqCst)).sum();
        prop_assert_eq!((taken, counted + dropped, counted + copies), (1, 1, sent.len() as u64));
        prop_assert_eq!(world.worker_stats.bugs.load(SeqCst), 0);
    }
}
