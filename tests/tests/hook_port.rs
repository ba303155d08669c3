// SPDX-License-Identifier: Apache-2.0
//! A socket without a port: its port is shown to the daemon in advance, the first send takes it, and each frame leaves from the port that
//! the socket has.

use std::collections::BTreeMap;

use ktsn_tests::hook::{self, LIBCS, Libc};
use ktsn_tests::peer::{Behaviour, Events};

fn behaviour() -> Behaviour {
    Behaviour { takes_port: true, ..Behaviour::default() }
}

/// The daemon sends each frame from the port that its socket has.
fn ports_agree(values: &BTreeMap<String, i64>, events: &Events) {
    for frame in &events.frames {
        let text = frame.text();
        if let Some(port) = values.get(&format!("{text}-port")) {
            let local = frame.local.expect("a local address");
            assert_eq!(i64::from(local.port()), *port, "{text}");
        }
    }
}

#[test]
fn the_first_send_takes_the_shown_port() {
    for libc in LIBCS {
        hook::run_with(behaviour(), libc, "ports-shown", &[], |values, texts, events| {
            assert_eq!(
                texts,
                [
                    "plain",
                    "second",
                    "six",
                    "options",
                    "again",
                    "bound",
                    "connected",
                    "later",
                    "range",
                    "ranged"
                ]
            );
            ports_agree(values, events);
            for text in ["plain", "options", "again"] {
                assert_eq!(
                    values[&format!("{text}-before")],
                    0,
                    "{text}: the program's socket is not touched"
                );
            }
            assert_eq!(values["plain-port"], values["second-port"]);
            assert_eq!((values["six"], values["bind"], values["bound-other"]), (3, 0, 0));
            assert_eq!((values["connect"], values["untimed"]), (0, 7));
            if values["range"] == 0 {
                let is_within = |name: &str| (44_000..=45_000).contains(&values[name]);
                assert!(is_within("range-port") && is_within("ranged-port"), "{values:?}");
            }
            // Seven sockets without a port show one, that with changed options again with each change.
            assert!(events.ports_shown >= 6, "{}", events.ports_shown);
        });
    }
}

/// A registered socket needs no other registration for its first send.
#[test]
fn the_first_send_registers_nothing() {
    hook::run_with(behaviour(), Libc::Gnu, "ports-raced", &[], |_, texts, events| {
        assert_eq!(texts.len(), 400);
        assert!(texts.iter().all(|text| text == "thread"));
        assert_eq!(events.ports_shown, 100);
        // One each at SO_TXTIME; more only where two threads gave the socket its port at once.
        println!("{} registrations of 100 sockets", events.registrations);
        assert!((100..180).contains(&events.registrations), "{}", events.registrations);
    });
    // An older daemon takes none.
    hook::run(Libc::Gnu, "ports-raced", &[], |_, texts, events| {
        assert_eq!((texts.len(), events.ports_shown), (400, 0));
    });
}

#[test]
fn a_lost_port_is_another_one() {
    for libc in LIBCS {
        hook::run_with(behaviour(), libc, "ports-lost", &[], |values, _, events| {
            ports_agree(values, events);
            assert_eq!((values["found"], values["child"], values["stays"], values["left"]), (1, 0, 1, 0));
            assert!(values["reserved"] != 0 && values["reserved"] != values["held-port"], "{values:?}");
            assert_eq!((values["own"], values["own-left"]), (16, 0));
            // 100 of its own, and few others below its limit.
            assert!(values["highest"] < 120, "{values:?}");
            assert!(values["closed-port"] > 0 && values["parent-port"] > 0, "{values:?}");
        });
    }
}

/// Reserved sockets lie above the program's limit of descriptors, or there are none.
#[test]
fn a_reserved_port_costs_the_program_no_descriptor() {
    for (room, shown) in [("8", 0), ("24", 1)] {
        hook::run_with(behaviour(), Libc::Gnu, "limit", &[room], |values, texts, events| {
            assert_eq!((values["free"], values["limit"], values["no-more"]), (60, 64, -24), "{room}");
            assert_eq!((texts, events.ports_shown), (&["one", "two", "three"].map(str::to_owned)[..], shown));
        });
    }
}
