// SPDX-License-Identifier: Apache-2.0
//! The numbers of libktsn's descriptors: never those of the standard streams; and whatever a program puts in their place, each frame is
//! taken or counted, also when the program ends at once.

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::process::Stdio;
use std::time::Duration;

use ktsn_tests::hook::{self, LIBCS, Libc};
use ktsn_tests::peer::{Behaviour, Events, Peer};

const SOON: Duration = Duration::from_secs(20);
/// The counter of frames that found no daemon.
const ABSENT: usize = 16;

fn absent(events: &Events) -> u64 {
    events.counters.iter().map(|counters| counters[ABSENT]).sum()
}

/// Standard streams that are closed stay closed, under limits that leave libktsn none, some, or all of its descriptors. Number 3 is the
/// program's socket.
#[test]
fn no_descriptor_is_a_standard_stream() {
    for libc in LIBCS {
        for (limit, is_attached) in
            [(1, false), (3, false), (4, false), (5, false), (7, true), (8, true), (64, true)]
        {
            for closed in [1, 2, 3, 6, 7] {
                let script = format!("streams {limit} {closed}");
                let run_dir = hook::open_directory();
                let peer = Peer::start(run_dir.path(), Behaviour::default());
                let receiver = UdpSocket::bind("127.0.0.1:0").expect("receiver");
                receiver.set_read_timeout(Some(SOON)).expect("timeout");
                let port = receiver.local_addr().expect("address").port();
                let output = hook::scenario(libc, run_dir.path(), &script, port).output().expect("program");
                let values = hook::values(&output);
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                let what = format!("{script} {libc:?}: {values:?} {said}");
                assert_eq!((values["open"], values["used"], values["child"]), (0, 0, 0), "{what}");
                // Not one number is free: the program's own next descriptor is none.
                let is_full = limit == 1 && closed & 1 == 0;
                assert_eq!((values["txtime"], values["sent"]), (0, 3), "{what}");
                assert_eq!(values["wrong"] != 0, is_full, "{what}");
                if is_attached {
                    assert_eq!(peer.texts(), ["stream", "stream", "stream", "child"], "{what}");
                    let events = peer.events();
                    assert_eq!((events.clients, absent(&events)), (2, 0), "{what}");
                } else {
                    assert_eq!(peer.texts().len(), 0, "{what}");
                    for octets in [6, 6, 6, 5] {
                        assert_eq!(receiver.recv(&mut [0; 16]).expect("from the kernel"), octets, "{what}");
                    }
                    let is_told = closed & 4 != 0
                        || said.lines().all(|line| line.contains("no descriptor left for libktsn"));
                    assert!(is_told && said.is_empty() == (closed & 4 != 0), "{what}");
                }
            }
        }
    }
}

/// Runs a script whose program may end in any way; the texts that came, and what was counted.
fn run(libc: Libc, script: &str, behaviour: Behaviour) -> (Vec<String>, usize, u64) {
    let run_dir = hook::open_directory();
    let peer = Peer::start(run_dir.path(), behaviour);
    let mut command = hook::scenario(libc, run_dir.path(), script, 4321);
    command.stdout(Stdio::null()).status().expect("program");
    // The peer finds the program's end.
    let texts = peer.texts();
    let events = peer.events();
    (texts, events.clients, absent(&events))
}

fn numbered(letters: &str) -> Vec<String> {
    letters.chars().flat_map(|letter| (0..5).map(move |number| format!("{letter}{number}"))).collect()
}

const ENDS: [&str; 6] = ["exit", "_exit", "exec", "abort", "kill", "thread-exit"];

/// By the C library's functions: our descriptors move, and nothing is lost.
#[test]
fn files_that_are_put_over_our_descriptors() {
    for libc in LIBCS {
        for way in ["dup2", "dup3", "bad-dup2"] {
            for room in [40, 0] {
                for how in ENDS {
                    let script = format!("put {way} {room} {how}");
                    let (texts, clients, absent) = run(libc, &script, Behaviour::default());
                    assert_eq!((texts, clients, absent), (numbered("ab"), 1, 0), "{script} {libc:?}");
                }
            }
        }
    }
}

/// Behind the library's back: each frame is taken or counted, once.
#[test]
fn files_that_are_put_there_by_system_calls() {
    for libc in LIBCS {
        for way in ["raw-dup3", "raw-close", "raw-range"] {
            for (how, promise) in ENDS.into_iter().zip([10_000, 2, 10_000, 2, 10_000, 2]) {
                let script = format!("put {way} 40 {how}");
                let behaviour = Behaviour { promise: Duration::from_millis(promise), ..Behaviour::default() };
                let (texts, clients, absent) = run(libc, &script, behaviour);
                let what = format!("{script} {promise} {libc:?}: {texts:?}, {absent} absent");
                assert_eq!(texts[..5], numbered("a"), "{what}");
                let distinct: BTreeSet<&String> = texts.iter().collect();
                assert_eq!(distinct.len(), texts.len(), "{what}");
                assert_eq!(texts.len() as u64 + absent, 10, "{what}");
                assert!(clients <= 2, "{what}");
            }
        }
    }
}

/// What children do to tables of their own is nothing to the parent.
#[test]
fn children_that_put_files_over_our_descriptors() {
    for libc in LIBCS {
        for way in ["dup2", "dup3", "raw-dup3", "raw-range"] {
            let script = format!("put-child {way}");
            hook::run(libc, &script, |values, texts, events| {
                let statuses = ["child", "vfork", "spawn", "true"].map(|what| values[what]);
                assert_eq!((statuses, texts), ([0; 4], &numbered("ab")[..]), "{script} {libc:?}");
                assert_eq!((events.clients, absent(events)), (1, 0), "{script} {libc:?}");
            });
        }
    }
}

#[test]
fn a_service_that_ends_at_once() {
    for libc in LIBCS {
        for how in ENDS {
            let run_dir = hook::open_directory();
            let peer = Peer::start(run_dir.path(), Behaviour::default());
            let mut command = hook::scenario(libc, run_dir.path(), &format!("service {how}"), 4321);
            assert!(command.stdout(Stdio::null()).status().expect("program").success());
            assert!(
                peer.wait(SOON, |events| events.frames.len() == 15),
                "{how} {libc:?}: {:?}",
                peer.texts()
            );
            assert_eq!((peer.texts(), absent(&peer.events())), (numbered("abc"), 0), "{how} {libc:?}");
        }
    }
}
