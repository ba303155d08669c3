// SPDX-License-Identifier: Apache-2.0
//! The program's side, in a process of its own: standard input is the region, standard output a page of tallies.

use std::io::{stdin, stdout};
use std::process::{Child, Command, Stdio};
use std::thread;

use ktsn_ring::{ClientMapping, Producer};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::pwrite;

use crate::support;

/// Environment variable that makes this binary a peer: `ROLE:THREADS:FRAMES`.
pub(crate) const ROLE: &str = "KTSN_RING_PEER";

/// Starts a peer over a region. `tallies` is a file of a u64 for each thread: the frames that it has published.
pub(crate) fn start(role: &str, threads: u32, frames: u64, memfd: &OwnedFd, tallies: &OwnedFd) -> Child {
    let own = |fd: &OwnedFd| Stdio::from(fd.try_clone().expect("a descriptor"));
    Command::new(std::env::current_exe().expect("this binary"))
        .env(ROLE, format!("{role}:{threads}:{frames}"))
        .stdin(own(memfd))
        .stdout(own(tallies))
        .spawn()
        .expect("this binary starts")
}

/// The peer's whole life.
pub(crate) fn run(role: &str) {
    let mut parts = role.split(':');
    let kind = parts.next().expect("a role");
    let threads: u32 = parts.next().and_then(|text| text.parse().ok()).expect("a number of threads");
    let frames: u64 = parts.next().and_then(|text| text.parse().ok()).expect("a number of frames");
    let mapping = ClientMapping::open(stdin().as_fd()).expect("the region maps");
    let producer = mapping.producer();
    match kind {
        "push" => thread::scope(|scope| {
            for talker in 0..threads {
                scope.spawn(move || push(producer, talker, frames));
            }
        }),
        "fork" => publish_twice(producer),
        other => panic!("no role {other}"),
    }
}

/// Forks between fill and publish; parent and child both go on.
#[allow(unsafe_code)]
fn publish_twice(producer: &Producer) {
    let claim = producer.claim().expect("a slot");
    let payload = support::payload(0, 0, producer.payload_max());
    producer.fill(&claim, &support::frame(0, 0), std::iter::once(&payload[..])).expect("it fits");
    // SAFETY: this process has one thread, and the child only publishes and ends.
    let child = unsafe { libc::fork() };
    producer.publish(claim);
    if child == 0 {
        // SAFETY: ends the child at once, without running what the parent will run.
        unsafe { libc::_exit(0) };
    }
    let mut status = -1;
    // SAFETY: waits for our own child; `status` outlives the call.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert!(child > 0 && ended == child && status == 0, "the child published, too");
}

/// Publishes `frames` frames of one talker, telling after each how many there are.
fn push(producer: &Producer, talker: u32, frames: u64) {
    for number in 0..frames {
        let claim = loop {
            match producer.claim() {
                Some(claim) => break claim,
                None => thread::yield_now(),
            }
        };
        // Now and then a claim is given back: it must come again, as whole as before.
        if number.is_multiple_of(97) {
            producer.cancel(claim);
            continue_with(producer, talker, number);
        } else {
            finish(producer, claim, talker, number);
        }
        let told = pwrite(stdout().as_fd(), &(number + 1).to_le_bytes(), u64::from(talker) * 8);
        assert_eq!(told, Ok(8), "the tally is written");
    }
}

fn continue_with(producer: &Producer, talker: u32, number: u64) {
    loop {
        if let Some(claim) = producer.claim() {
            return finish(producer, claim, talker, number);
        }
        thread::yield_now();
    }
}

fn finish(producer: &Producer, claim: ktsn_ring::Claim, talker: u32, number: u64) {
    // Made while the slot is ours, so that many are killed with a claim in hand.
    let payload = support::payload(talker, number, producer.payload_max());
    let frame = support::frame(talker, number);
    producer.fill(&claim, &frame, std::iter::once(&payload[..])).expect("the payload fits");
    if number.is_multiple_of(8) {
        thread::yield_now(); // a good moment to be killed
    }
    producer.publish(claim);
}
