// SPDX-License-Identifier: Apache-2.0
//! Rounds of a traced listener: one injection each.
//!
//! In: a scenario. Out: how many injections there were, and where. A call that does not end as it must fails the test with the
//! instruction that the signal came at.

use std::collections::BTreeMap;
use std::path::Path;

use super::tracer::{Go, Registers, Stop, TRAP, Traced};
use ktsn_tests::hook::{self, Libc};

use super::instructions;
use super::sender::{Follows, LAST, Sender};

/// The signal that is injected: SIGUSR1.
const SIGNAL: i32 = 10;
const EINTR: i64 = -4;
const MSG_DONTWAIT: u64 = 0x40;
/// System calls of x86-64.
const POLL: u64 = 7;
const RECVFROM: u64 = 45;
const PPOLL: u64 = 271;
/// The program's own stops (steps_traced.c).
const ROUND: u64 = 1;
const CALL: u64 = 2;
const ENDED: u64 = 3;
const TAKEN: u64 = 4;

/// Datagrams before a call: while arrivals are expected, and until they are.
const NUMBERS: u64 = 4;
const NUMBERS_UNTIL_EXPECTED: u64 = 14;
/// Rounds in which every instruction that is run is noted.
const NOTED: u32 = 60;
/// Rounds before them, in which the period is learnt.
const LEARNING: u32 = 8;
/// Rounds that may miss an instruction.
const TRIES: u32 = 3;
/// System calls after the signal until the call lets it in: a look at all handlers, the looks of a spin between two questions, and a few.
const CALLS_MAX: u32 = 120;
/// System calls after the handler until a call that goes on is freed: more than a look at all handlers.
const CALLS_ON: u32 = 200;

/// One call of one C library.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario {
    pub(crate) libc: Libc,
    pub(crate) how: &'static str,
    /// The handler has SA_RESTART.
    pub(crate) restarts: bool,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) injections: usize,
    /// While signals were blocked.
    pub(crate) blocked: usize,
    /// Of these: the thread looked again before it let the signal in.
    pub(crate) spinning: usize,
    /// Instructions that were seen.
    pub(crate) seen: usize,
    /// Instructions that were seen, and at which no round could stop.
    pub(crate) unreached: usize,
}

pub(crate) struct Injector {
    scenario: Scenario,
    traced: Traced,
    sender: Sender,
    /// Where the library lies.
    base: u64,
    /// The last round has cost no expectation.
    is_expecting: bool,
    handled: u64,
    counts: Counts,
}

impl Injector {
    pub(crate) fn new(scenario: Scenario, run_dir: &Path) -> Self {
        // Before the caller shares its CPU.
        let sender = Sender::start();
        let restart = u32::from(scenario.restarts);
        let script = format!("arrivals-traced {} restart={restart}", scenario.how);
        let mut command = hook::scenario(scenario.libc, run_dir, &script, 9);
        command.env("KTSN_RECEIVE", "expect").env("STEPS_LIMIT", "600");
        let traced = Traced::start(command);
        let counts = Counts::default();
        Self { scenario, traced, sender, base: 0, is_expecting: false, handled: 0, counts }
    }

    pub(crate) fn run(mut self) -> Counts {
        let known = instructions::of(hook::library());
        let seen = self.note_all(&known);
        self.counts.seen = seen.len();
        for (place, follows) in seen {
            let is_reached = (0..TRIES).any(|_| self.round(place, follows));
            self.counts.unreached += usize::from(!is_reached);
        }
        self.counts
    }

    /// Rounds without a signal, and which instructions their calls run through; half of the last calls get their datagram in time.
    fn note_all(&mut self, known: &[u64]) -> BTreeMap<u64, Follows> {
        let (first, last) = (known.iter().min().expect("one"), known.iter().max().expect("one"));
        let (mut seen, mut code) = (BTreeMap::new(), Vec::new());
        for round in 0..NOTED {
            let follows = if round % 2 == 0 { Follows::Nothing } else { Follows::Datagram };
            let port = self.next_round(round == 0);
            if code.is_empty() {
                code =
                    self.traced.octets(self.base + first, usize::try_from(last + 1 - first).expect("a size"));
            }
            let place_in = |place: u64| usize::try_from(place - first).expect("a size");
            // The first rounds learn the period.
            let is_learning = round < LEARNING;
            let mut trapped = code.clone();
            let traps: BTreeMap<u64, u8> = known
                .iter()
                .filter(|place| !is_learning && !seen.contains_key(*place))
                .map(|place| (self.base + place, std::mem::replace(&mut trapped[place_in(*place)], TRAP)))
                .collect();
            self.sender.begin(port, NUMBERS_UNTIL_EXPECTED, follows);
            self.own_stop(CALL);
            self.traced.put(self.base + first, &trapped);
            let mut stop = self.traced.go(Go::On, 0);
            while let Some((at, octet)) = self.at_trap(stop, &traps) {
                seen.insert(at - self.base, follows);
                self.traced.put(at, &[octet]);
                self.traced.move_to(at);
                stop = self.traced.go(Go::On, 0);
            }
            self.at_own_stop(stop, ENDED);
            self.traced.put(self.base + first, &code);
            self.end(0);
        }
        seen
    }

    /// Which of the traps it is at.
    fn at_trap(&self, stop: Stop, traps: &BTreeMap<u64, u8>) -> Option<(u64, u8)> {
        let at = self.traced.registers().rip.wrapping_sub(1);
        traps.get(&at).filter(|_| stop == Stop::Trap).map(|octet| (at, *octet))
    }

    /// The program's own next stop, which must be `place`.
    fn own_stop(&self, place: u64) -> Registers {
        self.at_own_stop(self.traced.go(Go::On, 0), place)
    }

    fn at_own_stop(&self, stop: Stop, place: u64) -> Registers {
        let registers = self.traced.registers();
        assert_eq!((stop, registers.rdi), (Stop::Trap, place), "{:?}", self.scenario);
        registers
    }

    /// To the begin of a round; the listener's port.
    fn next_round(&mut self, is_first: bool) -> u16 {
        let stop = if is_first { self.traced.stopped() } else { self.traced.go(Go::On, 0) };
        let port = self.at_own_stop(stop, ROUND).rsi;
        self.base = self.traced.base("libktsn.so");
        u16::try_from(port).expect("a port")
    }

    /// From the end of the round's call, in which the handler ran so often, to the end of the round; how many datagrams it left.
    fn end(&mut self, handlers: u64) -> u64 {
        self.sender.finish();
        let taken = self.own_stop(TAKEN);
        self.handled += handlers;
        assert_eq!(taken.rdx, self.handled, "{:?}: handlers", self.scenario);
        taken.rsi
    }

    /// One round with a signal at an instruction; whether the call came there.
    fn round(&mut self, place: u64, follows: Follows) -> bool {
        let port = self.next_round(false);
        let numbers = if self.is_expecting { NUMBERS } else { NUMBERS_UNTIL_EXPECTED };
        self.sender.begin(port, numbers, follows);
        self.own_stop(CALL);
        let at = self.base + place;
        let octet = self.traced.octets(at, 1)[0];
        self.traced.put(at, &[TRAP]);
        let (stop, has_waited) = self.go_on();
        let is_there = self.at_trap(stop, &BTreeMap::from([(at, octet)])).is_some();
        self.traced.put(at, &[octet]);
        if is_there {
            self.traced.move_to(at);
        }
        // The datagram that frees a call may be on its way.
        if !is_there || (follows == Follows::Nothing && !self.sender.cancel()) {
            let stop = if is_there { self.traced.go(Go::On, 0) } else { stop };
            self.at_own_stop(stop, ENDED);
            self.end(0);
            self.is_expecting = false;
            return false;
        }
        let is_safe = self.traced.blocks(SIGNAL) || !has_waited || follows == Follows::Datagram;
        assert!(
            is_safe,
            "{:?}, {place:#x}: signals are let in after a wait, and none would end the call",
            self.scenario
        );
        self.inject(place, follows);
        true
    }

    /// Goes on to the next stop that is no system call; whether the call has waited on the way.
    fn go_on(&self) -> (Stop, bool) {
        let (mut is_entry, mut has_waited) = (false, false);
        loop {
            let stop = self.traced.go(Go::ToSystemCall, 0);
            if stop != Stop::SystemCall {
                return (stop, has_waited);
            }
            is_entry = !is_entry;
            // poll looks once before it blocks signals.
            let is_wait = |wait| wait != Wait::Look || self.traced.blocks(SIGNAL);
            has_waited |= is_entry && self.waiting().is_some_and(is_wait);
        }
    }

    fn inject(&mut self, place: u64, follows: Follows) {
        let context = (self.scenario, format!("{place:#x}"), follows);
        let is_blocked = self.traced.blocks(SIGNAL);
        self.counts.injections += 1;
        self.counts.blocked += usize::from(is_blocked);
        self.traced.send(SIGNAL);
        let (mut is_handled, mut is_freed, mut waits, mut calls) =
            (false, follows == Follows::Datagram, 0, 0);
        let (mut deliver, mut is_entry) = (0, false);
        let registers = loop {
            match self.traced.go(Go::ToSystemCall, std::mem::take(&mut deliver)) {
                Stop::Signal(SIGNAL) => (is_handled, deliver) = (true, SIGNAL),
                Stop::SystemCall => {
                    is_entry = !is_entry;
                    if !is_entry {
                        continue;
                    }
                    let waiting = self.waiting();
                    if is_handled {
                        // A call that goes on is freed when it waits without an end, or for long.
                        calls += 1;
                        let is_long = waiting == Some(Wait::Endless) || calls > CALLS_ON;
                        if is_long && !is_freed {
                            self.sender.free();
                            is_freed = true;
                        }
                    } else if waiting.is_some() {
                        waits += 1;
                        self.counts.spinning += usize::from(waiting == Some(Wait::Look));
                        // A wait that finds a datagram does not end for the signal.
                        let waits_max = if follows == Follows::Nothing { 1 } else { CALLS_MAX };
                        assert!(waits <= waits_max, "{context:?}: it waits again, and a signal is pending");
                    } else {
                        calls += 1;
                        assert!(calls <= CALLS_MAX, "{context:?}: it does not let the signal in");
                    }
                }
                stop => break self.at_own_stop(stop, ENDED),
            }
        };
        assert!(is_handled, "{context:?}: it returns before the handler");
        if self.counts.injections.is_multiple_of(200) {
            println!("{:?}: {:?}", self.scenario, self.counts);
        }
        let (answer, value) = (registers.rsi.cast_signed(), registers.rdx);
        let left = self.end(1);
        let is_received = (answer, value, left) == (8, LAST, 0);
        let ends = !self.scenario.restarts || self.scenario.how != "recv";
        let is_right = match follows {
            // Before signals are blocked, the handler is none of the call's.
            Follows::Nothing if is_blocked && ends => answer == EINTR && left == 0 && !is_freed,
            Follows::Datagram if ends => is_received || (answer == EINTR && left == 1),
            _ => is_received,
        };
        assert!(
            is_right,
            "{context:?} blocked {is_blocked}, freed {is_freed}: {answer}, number {value}, {left} left"
        );
        self.is_expecting = true;
    }

    /// Whether the system call that begins waits and lets the signal in.
    fn waiting(&self) -> Option<Wait> {
        let registers = self.traced.registers();
        match registers.orig_rax {
            PPOLL => {
                let is_let_in = match registers.r10 {
                    0 => !self.traced.blocks(SIGNAL),
                    mask => self.traced.word(mask).is_some_and(|mask| mask >> (SIGNAL - 1) & 1 == 0),
                };
                let span = registers.rdx;
                let is_zero = |at| self.traced.word(at) == Some(0);
                is_let_in.then(|| match span {
                    0 => Wait::Endless,
                    at if is_zero(at) && is_zero(at + 8) => Wait::Look,
                    _ => Wait::Limited,
                })
            }
            POLL => {
                let wait = if registers.rdx == 0 { Wait::Look } else { Wait::Endless };
                (!self.traced.blocks(SIGNAL)).then_some(wait)
            }
            RECVFROM if registers.r10 & MSG_DONTWAIT == 0 => {
                (!self.traced.blocks(SIGNAL)).then_some(Wait::Endless)
            }
            _ => None,
        }
    }
}

/// How a system call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// It takes no time.
    Look,
    Limited,
    Endless,
}
