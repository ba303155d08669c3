// SPDX-License-Identifier: Apache-2.0
//! Rings and engine on plain memory, against a simulated kernel that gives every answer of the table in
//! `engine.rs`, with indices that start anywhere (so that they wrap).

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use proptest::prelude::*;

use super::*;
use crate::error::SendError;
use crate::traits::{Capabilities, Port, StageId};

const STAGE_COUNT: u16 = 8;
const TX_COUNT: u32 = 16;

const fn plain_layout(entry_count: u32) -> Layout {
    // As the kernel lays it out: each index on a cache line of its own, entries behind.
    Layout { producer: 0, consumer: 64, entries: 192, entry_count }
}

fn plain(entry_octets: usize, entry_count: u32, start: u32) -> RingMemory {
    let layout = plain_layout(entry_count);
    let memory = RingMemory::plain(layout.octets(entry_octets));
    for index in [layout.producer, layout.consumer] {
        memory.word32(index).unwrap().store(start, Ordering::Relaxed);
    }
    memory
}

/// What the simulated kernel does at the next kick.
#[derive(Debug, Clone, Copy)]
enum Mood {
    /// Takes everything (up to its budget).
    Well,
    /// Says yes without looking.
    Idle,
    /// Returns before it looks.
    Unseen(Errno),
    /// Sends so many, then the device drops one.
    DropAfter(usize),
    /// Sends so many, then leaves the rest.
    StopAfter(usize, Errno),
}

/// The kernel's end of both rings. It shares the memory with the engine, as the real one does.
struct Kernel {
    tx: RingMemory,
    completion: RingMemory,
    consumed: u32,
    completed: u32,
    /// The producer index as it was looked at last: the real one reads it again only after all of these were consumed.
    known: u32,
    /// Whether consumption is reported at once or only before the next look (both kernels exist).
    lazy: bool,
    moods: VecDeque<Mood>,
    wire: Vec<(u64, u32)>,
    dropped: Vec<u64>,
    state: LinkState,
}

impl Kernel {
    fn producer(&self) -> u32 {
        self.tx.word32(plain_layout(TX_COUNT).producer).unwrap().load(Ordering::Acquire)
    }

    fn report(&self) {
        self.tx.word32(plain_layout(TX_COUNT).consumer).unwrap().store(self.consumed, Ordering::Release);
    }

    fn complete(&mut self, address: u64) {
        let layout = plain_layout(u32::from(STAGE_COUNT));
        let slot = (self.completed & (layout.entry_count - 1)) as usize;
        let entry = self.completion.word64(layout.entries + slot * COMPLETION_OCTETS).unwrap();
        entry.store(address, Ordering::Relaxed);
        self.completed = self.completed.wrapping_add(1);
        let tail = self.completion.word32(layout.consumer).unwrap().load(Ordering::Acquire);
        assert!(self.completed.wrapping_sub(tail) <= layout.entry_count, "completions never overrun");
        self.completion.word32(layout.producer).unwrap().store(self.completed, Ordering::Release);
    }

    fn next(&mut self) -> Option<(u64, u32)> {
        if self.consumed == self.known {
            self.known = self.producer();
        }
        if self.consumed == self.known {
            return None;
        }
        let at =
            plain_layout(TX_COUNT).entries + (self.consumed & (TX_COUNT - 1)) as usize * TX_DESCRIPTOR_OCTETS;
        let address = self.tx.word64(at).unwrap().load(Ordering::Relaxed);
        let octets = self.tx.word32(at + 8).unwrap().load(Ordering::Relaxed);
        let options = self.tx.word32(at + 12).unwrap().load(Ordering::Relaxed);
        assert_eq!(options, 0);
        self.consumed = self.consumed.wrapping_add(1);
        Some((address, octets))
    }

    fn transmit(&mut self, count_max: usize) -> usize {
        let mut count = 0;
        while count < count_max
            && let Some((address, octets)) = self.next()
        {
            self.wire.push((address, octets));
            self.complete(address);
            count += 1;
        }
        count
    }

    fn kick(&mut self) -> Result<(), Errno> {
        let mood = self.moods.pop_front().unwrap_or(Mood::Well);
        match mood {
            Mood::Idle => return Ok(()),
            Mood::Unseen(errno) => return Err(errno),
            _ => {}
        }
        self.report();
        let answer = match mood {
            Mood::Well | Mood::Idle | Mood::Unseen(_) => {
                self.transmit(usize::MAX);
                Ok(())
            }
            Mood::DropAfter(count) => {
                self.transmit(count);
                match self.next() {
                    Some((address, _)) => {
                        self.dropped.push(address);
                        self.complete(address);
                        Err(Errno::BUSY)
                    }
                    None => Ok(()),
                }
            }
            Mood::StopAfter(count, errno) => {
                self.transmit(count);
                if self.consumed == self.known {
                    self.known = self.producer();
                }
                if self.consumed == self.known { Ok(()) } else { Err(errno) }
            }
        };
        // An empty ring is noticed by looking once more, which reports in either kernel.
        if answer.is_ok() || !self.lazy {
            self.report();
        }
        answer
    }
}

struct Simulated(Rc<RefCell<Kernel>>);

impl Kick for Simulated {
    fn kick(&mut self) -> Result<(), Errno> {
        self.0.borrow_mut().kick()
    }
    fn kick_empty(&mut self) {
        let _ = self.kick();
    }
    fn link_state(&self) -> LinkState {
        self.0.borrow().state
    }
}

fn engine(start: u32, lazy: bool) -> (Engine<Simulated>, Rc<RefCell<Kernel>>) {
    let tx = plain(TX_DESCRIPTOR_OCTETS, TX_COUNT, start);
    let completion = plain(COMPLETION_OCTETS, u32::from(STAGE_COUNT), start);
    let kernel = Rc::new(RefCell::new(Kernel {
        tx: tx.clone(),
        completion: completion.clone(),
        consumed: start,
        completed: start,
        known: start,
        lazy,
        moods: VecDeque::new(),
        wire: Vec::new(),
        dropped: Vec::new(),
        state: LinkState::Up,
    }));
    let chunk_octets = CHUNK_OCTETS_MIN;
    let engine = Engine {
        kick: Simulated(Rc::clone(&kernel)),
        tx: TxRing::new(tx, plain_layout(TX_COUNT)).unwrap(),
        completion: CompletionRing::new(completion, plain_layout(u32::from(STAGE_COUNT))).unwrap(),
        stages: Stages::new(STAGE_COUNT).unwrap(),
        frames: FrameMemory::new(usize::from(STAGE_COUNT) * chunk_octets).unwrap(),
        chunk_octets,
        capabilities: Capabilities {
            adapter: "af_xdp",
            ifindex: 1,
            mac: [0; 6],
            mtu_octets: 1500,
            frame_octets_max: 1518,
            stage_count: STAGE_COUNT,
        },
        is_one_remembered: false,
    };
    (engine, kernel)
}

#[test]
fn a_layout_that_does_not_fit_is_refused() {
    let good = plain_layout(TX_COUNT);
    for bad in [
        Layout { producer: 1, ..good },
        Layout { consumer: 1 << 20, ..good },
        Layout { entries: 1 << 20, ..good },
        Layout { entries: 196, ..good },
        Layout { entry_count: 15, ..good },
        Layout { entry_count: 1 << 16, ..good },
    ] {
        let memory = || plain(TX_DESCRIPTOR_OCTETS, TX_COUNT, 0);
        assert!(TxRing::new(memory(), bad).is_none(), "{bad:?}");
        assert!(CompletionRing::new(memory(), bad).is_none(), "{bad:?}");
    }
}

#[test]
fn a_full_ring_takes_no_more_and_wraps() {
    for start in [0, 7, u32::MAX - 5, u32::MAX] {
        let memory = plain(TX_DESCRIPTOR_OCTETS, TX_COUNT, start);
        let mut ring = TxRing::new(memory.clone(), plain_layout(TX_COUNT)).unwrap();
        for n in 0..TX_COUNT {
            assert!(ring.push(u64::from(n), 60));
        }
        assert!(!ring.push(99, 60));
        let producer = memory.word32(0).unwrap();
        assert_eq!(producer.load(Ordering::Relaxed), start, "not shown before it is published");
        ring.publish();
        assert_eq!(producer.load(Ordering::Relaxed), start.wrapping_add(TX_COUNT));
        assert_eq!(ring.take_back(), Some(15));
        assert_eq!(producer.load(Ordering::Relaxed), start.wrapping_add(TX_COUNT - 1));
        memory.word32(64).unwrap().store(start.wrapping_add(10), Ordering::Relaxed);
        assert_eq!(ring.occupied(), 5);
    }
}

#[test]
fn nonsense_in_the_completion_ring_is_bounded_and_counted() {
    let (mut engine, kernel) = engine(0, false);
    let stage = engine.stage_copy(&[0; 60]).unwrap();
    kernel.borrow().completion.word32(0).unwrap().store(u32::MAX - 3, Ordering::Relaxed);
    assert_eq!(engine.reap(), 0, "nothing was in flight");
    assert_eq!(engine.counters().stray_completion_count, 8);
    assert_eq!(engine.occupancy().staged, 1);
    assert_eq!(engine.staged_frame(stage), Some(&[0; 60][..]));
}

#[test]
fn an_unseen_descriptor_is_taken_back_and_never_leaves() {
    for (errno, word) in [
        (Errno::NETDOWN, SendError::LinkDown),
        (Errno::NXIO, SendError::DeviceGone),
        (Errno::NODEV, SendError::DeviceGone),
    ] {
        let (mut engine, kernel) = engine(u32::MAX, false);
        kernel.borrow_mut().moods.push_back(Mood::Unseen(errno));
        let stage = engine.stage_copy(&[1; 60]).unwrap();
        assert_eq!(engine.commit(stage), Err(word));
        assert_eq!(engine.occupancy().free, 8);
        for n in 0..3 {
            kernel.borrow_mut().moods.push_back(Mood::Unseen(errno));
            let stage = engine.stage_copy(&[n; 64]).unwrap();
            assert_eq!(engine.commit(stage), Err(word));
        }
        let stage = engine.stage_copy(&[2; 61]).unwrap();
        assert_eq!(engine.commit(stage), Ok(()));
        assert_eq!(kernel.borrow().wire.iter().map(|(_, octets)| *octets).collect::<Vec<_>>(), [61]);
        assert_eq!((engine.reap(), engine.occupancy().free), (1, 8));
    }
}

#[test]
fn a_dropped_frame_is_an_error_and_the_rest_goes_out() {
    for lazy in [false, true] {
        let (mut engine, kernel) = engine(u32::MAX - 1, lazy);
        kernel.borrow_mut().moods.extend([Mood::DropAfter(0), Mood::DropAfter(1), Mood::DropAfter(0)]);
        let stages: Vec<_> = (0..5).map(|n| engine.stage_copy(&[n; 60]).unwrap()).collect();
        let results: Vec<_> = stages.into_iter().map(|stage| engine.commit(stage)).collect();
        let dropped = Err(SendError::Dropped);
        assert_eq!(results, [dropped, Ok(()), dropped, Ok(()), Ok(())]);
        assert_eq!((kernel.borrow().wire.len(), kernel.borrow().dropped.len()), (3, 2));
        assert_eq!((engine.reap(), engine.counters().committed_count), (5, 3));
        kernel.borrow_mut().state = LinkState::Down;
        kernel.borrow_mut().moods.push_back(Mood::DropAfter(0));
        let stage = engine.stage_copy(&[9; 60]).unwrap();
        assert_eq!(engine.commit(stage), Err(SendError::LinkDown));
        assert_eq!((engine.reap(), engine.occupancy().free), (1, 8));
    }
}

#[test]
fn a_lone_frame_that_the_kernel_leaves_is_given_back_and_never_leaves_later() {
    for (errno, word) in [
        (Errno::AGAIN, SendError::Busy),
        (Errno::NOBUFS, SendError::NoMemory),
        (Errno::NOMEM, SendError::NoMemory),
    ] {
        let (mut engine, kernel) = engine(u32::MAX, true);
        kernel.borrow_mut().moods.extend([Mood::StopAfter(0, errno), Mood::StopAfter(0, errno)]);
        for octets in [60, 61] {
            let stage = engine.stage_copy(&vec![1; octets]).unwrap();
            assert_eq!(engine.commit(stage), Err(word));
            assert_eq!((engine.reap(), engine.occupancy().free), (0, 8));
        }
        // Another one takes its place in the ring: the kernel knows that there is one, and reads what lies there now.
        let stages = [62, 63].map(|octets| engine.stage_copy(&vec![2; octets]).unwrap());
        for stage in stages {
            assert_eq!(engine.commit(stage), Ok(()));
        }
        let sent = kernel.borrow().wire.iter().map(|(_, octets)| *octets).collect::<Vec<_>>();
        assert_eq!(sent, [62, 63]);
        assert_eq!((engine.reap(), engine.occupancy().free), (2, 8));
    }
}

#[test]
fn a_kernel_that_says_yes_and_takes_nothing_is_noticed() {
    let (mut engine, kernel) = engine(0, false);
    kernel.borrow_mut().moods.extend([Mood::Idle, Mood::Idle]);
    let stage = engine.stage_copy(&[1; 60]).unwrap();
    assert_eq!(engine.commit(stage), Err(SendError::Busy));
    let stages = [61, 62].map(|octets| engine.stage_copy(&vec![2; octets]).unwrap());
    assert_eq!(stages.map(|stage| engine.commit(stage)), [Err(SendError::Busy), Ok(())]);
    assert_eq!((engine.reap(), engine.occupancy().free), (1, 8));
    assert_eq!(kernel.borrow().wire.iter().map(|(_, octets)| *octets).collect::<Vec<_>>(), [62]);
}

#[test]
fn warming_up_looks_at_an_empty_ring_only() {
    let (mut engine, kernel) = engine(0, false);
    kernel.borrow_mut().moods.push_back(Mood::Well);
    engine.warm_up();
    assert!(kernel.borrow().moods.is_empty(), "it kicked");
    let stage = engine.stage_copy(&[1; 60]).unwrap();
    kernel.borrow_mut().moods.push_back(Mood::StopAfter(0, Errno::AGAIN));
    assert_eq!(engine.commit(stage), Err(SendError::Busy));
    // The kernel remembers that there was a descriptor: a look now would send what was taken back.
    engine.warm_up();
    assert!(kernel.borrow().wire.is_empty());
    let stage = engine.stage_copy(&[2; 61]).unwrap();
    assert_eq!(engine.commit(stage), Ok(()));
    engine.warm_up();
    assert_eq!(kernel.borrow().wire.iter().map(|(_, octets)| *octets).collect::<Vec<_>>(), [61]);
    assert_eq!(engine.counters().stray_completion_count, 0);
}

fn mood() -> impl Strategy<Value = Mood> {
    prop_oneof![
        4 => Just(Mood::Well),
        1 => Just(Mood::Idle),
        1 => Just(Mood::Unseen(Errno::NETDOWN)),
        1 => Just(Mood::Unseen(Errno::NXIO)),
        2 => (0_usize..4).prop_map(Mood::DropAfter),
        2 => (0_usize..4).prop_map(|count| Mood::StopAfter(count, Errno::AGAIN)),
        1 => (0_usize..4).prop_map(|count| Mood::StopAfter(count, Errno::NOMEM)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Any answers to any calls: each committed frame reaches the wire once, in the order of the commits. A frame that
    /// was refused, abandoned or only staged never does. The port's counters agree with the kernel's.
    #[test]
    fn frames_are_conserved_whatever_the_kernel_answers(
        start in prop_oneof![Just(0_u32), (u32::MAX - 40)..=u32::MAX, any::<u32>()],
        lazy: bool,
        steps in prop::collection::vec((0_u8..12, mood()), 1..200),
    ) {
        let (mut engine, kernel) = engine(start, lazy);
        let mut staged: Vec<StageId> = Vec::new();
        let (mut committed, mut serial) = (Vec::new(), 0_u32);
        let mut failed = 0_usize;
        for (step, mood) in steps {
            kernel.borrow_mut().moods.push_back(mood);
            match step {
                0..=4 => {
                    // The length is the serial number: it comes out at the simulated wire.
                    let octets = 60 + (serial % 1400) as usize;
                    if let Ok(stage) = engine.stage_copy(&vec![0; octets]) {
                        staged.push(stage);
                        serial += 1;
                    }
                }
                5..=6 if !staged.is_empty() => {
                    let stage = staged.remove(0);
                    let octets = engine.staged_frame(stage).unwrap().len() as u32;
                    match engine.commit(stage) {
                        Ok(()) => committed.push(octets),
                        Err(_) => failed += 1,
                    }
                }
                7..=8 if !staged.is_empty() => engine.abandon(staged.remove(0)),
                9..=10 => {
                    let before = kernel.borrow().wire.len();
                    engine.warm_up();
                    prop_assert_eq!(kernel.borrow().wire.len(), before, "nothing leaves");
                }
                _ => { engine.reap(); }
            }
            prop_assert_eq!(engine.occupancy().total(), usize::from(STAGE_COUNT));
            prop_assert_eq!(engine.occupancy().staged, staged.len());
        }
        kernel.borrow_mut().moods.clear();
        engine.reap();
        let (wire, counters) = (&kernel.borrow().wire, engine.counters());
        prop_assert_eq!(wire.iter().map(|(_, octets)| *octets).collect::<Vec<_>>(), committed);
        prop_assert_eq!(engine.occupancy().in_flight, 0);
        prop_assert_eq!(counters.failed_count as usize, failed);
        prop_assert_eq!(wire.len() as u64, counters.committed_count);
        prop_assert_eq!(wire.len() + kernel.borrow().dropped.len(), counters.completed_count as usize);
        prop_assert_eq!(counters.stray_completion_count, 0);
    }
}
