// SPDX-License-Identifier: Apache-2.0
//! All worlds up to a size, not a sample: two classes, lists of two entries of a nanosecond or two, every order
//! of a few events; and every pair of small lists with every instant of change.

use crate::compare::Pair;
use crate::machines::Machines;
use crate::port::{ClassSetup, Port, Setup};
use crate::sequences::sequences;
use crate::world::{Event, FAST, List, Sent, advance, begin};
use ktsn_model::LatePolicy;
use ktsn_sched::Decision;

const STATES: [u8; 4] = [0x00, 0x01, 0x80, 0x81];

fn frame(class: u8, octets: u32, tx_time_in: Option<(i64, bool)>) -> Event {
    Event::Offer(Sent {
        class,
        attachment: 0,
        tx_time_in,
        age: 0,
        octets,
        sdu_octets: 0,
        late: LatePolicy::ByClock,
        overrun_limit: 3,
        horizon: i64::MAX,
    })
}

/// What may happen in a small world.
fn choices() -> [Event; 6] {
    [
        frame(0, 1, None),
        frame(0, 2, Some((1, true))),
        frame(7, 1, Some((2, false))),
        frame(7, 2, None),
        Event::Advance(1),
        Event::DecideAll,
    ]
}

/// A list of two entries from indices below 4 (states) and 2 (intervals).
fn small_list(picks: &[usize]) -> List {
    let entries = vec![(STATES[picks[0]], 1 + picks[1] as u64), (STATES[picks[2]], 1 + picks[3] as u64)];
    let cycle = entries.iter().map(|entry| entry.1).sum();
    List { enabled: true, initial: 0x81, base_in: 0, cycle, extension: 0, entries }
}

fn small_lists() -> Vec<List> {
    let mut lists = Vec::new();
    sequences(4, 4, |picks| {
        if picks[1] < 2 && picks[3] < 2 {
            lists.push(small_list(picks));
        }
    });
    lists
}

/// Lets `events` happen, then sleeps from wait to wait until nothing is queued.
fn live(pair: &mut Pair, events: &[&Event]) -> Result<(), String> {
    let (mut at, mut wake_in) = (begin(), 0);
    for (id, event) in events.iter().enumerate() {
        pair.meet(id, event, &mut at, &mut wake_in)?;
    }
    for _ in 0..20 {
        if pair.decide_all(at)? == Decision::Idle {
            return Ok(());
        }
        pair.meet(0, &Event::DecideAll, &mut at, &mut wake_in)?;
        pair.meet(0, &Event::Sleep, &mut at, &mut wake_in)?;
    }
    Err("never idle".into())
}

#[test]
fn every_order_of_four_events_in_every_small_list() {
    let (choices, mut worlds) = (choices(), 0);
    for list in small_lists() {
        let configure = Event::Configure(list);
        for hand_over in [0, 1, 3] {
            let classes = [ClassSetup::default(); 8];
            let setup = Setup { capacity: 4, link_speed: Some(FAST), hand_over, classes };
            worlds += sequences(choices.len(), 4, |picks| {
                let mut events = vec![&configure];
                events.extend(picks.iter().map(|&pick| &choices[pick]));
                if let Err(difference) = live(&mut Pair::new(&setup), &events) {
                    panic!("{difference}\n{setup:?}\n{events:?}");
                }
            });
        }
    }
    assert_eq!(worlds, 64 * 3 * 6_usize.pow(4));
}

/// Every pair of lists of a few nanoseconds, the second configured and changed to at every instant of the first
/// cycles, short, cut and extended: at each nanosecond engine, reference and polled machines agree.
#[test]
fn clause_8_6_9_every_change_between_small_lists() {
    let mut changes = 0;
    for first in [0x01u8, 0x80] {
        for (cycle, extension) in [(3, 0), (4, 0), (5, 0), (5, 2), (3, 4), (1, 6)] {
            let list = |base_in, extension, cycle, first: u8| List {
                enabled: true,
                initial: 0x7e,
                base_in,
                cycle,
                extension,
                entries: vec![(first, 2), (0x81 & !first, 1), (0x81, 1)],
            };
            let before = list(1, extension, cycle, first);
            for since in 0..12 {
                for ahead in -7..14 {
                    let after = list(ahead, 0, 4, 0x80);
                    assert_eq!(
                        change_between(&before, &after, since),
                        Ok(()),
                        "{before:?} {after:?} {since}"
                    );
                    changes += 1;
                }
            }
        }
    }
    assert_eq!(changes, 2 * 6 * 12 * 21);
}

fn change_between(before: &List, after: &List, since: u64) -> Result<(), String> {
    let setup =
        Setup { capacity: 1, link_speed: Some(FAST), hand_over: 0, classes: [ClassSetup::default(); 8] };
    let (mut pair, mut machines, mut at) = (Pair::new(&setup), Machines::new(), begin());
    for tick in 0..40 {
        for list in [(0, before), (since, after)].into_iter().filter(|(when, _)| *when == tick) {
            let admin = list.1.admin(at);
            Port::set_admin(&mut pair.engine, &admin, at);
            pair.reference.configure(&admin, at);
            machines.config_change(&admin, at.tai.as_nanos());
        }
        machines.tick(at.tai.as_nanos());
        pair.status(at)?;
        let status = Port::status(&mut pair.engine, at);
        let seen = (status.states.bits(), status.config_pending, status.config_change_error);
        let wanted = (machines.oper_gate_states, machines.config_pending, machines.config_change_error);
        if seen != wanted {
            return Err(format!("{at:?}: {seen:?}, the machines {wanted:?}"));
        }
        advance(&mut at, 1);
    }
    Ok(())
}
