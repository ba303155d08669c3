// SPDX-License-Identifier: Apache-2.0
//! Frames of packet sockets in the shipped loop: which class, which octets, and what a lying program gets.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};

use ktsn_model::{DropReason, PriorityMap};
use ktsn_port::memory::Memory;
use ktsn_resolve::{AttachmentIndex, PortIndex};
use ktsn_ring::{ClockId, SlotFlags, SlotFrame, StreamCode, StreamStatus};
use ktsn_sched::policing::{
    PolicingConfig, StreamFilter, StreamHandle, StreamIdentification, StreamIdentity, StreamMatch,
};

use super::world::{App, Wire, World, policy};
use super::{MS, US};
use crate::stats::PortStats;
use crate::worker::{AttachmentPolicy, Command, LinkKind, NewPort, Policing, StreamInfo};

/// The pod's interface in [`super::world`].
const OWN: [u8; 6] = [2, 0, 0, 0, 0, 5];
const PEER: [u8; 6] = [2, 0, 0, 0, 0, 77];
const IF_INDEX: u32 = 2;

/// The pod's own interface, and a stream 1 of each client that is a packet socket.
fn with_interface(world: &mut World, app: &App, kind: LinkKind) -> (Wire, Arc<PortStats>) {
    let wire: Wire = Arc::new(Mutex::new(Vec::new()));
    let (seen, clock) = (wire.clone(), world.clocks.clone());
    let port = Memory::new(64, 1450).unwrap().with_sink(Box::new(move |frame: &[u8]| {
        seen.lock().unwrap().push((clock.at(), clock.tai_now(), frame.to_vec()));
    }));
    let stats = Arc::new(PortStats::default());
    let new = NewPort {
        port: Box::new(port),
        priority_map: PriorityMap::default(),
        selection: Box::new(World::time_aware(None)),
        stats: stats.clone(),
        policing: None,
        is_pod_interface: true,
    };
    world.outbox.send(Command::AddPort(PortIndex(1), new)).unwrap();
    let info = StreamInfo {
        interface: 0,
        uid: 0,
        token: 9,
        cookie: 2,
        attachment: AttachmentIndex(0),
        local: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
        peer: None,
        link: Some(kind),
        is_deadline: false,
        status: StreamStatus { token: 9, code: StreamCode::Registered, ..StreamStatus::default() },
    };
    world.outbox.send(Command::Register(app.key, 1, Box::new(info))).unwrap();
    world.worker.apply_commands();
    (wire, stats)
}

fn slot(flags: SlotFlags, tx_time: u64, now: u64) -> SlotFrame {
    SlotFrame {
        stream_index: 1,
        token: 9,
        flags,
        scope: IF_INDEX,
        address: [0; 16],
        port: 0,
        priority: 0,
        ..App::frame(ClockId::Monotonic, tx_time, now)
    }
}

fn frame(rest: &[u8]) -> Vec<u8> {
    [&PEER[..], &OWN, rest].concat()
}

#[test]
fn frames_leave_by_the_interface_at_their_time_as_they_are() {
    let mut world = World::new(800);
    let app = world.client(64);
    let (wire, stats) = with_interface(&mut world, &app, LinkKind::Frames);
    let now = world.clocks.at();
    let frames = [frame(b"\x22\xf0hello"), frame(b"\x81\x00\xa0\x07\x88\x92cyclic"), frame(b"\x88\xf7\x45")];
    for (i, octets) in (1u64..).zip(&frames) {
        assert!(app.push_frame(&slot(SlotFlags::LINK_FRAME, now + i * MS, now), octets));
    }
    world.run_until(200, |_| wire.lock().unwrap().len() == 3);
    let sent = wire.lock().unwrap().clone();
    for (i, (octets, (at, _, seen))) in (1u64..).zip(frames.iter().zip(&sent)) {
        assert_eq!(seen, octets);
        assert!((now + i * MS..now + i * MS + 200).contains(at));
    }
    assert_eq!(sent.len(), 3);
    assert!(world.sent().is_empty(), "nothing by the uplink");
    // Without SO_PRIORITY the tag's priority code point decides on the class.
    assert_eq!([0, 5].map(|class: usize| stats.frames[class].load(SeqCst)), [2, 1]);
}

#[test]
fn a_sockets_priority_goes_before_the_tags() {
    let mut world = World::new(800);
    let app = world.client(64);
    let (wire, stats) = with_interface(&mut world, &app, LinkKind::Frames);
    let now = world.clocks.at();
    let asked = SlotFrame { priority: 3, ..slot(SlotFlags::LINK_FRAME, now + MS, now) };
    assert!(app.push_frame(&asked, &frame(b"\x81\x00\xa0\x07\x88\x92")));
    world.run_until(200, |_| !wire.lock().unwrap().is_empty());
    assert_eq!(stats.frames[3].load(SeqCst), 1);
}

#[test]
fn a_header_is_made_for_a_datagram_socket() {
    let mut world = World::new(800);
    let app = world.client(64);
    let (wire, _) = with_interface(&mut world, &app, LinkKind::Payloads);
    let now = world.clocks.at();
    let mut asked = SlotFrame { port: 0x22f0, ..slot(SlotFlags::LINK_PAYLOAD, now + MS, now) };
    asked.address[..6].copy_from_slice(&PEER);
    assert!(app.push_frame(&asked, b"made here"));
    world.run_until(200, |_| !wire.lock().unwrap().is_empty());
    assert_eq!(wire.lock().unwrap()[0].2, frame(b"\x22\xf0made here"));
}

/// What only the daemon finds wrong is dropped by name, never sent.
#[test]
fn a_lying_program_sends_nothing() {
    let mut world = World::new(800);
    let app = world.client(64);
    let (wire, _) = with_interface(&mut world, &app, LinkKind::Frames);
    let now = world.clocks.at();
    let good = frame(b"\x22\xf0");
    let raw = slot(SlotFlags::LINK_FRAME, now + MS, now);
    let push = |slot: &SlotFrame, octets: &[u8]| assert!(app.push_frame(slot, octets));
    // Policed: a foreign source, a reserved group, two tags.
    let mut foreign = good.clone();
    foreign[11] ^= 1;
    push(&raw, &foreign);
    push(&raw, &[&[1, 0x80, 0xc2, 0, 0, 0][..], &OWN, b"\x00\x03\x42\x42\x03"].concat());
    push(&raw, &frame(b"\x81\x00\x00\x07\x81\x00\x00\x07\x22\xf0"));
    // Another interface; too long; no frame.
    push(&SlotFrame { scope: 1, ..raw }, &good);
    push(&raw, &[&good[..], &[0; 1451]].concat());
    push(&raw, &good[..13]);
    // A shape that the socket does not have, and datagrams of a packet socket, and frames of a UDP socket.
    push(&SlotFrame { flags: SlotFlags::LINK_PAYLOAD, ..raw }, &good);
    push(&SlotFrame { flags: SlotFlags::NONE, port: 5, ..raw }, &good);
    push(&SlotFrame { stream_index: 0, token: 7, ..raw }, &good);
    world.run_until(50, |_| false);
    assert!(wire.lock().unwrap().is_empty() && world.sent().is_empty());
    assert_eq!(world.dropped(DropReason::Policed), 3);
    assert_eq!(world.dropped(DropReason::NoRoute), 1);
    assert_eq!(world.dropped(DropReason::TooLong), 1);
    assert_eq!(world.dropped(DropReason::PeerCorrupt), 4);
    // Every slot is free again.
    assert_eq!((0..64).filter(|_| app.push_frame(&raw, &good)).count(), 64);
}

/// The interface got another address while a frame waited: it is not sent under the old one.
#[test]
fn a_changed_mac_address_is_noticed_before_a_frame_leaves() {
    let mut world = World::new(800);
    let app = world.client(64);
    let (wire, _) = with_interface(&mut world, &app, LinkKind::Frames);
    let now = world.clocks.at();
    assert!(app.push_frame(&slot(SlotFlags::LINK_FRAME, now + 50 * MS, now), &frame(b"\x22\xf0")));
    world.run_until(1, |_| false);
    assert_eq!(world.stats.taken.load(SeqCst), 1);
    let changed = super::world::tables_with_interface_mac(2, [2, 0, 0, 0, 0, 6]);
    world.outbox.send(Command::Tables(Arc::new(changed))).unwrap();
    world.run_until(200, |w| w.dropped(DropReason::Policed) == 1);
    assert_eq!(world.dropped(DropReason::Policed), 1);
    assert!(wire.lock().unwrap().is_empty());
}

/// [802.1CB 6.4] Of a packet socket's frames each is looked at: another destination is another stream.
#[test]
fn clause_6_4_frames_of_packet_sockets_are_identified_one_by_one() {
    let mut world = World::new(800);
    let app = world.client(64);
    let (wire, _) = with_interface(&mut world, &app, LinkKind::Frames);
    let stream = StreamHandle(3);
    let policing = Policing::new(&PolicingConfig {
        stream_filters: vec![StreamFilter {
            stream: Some(stream),
            max_sdu_octets: Some(0),
            ..StreamFilter::default()
        }],
        ..PolicingConfig::default()
    })
    .unwrap();
    let filters = policing.stats();
    let seen = wire.clone();
    let port = Memory::new(64, 1450).unwrap().with_sink(Box::new(move |frame: &[u8]| {
        seen.lock().unwrap().push((0, 0, frame.to_vec()));
    }));
    let new = NewPort {
        port: Box::new(port),
        priority_map: PriorityMap::default(),
        selection: Box::new(World::time_aware(None)),
        stats: Arc::default(),
        policing: Some(Box::new(policing)),
        is_pod_interface: true,
    };
    world.outbox.send(Command::AddPort(PortIndex(1), new)).unwrap();
    let matches = StreamMatch::MacVlan { destination: PEER, vlan: None };
    let streams = StreamIdentification::new(&[StreamIdentity { matches, stream }]).unwrap();
    let known = AttachmentPolicy { streams, ..policy(&world.stats) };
    world.outbox.send(Command::SetAttachment(AttachmentIndex(0), Box::new(known))).unwrap();
    world.worker.apply_commands();
    let now = world.clocks.at();
    let other = [&[2, 0, 0, 0, 0, 78][..], &OWN, &[0x88, 0xb5, 1, 2, 3]].concat();
    for octets in [frame(&[0x88, 0xb5, 1, 2, 3]), other.clone(), frame(&[0x88, 0xb5, 4])] {
        assert!(app.push_frame(&slot(SlotFlags::LINK_FRAME, now + 300 * US, now), &octets));
    }
    world.run_until(50, |_| !wire.lock().unwrap().is_empty());
    let sent: Vec<Vec<u8>> = wire.lock().unwrap().iter().map(|(_, _, frame)| frame.clone()).collect();
    assert_eq!((sent.len(), world.dropped(DropReason::Policed)), (1, 2));
    assert!(sent[0].starts_with(&other));
    assert_eq!(filters[0].counters().matching_frames, 2);
}
