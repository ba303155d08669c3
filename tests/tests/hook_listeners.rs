// SPDX-License-Identifier: Apache-2.0
//! KTSN_RECEIVE=expect where threads, descriptors and processes change while an arrival is expected.

use std::collections::BTreeMap;
use std::process::Command;

use ktsn_ring::receive::ReceiveCount;
use ktsn_tests::hook::{self, LIBCS, Libc, until_hits};
use ktsn_tests::peer::{Behaviour, Peer};

/// A daemon that grants a whole CPU.
fn granting() -> Behaviour {
    Behaviour { receive_share: Some(1_000), ..Behaviour::default() }
}

/// Runs a script; what it printed, and how many arrivals each client was awake for.
fn run(libc: Libc, script: &str) -> (BTreeMap<String, i64>, Vec<u64>) {
    let run_dir = hook::open_directory();
    let peer = Peer::start(run_dir.path(), granting());
    let mut command: Command = hook::scenario(libc, run_dir.path(), script, 9);
    let output = command.env("KTSN_RECEIVE", "expect").output().expect("program");
    let hits = peer.events().receiving.iter().map(|area| area.total.get(ReceiveCount::Hit)).collect();
    (hook::values(&output), hits)
}

/// [POSIX 2.9.5] The cleanup handlers find the program's signal mask, and the next thread expects.
#[test]
fn a_cancelled_thread_leaves_nothing_behind() {
    for libc in LIBCS {
        // A lease that a thread had not given back would stop the others for the rest: some 65 hits at most.
        until_hits(100, || {
            let (values, hits) = run(libc, "arrivals-cancelled rounds=40");
            assert_eq!((values["failed"], values["not-cancelled"]), (0, 0), "{libc:?}");
            assert_eq!((values["masked"], values["uncleaned"]), (0, 0), "{libc:?}");
            hits[0]
        });
    }
}

#[test]
fn two_threads_on_one_socket_both_receive() {
    until_hits(1, || {
        let (values, hits) = run(Libc::Gnu, "arrivals-shared count=1500");
        assert_eq!(values["lost"], 0);
        assert!(values["least"] > 150, "{values:?}");
        hits[0]
    });
}

/// A close ends a call that expects an arrival. Where none is expected, which a busy machine may cause, only a signal ends it.
#[test]
fn a_socket_that_ends_ends_the_call() {
    for libc in LIBCS {
        let (values, _) = run(libc, "arrivals-closed rounds=8");
        assert_eq!((values["failed"], values["other"]), (0, 0), "{libc:?}: {values:?}");
        assert!(values["ended"] > 0, "{libc:?}: {values:?}");
    }
    let (values, _) = run(Libc::Gnu, "arrivals-shut");
    assert_eq!((values["failed"], values["answer"]), (0, 0));
}

/// The number of a closed socket is another socket's soon. A thread that still waits for the closed one ends with EBADF. It takes from the
/// next socket only where the close came between its last look at the table and its system call, which a busy machine may cause often;
/// without that look it nearly always does.
#[test]
fn a_call_ends_when_its_number_is_the_next_sockets() {
    for libc in LIBCS {
        until_hits(1, || {
            let (values, _) = run(libc, "arrivals-reused rounds=25");
            assert_eq!(values["failed"], 0, "{libc:?}: {values:?}");
            println!("{libc:?}: {values:?}");
            u64::from(values["taken"] <= values["ended"] / 2)
        });
    }
}

/// A receive call that cannot wait is never made one that does. A wait for the datagram after the last would not end.
#[test]
fn a_negative_timeout_does_not_wait() {
    for libc in LIBCS {
        let (values, _) = run(libc, "arrivals-drained count=400");
        assert_eq!((values["received"], values["other"]), (400, 0), "{libc:?}");
        assert!(values["empty"] > 0, "{libc:?}: {values:?}");
    }
}

/// A vfork's child shares the memory of the tables: what it closes stays its parent's.
#[test]
fn a_vforks_child_ends_no_listener() {
    for libc in LIBCS {
        let (values, hits) = run(libc, "arrivals-spawned");
        assert_eq!(values["failed"], 0, "{libc:?}");
        assert!(hits.first().is_some_and(|hits| *hits > 10), "{libc:?}: {hits:?}");
    }
}

/// A call is served by other system calls than its own. Where a sandbox forbids those, the kernel serves it, and a blocked signal stays
/// blocked.
#[test]
fn a_sandbox_that_allows_the_programs_own_calls_is_enough() {
    for libc in LIBCS {
        for (how, call) in [
            ("read", "recvfrom"),
            ("poll", "ppoll"),
            ("recv", "ppoll"),
            ("epoll", "ppoll"),
            ("recv", "rt_sigprocmask"),
            ("poll", "rt_sigprocmask"),
            ("epoll", "rt_sigprocmask"),
        ] {
            let (values, _) = run(libc, &format!("arrivals-forbidden how={how} call={call}"));
            let found = (values["failed"], values["forbidden"], values["handled"]);
            assert_eq!(found, (0, 0, 0), "{libc:?}: {how} without {call}");
        }
    }
}

/// The child expects by a region of its own.
#[test]
fn parent_and_child_expect() {
    for libc in LIBCS {
        until_hits(1, || {
            let (values, hits) = run(libc, "arrivals-forked");
            assert_eq!((values["failed"], values["child"], values["after"]), (0, 0, 0));
            assert_eq!(hits.len(), 2);
            hits[0].min(hits[1])
        });
    }
}

#[test]
fn a_handler_receives_on_the_same_socket() {
    for libc in LIBCS {
        until_hits(1, || {
            let (values, hits) = run(libc, "arrivals-nested");
            assert_eq!((values["received"], values["nested"]), (1, values["begun"]));
            assert!(values["begun"] > 1, "{values:?}");
            hits[0]
        });
    }
}

/// What a call answers beside a plain datagram is the kernel's, while it expects.
#[test]
fn peeks_cuts_errors_and_high_descriptors_are_the_kernels() {
    for libc in LIBCS {
        until_hits(1, || {
            let (values, hits) = run(libc, "arrivals-answers rounds=8");
            let wrong = (values["peek"], values["truncated"], values["refused"], values["high"]);
            assert_eq!((values["failed"], wrong), (0, (0, 0, 0, 0)), "{libc:?}");
            hits[0]
        });
    }
}
