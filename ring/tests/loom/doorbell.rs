// SPDX-License-Identifier: Apache-2.0
//! A worker that sleeps, and who publishes meanwhile: it is rung for, and by one of several only.

use std::sync::Arc;
use std::sync::atomic::Ordering::AcqRel;

use ktsn_ring::published::PublishedSlots;
use ktsn_ring::{ClockId, algorithm};
use loom::thread;

use crate::arena::{Arena, model};
use crate::{layout, push, take};

/// The worker sleeps until 100 while a frame for 50 is published: it sleeps only if the doorbell is rung.
fn doorbell(fences: bool) {
    model(None, move || {
        let arena = Arc::new(if fences { Arena::new(&layout()) } else { Arena::without_fences(&layout()) });
        algorithm::promise_poll_by(&*arena, 10, 10, 2);
        let producer = {
            let arena = Arc::clone(&arena);
            thread::spawn(move || {
                assert!(push(&*arena, &layout(), 50));
                algorithm::bell(&*arena, ClockId::Tai, 50, 10).is_some()
            })
        };
        algorithm::promise_poll_by(&*arena, 100, 100, 4);
        let sleeps = algorithm::sleep_check(&*arena);
        let rings = producer.join().expect("the producer ends");
        assert!(!sleeps || rings, "asleep, and nobody rings");
    });
}

#[test]
fn asleep_means_that_the_doorbell_rings() {
    doorbell(true);
}

#[test]
#[should_panic(expected = "asleep, and nobody rings")]
fn a_missing_fence_is_caught() {
    doorbell(false);
}

/// Two threads publish for 50, each rings where it finds no mark of the other, while the worker sleeps until 100, wakes if it
/// was rung for, looks, and sleeps again. Asleep for good it has left nothing. `step`: by how much its turns differ.
fn doorbells(fences: bool, step: u32) {
    model(Some(2), move || {
        let arena = Arc::new(if fences { Arena::new(&layout()) } else { Arena::without_fences(&layout()) });
        let queue = Arc::new(loom::sync::atomic::AtomicU32::new(0));
        algorithm::promise_poll_by(&*arena, 10, 10, 2);
        let producers: Vec<_> = (0..2)
            .map(|producer| {
                let (arena, queue) = (Arc::clone(&arena), Arc::clone(&queue));
                thread::spawn(move || {
                    assert!(push(&*arena, &layout(), 50 + producer));
                    if let Some(bell) = algorithm::bell(&*arena, ClockId::Tai, 50, 10) {
                        // A message on a socket orders what comes before it, as a system call does.
                        queue.fetch_add(1, AcqRel);
                        algorithm::rung(&*arena, bell);
                    }
                })
            })
            .collect();
        let (mut published, mut values) = (PublishedSlots::new(&layout()), Vec::new());
        let mut turn = 4;
        algorithm::promise_poll_by(&*arena, 100, 100, turn);
        while !algorithm::sleep_check(&*arena) || queue.swap(0, AcqRel) != 0 {
            take(&*arena, &mut published, &mut values);
            turn += step;
            algorithm::promise_poll_by(&*arena, 100, 100, turn);
        }
        for producer in producers {
            producer.join().expect("the producer ends");
        }
        // Asleep: what rang since wakes it.
        if queue.swap(0, AcqRel) == 0 {
            assert_eq!(values.len(), 2, "asleep, and nobody rings");
        }
    });
}

#[test]
fn two_ring_once_and_nothing_is_overslept() {
    doorbells(true, 2);
}

#[test]
#[should_panic(expected = "asleep, and nobody rings")]
fn a_mark_without_fences_is_caught() {
    doorbells(false, 2);
}

/// The mark of a doorbell that was heard before would stand for one that comes after.
#[test]
#[should_panic(expected = "asleep, and nobody rings")]
fn a_turn_that_does_not_change_is_caught() {
    doorbells(true, 0);
}
