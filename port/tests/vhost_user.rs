// SPDX-License-Identifier: Apache-2.0
//! A port to backends in this process: they connect, go away, lie, and come again.

#[path = "../../virtio-net/rust/tests/backend/mod.rs"]
mod backend;

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use backend::{Backend, LIES, Lie};
use ktsn_eventually::eventually;
use ktsn_port::vhost_user::{MTU_OCTETS_MAX, Socket, VhostUser};
use ktsn_port::{AnyPort, OpenError, Options, Port, SendError, StageError};

/// More than any step takes, on a machine under load.
const LONG: Duration = Duration::from_secs(60);

struct Place {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

fn place() -> Place {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("vhost.sock");
    Place { _folder: folder, path }
}

fn open(path: &Path, queues: u16) -> Result<VhostUser, OpenError> {
    VhostUser::open(None, &Socket { path, queues }, &Options { stage_count: 64, queue: 0 })
}

/// Connects a backend and waits until the port has it.
fn attach(port: &mut impl Port, path: &Path) -> Backend {
    let far = UnixStream::connect(path).expect("the port listens");
    let thread = thread::spawn(move || {
        let mut backend = Backend::new(far);
        assert!(backend.negotiate());
        backend
    });
    let backend = thread.join().expect("backend");
    eventually("the backend connects", LONG, || {
        port.reap();
        port.link_up()
    });
    backend
}

fn send(port: &mut impl Port, frame: &[u8]) -> Result<(), SendError> {
    let stage = port.stage_copy(frame).expect("a free buffer");
    assert_eq!(port.staged_frame(stage), Some(frame));
    port.commit(stage)
}

/// What lies in a transmit ring, taken.
fn taken(backend: &mut Backend, queue: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while let Some((id, offset, octets)) = backend.take(2 * queue + 1) {
        let memory = backend.memory.as_ref().expect("memory");
        // The device's header is all zeros: no offload.
        assert!((0..12).all(|at| memory.get::<u8>(offset + at) == 0));
        frames.push((12..octets).map(|at| memory.get(offset + at)).collect());
        backend.give(2 * queue + 1, u32::from(id), 0);
    }
    frames
}

fn frame(number: u8, octets: usize) -> Vec<u8> {
    vec![number; octets]
}

#[test]
fn frames_reach_each_backend_and_what_one_did_not_take_is_lost_and_counted() {
    let place = place();
    let mut port = AnyPort::from(open(&place.path, 1).expect("a port"));
    let capabilities = port.capabilities().clone();
    assert_eq!((capabilities.adapter, capabilities.mtu_octets), ("vhost_user", MTU_OCTETS_MAX));
    assert!(!port.link_up());
    assert_eq!(send(&mut port, &frame(1, 60)), Err(SendError::LinkDown));
    let mut sent = 0;
    for round in 0..3_u8 {
        let mut backend = attach(&mut port, &place.path);
        let frames: Vec<_> = (0..40).map(|number| frame(number, 60 + usize::from(number) * 36)).collect();
        frames.iter().for_each(|frame| send(&mut port, frame).expect("sent"));
        assert_eq!(taken(&mut backend, 0), frames);
        // These it does not take.
        (0..7).for_each(|number| send(&mut port, &frame(number, 60)).expect("sent"));
        sent += 47;
        backend.hang_up();
        eventually("the link is down", LONG, || !port.link_up());
        assert_eq!(send(&mut port, &frame(9, 60)), Err(SendError::LinkDown));
        let counters = port.counters();
        assert_eq!((counters.committed_count, counters.lost_count), (sent, 7 * (u64::from(round) + 1)));
        assert_eq!((port.occupancy().free, port.occupancy().in_flight), (64, 0));
    }
    drop(port);
    assert!(!place.path.exists());
}

#[test]
fn a_full_ring_is_back_pressure_and_a_priority_has_its_queue() {
    let place = place();
    let mut port = open(&place.path, 4).expect("a port");
    let mut backend = attach(&mut port, &place.path);
    for priority in 0..8_u8 {
        let mut tagged = frame(priority, 64);
        tagged[12..15].copy_from_slice(&[0x81, 0, priority << 5]);
        send(&mut port, &tagged).expect("sent");
        assert_eq!(taken(&mut backend, usize::from(priority / 2)), [tagged]);
    }
    let count = (0..).take_while(|_| send(&mut port, &frame(1, 60)).is_ok()).count();
    assert_eq!((count, send(&mut port, &frame(1, 60))), (256, Err(SendError::Busy)));
    assert_eq!(taken(&mut backend, 0).len(), 256);
    send(&mut port, &frame(1, 60)).expect("sent");
    assert_eq!(port.stage_copy(&[0; 1519]), Err(StageError::TooLong { octets: 1519, octets_max: 1518 }));
}

#[test]
fn backends_that_lie_come_to_nothing_and_the_next_honest_one_is_served() {
    let place = place();
    let mut port = open(&place.path, 1).expect("a port");
    // At the first answer: each of these is seen.
    let lies = LIES.into_iter().filter(|lie| !matches!(lie, Lie::Refusal));
    for (failed, lie) in (1..).zip(lies) {
        let far = UnixStream::connect(&place.path).expect("the port listens");
        let thread = thread::spawn(move || {
            let mut backend = Backend::new(far);
            backend.lie = Some((1, lie));
            backend.negotiate()
        });
        eventually("it fails once", LONG, || port.status().failed_count() == failed);
        assert!(port.status().last_fault().is_some_and(|said| said.contains("GET_FEATURES")), "{lie:?}");
        assert!(!thread.join().expect("backend"), "{lie:?}");
        assert!(!port.link_up());
    }
    let mut backend = attach(&mut port, &place.path);
    assert_eq!((port.status().served_count(), port.status().last_fault()), (1, None));
    send(&mut port, &frame(1, 60)).expect("sent");
    assert_eq!(taken(&mut backend, 0), [frame(1, 60)]);
    // This one breaks a rule of the rings: its connection is closed, and the next one comes.
    send(&mut port, &frame(2, 60)).expect("sent");
    backend.give(1, 77, 0);
    assert_eq!(send(&mut port, &frame(3, 60)), Err(SendError::LinkDown));
    eventually("the connection is closed", LONG, || backend.is_closed());
    let mut backend = attach(&mut port, &place.path);
    send(&mut port, &frame(4, 60)).expect("sent");
    assert_eq!(taken(&mut backend, 0), [frame(4, 60)]);
    assert_eq!(port.counters().lost_count, 1);
}

/// A port that is dropped waits for no answer.
#[test]
fn a_silent_backend_does_not_keep_a_port() {
    let place = place();
    let port = open(&place.path, 1).expect("a port");
    let mut far = UnixStream::connect(&place.path).expect("the port listens");
    // The first request has come: the port waits for an answer to the second one.
    std::io::Read::read_exact(&mut far, &mut [0; 24]).expect("two requests");
    let status = port.status();
    drop(port);
    // The limit did not end it.
    let fault = status.last_fault().expect("no link");
    assert!(fault.contains("closed the connection"), "{fault}");
    assert!(!place.path.exists());
}

#[test]
fn what_cannot_be_opened_is_named_and_holds_nothing() {
    let place = place();
    let long = PathBuf::from(format!("/tmp/{}", "s".repeat(103)));
    let said = open(&long, 1).expect_err("too long").to_string();
    assert!(said.contains("108 octets: at most 107"), "{said}");
    assert!(matches!(open(&place.path, 9), Err(OpenError::VhostUser(_))));
    assert!(!place.path.exists());
    let stages = VhostUser::open(
        None,
        &Socket { path: &place.path, queues: 1 },
        &Options { stage_count: 3, queue: 0 },
    );
    assert!(matches!(stages, Err(OpenError::StageCount { stage_count: 3 })));
    let first = open(&place.path, 1).expect("a port");
    let said = open(&place.path, 1).expect_err("in use").to_string();
    assert!(said.contains("in use"), "{said}");
    drop(first);
    open(&place.path, 1).expect("free again");
}
