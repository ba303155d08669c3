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
use ktsn_tests::faults::talker::Talker;
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
    eventually("the switch is connected", SOON, || port(daemon).up);
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

/// A talker that repeats its first datagram until ktsnd has taken one, however busy the machine is; then it sends the others. How many
/// were taken.
fn talk(daemon: &Daemon, bed: &Bed, to: &str, sender: u32, mut meanwhile: impl FnMut()) -> u64 {
    let taken = || daemon.control().counters(NAME).taken;
    let before = taken();
    let keys = format!("count={COUNT} period_us=1000 lead_us=50000 octets=200 go=1");
    let mut talker = Talker::start(daemon, &bed.pod_a, to, sender, &keys);
    eventually("the first datagram is taken", SOON, || taken() > before);
    talker.go();
    eventually("the talker ends", SOON, || {
        meanwhile();
        talker.child().try_wait().expect("its status")
    });
    let (values, errors) = talker.finish();
    assert_eq!((values["sent"], values["failed"]), (COUNT as i64, 0), "{values:?} {errors}");
    eventually("all others are taken", SOON, || taken() >= before + COUNT as u64);
    taken() - before
}

/// Datagrams of a talker while the switch takes them.
fn carried(daemon: &Daemon, bed: &Bed, backend: &mut Backend, to: &str, sender: u32) -> Vec<Arrival> {
    let arrived = std::cell::RefCell::new(Vec::new());
    let mut look = || {
        while let Some(frame) = take(backend) {
            arrived.borrow_mut().extend(tap::read(&frame));
        }
    };
    let taken = talk(daemon, bed, to, sender, &mut look);
    eventually("all frames arrive", SOON, || {
        look();
        arrived.borrow().len() as u64 == taken
    });
    arrived.into_inner()
}

fn check(arrived: &[Arrival], to: &str) {
    let mut numbers: Vec<u64> = arrived.iter().map(|arrival| arrival.sequence).collect();
    // The first is sent until it is taken.
    numbers.dedup_by_key(|number| if *number == 0 { u64::MAX } else { *number });
    assert!(numbers.into_iter().eq(0..COUNT as u64), "once, in order");
    for arrival in arrived {
        assert!(!arrival.is_overlay && arrival.destination.to_string() == to);
        assert_eq!(arrival.source.to_string(), POD_A);
        assert!(arrival.after_ns >= 0, "early: {arrival:?}");
    }
}

#[test]
fn frames_go_to_the_switch_that_may_come_and_go_and_so_may_ktsnd() {
    let (bed, folder) = (Bed::new(), tempfile::tempdir().expect("folder"));
    for next_hop in [POD_Q, "10.244.0.1"] {
        let known = format!("{next_hop} lladdr 02:00:00:00:00:06 dev eth0 nud permanent");
        bed.run(&format!("ip -n {} neigh replace {known}", bed.pod_a));
    }
    let socket: PathBuf = folder.path().join("vhost.sock");
    let toml = attachment(&bed, &socket.display().to_string());
    let mut daemon = Daemon::prepare(&bed.host_a, &format!("{}{toml}", pinned_port("auto")));
    daemon.spawn();
    let waits = port(&daemon);
    assert!(!waits.up && waits.adapter_reason.contains("waits for a switch to connect to"), "{waits:?}");
    // Without a switch: counted, and the program goes on.
    let taken = talk(&daemon, &bed, POD_Q, 1, || ());
    eventually("the frames are dropped", SOON, || {
        reason(&daemon.control().counters(NAME).dropped, "link_down") == taken
    });
    assert_eq!(refused(&daemon, "link_down"), taken);
    // Also what the node would route out of its uplink goes to the switch.
    let mut backend = connect(&daemon, &socket);
    check(&carried(&daemon, &bed, &mut backend, POD_Q, 2), POD_Q);
    check(&carried(&daemon, &bed, &mut backend, "10.244.1.5", 3), "10.244.1.5");
    // These it does not take before it goes away.
    let sent = daemon.control().counters(NAME).sent;
    let taken = talk(&daemon, &bed, POD_Q, 4, || ());
    eventually("the frames are sent", SOON, || daemon.control().counters(NAME).sent == sent + taken);
    let pid = daemon.pid();
    backend.hang_up();
    eventually("the lost frames are counted", SOON, || refused(&daemon, "lost") == taken);
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
    eventually("the socket is gone", SOON, || backend.is_closed() && !socket.exists());
    assert_eq!(daemon.terminate(SOON), Some(0), "{}", daemon.log());
}

#[test]
fn a_socket_that_cannot_be_is_refused_with_its_name() {
    let (bed, folder) = (Bed::new(), tempfile::tempdir().expect("folder"));
    let prepare = |socket: &str| {
        let configuration = format!("{}{}", pinned_port("auto"), attachment(&bed, socket));
        Daemon::prepare(&bed.host_a, &configuration)
    };
    let file = folder.path().join("file");
    std::fs::write(&file, "precious").expect("written");
    let mut daemon = prepare(&file.display().to_string());
    daemon.spawn();
    let said = daemon.control().health().expect("health").warnings.concat();
    assert!(said.contains("attachment.vhost_socket") && said.contains("is no socket"), "{said}");
    assert_eq!(std::fs::read(&file).expect("still there"), b"precious");
    // What can be judged without looking is an error of the configuration.
    let daemon = prepare(&format!("/{}", "s".repeat(107)));
    let said = daemon.fails(&mut daemon.command()).1;
    assert!(said.contains("at most 107 octets; this one has 108"), "{said}");
}
