// SPDX-License-Identifier: Apache-2.0
//! The daemon dies, comes back, refuses or is slow: the program never blocks and never fails.

use std::process::Stdio;
use std::time::Duration;

use ktsn_ring::StreamCode;
use ktsn_ring::control::HelloStatus;
use ktsn_tests::hook::{self, Libc};
use ktsn_tests::peer::{Behaviour, Peer};

const SOON: Duration = Duration::from_secs(20);

fn attached_again(peer: &Peer) {
    assert!(peer.wait(SOON, |events| !events.frames.is_empty()), "never attached");
}

fn number(text: &str) -> usize {
    text[1..].parse().expect("a frame's number")
}

#[test]
fn the_daemon_is_killed_and_returns() {
    let run_dir = hook::open_directory();
    let first = Peer::start(run_dir.path(), Behaviour::prompt());
    let mut command = hook::scenario(Libc::Gnu, run_dir.path(), "stream 5000 1000", 4321);
    let child = command.stdout(Stdio::piped()).spawn().expect("program");
    assert!(first.wait(SOON, |events| events.frames.len() > 200));
    drop(first);
    // The program sends while no daemon runs.
    std::thread::sleep(Duration::from_millis(700));
    let second = Peer::start(run_dir.path(), Behaviour::prompt());
    attached_again(&second);
    let values = hook::values(&child.wait_with_output().expect("program"));
    assert_eq!(values["failed"], 0);
    assert_eq!(values["waits"], 0, "a send waits for no daemon that is gone");
    let numbers: Vec<usize> = second.texts().iter().map(|text| number(text)).collect();
    assert!(numbers.is_sorted() && numbers.last() == Some(&4999), "{numbers:?}");
    // From its first frame on nothing is missing, and what was lost before it was counted.
    assert_eq!(numbers.len(), 5000 - numbers[0]);
    let absent = second.events().counters[0][16];
    assert!(absent > 100 && absent as usize <= numbers[0], "{absent} of {}", numbers[0]);
}

#[test]
fn the_attachment_goes_away_under_a_program() {
    let run_dir = hook::open_directory();
    let first = Peer::start(run_dir.path(), Behaviour::prompt());
    let receiver = std::net::UdpSocket::bind("127.0.0.1:0").expect("receiver");
    receiver.set_nonblocking(true).expect("non-blocking");
    let port = receiver.local_addr().expect("address").port();
    let mut command = hook::scenario(Libc::Gnu, run_dir.path(), "stream 1000 1000", port);
    let child = command.stdout(Stdio::piped()).spawn().expect("program");
    assert!(first.wait(SOON, |events| events.frames.len() > 100));
    drop(first);
    let second =
        Peer::start(run_dir.path(), Behaviour { hello: HelloStatus::NotAttached, ..Behaviour::prompt() });
    let values = hook::values(&child.wait_with_output().expect("program"));
    assert_eq!(values["failed"], 0);
    assert_eq!(values["waits"], 0, "a send waits for no daemon that is gone");
    assert!(second.events().frames.is_empty());
    // Once attached, nothing goes to the kernel behind the schedule's back.
    assert!(receiver.recv(&mut [0; 16]).is_err());
}

#[test]
fn refusals_leave_the_program_with_the_kernel() {
    let said = [
        (HelloStatus::NotAttached, "no attachment for this network namespace"),
        (HelloStatus::Version, "speaks ring ABI 1..1"),
        (HelloStatus::ClientsMax, "raise clients_max"),
        (HelloStatus::Refused, "refused this program"),
    ];
    for (hello, expected) in said {
        let run_dir = hook::open_directory();
        let _peer = Peer::start(run_dir.path(), Behaviour { hello, ..Behaviour::prompt() });
        let receiver = std::net::UdpSocket::bind("127.0.0.1:0").expect("receiver");
        receiver.set_read_timeout(Some(SOON)).expect("timeout");
        let port = receiver.local_addr().expect("address").port();
        let output =
            hook::scenario(Libc::Gnu, run_dir.path(), "stream 2 1000", port).output().expect("program");
        assert_eq!(hook::values(&output)["failed"], 0);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(errors.contains(expected) && errors.lines().count() == 1, "{errors}");
        assert_eq!(receiver.recv(&mut [0; 16]).expect("from the kernel"), 2);
    }
}

/// A daemon that ends connections without an answer, as one does that is very busy, is asked again while SO_TXTIME waits.
#[test]
fn a_daemon_that_cuts_off_is_asked_again() {
    let run_dir = hook::open_directory();
    let peer = Peer::start(run_dir.path(), Behaviour { cuts_off: 2, ..Behaviour::default() });
    let output = hook::scenario(Libc::Gnu, run_dir.path(), "stream 2 1000", 4321).output().expect("program");
    assert_eq!(hook::values(&output)["failed"], 0);
    assert_eq!(peer.texts().len(), 2, "{}", String::from_utf8_lossy(&output.stderr));
    let events = peer.events();
    assert_eq!((events.cut_off, events.clients), (2, 1));
}

/// A stream that the daemon does not serve: the kernel sends, under `strict` the send fails.
#[test]
fn a_socket_of_another_namespace() {
    let run_dir = hook::open_directory();
    let peer =
        Peer::start(run_dir.path(), Behaviour { stream: StreamCode::NotAttached, ..Behaviour::prompt() });
    let receiver = std::net::UdpSocket::bind("127.0.0.1:0").expect("receiver");
    receiver.set_nonblocking(true).expect("non-blocking");
    let port = receiver.local_addr().expect("address").port();
    let run = |policy: &str| {
        let mut command = hook::scenario(Libc::Gnu, run_dir.path(), "stream 2 1000", port);
        hook::values(&command.env("KTSN_POLICY", policy).output().expect("program"))["failed"]
    };
    assert_eq!(run("strict"), 2);
    assert!(receiver.recv(&mut [0; 16]).is_err());
    assert_eq!(run("kernel"), 0);
    assert_eq!(receiver.recv(&mut [0; 16]).expect("from the kernel"), 2);
    let _ = peer.texts();
    assert_eq!(peer.events().counters[1][1], 2);
    assert!(peer.events().frames.is_empty());
}

/// Registrations that take longer than any send waits: a blocking socket waits on, a non-blocking one gets EAGAIN as
/// from a full buffer. Nothing is lost, and nothing sent unscheduled.
#[test]
fn a_slow_registrar() {
    for more in ["", " nonblocking"] {
        let run_dir = hook::open_directory();
        let slow = Behaviour { register_delay: Duration::from_millis(80), ..Behaviour::default() };
        let peer = Peer::start(run_dir.path(), slow);
        let mut command = hook::scenario(Libc::Gnu, run_dir.path(), &format!("stream 1000 1000{more}"), 4321);
        let values = hook::values(&command.output().expect("program"));
        // The first send waits, for the port that it made the socket bind, and perhaps one more for the answer; not each.
        assert!(values["waits"] <= 1, "{values:?}");
        let texts = peer.texts();
        assert_eq!(peer.events().counters[0][16], 0, "absent");
        assert_eq!(texts.len() as i64 + values["failed"], 1000);
        let refused = if more.is_empty() { 0..1 } else { 1..1000 };
        assert!(refused.contains(&values["failed"]), "{more} {values:?}");
    }
}

/// 10 future frames, then the end of the process: all 10 were handed over.
#[test]
fn frames_outlive_their_program() {
    let run_dir = hook::open_directory();
    let peer = Peer::start(run_dir.path(), Behaviour::prompt());
    let output = hook::scenario(Libc::Musl, run_dir.path(), "stream 10 0", 4321).output();
    assert_eq!(hook::values(&output.expect("program"))["failed"], 0);
    assert_eq!(peer.texts().len(), 10);
}

/// Killed before it answered anything: the program finds the next daemon within a second all the same.
fn killed_before_an_answer(first: Behaviour) {
    let run_dir = hook::open_directory();
    let first = Peer::start(run_dir.path(), first);
    let mut command = hook::scenario(Libc::Gnu, run_dir.path(), "stream 4000 1000", 4321);
    let child = command.stdout(Stdio::piped()).spawn().expect("program");
    let mut child = hook::Running(child);
    // The second registration is the first send's.
    assert!(first.wait(SOON, |events| events.registrations > 1));
    // The program sends, and nothing comes of it.
    std::thread::sleep(Duration::from_millis(100));
    assert!(first.events().frames.is_empty());
    drop(first);
    // The program sends while no daemon runs.
    std::thread::sleep(Duration::from_millis(200));
    let second = Peer::start(run_dir.path(), Behaviour::prompt());
    attached_again(&second);
    assert!(second.wait(SOON, |events| events.counters[0][16] > 10));
    assert!(child.0.wait().expect("program").success());
}

#[test]
fn killed_between_a_registration_and_its_answer() {
    let silent = Behaviour { register_delay: Duration::from_secs(60), ..Behaviour::prompt() };
    killed_before_an_answer(silent);
}

#[test]
fn killed_while_it_wrote_the_destinations() {
    killed_before_an_answer(Behaviour { is_writing: true, ..Behaviour::prompt() });
}
