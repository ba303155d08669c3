// SPDX-License-Identifier: Apache-2.0
//! The ring's algorithms under loom: every interleaving and every value that the memory model allows (with a bound
//! on preemptions where there are many steps).
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p ktsn-ring --test loom --release`. The functions are those that run on the
//! mapping; only the memory is loom's. Models named `…_is_caught` leave something out and must fail: they prove
//! that the others can.
#![cfg(loom)]

#[path = "loom/arena.rs"]
mod arena;
#[path = "loom/doorbell.rs"]
mod doorbell;
#[path = "loom/receive.rs"]
mod receive;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use arena::{Arena, model};
use ktsn_ring::completion::{self, Completion, Place, kind};
use ktsn_ring::published::PublishedSlots;
use ktsn_ring::tables::{DestinationsShadow, StreamShadow, read_destination, read_stream};
use ktsn_ring::words::Words;
use ktsn_ring::{
    Destination, DestinationAction, DestinationVerdict, Layout, StreamCode, StreamStatus, algorithm, bypass,
    layout,
};
use loom::thread;

fn layout() -> Layout {
    Layout::new(4, 256, 1, 2).expect("a valid layout")
}

/// Claims a slot, writes `value` as its transmit time, publishes it. With no slot free it pushes nothing.
fn push(words: &impl Words, layout: &Layout, value: u64) -> bool {
    let Some(slot) = algorithm::claim(words, layout) else { return false };
    let at = layout.slot(slot).expect("a claimed slot exists");
    // MONOTONIC, stream 0, token 1, no payload.
    words.store64(at + 8, 1, Relaxed);
    words.store64(at + 16, value, Relaxed);
    words.store64(at + 56, 1, Relaxed);
    algorithm::publish(words, slot, at);
    true
}

/// Takes what is there now, oldest first.
fn take(words: &impl Words, published: &mut PublishedSlots, values: &mut Vec<u64>) {
    published.collect(words, 8).expect("honest links");
    while let Some(taken) = published.take(words, |_| Some(1), &mut []) {
        let taken = taken.expect("an honest slot");
        values.push(taken.frame.tx_time);
        published.release(words, taken.slot);
    }
}

/// Each producer's values are there once and in its order.
fn in_order(values: &[u64], producers: u64, frames: u64) {
    for producer in 0..producers {
        let own: Vec<u64> = values.iter().copied().filter(|value| value / 10 == producer).collect();
        let expected: Vec<u64> = (0..frames).map(|number| producer * 10 + number).collect();
        assert_eq!(own, expected, "of all {values:?}");
    }
    assert_eq!(values.len() as u64, producers * frames);
}

#[test]
fn nothing_is_lost_doubled_or_reordered() {
    model(Some(3), || {
        let arena = Arc::new(Arena::new(&layout()));
        let producers: Vec<_> = (0..2)
            .map(|producer| {
                let arena = Arc::clone(&arena);
                thread::spawn(move || {
                    for number in 0..2 {
                        assert!(
                            push(&*arena, &layout(), producer * 10 + number),
                            "four slots for four frames"
                        );
                    }
                })
            })
            .collect();
        let (mut published, mut values) = (PublishedSlots::new(&layout()), Vec::new());
        take(&*arena, &mut published, &mut values);
        take(&*arena, &mut published, &mut values);
        for producer in producers {
            producer.join().expect("the producer ends");
        }
        take(&*arena, &mut published, &mut values);
        in_order(&values, 2, 2);
        assert_eq!(published.held(), 0);
    });
}

/// Claims two slots, writes `values` into them and publishes them as one run.
fn push_two(words: &impl Words, values: [u64; 2]) -> bool {
    let mut before = None;
    let mut first_at = 0;
    for value in values {
        let Some(slot) = algorithm::claim(words, &layout()) else { return false };
        let at = layout().slot(slot).expect("a claimed slot exists");
        words.store64(at + 8, 1, Relaxed);
        words.store64(at + 16, value, Relaxed);
        words.store64(at + 56, 1, Relaxed);
        match before {
            None => first_at = at,
            Some(before) => algorithm::link(words, at, before),
        }
        before = Some(slot);
    }
    algorithm::publish_run(words, first_at, before.expect("two values"));
    true
}

/// Two threads publish runs: each is taken whole, and nothing lies inside it.
#[test]
fn a_run_is_seen_whole_and_in_order() {
    model(Some(3), || {
        let arena = Arc::new(Arena::new(&layout()));
        let producers = [[0, 1], [10, 11]].map(|values| {
            let arena = Arc::clone(&arena);
            thread::spawn(move || assert!(push_two(&*arena, values), "four slots for four frames"))
        });
        let (mut published, mut values) = (PublishedSlots::new(&layout()), Vec::new());
        take(&*arena, &mut published, &mut values);
        assert!(values.len().is_multiple_of(2), "a part of a run: {values:?}");
        for producer in producers {
            producer.join().expect("the producer ends");
        }
        take(&*arena, &mut published, &mut values);
        in_order(&values, 2, 2);
        assert!(values.chunks(2).all(|run| run[0] + 1 == run[1]), "a run is together: {values:?}");
    });
}

/// A signal handler pushes 10 before access `at` of `pushes`; the values as the consumer takes them.
fn interrupted_by_a_push(
    at: usize,
    pushes: impl FnOnce(&arena::Interrupted<'_>) -> bool + Send + 'static,
) -> Vec<u64> {
    let arena = Arc::new(Arena::new(&layout()));
    let producer = {
        let arena = Arc::clone(&arena);
        thread::spawn(move || {
            let interrupted = arena::Interrupted::new(&arena, at, |arena| {
                assert!(push(arena, &layout(), 10));
            });
            assert!(pushes(&interrupted));
            assert!(interrupted.happened(), "the handler ran");
        })
    };
    let (mut published, mut values) = (PublishedSlots::new(&layout()), Vec::new());
    take(&*arena, &mut published, &mut values);
    producer.join().expect("the producer ends");
    take(&*arena, &mut published, &mut values);
    values
}

/// A signal handler pushes between any two steps of a run's publication.
#[test]
fn a_push_inside_a_run() {
    for at in 0..4 {
        model(Some(3), move || {
            let values = interrupted_by_a_push(at, |words| push_two(words, [0, 1]));
            assert_eq!(values.len(), 3);
            let run = values.iter().position(|value| *value == 0).expect("the run");
            assert_eq!(values.get(run + 1), Some(&1), "a run is together: {values:?}");
        });
    }
}

/// One slot for all: it goes round between producers and consumer, and its words never mix.
#[test]
fn a_slot_goes_round() {
    model(Some(3), || {
        let one = Layout::new(1, 256, 1, 2).expect("a valid layout");
        let arena = Arc::new(Arena::new(&one));
        let producers: Vec<_> = (0..2)
            .map(|producer| {
                let arena = Arc::clone(&arena);
                thread::spawn(move || u64::from(push(&*arena, &one, producer * 10)))
            })
            .collect();
        let (mut published, mut values) = (PublishedSlots::new(&one), Vec::new());
        take(&*arena, &mut published, &mut values);
        let pushed: u64 = producers.into_iter().map(|producer| producer.join().expect("it ends")).sum();
        take(&*arena, &mut published, &mut values);
        assert_eq!(values.len() as u64, pushed);
        assert!(pushed >= 1, "somebody gets the slot");
        values.dedup();
        assert_eq!(values.len() as u64, pushed, "each value came once");
    });
}

/// A signal handler interrupts a push between any two of its steps and pushes itself.
#[test]
fn a_push_inside_a_push() {
    // The interrupted push is taken apart: the handler runs after step `at` of it.
    for at in 0..4 {
        model(Some(3), move || {
            let values = interrupted_by_a_push(at, |words| push(words, &layout(), 0));
            in_order(&values, 2, 1);
        });
    }
}

#[test]
fn a_slot_is_never_claimed_twice() {
    model(None, || {
        let two = Layout::new(2, 256, 1, 2).expect("a valid layout");
        let arena = Arc::new(Arena::new(&two));
        let claimers: Vec<_> = (0..2)
            .map(|_| {
                let arena = Arc::clone(&arena);
                thread::spawn(move || {
                    let first = algorithm::claim(&*arena, &two);
                    if let Some(slot) = first {
                        // Marked as ours: another owner of the same slot would be seen here.
                        let at = two.slot(slot).expect("a claimed slot exists") + 16;
                        assert_eq!(arena.load64(at, Relaxed), 0, "slot {slot} has an owner");
                        arena.store64(at, 1, Relaxed);
                        arena.store64(at, 0, Relaxed);
                        algorithm::release(&*arena, slot);
                    }
                    algorithm::claim(&*arena, &two)
                })
            })
            .collect();
        let slots: Vec<_> = claimers.into_iter().map(|claimer| claimer.join().expect("it ends")).collect();
        assert!(slots[0].is_some() && slots[1].is_some(), "two slots for two");
        assert_ne!(slots[0], slots[1]);
        assert_eq!(algorithm::claim(&*arena, &two), None);
    });
}

/// A call takes two slots by one exchange, uses one and gives the other back, beside one that takes a slot.
#[test]
fn slots_claimed_together_are_one_owners() {
    model(None, || {
        let two = Layout::new(2, 256, 1, 2).expect("a valid layout");
        let arena = Arc::new(Arena::new(&two));
        let single = {
            let arena = Arc::clone(&arena);
            thread::spawn(move || algorithm::claim(&*arena, &two))
        };
        let together = algorithm::claim_some(&*arena, &two, 2);
        if let Some((first, bits)) = together {
            assert!(first == 0 && bits != 0 && bits & !3 == 0, "{bits:#b}");
            let used = bits & bits.wrapping_neg();
            algorithm::release_some(&*arena, 0, bits & !used);
        }
        let single = single.join().expect("it ends");
        let owned = together.map_or(0, |(_, bits)| bits & bits.wrapping_neg());
        assert!(single.is_none_or(|slot| owned & (1 << slot) == 0), "slot {single:?} has two owners");
        // Every slot without an owner is free.
        let mut left = 0;
        while algorithm::claim(&*arena, &two).is_some() {
            left += 1;
        }
        assert_eq!(left + u32::from(single.is_some()) + owned.count_ones(), 2);
    });
}

fn tables() -> [[Destination; 2]; 2] {
    let entry = |first: u8, action, payload_max| Destination {
        address: [first; 16],
        prefix_bits: 128,
        action,
        payload_max,
    };
    [
        [entry(1, DestinationAction::Take, 1), entry(2, DestinationAction::OwnAddress, 0)],
        [entry(2, DestinationAction::Take, 2), entry(1, DestinationAction::OwnAddress, 0)],
    ]
}

fn destinations(fences: bool) {
    model(Some(3), move || {
        let arena = Arc::new(if fences { Arena::new(&layout()) } else { Arena::without_fences(&layout()) });
        let [old, new] = tables();
        let mut shadow = DestinationsShadow::default();
        shadow.write(&*arena, &layout(), &old);
        let reader = {
            let arena = Arc::clone(&arena);
            thread::spawn(move || read_destination(&*arena, &layout(), [2; 16]))
        };
        shadow.write(&*arena, &layout(), &new);
        let verdict = reader.join().expect("the reader ends");
        let allowed = [
            DestinationVerdict::Bypass(bypass::OWN_ADDRESS),
            DestinationVerdict::Take { payload_max: 2, is_asked: false },
            DestinationVerdict::Unstable,
        ];
        assert!(allowed.contains(&verdict), "a mixture: {verdict:?}");
    });
}

#[test]
fn a_destination_is_never_a_mixture() {
    destinations(true);
}

#[test]
#[should_panic(expected = "a mixture")]
fn a_sequence_lock_without_fences_is_caught() {
    destinations(false);
}

#[test]
fn a_status_never_meets_the_limit_of_another_registration() {
    model(None, || {
        let arena = Arc::new(Arena::new(&layout()));
        let at = layout().stream(0).expect("stream 0");
        let status = |token| StreamStatus {
            token,
            flags: 0,
            code: StreamCode::Registered,
            limit: token * 100,
            bypass: 0,
            is_asked: false,
        };
        let mut shadow = StreamShadow::default();
        shadow.write(&*arena, at, &status(1));
        let reader = {
            let arena = Arc::clone(&arena);
            thread::spawn(move || read_stream(&*arena, &layout(), 0).expect("stream 0"))
        };
        shadow.write(&*arena, at, &status(2));
        let read = reader.join().expect("the reader ends");
        if read.code == StreamCode::Registered {
            assert_eq!(read, status(read.token));
        }
    });
}

/// A completion that tells its own number.
fn completion(sequence: u32) -> Completion {
    Completion {
        kinds: kind::SCHEDULED | kind::SOFTWARE,
        handed_at: u64::from(sequence),
        headers_octets: 0,
        ..Completion::default()
    }
}

/// Claims slot 0 as a program does, and posts as the daemon does what became of its frame.
fn brought_and_told(arena: &Arena, sequence: u32) -> bool {
    let Some(slot) = algorithm::claim(arena, &layout()) else { return false };
    let at = layout().slot(slot).expect("a claimed slot exists");
    arena.store64(at + 16, u64::from(sequence), Relaxed);
    completion::post(arena, &layout(), Place { slot, sequence }, &completion(sequence));
    true
}

/// Takes `kinds` of slot 0 if it holds a completion; what it took belongs together.
fn take_entries(arena: &Arena, kinds: u8) -> u8 {
    let Some((place, told, header)) = completion::read(arena, &layout(), 0) else { return 0 };
    let taken = completion::take(arena, &layout(), place, kinds);
    if taken != 0 {
        assert_eq!(told.handed_at, u64::from(place.sequence), "another completion's outcome");
        assert_eq!(header.frame.tx_time, u64::from(place.sequence), "another frame's header");
    }
    taken
}

#[test]
fn an_entry_has_one_reader_and_is_whole() {
    model(Some(3), || {
        let arena = Arc::new(Arena::new(&layout()));
        assert!(brought_and_told(&arena, 1));
        let reader = {
            let arena = Arc::clone(&arena);
            thread::spawn(move || take_entries(&arena, kind::SOFTWARE))
        };
        let mut taken = take_entries(&arena, kind::ALL);
        let again = arena.load64(layout::FREE, Relaxed) & 1 != 0 && brought_and_told(&arena, 2);
        let others = reader.join().expect("the reader ends");
        let rest = if again { take_entries(&arena, kind::ALL) } else { 0 };
        for part in [others, rest] {
            taken = if again { taken.wrapping_add(part) } else { taken + part };
        }
        let expected = (kind::SCHEDULED | kind::SOFTWARE) * if again { 2 } else { 1 };
        assert_eq!(taken, expected, "each entry of each completion is taken once");
        assert_eq!(arena.load64(layout::FREE, Relaxed), 0b1111, "the slot is free again");
        assert_eq!(arena.load64(layout::DONE, Relaxed), 0);
    });
}

/// The program closes a stream's socket while the daemon wants to hold it. The cell is the socket.
fn closing(fences: bool) {
    model(None, move || {
        let arena = Arc::new(if fences { Arena::new(&layout()) } else { Arena::without_fences(&layout()) });
        // A model's threads take turns on one thread, and its cell reports who comes between.
        #[allow(clippy::arc_with_non_send_sync)]
        let socket = Arc::new(loom::cell::UnsafeCell::new(()));
        let daemon = {
            let (arena, socket) = (Arc::clone(&arena), Arc::clone(&socket));
            thread::spawn(move || {
                if completion::notify_begin(&*arena, 0, || true) {
                    socket.with_mut(|_| ());
                    completion::notify_end(&*arena);
                }
            })
        };
        completion::closing(&*arena, 0);
        while completion::is_notified(&*arena, 0) {
            thread::yield_now();
        }
        socket.with_mut(|_| ());
        daemon.join().expect("the daemon ends");
    });
}

#[test]
fn a_closed_socket_is_not_held() {
    closing(true);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn closing_without_fences_is_caught() {
    closing(false);
}

#[test]
fn the_arena_knows_every_word() {
    model(None, || {
        let arena = Arena::new(&layout());
        assert_eq!(arena.load32(layout::HEAD, Relaxed), 0);
        assert_eq!(arena.load64(layout::FREE, Relaxed), 0b1111);
    });
}
