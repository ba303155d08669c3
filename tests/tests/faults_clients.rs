// SPDX-License-Identifier: Apache-2.0
//! Clients that lie, flood, stay silent or come all at once: the daemon goes on serving the others.

use std::fs::File;
use std::net::TcpListener;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use ktsn_ring::control::{Hello, HelloStatus, Register, Unregister};
use ktsn_tests::faults::bed::{Bed, POD_B, UPLINK};
use ktsn_tests::faults::control::reason;
use ktsn_tests::faults::daemon::{Attachment, Daemon, NAME};
use ktsn_tests::faults::raw::{ABI, Raw, accepted, udp};
use ktsn_tests::faults::talker::{Talker, arrive, talk};
use ktsn_tests::faults::{Tap, eventually};
use rustix::net::SendFlags;

const SOON: Duration = Duration::from_secs(20);
/// Numbers of the two hundred.
const CROWD: u32 = 1000;

/// Waits until the sockets of the attachment's programs are looked at and their workers know of them; `meanwhile` is done all
/// the time. `whose` says which programs, `count` how many there are.
fn looked_at(daemon: &Daemon, whose: impl Fn(u32) -> bool, count: usize, mut meanwhile: impl FnMut()) {
    let began = Instant::now();
    loop {
        let clients = daemon.control().list().attachments.remove(0).clients;
        let ready = clients.iter().filter(|client| whose(client.pid) && client.streams.len() == 1).count();
        if ready == count {
            break;
        }
        assert!(began.elapsed() < SOON, "{ready} of {count} programs");
        (0..100).for_each(|_| meanwhile());
    }
    // A worker carries out its commands in turn.
    assert!(!daemon.control().gates().expect("the worker answers").is_empty());
}

/// Descriptors and clients are back at what they were, and a well-behaved program is served.
fn serves_on(daemon: &Daemon, bed: &Bed, tap: &Tap, descriptors: usize) {
    eventually("no client is left", SOON, || daemon.clients() == 0);
    arrive(daemon, tap, &bed.pod_a, POD_B, 99, 20);
    eventually("descriptors are closed", SOON, || daemon.descriptors() <= descriptors + 1);
    // A program that the daemon does not answer in time begins on the kernel, which sends at once; some of the
    // crowd do that with their first datagram. Later ones are the daemon's.
    let early: Vec<_> = tap.early().into_iter().filter(|a| a.sender < CROWD || a.sequence > 0).collect();
    assert!(early.is_empty(), "{early:?}");
}

fn begin(bed: &Bed) -> (Daemon, Tap, usize) {
    begin_with(bed, &Attachment::pod_a(bed))
}

fn begin_with(bed: &Bed, attachment: &Attachment) -> (Daemon, Tap, usize) {
    let daemon = Daemon::start(bed, std::slice::from_ref(attachment));
    let tap = Tap::open(&bed.host_b, UPLINK);
    // What is opened once and kept is open now.
    arrive(&daemon, &tap, &bed.pod_a, POD_B, 98, 5);
    eventually("no client is left", SOON, || daemon.clients() == 0);
    let descriptors = daemon.descriptors();
    (daemon, tap, descriptors)
}

/// A client of another ring ABI gets the versions that the daemon speaks.
#[test]
fn another_ring_version() {
    let bed = Bed::new();
    let (daemon, tap, descriptors) = begin(&bed);
    for wrong in [(7, 7), (2, 9), (60_000, 65_535)] {
        let raw = Raw::connect(daemon.run_dir()).expect("connection");
        let (reply, passed) = raw.hello(&bed.pod_a, wrong);
        assert_eq!((reply.status, reply.abi), (HelloStatus::Version, ABI), "{wrong:?}");
        assert!(passed.is_empty() && raw.is_ended());
    }
    let raw = Raw::connect(daemon.run_dir()).expect("connection");
    assert_eq!(raw.hello(&bed.pod_a, (1, 9)).0.status, HelloStatus::Attached);
    drop(raw);
    // A range that is none is no message of ours.
    let raw = Raw::connect(daemon.run_dir()).expect("connection");
    let socket = udp(&bed.pod_a);
    raw.send(Hello { abi_min: 9, abi_max: 1, interface_index: 0 }.encode().as_slice(), &[socket.as_fd()])
        .expect("send");
    assert!(raw.is_ended());
    // A socket of a namespace without an attachment.
    let raw = Raw::connect(daemon.run_dir()).expect("connection");
    assert_eq!(raw.hello(&bed.pod_q, (ABI, ABI)).0.status, HelloStatus::NotAttached);
    drop(raw);
    serves_on(&daemon, &bed, &tap, descriptors);
}

/// A thousand connections that say nothing.
#[test]
fn a_thousand_silent_connections() {
    let bed = Bed::new();
    let (daemon, tap, descriptors) = begin(&bed);
    let mut silent = Vec::new();
    for number in 0..1000 {
        silent.push(eventually(format_args!("connection {number}"), SOON, || {
            match Raw::connect(daemon.run_dir()) {
                Ok(raw) => Some(raw),
                // The listener's queue is full: as good as refused.
                Err(rustix::io::Errno::AGAIN) => None,
                Err(error) => panic!("{error}"),
            }
        }));
    }
    talk(&daemon, &bed.pod_a, POD_B, 1, "count=5 lead_us=1000000");
    assert_eq!(tap.wait(1, 5, SOON).len(), 5, "a program beside them is served");
    assert!(daemon.descriptors() < descriptors + 150, "{}", daemon.descriptors());
    for raw in &silent {
        assert!(raw.is_ended());
    }
    serves_on(&daemon, &bed, &tap, descriptors);
}

/// Messages that are none, too short, too long, with the wrong descriptors or too many of them.
#[test]
fn garbage() {
    let bed = Bed::new();
    let (daemon, tap, descriptors) = begin(&bed);
    let file = File::open("/proc/self/exe").expect("file");
    let tcp = TcpListener::bind("127.0.0.1:0").expect("listener");
    let (pipe, _end) = std::io::pipe().expect("pipe");
    let socket = udp(&bed.pod_a);
    let all = [file.as_fd(), tcp.as_fd(), pipe.as_fd(), socket.as_fd()];
    let register = |stream_index| Register::new(stream_index, 5).encode();
    for octets in [&[0u8; 0][..], &[0], &[0xff; 24], &[0; 16], &[7; 64], &[7; 4000]] {
        for passed in [&all[..0], &all[..1], &all[1..2], &all[3..], &all] {
            let stranger = Raw::connect(daemon.run_dir()).expect("connection");
            let client = accepted(daemon.run_dir(), &bed.pod_a);
            for raw in [&stranger, &client.raw] {
                let _ = raw.send(octets, passed);
                assert!(raw.is_ended(), "{} octets, {} descriptors", octets.len(), passed.len());
            }
        }
    }
    // Well-formed, and still no stream: other kinds of descriptor, other namespaces, no descriptor.
    let client = accepted(daemon.run_dir(), &bed.pod_a);
    let elsewhere = udp(&bed.pod_q);
    for fd in
        [file.as_fd(), tcp.as_fd(), pipe.as_fd(), elsewhere.as_fd(), client.raw.fd(), client.region.as_fd()]
    {
        client.raw.send(&register(3), &[fd]).expect("send");
    }
    client.raw.send(&register(4), &[socket.as_fd()]).expect("send");
    client.raw.send(&Unregister { stream_index: 900, token: 0 }.encode(), &[]).expect("send");
    eventually("one stream", SOON, || {
        let listed = daemon.control().list().attachments.remove(0).clients;
        listed.len() == 1 && listed[0].streams.len() == 1
    });
    for (index, fds) in [(u32::MAX, &[socket.as_fd()][..]), (5, &[][..])] {
        let client = accepted(daemon.run_dir(), &bed.pod_a);
        let _ = client.raw.send(&register(index), fds);
        assert!(client.raw.is_ended(), "{index}");
    }
    drop(client);
    serves_on(&daemon, &bed, &tap, descriptors);
}

/// A client that never reads the daemon's answers, and registers again and again.
#[test]
fn a_client_that_never_reads() {
    let bed = Bed::new();
    let (daemon, tap, descriptors) = begin(&bed);
    let client = accepted(daemon.run_dir(), &bed.pod_a);
    let socket = udp(&bed.pod_a);
    let mut sent = 0u32;
    let mut flood = || {
        let message = Register::new(sent % 1024, sent).encode();
        match client.raw.send(&message, &[socket.as_fd()]) {
            Ok(()) => sent += 1,
            // It is listened to as often as anybody else, and no more.
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::TOOMANYREFS) => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("after {sent}: {error}"),
        }
        sent
    };
    let began = Instant::now();
    while flood() < 1000 || began.elapsed() < Duration::from_secs(1) {
        assert!(began.elapsed() < SOON, "it is not listened to");
    }
    // Its own socket is looked at in turn with the flood; then nothing is lost.
    let mut talker = Talker::start(&daemon, &bed.pod_a, POD_B, 1, "count=51 burst=1 go=1 lead_us=2000000");
    let pid = talker.child().id();
    looked_at(&daemon, |of| of == pid, 1, || _ = flood());
    talker.go();
    let began = Instant::now();
    while talker.child().try_wait().expect("talker").is_none() && began.elapsed() < SOON {
        flood();
    }
    drop(talker);
    eventually("the last frame", SOON, || tap.of(1).last().filter(|a| a.sequence == 50).cloned());
    let later = tap.of(1).iter().filter(|a| a.sequence > 0).count();
    assert_eq!(later, 50, "{:?}", daemon.control().counters(NAME));
    drop(client);
    serves_on(&daemon, &bed, &tap, descriptors);
}

/// Doorbells as fast as a process can: muted, counted, and no other client notices.
#[test]
fn a_flood_of_doorbells() {
    let bed = Bed::new();
    let (daemon, tap, descriptors) = begin(&bed);
    let client = accepted(daemon.run_dir(), &bed.pod_a);
    // A worker hears of a client with its first registration.
    let socket = udp(&bed.pod_a);
    client.raw.send(&Register::new(0, 1).encode(), &[socket.as_fd()]).expect("Register");
    let talker = Talker::start(&daemon, &bed.pod_a, POD_B, 1, "count=1500");
    let began = Instant::now();
    let mut rung = 0u64;
    while began.elapsed() < Duration::from_secs(2) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match rustix::net::send(&client.doorbell, &[1; 8], flags) {
            Ok(_) => rung += 1,
            Err(rustix::io::Errno::AGAIN) => {}
            Err(error) => panic!("{error}"),
        }
    }
    let (values, errors) = talker.finish();
    assert_eq!(values["failed"], 0, "{errors}");
    assert_eq!(tap.wait(1, 1500, SOON).len(), 1500);
    assert!(rung > 1000, "{rung}");
    let muted = daemon.control().statistics_of("").expect("statistics").workers[0].doorbells_muted;
    assert!(muted > 0 || rung < 40_000, "{rung} doorbells, none muted");
    drop(client);
    serves_on(&daemon, &bed, &tap, descriptors);
}

/// Two hundred programs at once.
#[test]
fn two_hundred_clients() {
    let bed = Bed::new();
    let attachment = Attachment::pod_a(&bed).with("clients_max = 256\nslots = 64\nmemory_max = 134217728");
    let (daemon, tap, descriptors) = begin_with(&bed, &attachment);
    let keys = "count=21 burst=1 lead_us=3000000 period_us=10000 go=1";
    let start = |n| Talker::start(&daemon, &bed.pod_a, POD_B, CROWD + n, keys);
    let mut talkers: Vec<Talker> = (0..200).map(start).collect();
    looked_at(&daemon, |_| true, 200, || std::thread::sleep(Duration::from_micros(50)));
    talkers.iter_mut().for_each(Talker::go);
    let mut firsts = 0;
    for talker in talkers {
        let (values, errors) = talker.finish();
        assert_eq!((values["failed"], values["sent"]), (0, 21), "{errors}");
        firsts += values["firsts"].unsigned_abs();
    }
    eventually("the last frames", SOON, || {
        (0..200).all(|n| tap.of(CROWD + n).last().is_some_and(|a| a.sequence == 20))
    });
    for n in 0..200 {
        let sequences = tap.of(CROWD + n).into_iter().map(|a| a.sequence).filter(|sequence| *sequence > 0);
        assert_eq!(sequences.collect::<Vec<_>>(), (1..21).collect::<Vec<_>>(), "program {n}");
    }
    // What a program sends while its socket is being looked at may be lost, counted; nothing after that.
    let arrived = (0..200).flat_map(|n| tap.of(CROWD + n)).filter(|a| a.sequence == 0).count() as u64;
    eventually("what was lost is counted", SOON, || {
        let dropped = daemon.control().counters(NAME).dropped;
        reason(&dropped, "daemon_absent") == firsts - arrived
    });
    serves_on(&daemon, &bed, &tap, descriptors);
}

/// One more client than allowed stays on the kernel; when one leaves, the next is served.
#[test]
fn more_clients_than_allowed() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed).with("clients_max = 2")]);
    let first = accepted(daemon.run_dir(), &bed.pod_a);
    let _second = accepted(daemon.run_dir(), &bed.pod_a);
    let third = Raw::connect(daemon.run_dir()).expect("connection");
    assert_eq!(third.hello(&bed.pod_a, (ABI, ABI)).0.status, HelloStatus::ClientsMax);
    let (values, errors) = Talker::start(&daemon, &bed.pod_a, POD_B, 1, "count=2").finish();
    assert_eq!(values["failed"], 0);
    assert!(errors.contains("clients_max"), "{errors}");
    drop(first);
    eventually("one client", SOON, || daemon.clients() == 1);
    talk(&daemon, &bed.pod_a, POD_B, 2, "count=2");
    // The first one is lost, counted, where the machine stands still while its socket is looked at.
    eventually("both have an end, and one is sent", SOON, || {
        let counters = daemon.control().counters(NAME);
        let ends = counters.sent + reason(&counters.dropped, "daemon_absent");
        ends == 2 && counters.sent > 0
    });
}

/// A program that sends as fast as it can beside one of 1 kHz: the latter loses nothing.
#[test]
fn a_flooding_client() {
    let bed = Bed::new();
    let (daemon, tap, descriptors) = begin(&bed);
    let flood = "clock=1 zero=1 burst=1 octets=1400 count=100000000";
    let flooder = Talker::start(&daemon, &bed.pod_a, POD_B, 1, flood);
    eventually("the flood", SOON, || tap.of(1).len() > 1000);
    let far = Talker::start(
        &daemon,
        &bed.pod_a,
        POD_B,
        2,
        "burst=1 lead_us=9000000 period_us=1 nonblock=1 count=20000 hold_ms=60000",
    );
    let (values, errors) = Talker::start(&daemon, &bed.pod_a, POD_B, 3, "count=2000").finish();
    assert_eq!((values["failed"], values["sent"]), (0, 2000), "{errors}");
    let arrived = tap.wait(3, 2000, SOON);
    drop((flooder, far));
    assert_eq!(arrived.len(), 2000, "{:?}", daemon.control().counters(NAME));
    assert!(arrived.is_sorted_by_key(|a| a.sequence), "reordered");
    eprintln!("flood: {} datagrams beside 2000", tap.of(1).len());
    serves_on(&daemon, &bed, &tap, descriptors + 1);
}
