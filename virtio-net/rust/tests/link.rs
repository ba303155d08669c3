// SPDX-License-Identifier: BSD-2-Clause
//! A link to a backend in this process: frames, notifications, hang-ups, and a backend that breaks the rules of the rings.

mod backend;

use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use backend::Backend;
use ktsn_virtio_net::{Fault, Link, OpenError, Options, PATH_OCTETS_MAX, SendError, Server, connect};

fn options() -> Options {
    Options { limit: Duration::from_secs(20), ..Options::default() }
}

/// A link and the backend at its other end.
fn linked(options: &Options) -> (Link, Backend) {
    let (near, far) = UnixStream::pair().expect("sockets");
    let thread = thread::spawn(move || {
        let mut backend = Backend::new(far);
        assert!(backend.negotiate(), "the front end asks to the end");
        backend
    });
    let link = Link::open(near, options).unwrap_or_else(|error| panic!("{error}"));
    (link, thread.join().expect("backend"))
}

fn frame(number: u32, octets: usize) -> Vec<u8> {
    let mut frame = vec![number as u8; octets];
    frame[..4].copy_from_slice(&number.to_be_bytes());
    frame
}

fn received(link: &mut Link, queue: u16) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while link.receive(queue, &mut |frame| frames.push(frame.to_vec())).expect("no rule was broken") > 0 {}
    frames
}

#[test]
fn frames_of_every_length_come_back_whole_and_in_order_on_each_queue() {
    let (mut link, mut backend) = linked(&Options { queues: 3, ..options() });
    assert_eq!((link.queues(), backend.accepted & backend::VERSION_1), (3, backend::VERSION_1));
    assert!(backend.rings.len() == 6 && backend.rings.values().all(|ring| ring.is_on && ring.size == 256));
    for queue in 0..3 {
        let lengths = (14..=1518).chain((0..5000).map(|n| 60 + n % 3));
        let frames: Vec<_> = lengths.zip(0..).map(|(octets, number)| frame(number, octets)).collect();
        for batch in frames.chunks(100) {
            batch.iter().for_each(|frame| link.send(queue, frame).expect("there is room"));
            let mut echoes = Vec::new();
            while echoes.len() < batch.len() {
                while backend.echo(usize::from(queue)) {}
                echoes.extend(received(&mut link, queue));
            }
            assert_eq!(echoes, batch);
        }
    }
    assert_eq!(link.stop(), 0);
}

/// A backend with exactly the pairs that are wanted: rings beyond its answer to GET_QUEUE_NUM are used.
#[test]
fn as_many_pairs_as_the_backend_has_are_used() {
    let (near, far) = UnixStream::pair().expect("sockets");
    let thread = thread::spawn(move || {
        let mut backend = Backend::new(far);
        backend.pairs_count = 4;
        backend.rings_count = 8;
        assert!(backend.negotiate(), "the front end asks to the end");
        backend
    });
    let mut link =
        Link::open(near, &Options { queues: 4, ..options() }).unwrap_or_else(|error| panic!("{error}"));
    let mut backend = thread.join().expect("backend");
    assert!(backend.rings.len() == 8 && backend.rings.values().all(|ring| ring.is_on));
    for queue in 0..4 {
        link.send(queue, &frame(7, 60)).expect("there is room");
        assert!(backend.echo(usize::from(queue)));
        assert_eq!(received(&mut link, queue), [frame(7, 60)]);
    }
}

#[test]
fn the_backend_is_notified_only_while_it_asks_for_it() {
    let (mut link, mut backend) = linked(&options());
    assert_eq!((backend.notifications(0), backend.notifications(1)), (1, 1), "what was posted before");
    link.send(0, &frame(1, 60)).expect("there is room");
    assert_eq!(backend.notifications(1), 1);
    backend.want_notifications(1, false);
    link.send(0, &frame(2, 60)).expect("there is room");
    assert_eq!(backend.notifications(1), 0);
    // A backend that reads none of them does not make the sender wait.
    backend.want_notifications(1, true);
    for number in 0..5000 {
        link.send(0, &frame(number, 60)).expect("there is room");
        while let Some((id, ..)) = backend.take(1) {
            backend.give(1, u32::from(id), 0);
        }
    }
    assert!(backend.notifications(1) > 0);
}

#[test]
fn a_full_ring_refuses_and_what_the_backend_did_not_take_is_counted() {
    let (mut link, mut backend) = linked(&options());
    let taken = (0..).take_while(|number| link.send(0, &frame(*number, 60)).is_ok()).count();
    assert_eq!(taken, 256);
    assert_eq!(link.send(0, &frame(9, 60)), Err(SendError::Full));
    for _ in 0..10 {
        let (id, ..) = backend.take(1).expect("a frame");
        backend.give(1, u32::from(id), 0);
    }
    link.send(0, &frame(9, 60)).expect("there is room again");
    assert_eq!(link.send(0, &[0; 13]), Err(SendError::Length { octets: 13 }));
    assert_eq!(link.send(0, &[0; 1519]), Err(SendError::Length { octets: 1519 }));
    assert_eq!(link.send(1, &frame(9, 60)), Err(SendError::NoQueue { queue: 1 }));
    assert_eq!((link.stop(), link.stop()), (247, 247), "256 − 10 + 1");
    assert!(link.send(0, &frame(9, 60)).is_err());
}

#[test]
fn warming_up_takes_back_what_was_sent_and_sends_nothing() {
    let (mut link, mut backend) = linked(&options());
    link.send(0, &frame(1, 60)).expect("there is room");
    link.send(0, &frame(2, 60)).expect("there is room");
    let ids = [(); 2].map(|()| u32::from(backend.take(1).expect("a frame").0));
    backend.give(1, ids[0], 0);
    (0..1000).for_each(|_| link.warm_up(0));
    assert!(backend.take(1).is_none(), "nothing was sent");
    // A queue that does not exist, and a frame that has arrived.
    link.warm_up(7);
    link.send(0, &frame(3, 60)).expect("there is room");
    assert!(backend.echo(0));
    link.warm_up(0);
    assert_eq!(received(&mut link, 0), Vec::<Vec<u8>>::new(), "what arrived is dropped");
    assert_eq!(link.fault(), None);
    // It reads what the backend gives back: this frame is back already.
    backend.give(1, ids[0], 0);
    link.warm_up(0);
    assert_eq!(link.fault(), Some(Fault::Id));
    link.warm_up(0);
    assert_eq!(link.send(0, &frame(4, 60)), Err(SendError::Broken(Fault::Id)));
}

#[test]
fn each_rule_of_the_rings_that_is_broken_has_its_name_and_ends_the_link() {
    // The used index goes beyond what is under way.
    let (mut link, mut backend) = linked(&options());
    link.send(0, &frame(1, 60)).expect("there is room");
    backend.move_used(1, 3);
    assert_eq!(link.send(0, &frame(2, 60)), Err(SendError::Broken(Fault::Index)));
    assert_eq!(link.fault(), Some(Fault::Index));
    // A foreign descriptor, and the same one twice.
    for ids in [[7, 0], [0, 0], [u32::MAX, 0]] {
        let (mut link, mut backend) = linked(&options());
        link.send(0, &frame(1, 60)).expect("there is room");
        link.send(0, &frame(2, 60)).expect("there is room");
        ids.into_iter().for_each(|id| backend.give(1, id, 0));
        assert_eq!(link.send(0, &frame(3, 60)), Err(SendError::Broken(Fault::Id)), "{ids:?}");
    }
    // Shorter than the header, and longer than the buffer.
    for octets in [0, 11, 12 + 1519, u32::MAX] {
        let (mut link, mut backend) = linked(&options());
        let (id, ..) = backend.take(0).expect("a posted buffer");
        backend.give(0, u32::from(id), octets);
        let broken = Err(SendError::Broken(Fault::Length));
        assert_eq!(link.receive(0, &mut |_| panic!("no frame")), broken, "{octets}");
        assert!(link.send(0, &frame(1, 60)).is_err());
    }
}

/// The backend writes to all memory that it has: what the driver trusts is elsewhere.
#[test]
fn a_backend_that_scribbles_over_everything_breaks_the_link_and_nothing_else() {
    let mut state = 0x2545_f491_u32;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    let mut faults = 0;
    for round in 0..60 {
        let (mut link, backend) = linked(&options());
        let memory = backend.memory.as_ref().expect("memory");
        for step in 0..200 {
            for _ in 0..50 {
                let places = if round % 2 == 0 { memory.octets() / 4 } else { 4096 };
                memory.put(random() as usize % places * 4, random());
            }
            if round % 3 == 0 && step == 100 {
                (0..memory.octets() / 4).for_each(|place| memory.put(place * 4, 0x4141_4141_u32));
            }
            let _any = link.send(0, &frame(step, 60));
            let _any = link.receive(0, &mut |frame| assert!((14..=1518).contains(&frame.len())));
        }
        faults += u32::from(link.fault().is_some());
        link.stop();
    }
    assert!(faults > 10, "{faults}");
}

#[test]
fn a_hang_up_is_seen_and_the_next_backend_gets_memory_of_its_own() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("vhost.sock");
    let server = Server::listen(&path, &options()).expect("listening");
    assert!(server.accept().expect("no error").is_none());
    let mut before: Option<Backend> = None;
    for round in 0..3 {
        let far = UnixStream::connect(&path).expect("connected");
        let thread = thread::spawn(move || {
            let mut backend = Backend::new(far);
            assert!(backend.negotiate());
            backend
        });
        let mut link = server.accept().expect("a backend").expect("a link");
        let mut backend = thread.join().expect("backend");
        assert!(!link.is_hung_up());
        link.send(0, &frame(round, 60)).expect("there is room");
        // What the backend of the last connection still writes goes nowhere.
        if let Some(before) = &mut before {
            before.move_used(1, 99);
            link.send(0, &frame(round, 60)).expect("another memory");
        }
        assert!(backend.echo(0));
        assert_eq!(received(&mut link, 0), [frame(round, 60)]);
        backend.hang_up();
        assert!(link.is_hung_up());
        before = Some(backend);
    }
    drop(server);
    assert!(!path.exists(), "the server removes its socket");
}

#[test]
fn a_stale_socket_is_replaced_and_anything_else_at_the_path_stays() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("vhost.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
    assert!(path.exists(), "stale");
    let server = Server::listen(&path, &options()).expect("listening");
    let in_use = Server::listen(&path, &options()).err();
    assert_eq!(in_use, Some(OpenError::InUse { path: path.clone() }));
    assert!(path.exists());
    drop(server);
    std::fs::write(&path, "precious").expect("written");
    assert_eq!(Server::listen(&path, &options()).err(), Some(OpenError::NotASocket { path: path.clone() }));
    assert_eq!(std::fs::read(&path).expect("still there"), b"precious");
    // A server that another one has replaced leaves the other's socket alone.
    let path = folder.path().join("two.sock");
    let first = Server::listen(&path, &options()).expect("listening");
    std::fs::remove_file(&path).expect("removed");
    let _second = Server::listen(&path, &options()).expect("listening");
    drop(first);
    assert!(path.exists());
}

#[test]
fn what_cannot_be_is_refused_with_field_value_and_limit() {
    let folder = tempfile::tempdir().expect("folder");
    for octets in [PATH_OCTETS_MAX + 1, 400] {
        let mut path = folder.path().join("s").into_os_string();
        path.push("o".repeat(octets - path.len()));
        for error in
            [Server::listen(path.as_ref(), &options()).err(), connect(path.as_ref(), &options()).err()]
        {
            let error = error.expect("too long");
            assert_eq!(error, OpenError::PathLength { path: path.clone().into(), octets });
            let said = error.to_string();
            assert!(said.contains(&format!("has {octets} octets: at most 107")), "{said}");
        }
    }
    let mut longest = folder.path().join("s").into_os_string();
    longest.push("o".repeat(PATH_OCTETS_MAX - longest.len()));
    assert!(Server::listen(longest.as_ref(), &options()).is_ok());
    for wrong in [
        Options { queues: 0, ..options() },
        Options { queues: 9, ..options() },
        Options { posted: 257, ..options() },
        Options { tx_slots: 0, ..options() },
    ] {
        let error = Server::listen(&folder.path().join("a"), &wrong).err();
        assert!(matches!(error, Some(OpenError::Count { .. })), "{wrong:?}: {error:?}");
    }
    let missing = connect(&folder.path().join("none"), &options()).err();
    assert_eq!(missing, Some(OpenError::Os { step: "connect", errno: 2 }));
}
