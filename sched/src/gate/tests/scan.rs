// SPDX-License-Identifier: Apache-2.0
//! Every answer against one that was found by going through the nanoseconds one at a time.

use super::{ENDLESS, Gates, port, program};
use alloc::vec::Vec;
use ktsn_model::{AdminPort, GateStates};
use proptest::prelude::*;

/// A program and when it takes over.
#[derive(Clone, Debug)]
struct Change {
    port: AdminPort,
    configured_at: u64,
    at: u64,
}

fn is_executed(port: &AdminPort) -> bool {
    port.gate_enabled && !port.control_list.is_empty()
}

fn change(port: &AdminPort, now: u64) -> Change {
    let mut at = port.base_time.as_nanos();
    while at < now {
        at += port.cycle_time.get() as u64;
    }
    Change { port: port.clone(), configured_at: now, at: if is_executed(port) { at } else { now } }
}

/// The machines, from the base time of oper on.
struct Naive {
    oper: Option<Change>,
    pending: Option<Change>,
}

impl Naive {
    fn bits(&self, at: u64) -> u8 {
        match (&self.oper, &self.pending) {
            (_, Some(pending)) if at >= pending.at => Self::run(pending, None, at),
            (None, _) => 0xff,
            (Some(oper), pending) => Self::run(oper, pending.as_ref(), at),
        }
    }

    fn run(oper: &Change, pending: Option<&Change>, at: u64) -> u8 {
        let port = &oper.port;
        // Cycles count from the base time, also where the clock has stepped back behind the change.
        let first = port.base_time.as_nanos().min(oper.at);
        if !is_executed(port) || at < first {
            return port.gate_states.bits();
        }
        let (cycle, extension) = (port.cycle_time.get() as u64, port.cycle_time_extension.get() as u64);
        let mut start = first;
        loop {
            let is_last = pending.is_some_and(|pending| {
                start >= pending.configured_at && pending.at <= start + cycle + extension
            });
            if is_last || at < start + cycle {
                break;
            }
            start += cycle;
        }
        let mut end = start;
        for entry in &port.control_list {
            end += entry.interval.get() as u64;
            if at < end {
                return entry.states.bits();
            }
        }
        port.control_list.last().unwrap().states.bits()
    }

    fn is_open(&self, class: usize, at: u64) -> bool {
        self.bits(at) >> class & 1 == 1
    }

    /// Open from `at` until when, within one window; at most `limit`.
    fn rest(&self, class: usize, at: u64, limit: u64) -> u64 {
        let change = self.pending.as_ref().map_or(u64::MAX, |pending| pending.at);
        let end = if at < change { change.min(at + limit) } else { at + limit };
        (at..end).take_while(|&there| self.is_open(class, there)).count() as u64
    }
}

fn ports() -> impl Strategy<Value = AdminPort> {
    let entries = prop::collection::vec((0u8..4, 1i64..7), 0..7);
    let flags = (prop::bool::weighted(0.9), 0u8..4);
    (0u64..60, 1i64..24, 0i64..16, entries, flags).prop_map(
        |(base, cycle, extension, entries, (enabled, states))| {
            let mut port = port(base, cycle, extension, &entries);
            (port.gate_enabled, port.gate_states) = (enabled, GateStates::from_bits(states));
            port
        },
    )
}

/// No window that ends is longer, and no search that succeeds goes further: programs have spans below this.
const FAR: u64 = 250;

fn open_time_is_that_of_a_scan(
    gates: &Gates,
    naive: &Naive,
    class: usize,
    (at, span, need): (u64, u64, u64),
) -> Result<(), TestCaseError> {
    let open = (at..at + span).filter(|&there| naive.is_open(class, there)).count() as u64;
    prop_assert_eq!(gates.open_time(class, at, span), open, "class {} at {} span {}", class, at, span);
    let mut sum = 0;
    let expected = (at..at + 1_000).find(|&there| {
        sum += u64::from(naive.is_open(class, there));
        sum == need
    });
    let found = gates.open_after(class, at, need);
    prop_assert_eq!(found, expected.map(|there| there + 1 - at), "class {} at {}", class, at);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn answers_are_those_of_a_scan(
        first in prop::option::weighted(0.9, (ports(), 0u64..40)),
        second in prop::option::weighted(0.7, (ports(), 0u64..60)),
        again in prop::option::weighted(0.2, ports()),
        needs in prop::collection::vec(1u64..40, 3),
        froms in prop::collection::vec(0u64..120, 3),
    ) {
        let mut gates = Gates::default();
        let mut naive = Naive { oper: None, pending: None };
        let mut now = 0;
        let mut configured = Vec::new();
        for (port, later) in [first, second].into_iter().flatten() {
            now += later;
            configured.push((port, now));
        }
        configured.extend(again.map(|port| (port, now)));
        for (port, now) in configured {
            let come = naive.pending.take_if(|pending| pending.at <= now);
            naive.oper = come.or(naive.oper);
            naive.pending = Some(change(&port, now));
            gates.set_admin(program(&port), now);
            let come = naive.pending.take_if(|pending| pending.at <= now);
            naive.oper = come.or(naive.oper);
        }
        // Nothing below advances: a clock that steps back is asked about too.
        for at in 0..160 {
            if naive.pending.as_ref().is_some_and(|pending| pending.at <= at) {
                break;
            }
            let position = gates.position(at);
            let expected = naive.bits(at);
            prop_assert_eq!(gates.states(&position).bits(), expected, "at {}", at);
            for class in 0..2 {
                let rest = naive.rest(class, at, FAR);
                let window = gates.window(&position, class);
                prop_assert_eq!(window.is_some(), rest > 0, "class {} at {}", class, at);
                if let Some(window) = window {
                    let there = if window.rest == ENDLESS { FAR } else { window.rest };
                    prop_assert_eq!(there, rest, "class {} at {}", class, at);
                    let floor = naive.oper.as_ref().map_or(0, |oper| if at < oper.at { 0 } else { oper.at });
                    let begin = (floor..at).rev().take_while(|&before| naive.is_open(class, before)).count() as u64;
                    prop_assert_eq!(window.opens_at, at - begin, "class {} at {}", class, at);
                }
            }
        }
        let end = naive.pending.as_ref().map_or(u64::MAX, |pending| pending.at);
        for at in [0, 1, 7, 30, 53, 90, end.saturating_sub(1)].into_iter().filter(|&at| at < end && at < 1_000) {
            for class in 0..2 {
                for (&need, &from) in needs.iter().zip(&froms) {
                    let position = gates.position(at);
                    let expected = (from..from + 2 * FAR).find(|ahead| naive.rest(class, at + ahead, need) >= need);
                    let found = gates.next_fit(&position, class, from, need);
                    let after = found.map(|fit| fit.after);
                    prop_assert_eq!(after, expected, "class {} at {} from {} need {}", class, at, from, need);
                    if let Some(fit) = found {
                        let rest = naive.rest(class, at + fit.after, FAR);
                        prop_assert!(need <= fit.rest && fit.rest.min(FAR) <= rest);
                    }
                    open_time_is_that_of_a_scan(&gates, &naive, class, (at, from, need))?;
                }
            }
        }
        // What will be open after the change is asked for beforehand.
        for at in [end, end.saturating_add(1), end.saturating_add(17), end.saturating_add(60)] {
            for (&need, &from) in needs.iter().zip(&froms).filter(|_| at < 1_000) {
                open_time_is_that_of_a_scan(&gates, &naive, 1, (at, from, need))?;
            }
        }
    }
}
