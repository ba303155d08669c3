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

/// Sends a text, and says from which port.
fn sent(text: &str) -> String {
    format!("{text}-before: port 0\nsend 0 text={text}\n{text}-port: port 0\n")
}

#[test]
fn the_first_send_takes_the_shown_port() {
    let script = [
        format!("timed 0\n{}{}", sent("plain"), sent("second")),
        "socket 0 inet6\nset 0 v6only 0\ntxtime 0\nsix: send 0 text=six to=::1,{port}\nsix-port: port 0"
            .to_owned(),
        // An option changes before the first send; the same option again.
        format!("timed 0\nset 0 priority 3\ntxtime 0 clock=mono\ntxtime 0\n{}", sent("options")),
        format!("timed 0\ntxtime 0\ntxtime 0\n{}", sent("again")),
        format!("timed 0\nbind: bind 0 127.0.0.1,0\nbound-other: is-shared 0\n{}", sent("bound")),
        format!("timed 0\nconnect: connect 0 127.0.0.1,{{port}}\n{}", sent("connected")),
        // The kernel gives the port at an untimed send.
        format!("timed 0\nuntimed: send 0 text=untimed tx=none\n{}", sent("later")),
        // 44000 to 45000, where this kernel knows the option.
        format!("socket 0 inet\nrange: set 0 port-range 0xafc8abe0\ntxtime 0\n{}", sent("range")),
        format!("timed 0\nrange: set 0 port-range 0xafc8abe0\n{}", sent("ranged")),
    ]
    .join("\n");
    for libc in LIBCS {
        hook::run_with(behaviour(), libc, &script, |values, texts, events| {
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
    hook::run_with(behaviour(), Libc::Gnu, "ports-raced", |_, texts, events| {
        assert_eq!(texts.len(), 400);
        assert!(texts.iter().all(|text| text == "thread"));
        assert_eq!(events.ports_shown, 100);
        // One each at SO_TXTIME; more only where two threads gave the socket its port at once.
        println!("{} registrations of 100 sockets", events.registrations);
        assert!((100..180).contains(&events.registrations), "{}", events.registrations);
    });
    // An older daemon takes none.
    hook::run(Libc::Gnu, "ports-raced", |_, texts, events| {
        assert_eq!((texts.len(), events.ports_shown), (400, 0));
    });
}

#[test]
fn a_lost_port_is_another_one() {
    for libc in LIBCS {
        hook::run_with(behaviour(), libc, "ports-lost", |values, _, events| {
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
        hook::run_with(behaviour(), Libc::Gnu, &format!("limit {room}"), |values, texts, events| {
            assert_eq!((values["free"], values["limit"], values["no-more"]), (60, 64, -24), "{room}");
            assert_eq!((texts, events.ports_shown), (&["one", "two", "three"].map(str::to_owned)[..], shown));
        });
    }
}
