// SPDX-License-Identifier: Apache-2.0
//! CLOCK_TAI that the daemon grants belongs to the socket: over exec, to another process, until it is revoked. All of
//! it without rights.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use ktsn_tests::hook::{self, LIBCS, Libc};
use ktsn_tests::peer::{Behaviour, Events, Peer};

/// Runs a script, which has nothing to complain about.
fn run(libc: Libc, script: &str, check: impl FnOnce(&BTreeMap<String, i64>, &[String], &Events)) {
    let output = hook::run(libc, script, check);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

fn txtime(values: &BTreeMap<String, i64>) -> (i64, i64, i64) {
    (values["get"], values["get-clock"], values["get-flags"])
}

#[test]
fn a_grant_outlives_exec() {
    for libc in LIBCS {
        // What the next program does first with the socket. An untimed send asks nothing; the timed one after it does.
        for first in [
            "first: gettxtime 0",
            "",
            "two: send 0 text=two count=2",
            "untimed: send 0 text=plain tx=none via=sendto\nuntimed-msg: send 0 text=plain tx=none",
        ] {
            let script = format!(
                "user 65534
                socket 0 inet
                tai: txtime 0 flags=2
                before: send 0 text=before
                exec
                {first}
                after: send 0 text=after
                dup 0 1
                close 0
                copy: send 1 text=copy
                get: gettxtime 1"
            );
            run(libc, &script, |values, texts, events| {
                assert_eq!((values["tai"], values["after"], values["copy"]), (0, 5, 4), "{first}");
                assert_eq!(txtime(values), (0, 11, 2), "{first}");
                let expected: &[&str] = if values.contains_key("two") {
                    &["before", "two", "two", "after", "copy"]
                } else {
                    &["before", "after", "copy"]
                };
                assert_eq!(texts, expected);
                if first.starts_with("first") {
                    assert_eq!((values["first-clock"], values["first-flags"]), (11, 2));
                }
                if first.starts_with("untimed") {
                    assert_eq!((values["untimed"], values["untimed-msg"]), (5, 5));
                }
                assert_eq!(events.clients, 2);
                assert!(events.frames.iter().all(|frame| frame.frame.clock == 11));
            });
        }
    }
}

#[test]
fn a_grant_goes_with_a_passed_socket() {
    for libc in LIBCS {
        // Granted by the daemon, and by the kernel.
        for script in ["user 65534\ngrant-pass", "grant-pass"] {
            run(libc, script, |values, texts, events| {
                assert_eq!((values["tai"], values["pass"], values["receiver"]), (0, 0, 0));
                assert_eq!((values["received"], txtime(values)), (8, (0, 11, 0)));
                assert_eq!((texts, events.clients), (&["before".to_owned(), "received".to_owned()][..], 2));
            });
        }
    }
}

/// The number of the first socket is that of another one afterwards.
const NEVER_GRANTED: &str = "user 65534
    socket 0 inet
    open 1 /dev/null
    repeat 5
    none: send 0 text=none
    join
    before: gettxtime 0
    file: send 1 text=x
    close 0
    socket 0 inet
    tai: txtime 0 flags=1
    granted: send 0 text=granted
    get: gettxtime 0";

#[test]
fn a_socket_without_a_grant_is_asked_about_once() {
    for libc in LIBCS {
        run(libc, NEVER_GRANTED, |values, texts, events| {
            assert_eq!((values["none"], values["file"]), (-22, -88)); // EINVAL, ENOTSOCK
            assert_eq!(texts, ["granted"]);
            assert_eq!((values["tai"], txtime(values)), (0, (0, 11, 1)));
            // One question; then the granted socket, at setsockopt and when it got its port.
            assert_eq!((events.registrations, events.clients), (3, 1));
        });
    }
}

/// Without a daemon the kernel's answers stand.
#[test]
fn nobody_to_ask() {
    let run_dir = hook::open_directory();
    let absent = hook::scenario(Libc::Gnu, run_dir.path(), NEVER_GRANTED, 9).env("KTSN_LOG", "off").output();
    let plain = hook::unhooked(Libc::Gnu, NEVER_GRANTED, 9).output();
    let (absent, plain) = (absent.expect("program"), plain.expect("program"));
    assert_eq!((absent.status, absent.stdout), (plain.status, plain.stdout));
}

#[test]
fn a_revoked_grant_is_as_one_never_given() {
    // The policy changes during the sleep.
    let script = "user 65534
        socket 0 inet
        tai: txtime 0
        first: send 0 text=first
        again: txtime 0 flags=3
        second: send 0 text=second
        sleep 2000
        connect: connect 0 127.0.0.1,{port}
        revoked: send 0 text=revoked
        get: gettxtime 0";
    for libc in LIBCS {
        let run_dir = hook::open_directory();
        let peer = Peer::start(run_dir.path(), Behaviour::default());
        let mut command = hook::scenario(libc, run_dir.path(), script, 4321);
        let child = command.stdout(Stdio::piped()).spawn().expect("program");
        assert!(peer.wait(Duration::from_secs(20), |events| events.frames.len() == 2));
        assert_eq!(peer.events().claims.values().copied().collect::<Vec<_>>(), [3]);
        peer.change(|behaviour| behaviour.grants_tai = false);
        let values = hook::values(&child.wait_with_output().expect("program"));
        assert_eq!((values["first"], values["again"], values["second"]), (5, 0, 6));
        assert_eq!((values["connect"], values["revoked"]), (0, -22)); // EINVAL, as without SO_TXTIME
        assert_eq!(txtime(&values), (0, 0, 0));
        assert_eq!(peer.texts(), ["first", "second"]);
        assert_eq!(peer.events().counters[0][2], 1); // not_allowed
    }
}
