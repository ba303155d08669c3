// SPDX-License-Identifier: Apache-2.0
//! A monitor that is QEMU's, and monitors that are not.

use super::*;
use crate::monitor_lines::LINE_OCTETS_MAX;
use ktsn_eventually::eventually;
use std::os::unix::net::UnixListener;

const NAP: Duration = Duration::from_millis(30);
const LONG: Duration = Duration::from_secs(60);
const GREETING: &[u8] = b"{\"QMP\": {}}\n";

#[test]
fn a_resume_wakes_and_nothing_else_does() {
    let (ours, mut qemu) = UnixStream::pair().unwrap();
    let mut events = Events::of(ours);
    qemu.write_all(b"{\"QMP\": {}}\n{\"return\": {}}\n{\"event\": \"STOP\"}\n{\"event\": \"RES").unwrap();
    assert_eq!(events.sleep(NAP), Woken::Slept);
    qemu.write_all(b"UME\"}\n").unwrap();
    assert_eq!(events.sleep(LONG), Woken::Disrupted);
    assert_eq!(events.sleep(NAP), Woken::Slept);
    let mut said = vec![0; CAPABILITIES.len()];
    qemu.read_exact(&mut said).unwrap();
    assert_eq!(said, CAPABILITIES);
}

#[test]
fn a_monitor_that_ends_or_lies_is_given_up_and_the_sleep_goes_on() {
    for lie in [b"no JSON\n".to_vec(), vec![b'x'; LINE_OCTETS_MAX + 4096], Vec::new()] {
        let (ours, mut qemu) = UnixStream::pair().unwrap();
        qemu.set_nonblocking(true).unwrap();
        let mut events = Events::of(ours);
        let mut rest = &lie[..];
        eventually("it is given up", LONG, || {
            let written = qemu.write(rest).unwrap_or(0);
            rest = &rest[written..];
            if rest.is_empty() {
                qemu.shutdown(std::net::Shutdown::Write).unwrap();
            }
            assert_eq!(events.sleep(Duration::from_millis(1)), Woken::Slept);
            !events.is_connected()
        });
        let began = Instant::now();
        assert_eq!(events.sleep(NAP), Woken::Slept);
        assert!(began.elapsed() >= NAP);
    }
}

#[test]
fn a_monitor_that_comes_later_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a,b.sock");
    let mut events = Events::at(&path);
    assert!(!events.is_connected());
    assert!(events.trouble().is_some_and(|trouble| trouble.contains("No such file")));
    let listener = UnixListener::bind(&path).unwrap();
    let greets = std::thread::spawn(move || {
        let mut client = listener.accept().unwrap().0;
        client.write_all(GREETING).unwrap();
        // A monitor that goes before the client has written would be none to it.
        std::io::copy(&mut client, &mut std::io::sink()).unwrap();
    });
    assert_eq!(events.sleep(LONG), Woken::Disrupted);
    assert_eq!(events.trouble(), None);
    drop(events);
    greets.join().unwrap();
}

/// The human monitor, or another program's socket: it is said once, and its coming and going tells nothing about the guest.
#[test]
fn a_socket_of_something_else_is_said_and_disrupts_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hmp.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let speaks = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut client, _) = listener.accept().unwrap();
            client.write_all(b"QEMU 7.2.22 monitor - type 'help'\r\n(qemu) ").unwrap();
            // Until this client gives up.
            let _ = std::io::copy(&mut client, &mut std::io::sink());
        }
    });
    let mut events = Events::at(&path);
    let mut troubles = Vec::new();
    while !speaks.is_finished() {
        assert_eq!(events.sleep(NAP), Woken::Slept);
        troubles.extend(events.trouble());
    }
    speaks.join().unwrap();
    assert_eq!(troubles, ["does not greet as QEMU's monitor (QMP) does"]);
}

/// A queue that is full would hold a waiting connect up for ever.
#[test]
fn a_listener_with_a_full_queue_holds_nothing_up() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("full.sock");
    let listener = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&listener, 1).unwrap();
    let mut waiting = Vec::new();
    while let Ok(one) = connect(&path) {
        waiting.push(one);
        assert!(waiting.len() < 100, "the queue has no end");
    }
    let mut events = Events::at(&path);
    assert!(events.trouble().is_some_and(|trouble| trouble.contains("takes no connection")));
    assert_eq!(events.sleep(NAP), Woken::Slept);
    let error = Monitor::connect(&path, NAP).expect_err("nothing accepts").to_string();
    assert!(error.contains("full.sock"), "{error}");
}

/// A QEMU that talks without end is read slowly: its words cost its host little, and a disruption among them is still heard.
#[test]
fn a_flood_of_events_is_read_slowly() {
    let (ours, mut qemu) = UnixStream::pair().unwrap();
    let mut events = Events::of(ours);
    qemu.write_all(GREETING).unwrap();
    let floods = std::thread::spawn(move || {
        let (mut octets, line) = (0, b"{\"event\": \"RESUME\"}\n".repeat(200));
        while qemu.write_all(&line).is_ok() {
            octets += line.len();
        }
        octets
    });
    let (began, mut disruptions) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_millis(500) {
        disruptions += u32::from(events.sleep(Duration::from_millis(50)) == Woken::Disrupted);
    }
    let passed = began.elapsed().as_secs_f64();
    drop(events);
    let read = floods.join().unwrap() as f64;
    // A socket holds some octets more.
    let most = OCTETS_SAVED_MAX + passed * OCTETS_PER_SECOND + 1_000_000.0;
    assert!(disruptions > 0 && read < most, "{read} octets in {passed} s, {disruptions} disruptions");
}

/// Events without end are no answer, and neither is an answer octet by octet.
#[test]
fn a_command_waits_no_longer_than_asked() {
    for word in [&b"{\"event\": \"STOP\"}\n"[..], b" "] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("qmp.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let qemu = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            client.write_all(GREETING).unwrap();
            client.write_all(b"{\"return\": {}}\n").unwrap();
            while client.write_all(word).is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let mut monitor = Monitor::connect(&path, Duration::from_secs(3)).unwrap();
        let error = monitor.execute("query-status", &Value::Null).expect_err("no answer").to_string();
        assert!(error.contains("gives no answer within 3s"), "{error}");
        drop(monitor);
        qemu.join().unwrap();
    }
}
