// SPDX-License-Identifier: Apache-2.0
//! The life of a process under libktsn.so: descriptors at the edge, threads, forks, other programs, sandboxes.

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ktsn_tests::hook::{self, LIBCS, Libc, run};
use ktsn_tests::peer::{Behaviour, Events, Peer};

/// A blocking socket waits until its registration is answered, however busy the peer is: no frame finds the daemon absent.
fn assert_none_absent(events: &Events) {
    assert_eq!(events.counters[0][16], 0);
}

/// A program at its limit finds exactly as many descriptors as without the library, and may close them all.
#[test]
fn the_limit_is_the_programs() {
    for libc in LIBCS {
        let plain = hook::unhooked(libc, "limit 8", 9).output().expect("program");
        let plain = hook::values(&plain);
        assert_eq!((plain["free"], plain["no-more"]), (60, -24)); // EMFILE
        run(libc, "limit 8", |values, texts, events| {
            assert_eq!(values, &plain);
            assert_eq!((values["one"], values["two"], values["three"], values["limit"]), (3, 3, 5, 64));
            assert_eq!((texts, events.clients), (&["one", "two", "three"].map(str::to_owned)[..], 1));
        });
        // No room up to the hard limit: two of the numbers are ours, and the program goes on all the same.
        run(libc, "limit 0", |values, texts, _| {
            assert_eq!((values["free"], values["limit"], values["no-more"]), (58, 64, -24));
            assert_eq!(texts[..2], ["one", "two"]);
        });
    }
}

#[test]
fn not_one_descriptor_is_free() {
    for libc in LIBCS {
        run(libc, "limit-full 8", |values, texts, events| {
            assert_eq!((values["txtime"], values["one"], values["limit"]), (0, 3, 64));
            assert_eq!((texts, events.clients), (&["one", "two"].map(str::to_owned)[..], 1));
        });
        // Without room the kernel has the socket, until the program has descriptors again and says so.
        let run_dir = hook::open_directory();
        let peer = Peer::start(run_dir.path(), Behaviour::default());
        let receiver = UdpSocket::bind("127.0.0.1:0").expect("receiver");
        receiver.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
        let port = receiver.local_addr().expect("address").port();
        let output = hook::scenario(libc, run_dir.path(), "limit-full 0", port).output();
        let output = output.expect("program");
        let values = hook::values(&output);
        assert_eq!((values["txtime"], values["one"], values["again"], values["two"]), (0, 3, 0, 3));
        assert_eq!(receiver.recv(&mut [0; 16]).expect("from the kernel"), 3);
        assert_eq!(peer.texts(), ["two"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("no descriptor left") && said.lines().count() == 1, "{said}");
    }
}

#[test]
fn standard_descriptors_are_the_programs() {
    for libc in LIBCS {
        run(libc, "closed-standard", |values, texts, _| {
            assert_eq!((values["data"], values["socket"], values["more"]), (0, 1, 2));
            assert_eq!((values["txtime"], values["sent"], values["again"]), (0, 6, 10));
            assert_eq!(texts, ["closed", "closed too"]);
        });
        // Nobody there to attach to: the warning has no place to go to, and goes nowhere.
        let nowhere = hook::open_directory();
        let output = hook::scenario(libc, nowhere.path(), "closed-standard", 9).output().expect("program");
        assert_eq!(hook::values(&output)["octets"], 0);
    }
}

#[test]
fn daemons_detach() {
    for libc in LIBCS {
        let run_dir = hook::open_directory();
        let peer = Peer::start(run_dir.path(), Behaviour::default());
        let mut command = hook::scenario(libc, run_dir.path(), "daemonise", 4321);
        let status = command.stdout(std::process::Stdio::null()).status().expect("program");
        assert!(status.success());
        assert!(peer.wait(Duration::from_secs(20), |events| events.frames.len() == 4), "{:?}", peer.texts());
        assert_eq!(peer.texts(), ["before", "daemon-before", "daemon-after", "daemon-last"]);
    }
}

#[test]
fn spawned_programs_get_what_they_are_given() {
    for libc in LIBCS {
        run(libc, "spawn", |values, texts, events| {
            assert_eq!((values["spawn"], values["child"]), (0, 0));
            let expected = ["parent", "inherited", "kept", "parent again", "in vfork", "after vfork"];
            assert_eq!((texts, events.clients), (&expected.map(str::to_owned)[..], 2));
            // Nothing of ours is open in another program.
            assert_eq!((values["count"], values["highest"]), (3, 2));
        });
    }
}

/// 1,000 sockets are served; those beyond the table are the kernel's.
#[test]
fn a_thousand_sockets() {
    for libc in LIBCS {
        run(libc, "many", |values, texts, events| {
            assert_eq!((values["taken"], values["failed"], values["last"]), (1000, 0, 4));
            let distinct: BTreeSet<&String> = texts.iter().filter(|text| text.starts_with('s')).collect();
            let count = |what| texts.iter().filter(|text| *text == what).count();
            assert_none_absent(events);
            assert_eq!((count("again"), count("last")), (1000, 1));
            assert_eq!(distinct.len() + count("more"), 1024);
            assert_eq!(events.clients, 1);
        });
    }
}

#[test]
fn a_socket_for_each_datagram() {
    let script = "repeat 3000\ntimed 0\nsend 0 text=l\nclose 0\njoin";
    run(Libc::Gnu, script, |_, texts, events| {
        assert_none_absent(events);
        assert_eq!(texts.len(), 3000);
    });
}

#[test]
fn ranges_of_descriptors() {
    for libc in LIBCS {
        run(libc, "ranges", |values, texts, events| {
            assert_eq!((values["cloexec"], values["flag"], values["unshare"], values["gone"]), (0, 1, 0, -9));
            assert_eq!(texts[..3], ["before", "after", "new"]);
            assert!(texts.iter().any(|text| text == "last") && events.clients == 2, "{}", events.clients);
        });
    }
}

#[test]
fn threads_come_and_go() {
    for libc in LIBCS {
        run(libc, "several", |values, texts, events| {
            let distinct: BTreeSet<&String> = texts.iter().collect();
            assert_eq!((values["failed"], values["briefs"]), (0, 1000));
            assert_none_absent(events);
            assert_eq!((texts.len(), distinct.len()), (13_000, 13_000));
        });
    }
}

#[test]
fn a_process_forks_in_the_middle_of_its_threads_sends() {
    for libc in LIBCS {
        run(libc, "forked", |values, texts, events| {
            assert_eq!((values["failed"], values["after"]), (0, 5));
            let children: BTreeSet<_> = texts.iter().filter(|text| text.starts_with("child")).collect();
            let gave_up = usize::try_from(values["gave-up"]).expect("a count");
            assert!(children.len() + gave_up >= 30 && gave_up < 15, "{children:?}, {gave_up} gave up");
            assert_eq!(events.clients, 31);
            let absent = events.counters.iter().skip(1).map(|counters| counters[16]).sum::<u64>();
            assert!(absent <= gave_up as u64, "{absent} of {gave_up}");
            assert!(texts.iter().any(|text| text == "after"));
        });
    }
}

/// [POSIX 2.9.5.2] sendmsg is a cancellation point.
#[test]
fn threads_are_cancelled_in_sendmsg() {
    for libc in LIBCS {
        run(libc, "cancelled", |values, texts, _| {
            assert_eq!((values["untimed"], values["timed"], values["after"]), (1, 1, 5));
            assert!(texts.iter().any(|text| text == "after"));
        });
    }
}

/// Neither lock nor memory nor log: with the symbols that the library asks for (`hook_library.rs`), nothing else than
/// a system call could be any of these, and there is none.
#[test]
fn a_timed_send_makes_no_system_call() {
    for libc in LIBCS {
        // Frames that are due later are not rung for; these are due after 200 s. A stall of this machine of less than half of that
        // breaks nothing: a program rings for a peer that has broken its promise.
        let behaviour = Behaviour { promise: Duration::from_secs(100), ..Behaviour::default() };
        hook::run_with(behaviour, libc, "no-calls", |values, _, _| {
            let found = (values["first"], values["failed"], values["calls"], values["number"]);
            assert_eq!(found, (5, 0, 0, -1));
        });
    }
}

/// [No allocation, lock, output] Counted by a library behind ours, over every hook.
#[test]
fn no_hook_asks_for_memory_locks_or_output() {
    for libc in LIBCS {
        let run_dir = hook::open_directory();
        let peer = Peer::start(run_dir.path(), Behaviour::default());
        let counter =
            compile(libc, run_dir.path(), &["-shared", "-fPIC"], "count_library.c", "libcount.so", "");
        let mut preload = hook::library().as_os_str().to_owned();
        preload.push(":");
        preload.push(&counter);
        let mut command = hook::scenario(libc, run_dir.path(), "counted", 4321);
        let values = hook::values(&command.env("LD_PRELOAD", preload).output().expect("program"));
        assert_eq!((values["first"], values["failed"], values["calls"]), (0, 0, 0), "{libc:?} {values:?}");
        // The counter counts: one malloc and one free at least.
        assert!(values["before"] >= 2, "{values:?}");
        assert!(peer.texts().len() > 500);
    }
}

/// A broadcast gets the kernel's answer: EACCES without SO_BROADCAST.
#[test]
fn a_broadcast_needs_the_sockets_permission() {
    let script = "timed 0
        refused: send 0 text=refused to=127.255.255.255,{port}
        set: set 0 broadcast 1
        taken: send 0 text=taken to=127.255.255.255,{port}
        connect: connect 0 127.255.255.255,{port}
        peer: send 0 text=peer to=none";
    for libc in LIBCS {
        run(libc, script, |values, texts, _| {
            assert_eq!((values["refused"], values["set"], values["taken"]), (-13, 0, 5)); // EACCES
            assert_eq!((values["connect"], values["peer"]), (0, 4));
            assert_eq!(texts, ["taken", "peer"]);
        });
    }
}

#[test]
fn a_sandbox_that_allows_sending_is_enough() {
    for libc in LIBCS {
        run(libc, "sandboxed", |values, texts, events| {
            assert_eq!((values["first"], values["failed"]), (5, 0));
            assert_eq!((texts.len(), events.clients), (201, 1));
        });
    }
}

#[test]
fn constructors_send_before_main() {
    for libc in LIBCS {
        let run_dir = hook::open_directory();
        let peer = Peer::start(run_dir.path(), Behaviour::default());
        let mut command = hook::scenario(libc, run_dir.path(), "sleep 0", 9);
        let output = command.env("HOOK_CONSTRUCTOR", "4321").output().expect("program");
        assert!(output.status.success(), "{output:?}");
        assert_eq!(peer.texts(), ["constructor"]);
        let early = early_program(libc, run_dir.path());
        let output = hook::hooked(early, run_dir.path()).output().expect("program");
        assert_eq!(hook::values(&output)["early"], 5);
        assert_eq!(peer.texts(), ["constructor", "early"], "{libc:?}");
    }
}

/// A program with a library whose constructor sends.
fn early_program(libc: Libc, directory: &Path) -> std::path::PathBuf {
    compile(libc, directory, &["-shared", "-fPIC"], "early_library.c", "libearly.so", "");
    compile(libc, directory, &["-Wl,-rpath,$ORIGIN"], "early_program.c", "early", "libearly.so")
}

/// Compiles one of `programs/` to `directory/to`, linked with `directory/with`.
fn compile(
    libc: Libc,
    directory: &Path,
    arguments: &[&str],
    source: &str,
    to: &str,
    with: &str,
) -> std::path::PathBuf {
    let compiler = if libc == Libc::Gnu { "gcc" } else { "musl-gcc" };
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
    let made = directory.join(to);
    let mut command = Command::new(compiler);
    command.args(["-O1", "-Wall", "-Werror"]).args(arguments).arg("-o").arg(&made);
    command.arg(programs.join(source)).args((!with.is_empty()).then(|| directory.join(with)));
    assert!(command.status().expect(compiler).success());
    made
}

/// A burst in the middle of which the socket is registered again: the messages before it left under the old registration.
#[test]
fn a_burst_outlives_a_new_registration() {
    run(Libc::Gnu, "reconnected", |values, texts, events| {
        assert_eq!(values["sent"], 200 * 64);
        assert_none_absent(events);
        assert_eq!(texts.len(), 200 * 64);
    });
}
