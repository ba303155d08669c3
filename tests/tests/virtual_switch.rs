// SPDX-License-Identifier: Apache-2.0
//! An attachment whose egress is a virtual switch: a backend in this process takes frames out of ktsnd's rings, goes away, and comes
//! again; ktsnd is killed and starts again. A program sends by libktsn and notices nothing.

#[path = "../../virtio-net/rust/tests/backend/mod.rs"]
mod backend;

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use backend::Backend;
use ktsn_proto::v1;
use ktsn_tests::faults::bed::{Bed, POD_A, POD_Q};
use ktsn_tests::faults::control::reason;
use ktsn_tests::faults::daemon::{Attachment, Daemon, NAME, pinned_port};
use ktsn_tests::faults::eventually;
use ktsn_tests::faults::talker::talk;
use ktsn_tests::faults::tap::{self, Arrival};

const SOON: Duration = Duration::from_secs(30);
const COUNT: usize = 100;

/// Pod A, all of whose frames go to the switch at `socket`.
fn attachment(bed: &Bed, socket: &str) -> String {
    Attachment::pod_a(bed)
        .to(&["10.244.0.0/24", "10.244.1.0/24"])
        .with("egress = \"vhost-user\"")
        .with("allow_policy_bypass = true")
        .with(&format!("vhost_socket = \"{socket}\""))
        .without_overlay()
}

fn port(daemon: &Daemon) -> v1::Port {
    let ports = daemon.control().list().ports;
    ports.into_iter().find(|port| port.adapter == "vhost_user").expect("the port to the switch")
}

/// How often the port to the switch did not take a frame, or lost it.
fn refused(daemon: &Daemon, word: &str) -> u64 {
    let ports = daemon.control().statistics_of("").expect("statistics").ports;
    let port = ports.iter().find(|port| port.device == "eth0").expect("the port to the switch");
    reason(&port.refused, word)
}

/// A switch that ktsnd has accepted.
fn connect(daemon: &Daemon, socket: &Path) -> Backend {
    let far = UnixStream::connect(socket).expect("ktsnd listens");
    let thread = std::thread::spawn(move || {
        let mut backend = Backend::new(far);
        assert!(backend.negotiate(), "ktsnd asks to the end");
        backend
    });
    let backend = thread.join().expect("switch");
    eventually("the switch is connected", SOON, || port(daemon).up.then_some(()));
    assert_eq!(port(daemon).adapter_reason, "");
    backend
}

/// The next frame of the transmit ring.
fn take(backend: &mut Backend) -> Option<Vec<u8>> {
    let (id, offset, octets) = backend.take(1)?;
    let memory = backend.memory.as_ref().expect("memory");
    let frame = (offset + 12..offset + octets).map(|at| memory.get(at)).collect();
    backend.give(1, u32::from(id), 0);
    Some(frame)
}

/// Datagrams of a talker while the switch takes them.
fn carried(daemon: &Daemon, bed: &Bed, backend: &mut Backend, to: &str, sender: u32) -> Vec<Arrival> {
    let keys = format!("count={COUNT} period_us=1000 lead_us=50000 octets=200");
    std::thread::scope(|scope| {
        let talker = scope.spawn(|| talk(daemon, &bed.pod_a, to, sender, &keys));
        let mut arrived = Vec::new();
        eventually("all frames arrive", SOON, || {
            while let Some(frame) = take(backend) {
                arrived.extend(tap::read(&frame));
            }
            (arrived.len() == COUNT && talker.is_finished()).then_some(())
        });
        let values = talker.join().expect("talker");
        assert_eq!((values["sent"], values["failed"]), (COUNT as i64, 0), "{values:?}");
        arrived
    })
}

fn check(arrived: &[Arrival], to: &str) {
    assert!(arrived.iter().map(|arrival| arrival.sequence).eq(0..COUNT as u64), "once, in order");
    for arrival in arrived {
        assert!(!arrival.is_overlay && arrival.destination.to_string() == to);
        assert_eq!(arrival.source.to_string(), POD_A);
        assert!(arrival.after_ns >= 0, "early: {arrival:?}");
    }
}

#[test]
fn frames_go_to_the_switch_that_may_come_and_go_and_so_may_ktsnd() {
    let (bed, folder) = (Bed::new(), tempfile::tempdir().expect("folder"));
    let socket: PathBuf = folder.path().join("vhost.sock");
    let toml = attachment(&bed, &socket.display().to_string());
    let mut daemon = Daemon::prepare(&bed.host_a, &format!("{}{toml}", pinned_port("auto")));
    daemon.spawn();
    let waits = port(&daemon);
    assert!(!waits.up && waits.adapter_reason.contains("waits for a switch to connect to"), "{waits:?}");
    // Without a switch: counted, and the program goes on.
    let keys = format!("count={COUNT} period_us=1000 lead_us=50000 octets=200");
    assert_eq!(talk(&daemon, &bed.pod_a, POD_Q, 1, &keys)["sent"], COUNT as i64);
    eventually("the frames are dropped", SOON, || {
        (reason(&daemon.control().counters(NAME).dropped, "link_down") == COUNT as u64).then_some(())
    });
    assert_eq!(refused(&daemon, "link_down"), COUNT as u64);
    // Also what the node would route out of its uplink goes to the switch.
    let mut backend = connect(&daemon, &socket);
    check(&carried(&daemon, &bed, &mut backend, POD_Q, 2), POD_Q);
    check(&carried(&daemon, &bed, &mut backend, "10.244.1.5", 3), "10.244.1.5");
    // These it does not take before it goes away.
    assert_eq!(talk(&daemon, &bed.pod_a, POD_Q, 4, &keys)["sent"], COUNT as i64);
    eventually("the frames are sent", SOON, || {
        (daemon.control().counters(NAME).sent == 3 * COUNT as u64).then_some(())
    });
    let pid = daemon.pid();
    backend.hang_up();
    eventually("the lost frames are counted", SOON, || {
        (refused(&daemon, "lost") == COUNT as u64).then_some(())
    });
    let mut backend = connect(&daemon, &socket);
    check(&carried(&daemon, &bed, &mut backend, POD_Q, 5), POD_Q);
    assert_eq!(daemon.pid(), pid);
    // A killed ktsnd leaves its socket behind; the next one listens there again.
    daemon.kill();
    assert!(socket.exists());
    daemon.spawn();
    let mut backend = connect(&daemon, &socket);
    check(&carried(&daemon, &bed, &mut backend, POD_Q, 6), POD_Q);
    daemon.control().detach(NAME).expect("detached");
    eventually("the socket is gone", SOON, || (backend.is_closed() && !socket.exists()).then_some(()));
    assert_eq!(daemon.terminate(SOON), Some(0), "{}", daemon.log());
}

#[test]
fn a_socket_that_cannot_be_is_refused_with_its_name() {
    let (bed, folder) = (Bed::new(), tempfile::tempdir().expect("folder"));
    let fails = |socket: &str| {
        let configuration = format!("{}{}", pinned_port("auto"), attachment(&bed, socket));
        let daemon = Daemon::prepare(&bed.host_a, &configuration);
        daemon.fails(&mut daemon.command()).1
    };
    let file = folder.path().join("file");
    std::fs::write(&file, "precious").expect("written");
    let said = fails(&file.display().to_string());
    assert!(said.contains("attachment.vhost_socket") && said.contains("is no socket"), "{said}");
    assert_eq!(std::fs::read(&file).expect("still there"), b"precious");
    let said = fails(&format!("/{}", "s".repeat(107)));
    assert!(said.contains("at most 107 octets; this one has 108"), "{said}");
}
