// SPDX-License-Identifier: Apache-2.0
//! Frames of flows whose routes only the kernel knows.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use ktsn_resolve::{
    AskedFamilies, AttachmentTables, Flow, InterfaceRoute, Overlay, RouteAnswer, Tables, Via,
};
use ktsn_ring::ClockId;

use super::world::{App, POD, World, link, uplink};
use super::{MS, payload};
use crate::worker::{Command, Returned, RouteNews};

const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 9);

/// A pod in whose namespace rules decide on IPv4; the answers of `revision` hold.
pub(super) fn asking(generation: u64, revision: u64) -> Tables {
    let wrong = IpAddr::V4(Ipv4Addr::new(10, 244, 0, 1));
    let default =
        ktsn_resolve::Route { prefix: "0.0.0.0/0".parse().unwrap(), via: Via::Gateway(wrong), source: None };
    let interface = link(0, 5, POD, 1450, vec![default], ROUTER);
    let destinations = vec!["0.0.0.0/0".parse().unwrap()];
    let asked = AskedFamilies { is_v4: true, is_v6: false };
    let pod = AttachmentTables::new(interface, uplink(), Overlay::None, Some(destinations)).unwrap();
    let pod = pod.asking(asked).with_answers_of(revision);
    Tables::new(generation, vec![Some(pod)]).unwrap()
}

/// The flows that the kernel is to be asked about.
pub(super) fn wanted(world: &World) -> Vec<Flow> {
    let flows = world.returned.try_iter().filter_map(|back| match back {
        Returned::RouteWanted(flow) => Some(flow),
        _ => None,
    });
    flows.collect()
}

pub(super) fn answer(world: &World, flow: Flow, revision: u64, answer: RouteAnswer) {
    world.outbox.send(Command::Route(Box::new(RouteNews { flow, revision, answer }))).unwrap();
}

pub(super) fn by_router() -> RouteAnswer {
    RouteAnswer::Interface(InterfaceRoute {
        gateway: Some(IpAddr::V4(ROUTER)),
        source: Some(IpAddr::V4(POD)),
        mtu: None,
        hop_limit: Some(9),
    })
}

pub(super) fn world(revision: u64) -> (World, App) {
    let mut world = World::new(800);
    let app = world.client(64);
    world.outbox.send(Command::Tables(Arc::new(asking(2, revision)))).unwrap();
    (world, app)
}

#[test]
fn a_frame_waits_for_the_kernels_answer_and_leaves_by_it() {
    let (mut world, app) = world(1);
    let now = world.clocks.at();
    for wait in [3, 4, 5] {
        app.push(ClockId::Monotonic, now + wait * MS, now, &[wait as u8]);
    }
    world.run_until(50, |w| w.clocks.at() > now + 2 * MS || w.stats.taken.load(SeqCst) == 3);
    let flows = wanted(&world);
    assert_eq!(flows.len(), 1, "asked once: {flows:?}");
    answer(&world, flows[0], 1, by_router());
    world.run_until(50, |w| w.sent().len() == 3);
    let sent = world.sent();
    assert_eq!(sent.len(), 3);
    for ((at, _, frame), wait) in sent.iter().zip([3, 4, 5]) {
        assert!((now + wait * MS..now + wait * MS + 100).contains(at));
        assert_eq!((payload(frame), frame[22]), (vec![wait as u8], 9), "its payload, the route's hop limit");
        assert_eq!(frame[..6], [2, 0, 0, 0, 9, 5], "to the router");
    }
    assert_eq!(wanted(&world), []);
}

#[test]
fn nothing_leaves_by_an_answer_that_holds_no_more() {
    let (mut world, app) = world(1);
    let now = world.clocks.at();
    app.push(ClockId::Monotonic, now + MS, now, b"asks");
    world.run_until(50, |w| w.clocks.at() > now + MS / 2);
    let flow = wanted(&world)[0];
    answer(&world, flow, 1, by_router());
    world.run_until(50, |w| w.sent().len() == 1);
    // The routes changed; the answer of before comes once more, late.
    world.outbox.send(Command::Tables(Arc::new(asking(3, 2)))).unwrap();
    answer(&world, flow, 1, by_router());
    let now = world.clocks.at();
    app.push(ClockId::Monotonic, now + MS, now, b"asks again");
    world.run_until(50, |w| w.clocks.at() > now + MS / 2);
    assert_eq!(wanted(&world), [flow]);
    world.run_until(50, |w| w.clocks.at() > now + 3 * MS);
    assert_eq!(world.sent().len(), 1, "nothing without an answer of the present");
    // The kernel sends the next ones by another device: none leaves here, and the answer is remembered.
    answer(&world, flow, 2, RouteAnswer::Elsewhere);
    for _ in 0..3 {
        let now = world.clocks.at();
        app.push(ClockId::Monotonic, now + 20 * MS, now, b"elsewhere");
        world.run_until(50, |w| w.clocks.at() > now + 15 * MS);
    }
    assert_eq!((world.sent().len(), wanted(&world)), (1, vec![]));
}
