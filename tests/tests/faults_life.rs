// SPDX-License-Identifier: Apache-2.0
//! Programs with the life of real ones against the shipped daemon: many sockets, sockets for one datagram each, grants
//! that outlive their process.

use std::collections::BTreeMap;
use std::time::Duration;

use ktsn_tests::faults::bed::{Bed, POD_B, within};
use ktsn_tests::faults::control::reason;
use ktsn_tests::faults::daemon::{Attachment, Daemon, NAME};
use ktsn_tests::faults::eventually;
use ktsn_tests::hook::{self, Libc};

const SOON: Duration = Duration::from_secs(20);

/// Runs a script in pod A with pod B as its peer; what it printed.
fn run(bed: &Bed, daemon: &Daemon, script: &str) -> BTreeMap<String, i64> {
    let script = format!("defaults to={POD_B},9 tx=tai:+200000000\n{script}");
    let mut command = hook::scenario(Libc::Gnu, daemon.run_dir(), &script, 9);
    let values = hook::values(&within(&bed.pod_a, || command.output()).expect("program"));
    eventually("no client is left", SOON, || daemon.clients() == 0);
    values
}

/// The frames that were taken over, once all of them are sent. None has found ktsnd absent: a blocking socket waits until ktsnd
/// has registered it.
fn frames(daemon: &Daemon) -> u64 {
    eventually("all are sent", SOON, || {
        let counters = daemon.control().counters(NAME);
        (counters.taken == counters.sent).then(|| {
            assert_eq!(reason(&counters.dropped, "daemon_absent"), 0);
            counters.taken
        })
    })
}

#[test]
fn a_thousand_sockets() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let values = run(&bed, &daemon, "many");
    assert_eq!((values["taken"], values["failed"], values["last"]), (1000, 0, 4));
    // Twice a thousand, the 24 that still fit the table, and the last.
    assert_eq!(frames(&daemon), 2025);
}

/// Each socket is registered twice (before and after it has a port) and ended: none of that is a flood.
#[test]
fn a_socket_for_each_datagram() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    run(&bed, &daemon, "repeat 3000\ntimed 0\nsend 0 text=l\nclose 0\njoin");
    assert_eq!(frames(&daemon), 3000);
}

/// What is claimed of hardware timestamps is claimed of the attachment's interface.
#[test]
fn stamps_are_claimed_for_the_pods_interface() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    for (interface, variable, modes) in [("eth0", "1", 95), ("lo", "1", 26), ("eth0", "0", 26)] {
        let mut command = hook::scenario(Libc::Gnu, daemon.run_dir(), &format!("hwtstamp {interface}"), 9);
        command.env("KTSN_EMULATE_HWTSTAMP", variable);
        let values = hook::values(&within(&bed.pod_a, || command.output()).expect("program"));
        assert_eq!(values["modes"], modes, "{interface} {variable}");
        assert_eq!(values["set"], if modes == 95 { 0 } else { -95 }); // EOPNOTSUPP
    }
}

#[test]
fn a_grant_outlives_exec_until_it_is_revoked() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let granted = "user 65534
        socket 0 inet
        tai: txtime 0 flags=2
        send 0 text=before
        exec
        get: gettxtime 0
        send 0 text=after";
    let values = run(&bed, &daemon, granted);
    assert_eq!((values["tai"], values["get-clock"], values["get-flags"]), (0, 11, 2));
    assert_eq!(frames(&daemon), 2);
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed).with("allow_tai = false")]);
    let revoked = "user 65534
        socket 0 inet
        none: send 0 text=none
        tai: txtime 0 flags=1
        granted: send 0 text=granted
        get: gettxtime 0";
    let values = run(&bed, &daemon, revoked);
    assert_eq!((values["none"], values["tai"], values["granted"], values["get-clock"]), (-22, -1, -22, 0));
}
