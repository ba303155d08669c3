// SPDX-License-Identifier: Apache-2.0
//! The adapter on a port in memory.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::*;
use crate::memory::Memory;

type Seen = Arc<Mutex<Vec<Left>>>;
type Frames = Arc<Mutex<Vec<u8>>>;

fn observer() -> (Seen, Observer) {
    let seen = Seen::default();
    let observed = seen.clone();
    (seen, Box::new(move |left| observed.lock().unwrap().push(left)))
}

/// The first octet of each frame that the port gets.
fn recorded() -> (Frames, Memory) {
    let frames = Frames::default();
    let seen = frames.clone();
    let sink = move |frame: &[u8]| seen.lock().unwrap().push(frame[0]);
    (frames, Memory::new(2, 1500).unwrap().with_sink(Box::new(sink)))
}

/// A port whose hand-overs each wait for a word.
fn waiting() -> (Sender<()>, Receiver<u8>, Memory) {
    let ((go, word), (seen, frames)) = (channel(), channel());
    let sink = move |frame: &[u8]| {
        seen.send(frame[0]).unwrap();
        let _ = word.recv();
    };
    (go, frames, Memory::new(2, 1500).unwrap().with_sink(Box::new(sink)))
}

fn send(port: &mut Deferred, octet: u8) -> Result<(), SendError> {
    let stage = port.stage_copy(&[octet; 60]).unwrap();
    port.commit(stage)
}

fn wait_until_empty(port: &mut Deferred) {
    while port.occupancy().in_flight > 0 {
        port.reap();
        std::thread::yield_now();
    }
}

proptest! {
    /// Each staged frame is handed over once, in the order of the commits, or counted as abandoned or failed.
    #[test]
    fn each_frame_has_one_end(
        moves in prop::collection::vec((0_u8..6, 0_usize..8), 0..300),
        refused in prop::collection::vec(any::<bool>(), 0..100),
    ) {
        let (frames, mut memory) = recorded();
        // A refusal is of the device alone: what it says to try again is another test.
        let refusals: Vec<SendError> = refused.iter().filter(|is| **is).map(|_| SendError::Dropped).collect();
        let refusals_count = refusals.len();
        memory.set_refusals(refusals);
        let (seen, observer) = observer();
        let mut port = Deferred::start(memory, 8, observer).unwrap();
        let mut staged: Vec<(StageId, u8)> = Vec::new();
        let (mut committed, mut abandoned, mut next) = (Vec::new(), 0_u64, 0_u8);
        for (kind, at) in moves {
            match kind {
                0..3 => if let Ok(stage) = port.stage_copy(&[next; 60]) {
                    staged.push((stage, next));
                    next = next.wrapping_add(1);
                },
                3 | 4 if !staged.is_empty() => {
                    let (stage, octet) = staged.remove(at % staged.len());
                    prop_assert_eq!(port.staged_frame(stage), Some(&[octet; 60][..]));
                    prop_assert_eq!(port.commit(stage), Ok(()));
                    prop_assert_eq!(port.commit(stage), Err(SendError::NotStaged));
                    committed.push(octet);
                }
                5 if !staged.is_empty() => {
                    port.abandon(staged.remove(at % staged.len()).0);
                    abandoned += 1;
                }
                _ => { port.reap(); }
            }
            prop_assert_eq!(port.occupancy().total(), 8);
            prop_assert_eq!(port.occupancy().staged, staged.len());
        }
        wait_until_empty(&mut port);
        let counters = port.counters();
        drop(port);
        let dropped = refusals_count.min(committed.len());
        // Memory refuses the first ones.
        prop_assert_eq!(&*frames.lock().unwrap(), &committed[dropped..]);
        prop_assert_eq!(seen.lock().unwrap().len(), committed.len());
        prop_assert_eq!(counters.committed_count, committed.len() as u64);
        prop_assert_eq!((counters.deferred_count, counters.completed_count), (counters.committed_count, counters.committed_count));
        prop_assert_eq!(counters.deferred_dropped_count, dropped as u64);
        prop_assert_eq!(counters.failed_count, committed.len() as u64, "second commits");
        prop_assert_eq!((counters.abandoned_count, counters.stray_completion_count), (abandoned, 0));
    }
}

#[test]
fn a_port_that_hangs_fills_the_queue_and_holds_up_no_commit() {
    let (go, frames, memory) = waiting();
    let (_, observer) = observer();
    let mut port = Deferred::start(memory, 4, observer).unwrap();
    for octet in 0..4 {
        send(&mut port, octet).unwrap();
    }
    assert_eq!(frames.recv().unwrap(), 0);
    assert_eq!((port.reap(), port.occupancy().in_flight), (0, 4));
    assert_eq!(port.stage_copy(&[9; 60]), Err(StageError::Full));
    drop(go);
    wait_until_empty(&mut port);
    assert_eq!(send(&mut port, 4), Ok(()));
    assert_eq!(frames.iter().take(4).collect::<Vec<_>>(), [1, 2, 3, 4]);
}

#[test]
fn what_is_queued_when_it_is_closed_is_sent() {
    let (frames, memory) = recorded();
    let (seen, observer) = observer();
    let mut port = Deferred::start(memory, 64, observer).unwrap();
    for octet in 0..64 {
        send(&mut port, octet).unwrap();
    }
    drop(port);
    assert_eq!(*frames.lock().unwrap(), (0..64).collect::<Vec<u8>>());
    assert!(seen.lock().unwrap().iter().all(|left| left.result.is_ok()));
}

/// A hand-over that does not end holds up neither the close nor the account of the frames behind it.
#[test]
fn a_close_does_not_wait_for_a_hand_over_that_hangs() {
    let (go, frames, memory) = waiting();
    let (seen, observer) = observer();
    let mut port = Deferred::start(memory, 4, observer).unwrap();
    for octet in 0..3 {
        send(&mut port, octet).unwrap();
    }
    assert_eq!(frames.recv().unwrap(), 0);
    drop(port);
    assert!(seen.lock().unwrap().is_empty());
    drop(go);
    // The thread drops the port inside when it has ended.
    assert_eq!(frames.iter().collect::<Vec<_>>(), [0_u8; 0], "nothing leaves long after the close");
    let results: Vec<_> = seen.lock().unwrap().iter().map(|left| left.result).collect();
    assert_eq!(results, [Ok(()), Err(SendError::Dropped), Err(SendError::Dropped)]);
}

#[test]
fn a_busy_device_is_tried_again_and_a_link_that_is_down_is_shown() {
    let (frames, mut memory) = recorded();
    memory.set_refusals([SendError::Busy, SendError::NoMemory]);
    let (seen, observer) = observer();
    let mut port = Deferred::start(memory, 4, observer).unwrap();
    assert!(port.link_up());
    send(&mut port, 7).unwrap();
    wait_until_empty(&mut port);
    assert_eq!((frames.lock().unwrap().clone(), port.counters().deferred_dropped_count), (vec![7], 0));
    assert_eq!(seen.lock().unwrap().len(), 1);

    let (_, mut memory) = recorded();
    memory.set_link_up(false);
    let (seen, observer) = self::observer();
    let mut port = Deferred::start(memory, 4, observer).unwrap();
    assert!(!port.link_up());
    send(&mut port, 7).unwrap();
    wait_until_empty(&mut port);
    assert_eq!(seen.lock().unwrap()[0].result, Err(SendError::LinkDown));
    assert_eq!(port.counters().deferred_dropped_count, 1);
}

#[test]
fn hand_overs_are_measured_in_cpu_time() {
    let sink = |frame: &[u8]| {
        if frame[0] == 0 {
            std::thread::sleep(Duration::from_millis(50));
        } else {
            let began = cpu_time();
            while cpu_time() - began < Duration::from_millis(50) {}
        }
    };
    let memory = Memory::new(2, 1500).unwrap().with_sink(Box::new(sink));
    let (seen, observer) = observer();
    let mut port = Deferred::start(memory, 4, observer).unwrap();
    send(&mut port, 0).unwrap();
    send(&mut port, 1).unwrap();
    wait_until_empty(&mut port);
    let took: Vec<_> = seen.lock().unwrap().iter().map(|left| left.took).collect();
    assert!(took[0] < Duration::from_millis(50) && took[1] >= Duration::from_millis(50), "{took:?}");
}
