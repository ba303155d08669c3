// SPDX-License-Identifier: Apache-2.0
//! Frames to a next hop that has no MAC address yet.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use ktsn_model::DropReason;
use ktsn_resolve::{AttachmentTables, Overlay, Route, Tables, Via};
use ktsn_ring::ClockId;
use ktsn_sched::policing::PolicingConfig;

use super::world::{App, POD, World, link, tables, uplink};
use super::{MS, payload};
use crate::worker::{Command, Policing, Returned};

fn asks(world: &World) -> usize {
    world.returned.try_iter().filter(|back| matches!(back, Returned::NeighbourWanted(..))).count()
}

/// The node is asked once; the frames that wait leave at their times, in order.
#[test]
fn a_frame_waits_for_its_next_hops_mac_address() {
    let mut world = World::new(800);
    let app = world.client(64);
    world.outbox.send(Command::Tables(Arc::new(tables(2, false)))).unwrap();
    let now = world.clocks.at();
    for wait in [3, 4, 5] {
        app.push(ClockId::Monotonic, now + wait * MS, now, &[wait as u8]);
    }
    world.run_until(50, |w| w.clocks.at() > now + 2 * MS || w.stats.taken.load(SeqCst) == 3);
    assert_eq!((world.stats.taken.load(SeqCst), asks(&world)), (3, 1));
    world.outbox.send(Command::Tables(Arc::new(tables(3, true)))).unwrap();
    world.run_until(50, |w| w.sent().len() == 3);
    let sent = world.sent();
    assert_eq!(sent.len(), 3);
    for ((at, _, frame), wait) in sent.iter().zip([3, 4, 5]) {
        assert!((now + wait * MS..now + wait * MS + 100).contains(at));
        assert_eq!(payload(frame), [wait as u8]);
    }
    assert_eq!(world.dropped(DropReason::NoNeighbour), 0);
}

/// Programs send to several devices in one cycle: each of them is asked for.
#[test]
fn each_next_hop_is_asked_for() {
    let mut world = World::new(800);
    let app = world.client(64);
    let on_link = Route { prefix: "10.244.0.0/24".parse().unwrap(), via: Via::OnLink, source: None };
    let interface = link(0, 5, POD, 1450, vec![on_link], POD);
    let destinations = vec!["10.244.0.0/24".parse().unwrap()];
    let pods = AttachmentTables::new(interface, uplink(), Overlay::None, Some(destinations)).unwrap();
    let pods = Tables::new(2, vec![Some(pods)]).unwrap();
    world.outbox.send(Command::Tables(Arc::new(pods))).unwrap();
    let now = world.clocks.at();
    for last in [21, 22, 23, 21, 22, 23] {
        let to = Ipv4Addr::new(10, 244, 0, last).to_ipv6_mapped().octets();
        let frame =
            ktsn_ring::SlotFrame { address: to, ..App::frame(ClockId::Monotonic, now + 500 * MS, now) };
        app.push_frame(&frame, b"who has");
    }
    world.run_until(3, |w| w.stats.taken.load(SeqCst) == 6);
    assert_eq!((world.stats.taken.load(SeqCst), asks(&world)), (6, 3));
}

/// Nothing leaves late: a frame that is due before the address comes is dropped, and its slot is free again.
#[test]
fn at_its_time_it_waits_no_more() {
    let mut world = World::new(800);
    let app = world.client(64);
    world.outbox.send(Command::Tables(Arc::new(tables(2, false)))).unwrap();
    let now = world.clocks.at();
    app.push(ClockId::Monotonic, now + MS, now, b"who has");
    app.push(ClockId::Monotonic, 0, now, b"now");
    world.run_until(50, |w| w.dropped(DropReason::NoNeighbour) == 2);
    assert_eq!(world.dropped(DropReason::NoNeighbour), 2);
    assert_eq!(asks(&world), 1);
    world.outbox.send(Command::Tables(Arc::new(tables(3, true)))).unwrap();
    let pushed = (0..64).filter(|_| app.push(ClockId::Monotonic, 0, now, b"")).count();
    assert_eq!(pushed, 64);
    world.run_until(50, |w| w.sent().len() == 64);
    assert!(
        world.sent().iter().all(|(_, _, frame)| payload(frame).is_empty()),
        "what was dropped never leaves"
    );
}

/// Policing may know a stream by that MAC address: it can't judge the frame, so the frame does not pass.
#[test]
fn behind_policing_no_frame_waits() {
    let policing = Policing::new(&PolicingConfig::default()).unwrap();
    let mut world = World::policed(800, World::time_aware(None), Some(policing));
    let app = world.client(64);
    world.outbox.send(Command::Tables(Arc::new(tables(2, false)))).unwrap();
    let now = world.clocks.at();
    app.push(ClockId::Monotonic, now + 500 * MS, now, b"who has");
    world.run_until(3, |w| w.dropped(DropReason::NoNeighbour) == 1);
    assert_eq!((world.dropped(DropReason::NoNeighbour), asks(&world)), (1, 1));
    assert!(world.clocks.at() < now + 499 * MS, "at once");
}
