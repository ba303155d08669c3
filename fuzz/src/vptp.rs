// SPDX-License-Identifier: Apache-2.0
//! Target `vptp`: what a host's page says to a guest, and what a guest writes into the exchange area.
//!
//! In: steps of 17 octets: a kind (one octet) and two numbers. Steps change words of the page, let the follower read it, make exchanges, let
//! the guest's counter pass, and let the host serve a window over words that the guest changes at each look. Out: nothing. Broken promise:
//! a panic; a time that runs backwards without a leap second; a bound that is negative; a host that writes words which are not its own, or
//! that does not stop.

use ktsn_clock::exchange::{ANSWERS_MAX, Exchange, Server};
use ktsn_clock::follower::{Backward, Event, Follower, Settings};
use ktsn_clock::page::{CounterKind, Leap, Page, Status, WORDS};
use ktsn_clock::seqlock::Memory;
use ktsn_clock::{Guest, Host, Utc};
use ktsn_time::Nanos;
use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering;

const KIND: CounterKind = CounterKind::X86Tsc;
const STEPS_MAX: usize = 128;

/// An exchange area: each look finds the next of these values.
struct Hostile<'a> {
    values: &'a [u8],
    looks: Cell<usize>,
    written: RefCell<Vec<usize>>,
}

impl Memory for Hostile<'_> {
    fn load(&self, _: usize) -> u64 {
        let look = self.looks.replace(self.looks.get() + 1);
        let Some(&octet) = self.values.get(look % self.values.len().max(1)) else { return 0 };
        if octet == 255 { u64::MAX } else { u64::from(octet) << (octet % 57) }
    }
    fn store(&self, word: usize, _: u64) {
        self.written.borrow_mut().push(word);
    }
    fn fence(&self, _: Ordering) {}
}

fn good(counter: u64, nanos: u64) -> Page {
    Page {
        kind: KIND,
        marker: 1,
        status: Status::Synchronized,
        tai_offset: Some(37),
        has_older_sign: false,
        leap: Leap::None,
        counter: Host(counter),
        time: Utc(1_700_000_000_000_000_000 + nanos % 1_000_000_000_000_000_000),
        period: 0.25 + (nanos % 7) as f64,
        period_error: 1e-6,
        estimated_error: Nanos::new(0),
        max_error: Nanos::new(0),
        interval: Nanos::from_millis(50),
        reading_error: Nanos::new(10),
        window: 0,
        windows: 0,
        cpu: Nanos::new(0),
    }
}

/// How far an input came.
#[derive(Debug, Default, PartialEq)]
struct Reached {
    readings: usize,
    refusals: usize,
    answers: u32,
}

/// See the module.
pub fn vptp(data: &[u8]) {
    run(data);
}

fn run(data: &[u8]) -> Reached {
    let mut reached = Reached::default();
    let Some((&first, steps)) = data.split_first() else { return reached };
    let backward = if first & 1 == 0 { Backward::Hold } else { Backward::Slew(0.01) };
    let mut follower = Follower::new(Settings { backward, ..Settings::default() });
    let page = [const { Cell::new(0) }; WORDS];
    let mut guest = 1_u64 << 40;
    let (mut events, mut shown) = (Vec::new(), Utc(0));
    for step in steps.chunks_exact(17).take(STEPS_MAX) {
        let number =
            |at: usize| step[at..at + 8].iter().rev().fold(0, |value, &octet| value << 8 | u64::from(octet));
        let (a, b) = (number(1), number(9));
        match step[0] % 6 {
            0 => good(a, b).write(&page, 65_536),
            1 => page.store(a as usize % WORDS, b),
            2 => {
                events.clear();
                follower.read(Page::read(&page, KIND), Guest(guest), &mut events);
                let is_leap = events.iter().any(|event| matches!(event, Event::LeapSecond(_)));
                if is_leap {
                    shown = Utc(0);
                }
                for event in &events {
                    assert!(!event.to_string().is_empty());
                    reached.refusals += usize::from(matches!(event, Event::Refused(_)));
                }
            }
            3 => {
                let (sent, returned) = (Guest(guest), Guest(guest.wrapping_add(b >> 52)));
                let exchange =
                    Exchange { sent, received: Host(a), answered: Host(a.wrapping_add(b & 0xff)), returned };
                guest = returned.0;
                let _ = follower.exchanged(exchange);
            }
            4 => guest = guest.saturating_add(a >> (b % 64)),
            _ => {
                let area =
                    Hostile { values: &step[1..], looks: Cell::new(0), written: RefCell::new(Vec::new()) };
                let (mut server, mut rounds) = (Server::new(&area), 0);
                let _ = server.wanted(&area);
                area.written.borrow_mut().clear();
                let answers = server.serve(&area, a, &mut || b, &mut || {
                    rounds += 1;
                    rounds <= 4
                });
                reached.answers += answers;
                assert!(
                    answers <= ANSWERS_MAX + 64 && area.looks.get() <= 400,
                    "{answers} {}",
                    area.looks.get()
                );
                assert!(
                    area.written.borrow().iter().all(|word| (16..19).contains(word)),
                    "the host wrote the guest's words"
                );
            }
        }
        if let Some(reading) = follower.time(Guest(guest)) {
            assert!(reading.time >= shown, "the time ran backwards");
            assert!(!reading.error.is_negative(), "{}", reading.error);
            shown = reading.time;
            reached.readings += 1;
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The corpus reaches what its names say: a follower that follows, one that meets lies, and a host that answers.
    #[test]
    fn corpus_of_vptp_gets_far() {
        let follows = run(include_bytes!("../corpus/vptp/follows.bin"));
        assert!(follows.readings >= 5 && follows.refusals == 0, "{follows:?}");
        let lies = run(include_bytes!("../corpus/vptp/lies.bin"));
        assert!(lies.refusals >= 8, "{lies:?}");
        let serves = run(include_bytes!("../corpus/vptp/serves.bin"));
        assert!(serves.answers >= 20, "{serves:?}");
    }
}
