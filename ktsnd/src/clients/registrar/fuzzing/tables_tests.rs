// SPDX-License-Identifier: Apache-2.0
//! Tables that change while clients have all their streams: what a turn does is bounded, and each change is reported in the end.

use std::collections::BTreeMap;

use ktsn_ring::StreamStatus;
use ktsn_ring::control::{Hello, Register};
use ktsn_ring::layout::ABI;

use super::*;
use crate::clients::answer::{client_tables, code_for, status_of};
use crate::clients::following::LOOKS_OF_ONE;
use crate::clients::pace::WINDOW;
use crate::worker::StreamInfo;

const LIMITS: Limits =
    Limits { clients_max: 8, memory_max: 64 << 20, memory_max_of_all: 256 << 20, slots: 4, tick: 0 };

fn hello() -> Vec<u8> {
    Hello { abi_min: ABI as u16, abi_max: ABI as u16, interface_index: 0 }.encode().as_slice().to_vec()
}

/// A client of a namespace whose socket is looked at by a helper.
fn attach(driver: &mut Driver, pid: u32, namespace: Namespace, passed: Passed) -> Peer {
    let mut peer = driver.connect(pid, namespace).unwrap();
    assert!(driver.send(&peer, &hello(), &[passed]));
    let begun = driver.jobs();
    (0..4).for_each(|_| {
        driver.turn();
        driver.finish_job(begun, Duration::ZERO);
    });
    assert_eq!(driver.answer_to(&mut peer), Ok(Some(HelloStatus::Attached)));
    peer
}

/// A client all of whose streams are connected to an address that the tables take by turns.
fn with_streams(driver: &mut Driver, pid: u32) -> Peer {
    let peer = attach(driver, pid, Namespace::Own, Passed::Udp);
    assert!(driver.send(&peer, &Register::new(0, 1).encode(), &[Passed::Udp]));
    (0..4).for_each(|_| {
        driver.turn();
        driver.finish_job(0, Duration::ZERO);
    });
    let stream = StreamInfo {
        interface: 0,
        uid: 0,
        token: 1,
        cookie: 7,
        attachment: AttachmentIndex(0),
        local: ([10, 0, 0, 1], 5).into(),
        peer: Some(([10, 0, 0, 200], 5).into()),
        link: None,
        is_deadline: false,
        status: StreamStatus::default(),
    };
    let mut known = driver.directory.lock();
    for index in 0..limits::STREAMS_MAX {
        known.keep_stream(ClientKey(peer.number), index, stream.clone()).unwrap();
    }
    drop(known);
    peer
}

/// How often each stream was reported.
fn registered(driver: &mut Driver) -> Vec<(u64, u32)> {
    let told = driver.commands();
    let of =
        |told: Told| if let Told::Register(number, index, _) = told { Some((number, index)) } else { None };
    told.into_iter().filter_map(of).collect()
}

/// What a pod with many streams makes the registrar do is bounded in each turn, and another pod attaches meanwhile.
#[test]
fn tables_are_followed_a_part_in_each_turn() {
    let mut driver = Driver::new(LIMITS).unwrap();
    let peers: Vec<_> = (1..=3).map(|pid| with_streams(&mut driver, pid)).collect();
    driver.commands();
    driver.set_tables(2);
    let mut told: BTreeMap<(u64, u32), usize> = BTreeMap::new();
    let (mut turns, mut other) = (0, None);
    while turns == 0 || !driver.is_calm() {
        driver.turn();
        // A window brings no more than its part, in however many turns.
        driver.turn();
        let now = registered(&mut driver);
        assert!(now.len() <= LOOKS_OF_ONE, "{} streams in one turn", now.len());
        now.into_iter().for_each(|stream| *told.entry(stream).or_default() += 1);
        if turns == 1 {
            other = Some(attach(&mut driver, 9, Namespace::Foreign, Passed::UdpForeign));
            assert!(!driver.is_calm(), "it did not wait for all streams of the others");
        }
        turns += 1;
        assert!(turns < 100, "all is told in the end");
        driver.pass_time(WINDOW);
    }
    assert_eq!(told.len(), peers.len() * limits::STREAMS_MAX as usize);
    assert!(other.is_some() && told.values().all(|times| *times == 1), "each once");
}

/// Tables that change before all is told: each stream is reached all the same, and ends with what the last tables say.
#[test]
fn tables_that_change_again_are_followed_to_their_end() {
    let mut driver = Driver::new(LIMITS).unwrap();
    let peers: Vec<_> = (1..=2).map(|pid| with_streams(&mut driver, pid)).collect();
    let mut told: BTreeMap<(u64, u32), usize> = BTreeMap::new();
    for variant in [2, 3].into_iter().cycle().take(60) {
        driver.set_tables(variant);
        driver.turn();
        let now = registered(&mut driver);
        assert!(now.len() <= LOOKS_OF_ONE, "{} streams in one turn", now.len());
        now.into_iter().for_each(|stream| *told.entry(stream).or_default() += 1);
        driver.pass_time(WINDOW);
    }
    assert_eq!(told.len(), peers.len() * limits::STREAMS_MAX as usize, "none waits for ever");
    for variant in [2, 3] {
        driver.set_tables(variant);
        for _ in 0..100 {
            driver.turn();
            driver.pass_time(WINDOW);
            driver.commands();
        }
        assert!(driver.is_calm());
        let known = driver.directory.lock();
        let table = client_tables(&known.tables, AttachmentIndex(0)).table;
        let expected = |info: &StreamInfo| {
            let code = code_for(known.tables.attachment(AttachmentIndex(0)), info.local.ip());
            status_of((info.token, info.status.flags, code), &table, info.peer.map(|peer| peer.ip()))
        };
        let mut all = peers.iter().flat_map(|peer| known.clients[&ClientKey(peer.number)].streams.values());
        assert!(all.all(|info| info.status == expected(info)));
        let (limit, bypass) = known.clients[&ClientKey(peers[0].number)]
            .streams
            .get(9)
            .map(|info| (info.status.limit, info.status.bypass))
            .unwrap();
        assert_eq!((limit > 0, bypass > 0), (variant == 2, variant == 3));
    }
}
