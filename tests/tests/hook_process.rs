// SPDX-License-Identifier: Apache-2.0
//! Descriptors, processes, threads and signal handlers under libktsn.so.

use std::collections::BTreeSet;

use ktsn_tests::hook::{LIBCS, Libc, run};
use ktsn_tests::peer::Events;

/// A blocking socket waits until its registration is answered, however busy the peer is: no frame finds the daemon absent.
fn assert_none_absent(events: &Events) {
    assert_eq!(events.counters[0][16], 0);
}

#[test]
fn duplicates_are_one_stream_and_a_reused_number_is_not() {
    let script = "timed 0
        first: fd 0
        dup 0 1
        dup2 0 2 fd=40
        dup3 0 3 fd=41
        dupfd 0 4 fd=50 exec=keep
        fcntl: fd 4
        close 0
        send 1 text=d0
        close 1
        send 2 text=d1
        close 2
        send 3 text=d2
        close 3
        send 4 text=d3
        close 4
        closed: send 1 text=x
        open 5 /dev/null
        file-number: fd 5
        file: send 5 text=x
        socket 6 inet
        plain: send 6 text=x
        dup2 5 6
        replaced: send 6 text=x
        timed 7
        dup2 7 6
        put: send 6 text=put
        mode: mode 6";
    for libc in LIBCS {
        run(libc, script, |values, texts, events| {
            assert_eq!(texts, ["d0", "d1", "d2", "d3", "put"]);
            assert_eq!(values["fcntl"], 50);
            assert_eq!((values["closed"], values["file-number"], values["file"]), (-9, values["first"], -88)); // EBADF, ENOTSOCK
            assert_eq!((values["plain"], values["replaced"], values["mode"]), (-22, -88, 2)); // EINVAL, ENOTSOCK, O_RDWR
            // The first socket's stream, and that of the plain one, which the daemon was asked about.
            assert_eq!((events.clients, events.unregistrations), (1, 2));
        });
    }
}

#[test]
fn fork_and_vfork() {
    let script = "timed 0
        before: send 0 text=before
        child: fork
        send 0 text=child
        fork
        send 0 text=grandchild
        join
        join
        after: send 0 text=after
        vfork 0
        after-vfork: send 0 text=after-vfork
        repeat 20
        fork
        join
        join
        after-many: send 0 text=after-many";
    for libc in LIBCS {
        run(libc, script, |values, texts, events| {
            assert_eq!((values["child"], values["vfork"]), (0, 0));
            // Each process attaches for itself; the parent keeps its region throughout.
            let of = |client: usize| {
                let frames = events.frames.iter().filter(move |frame| frame.client == client);
                frames.map(ktsn_tests::peer::Received::text).collect::<Vec<_>>()
            };
            assert_eq!(of(0), ["before", "after", "after-vfork", "after-many"]);
            assert_eq!(
                (of(1), of(2), texts.len()),
                (vec!["child".to_owned()], vec!["grandchild".to_owned()], 6)
            );
            assert_eq!((events.clients, events.unregistrations), (3, 0));
        });
    }
}

#[test]
fn four_threads_on_one_socket() {
    run(Libc::Gnu, "threads 10000", |values, texts, _| {
        assert_eq!(values["failed"], 0);
        let distinct: BTreeSet<&String> = texts.iter().collect();
        assert_eq!((texts.len(), distinct.len()), (40_000, 40_000));
        // Each thread's frames stay in its order.
        let mut next = [0; 4];
        for text in texts {
            let (thread, frame) = text[1..].split_once('-').expect("words");
            let thread: usize = thread.parse().expect("thread");
            assert_eq!(frame.parse(), Ok(next[thread]));
            next[thread] += 1;
        }
    });
}

#[test]
fn signal_handlers_send_in_the_middle_of_a_send() {
    for libc in LIBCS {
        run(libc, "signals", |values, texts, _| {
            assert_eq!((values["failed"], values["handler-failed"]), (0, 0));
            assert!(values["handled"] > 100 && values["main"] > 1000, "{values:?}");
            let distinct: BTreeSet<&String> = texts.iter().collect();
            assert_eq!(distinct.len(), texts.len());
            assert_eq!(texts.len() as i64, values["main"] + values["handled"]);
        });
    }
}

#[test]
fn programs_that_close_everything() {
    for libc in LIBCS {
        run(libc, "closes", |values, texts, events| {
            // The program never opened our descriptors, so it can close one only: its own.
            assert_eq!((values["closed"], values["gone"]), (1, 0));
            assert_eq!(values["range"], 0);
            assert_eq!(texts[..3], ["first", "second", "third"]);
            // After dup2 onto our descriptors, which have moved.
            let again = texts.iter().filter(|text| *text == "again").count();
            assert_eq!((again, texts[103].as_str(), texts.len()), (100, "last", 104));
            assert_eq!((values["last"], events.clients), (4, 1));
        });
    }
}

#[test]
fn a_timed_socket_outlives_exec() {
    for libc in LIBCS {
        run(libc, "inherit", |values, texts, events| {
            assert_eq!((values["txtime"], values["inherited"]), (0, 9));
            assert_eq!((texts.len(), events.clients), (1, 2));
        });
    }
}

/// The loser of the race for the port does not go to the kernel, and both frames leave from that port.
#[test]
fn first_sends_of_two_threads() {
    run(Libc::Gnu, "first-sends 200", |values, texts, events| {
        assert_eq!(values["failed"], 0);
        assert_none_absent(events);
        assert_eq!(texts.len(), 400);
        assert!(events.frames.iter().all(|frame| frame.local.is_some_and(|local| local.port() != 0)));
        assert_eq!(events.counters[0][5], 0);
    });
}

/// After connect() returned no thread's frame goes to the peer before.
#[test]
fn two_threads_after_connect() {
    run(Libc::Gnu, "reconnects 400", |values, texts, events| {
        assert_none_absent(events);
        assert_eq!((values["failed"], texts.len()), (0, 800));
        for frame in &events.frames {
            let text = frame.text();
            let round: u16 = text[1..].split('-').next().expect("round").parse().expect("number");
            assert_eq!(frame.peer.map(|peer| peer.port()), Some(10_000 + round), "{text}");
        }
    });
}

#[test]
fn a_port_that_the_kernel_gives() {
    let script = "timed 0
        set 0 no-port 1
        to-the-kernel: send 0 text=no-port
        taken: send 0 text=port
        port: port 0";
    run(Libc::Gnu, script, |values, texts, events| {
        assert_eq!((values["to-the-kernel"], values["taken"]), (7, 4));
        assert_eq!(texts, ["port"]);
        let local = events.frames[0].local.expect("local address");
        assert_eq!(i64::from(local.port()), values["port"]);
        assert_eq!(events.counters[0][5], 1);
    });
}

#[test]
fn a_number_reused_behind_our_back_is_another_stream() {
    for libc in LIBCS {
        run(libc, "reused", |values, texts, events| {
            assert_eq!((values["same-number"], values["bind"], values["txtime"]), (1, 0, 0));
            assert_eq!(texts, ["old", "new"]);
            let local = events.frames[1].local.expect("local address");
            assert_eq!(i64::from(local.port()), values["port"]);
        });
    }
}
