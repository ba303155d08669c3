// SPDX-License-Identifier: Apache-2.0
//! Entries of the receive area: two threads claim, count and free while the daemon reads.

use std::sync::Arc;

use ktsn_ring::receive::{ListenerName, ReceiveCount, WHOLE_CPU, add, claim, free, grant, read, set_grant};
use ktsn_time::Monotonic;
use loom::thread;

use crate::arena::{AREA, Arena, model};
use crate::layout;

/// So few that every interleaving can be tried.
const ENTRIES: usize = 1;

fn arena() -> Arc<Arena> {
    Arc::new(Arena::with_receive_area(&layout(), ENTRIES))
}

/// Of two threads one gets the only free entry, and it is the entry's name that stays.
#[test]
fn an_entry_has_one_owner() {
    model(None, || {
        let arena = arena();
        let threads = [1u16, 2].map(|port| {
            let arena = Arc::clone(&arena);
            thread::spawn(move || claim(&*arena, AREA, ENTRIES, ListenerName::Udp4(port), u64::from(port)))
        });
        let owners = threads.map(|thread| thread.join().expect("it ends").is_some());
        assert!(owners == [true, false] || owners == [false, true], "{owners:?}");
        let owner = if owners[0] { 1 } else { 2 };
        let reading = read(&*arena, AREA, ENTRIES);
        let [listener] = reading.listeners.as_slice() else { panic!("one listener: {reading:?}") };
        assert_eq!((listener.name, listener.cookie), (ListenerName::Udp4(owner), u64::from(owner)));
    });
}

/// An entry changes hands while the daemon reads: no reading pairs a name with the other socket's cookie, or shows a count twice.
#[test]
fn an_entry_that_changes_hands_is_never_mixed() {
    model(Some(2), || {
        let arena = arena();
        let first = claim(&*arena, AREA, ENTRIES, ListenerName::Udp4(1), 1).expect("the free entry");
        add(&*arena, AREA, first, ReceiveCount::Hit, 1);
        let program = {
            let arena = Arc::clone(&arena);
            thread::spawn(move || {
                free(&*arena, AREA, first);
                let second =
                    claim(&*arena, AREA, ENTRIES, ListenerName::Udp4(2), 2).expect("the freed entry");
                add(&*arena, AREA, second, ReceiveCount::Hit, 1);
            })
        };
        let reading = read(&*arena, AREA, ENTRIES);
        for listener in &reading.listeners {
            let ListenerName::Udp4(port) = listener.name else { panic!("{listener:?}") };
            assert!([0, u64::from(port)].contains(&listener.cookie), "another socket's cookie: {listener:?}");
        }
        assert!(reading.total.get(ReceiveCount::Hit) <= 2, "a count is shown twice");
        program.join().expect("it ends");
        let last = read(&*arena, AREA, ENTRIES);
        assert_eq!(last.total.get(ReceiveCount::Hit), 2);
        assert_eq!(last.listeners[0].counts.get(ReceiveCount::Hit), 1);
    });
}

/// One thread's count, moved to those that are over while the daemon reads, is shown once or not at all.
#[test]
fn a_count_that_moves_is_not_shown_twice() {
    model(Some(3), || {
        let arena = arena();
        let listener = claim(&*arena, AREA, ENTRIES, ListenerName::Udp6(9), 3).expect("the free entry");
        add(&*arena, AREA, listener, ReceiveCount::Missed, 1);
        let thread = {
            let arena = Arc::clone(&arena);
            thread::spawn(move || free(&*arena, AREA, listener))
        };
        assert!(read(&*arena, AREA, ENTRIES).total.get(ReceiveCount::Missed) <= 1);
        thread.join().expect("it ends");
        assert_eq!(read(&*arena, AREA, ENTRIES).total.get(ReceiveCount::Missed), 1);
    });
}

/// A share is used only until the instant of its own grant or of a later one.
#[test]
fn a_share_is_never_older_than_its_instant() {
    model(None, || {
        let arena = arena();
        set_grant(&*arena, AREA, WHOLE_CPU, Monotonic::from_nanos(10));
        let daemon = {
            let arena = Arc::clone(&arena);
            thread::spawn(move || set_grant(&*arena, AREA, 100, Monotonic::from_nanos(20)))
        };
        // At 10 the first grant is over: a reader that still sees a share sees the second one.
        assert!([0, 100].contains(&grant(&*arena, AREA, Monotonic::from_nanos(10))));
        daemon.join().expect("it ends");
    });
}
