// SPDX-License-Identifier: Apache-2.0
//! The daemon's side of the tests in two processes.

use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use ktsn_ring::{ClientMapping, Consumer, Layout, LinkError, RegionState};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::pread;

use crate::{peer, support};

const PATIENCE: Duration = Duration::from_secs(120);

fn tallies() -> OwnedFd {
    let fd = memfd_create("ktsn-ring-tallies", MemfdFlags::CLOEXEC).expect("a memfd");
    ftruncate(&fd, 4096).expect("a page");
    fd
}

fn tally(fd: &OwnedFd, talker: u32) -> u64 {
    let mut octets = [0; 8];
    assert_eq!(pread(fd, &mut octets, u64::from(talker) * 8), Ok(8));
    u64::from_le_bytes(octets)
}

/// A region with a checking consumer: per talker the frames must come whole, once and in order.
struct Checked {
    consumer: Consumer,
    seen: Vec<u64>,
    buffer: Vec<u8>,
}

impl Checked {
    fn new(slots: u32, talkers: u32) -> (Self, OwnedFd) {
        let layout = Layout::new(slots, 512, talkers, 1).expect("a valid layout");
        let (mut consumer, memfd) = Consumer::create(layout).expect("a region");
        support::register(&mut consumer, talkers);
        let buffer = vec![0; layout.payload_max()];
        (Self { consumer, seen: vec![0; talkers as usize], buffer }, memfd)
    }

    /// Takes what is there, up to some lists' worth: a program may push as fast as this takes.
    /// Returns how many frames came.
    fn pass(&mut self) -> u64 {
        let mut taken = 0;
        for _ in 0..4 {
            if !self.consumer.published() {
                break;
            }
            self.consumer.collect(32).expect("honest links");
            while let Some(frame) = self.consumer.take(&mut self.buffer) {
                let frame = frame.expect("an honest frame");
                let talker = frame.frame.stream_index;
                let number = self.seen[talker as usize];
                assert_eq!(frame.frame, support::frame(talker, number), "order of talker {talker}");
                let payload = support::payload(talker, number, self.buffer.len());
                assert_eq!(&self.buffer[..frame.payload_octets], &payload[..]);
                self.seen[talker as usize] += 1;
                self.consumer.release(frame.slot);
                taken += 1;
            }
        }
        taken
    }
}

pub(crate) fn four_threads_push_200_000_frames() {
    const TALKERS: u32 = 4;
    const FRAMES: u64 = 50_000;
    // Few slots, so that they are used again and again and run out.
    let (mut checked, memfd) = Checked::new(96, TALKERS);
    let tallies = tallies();
    let mut child = peer::start("push", TALKERS, FRAMES, &memfd, &tallies);
    let begin = Instant::now();
    while checked.seen.iter().any(|seen| *seen < FRAMES) {
        if checked.pass() == 0 {
            thread::yield_now();
        }
        assert!(begin.elapsed() < PATIENCE, "frames are missing: {:?}", checked.seen);
    }
    assert!(child.wait().expect("the peer ends").success());
    assert_eq!(checked.pass(), 0, "nothing comes twice");
    let client = ClientMapping::open(&memfd).expect("a mapping");
    let free = std::iter::from_fn(|| client.producer().claim()).count();
    assert_eq!(free, 96, "every slot came back");
}

pub(crate) fn a_program_killed_1_000_times() {
    const TALKERS: u32 = 2;
    let mut random = support::Random::new(20_261_121);
    let (mut published, mut unconfirmed, mut leaked) = (0, 0, 0);
    for round in 0..1_000 {
        let (mut checked, memfd) = Checked::new(16, TALKERS);
        let tallies = tallies();
        let mut child = peer::start("push", TALKERS, u64::MAX, &memfd, &tallies);
        // Most lives end in the midst of pushing, some before the first frame, some with all slots in use.
        let begin = Instant::now();
        let is_drained = random.below(8) != 0;
        let patience = Duration::from_secs(20);
        let frames = random.below(120);
        while random.below(16) != 0 || (checked.seen[0] < frames && is_drained) {
            if is_drained {
                checked.pass();
            }
            thread::yield_now();
            assert!(begin.elapsed() < patience, "round {round}: no frames come");
        }
        child.kill().expect("SIGKILL");
        child.wait().expect("the peer is gone");
        checked.pass();
        for talker in 0..TALKERS {
            let (seen, told) = (checked.seen[talker as usize], tally(&tallies, talker));
            assert!(seen == told || seen == told + 1, "round {round}: {told} told, {seen} seen");
            published += seen;
            unconfirmed += seen - told;
        }
        assert!(!checked.consumer.published() && checked.consumer.broken().is_none());
        assert_eq!(checked.consumer.held(), 0);
        // What is not free now was claimed by the dead: at most one slot for each of its threads.
        let client = ClientMapping::open(&memfd).expect("a mapping");
        let free = std::iter::from_fn(|| client.producer().claim()).count() as u64;
        assert!(free + u64::from(TALKERS) >= 16, "round {round}: only {free} slots are free");
        leaked += 16 - free;
    }
    println!(
        "  1,000 lives: {published} frames, {unconfirmed} published but not yet told, {leaked} claims taken along"
    );
    assert!(published > 1_000, "the peers were killed before they did anything");
    assert!(leaked > 0, "nobody was killed between claim and publish");
}

/// A process forks between fill and publish, and both publish: the slot's link leads to itself.
pub(crate) fn a_slot_published_twice_after_fork() {
    let (mut checked, memfd) = Checked::new(8, 1);
    let mut child = peer::start("fork", 1, 1, &memfd, &tallies());
    assert!(child.wait().expect("the peer ends").success());
    assert!(checked.consumer.published());
    for _ in 0..2 {
        assert_eq!(checked.consumer.collect(32), Err(LinkError::Held(0)), "seen, and the error stays");
    }
    let client = ClientMapping::open(&memfd).expect("a mapping");
    assert_eq!(client.producer().state(), RegionState::Retired);
    // What the walk had reached is taken and released: our own books close.
    let taken = checked.consumer.take(&mut checked.buffer).expect("one frame").expect("an honest one");
    assert_eq!(taken.frame, support::frame(0, 0));
    assert_eq!(checked.consumer.take(&mut checked.buffer), None);
    checked.consumer.release(taken.slot);
    assert_eq!(checked.consumer.held(), 0);
    assert!(!checked.consumer.published() && checked.consumer.sleep_check(), "no more work from this region");
}

/// A program publishes one slot twice while the daemon holds the slot between the two publications.
pub(crate) fn a_slot_published_while_it_is_held() {
    let (mut checked, memfd) = Checked::new(8, 1);
    let client = ClientMapping::open(&memfd).expect("a mapping");
    let producer = client.producer();
    let claim = producer.claim().expect("a slot");
    producer.fill(&claim, &support::frame(0, 0), std::iter::empty()).expect("it fits");
    producer.publish(claim);
    assert_eq!(checked.consumer.collect(32), Ok(1));
    assert!(matches!(checked.consumer.take(&mut checked.buffer), Some(Ok(_))));
    // The fork's publication, word by word: the link is the head it found, then the head.
    client.poke(producer.layout().slot(0).expect("slot 0"), 0);
    client.poke(ktsn_ring::layout::HEAD, 1);
    assert_eq!(checked.consumer.collect(32), Err(LinkError::Held(0)));
    assert_eq!(checked.consumer.take(&mut checked.buffer), None);
    assert_eq!(checked.consumer.held(), 1, "the frame that was taken is still ours");
    checked.consumer.release(0);
    assert_eq!(checked.consumer.held(), 0);
}
