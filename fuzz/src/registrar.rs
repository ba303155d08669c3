// SPDX-License-Identifier: Apache-2.0
//! Target `registrar`: what programs say and pass, in any order with time, helpers, workers and a drain.
//!
//! Four octets choose the limits, each of the following ones is a step with its arguments. After each step the daemon's budgets
//! hold. At the end another namespace is served though helpers are held up; then every request has its answer or its
//! connection is closed; then, as all programs go, nothing is left.

mod audit;
mod client;
mod steps;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ktsn_ring::control::{self, Hello, HelloStatus, Message};
use ktsn_ring::layout::ABI;
use ktsnd::fuzzing::registrar::{ATTACHMENTS, Counted, Driver, Limits, Namespace, Passed, Peer};

use client::Client;

/// Steps of one input at most.
const STEPS_MAX: usize = 300;
/// Connections that programs keep at a time: more than may be without Hello, and twice as many descriptors.
const PEERS_MAX: usize = 72;
/// Turns until all that was asked for is answered.
const SETTLES_WITHIN: usize = 4_000;

/// One program's end, and what it said.
struct Program {
    peer: Peer,
    hellos: usize,
    statuses: Vec<HelloStatus>,
    /// Tokens of its registrations, in order.
    registered: Vec<u32>,
    /// Tokens that the worker has answered, in order.
    answered: Vec<u32>,
    is_closed: bool,
}

/// The driver, and what must hold of it.
struct Model {
    driver: Driver,
    limits: Limits,
    programs: Vec<Program>,
    /// The commands about each client that the worker got.
    clients: BTreeMap<u64, Client>,
    /// Counted at the last look.
    counted: BTreeSet<u64>,
    /// Clients that there were when the daemon began to drain.
    admitted: Option<BTreeSet<u64>>,
    /// A program of the other namespace has connected.
    is_foreign_used: bool,
    /// A helper has answered since the last turn.
    is_answered: bool,
    next_token: u32,
}

/// Judges `data` as limits and steps.
///
/// # Panics
/// When an invariant does not hold.
pub fn registrar(data: &[u8]) {
    run(data);
}

/// What there is after the steps.
fn walk(data: &[u8]) -> Option<Model> {
    let (limits, steps) = data.split_first_chunk::<4>()?;
    let limits = limits_of(*limits);
    let mut model = Model {
        driver: Driver::new(limits).expect("descriptors"),
        limits,
        programs: Vec::new(),
        clients: BTreeMap::new(),
        counted: BTreeSet::new(),
        admitted: None,
        is_foreign_used: false,
        is_answered: false,
        next_token: 1,
    };
    let mut octets = steps.iter().copied();
    for _ in 0..STEPS_MAX {
        if model.step(&mut octets).is_none() {
            break;
        }
        model.audit();
    }
    Some(model)
}

/// How many clients and streams there were, and how many connections were left at the end.
fn run(data: &[u8]) -> (usize, usize, usize) {
    let Some(mut model) = walk(data) else { return (0, 0, 0) };
    model.another_namespace_is_served();
    model.settle();
    model.all_are_answered();
    let left = model.programs.iter().filter(|program| !program.is_closed).count();
    let streams = model.programs.iter().map(|program| program.answered.len()).sum();
    let clients = model.clients.len();
    model.nothing_is_left();
    (clients, streams, left)
}

fn limits_of([clients_max, memory_max, slots, tick]: [u8; 4]) -> Limits {
    let pick = |from: &[u64], by: u8| from.get(usize::from(by) % from.len()).copied().unwrap_or(0);
    Limits {
        clients_max: pick(&[1, 2, 5, 40], clients_max) as u32,
        memory_max: pick(&[64 << 20, 4 << 20, 1 << 20], memory_max),
        memory_max_of_all: pick(&[384 << 20, 100 << 20], memory_max >> 4),
        slots: pick(&[4, 64, 256], slots) as u32,
        tick: pick(&[0, 1_000, 100_000], tick),
    }
}

impl Model {
    /// One turn of the registrar, and what the worker and the programs make of it. Says whether anything happened.
    fn turn(&mut self) -> bool {
        let has_events = self.driver.turn();
        let is_told = self.take_commands();
        let is_busy = has_events || is_told || std::mem::take(&mut self.is_answered);
        if is_busy {
            self.listen();
        }
        is_busy
    }

    /// All programs read what the daemon says to them.
    fn listen(&mut self) {
        for program in &mut self.programs {
            program.listen(&mut self.driver);
        }
    }

    /// The helper of the job at this place does it.
    fn finish_job(&mut self, at: usize, spent: Duration) {
        self.driver.finish_job(at, spent);
        self.is_answered = true;
    }

    fn pass(&mut self, span: Duration) {
        self.driver.pass_time(span);
    }

    /// A program of a namespace that holds up nothing is served within a second, though helpers are held up for ever.
    fn another_namespace_is_served(&mut self) {
        if self.is_foreign_used || self.admitted.is_some() {
            return;
        }
        self.driver.set_helpers(true, true);
        self.driver.set_served(2, true);
        let abi = ABI as u16;
        let hello = Hello { abi_min: abi, abi_max: abi, interface_index: 0 }.encode();
        let at = self.connect(1_000, Namespace::Foreign);
        assert!(self.say(at, hello.as_slice(), &[Passed::TcpForeign]));
        // What has begun by now is held up.
        let held_up = self.driver.jobs();
        let number = self.programs.get(at).map_or(0, |program| program.peer.number);
        let counted = self.driver.counted();
        let mut has_others = counted.iter().any(|client| client.attachment == 2);
        for _ in 0..100 {
            self.turn();
            while self.driver.jobs() > held_up {
                self.finish_job(held_up, Duration::ZERO);
            }
            // One that an own program asked for with a foreign socket.
            let is_other = |client: &Counted| client.attachment == 2 && client.number != number;
            has_others |= self.driver.counted().iter().any(is_other);
            if self.programs.get(at).is_some_and(|program| !program.statuses.is_empty()) {
                break;
            }
            self.pass(Duration::from_millis(10));
        }
        match self.programs.get(at).map(|program| program.statuses.as_slice()) {
            Some([HelloStatus::Attached]) => {}
            Some([HelloStatus::ClientsMax]) => assert!(has_others, "an attachment without clients has room"),
            other => panic!("a namespace that holds up nothing waits: {other:?}"),
        }
        // A turn reads one message of a connection, and its socket holds some hundreds.
        assert!((0..1_000).any(|_| !self.turn()), "a helper that is waited for keeps the registrar awake");
    }

    /// Helpers and worker do all that they are asked, until nothing is left to do.
    fn settle(&mut self) {
        self.driver.set_helpers(false, true);
        let mut calm = 0;
        for _ in 0..SETTLES_WITHIN {
            while self.driver.jobs() > 0 {
                self.finish_job(0, Duration::ZERO);
            }
            let is_busy = self.turn() | self.give_back_all();
            self.audit();
            let is_calm = !is_busy && self.driver.jobs() == 0 && self.driver.is_calm();
            calm = if is_calm { calm + 1 } else { 0 };
            if calm > 4 {
                return self.listen();
            }
            // Whoever says nothing is heard no more after a second of calm.
            self.pass(Duration::from_millis(if is_busy { 10 } else { 300 }));
        }
        panic!("the registrar turns without end");
    }

    fn all_are_answered(&self) {
        for program in self.programs.iter().filter(|program| !program.is_closed) {
            let number = program.peer.number;
            assert_eq!(program.statuses.len(), program.hellos, "{number}: an answer to each Hello");
            assert_eq!(program.registered, program.answered, "{number}: an answer to each registration");
            let is_attached = program.statuses == [HelloStatus::Attached];
            assert!(is_attached, "{number}: a connection that stays has a client");
            assert!(!self.driver.is_given_back(&program.peer), "{number}: its client is there");
        }
    }

    /// All programs go.
    fn nothing_is_left(mut self) {
        let programs = std::mem::take(&mut self.programs);
        let (gone, regions): (Vec<_>, Vec<_>) =
            programs.into_iter().map(|program| program.peer.part()).unzip();
        drop(gone);
        self.settle();
        for region in regions.iter().flatten() {
            assert!(region.is_given_back(), "a region is given back");
        }
        assert!(self.clients.values().all(|client| client.is_ended), "each client ends");
        (0..ATTACHMENTS).for_each(|attachment| self.driver.set_served(attachment, false));
        self.settle();
        assert_eq!(self.driver.datagrams(), 0, "an attachment that goes takes its datagrams along");
        assert!(self.driver.is_empty(), "nothing is left of connections that are over");
    }

    fn give_back_all(&mut self) -> bool {
        let ended = self.clients.iter().filter(|(_, client)| client.is_ended && !client.is_given_back);
        let ended: Vec<u64> = ended.map(|(number, _)| *number).collect();
        ended.iter().for_each(|number| self.give_back(*number));
        !ended.is_empty()
    }

    fn give_back(&mut self, number: u64) {
        assert!(self.driver.give_back(number), "client {number} is the worker's");
        if let Some(client) = self.clients.get_mut(&number) {
            client.is_given_back = true;
        }
    }

    /// A program connects; its place in the list.
    fn connect(&mut self, pid: u32, namespace: Namespace) -> usize {
        self.is_foreign_used |= namespace == Namespace::Foreign;
        let peer = self.driver.connect(pid, namespace).expect("descriptors");
        self.programs.push(Program {
            peer,
            hellos: 0,
            statuses: Vec::new(),
            registered: Vec::new(),
            answered: Vec::new(),
            is_closed: false,
        });
        self.programs.len() - 1
    }

    /// A program says something. False where the kernel refuses it.
    fn say(&mut self, at: usize, octets: &[u8], passed: &[Passed]) -> bool {
        let Some(program) = self.programs.get_mut(at) else { return false };
        if !self.driver.send(&program.peer, octets, passed) {
            return false;
        }
        match control::parse(octets) {
            Ok(Message::Hello(_)) => program.hellos += 1,
            Ok(Message::Register(register)) => program.registered.push(register.token),
            Ok(Message::ShowPort(shown)) => program.registered.push(shown.token),
            _ => {}
        }
        true
    }
}

impl Program {
    /// Reads what the daemon says.
    fn listen(&mut self, driver: &mut Driver) {
        while !self.is_closed {
            match driver.answer_to(&mut self.peer) {
                Ok(None) => return,
                Ok(Some(status)) => {
                    self.statuses.push(status);
                    assert!(self.statuses.len() <= self.hellos, "no answer that nobody asked for");
                    let (number, octets) = (self.peer.number, u64::from(self.peer.region_octets));
                    let is_within = |counted: &Counted| counted.number != number || counted.octets > octets;
                    assert!(driver.counted().iter().all(is_within), "a region is within what is counted");
                }
                Err(_) => self.is_closed = true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{run, walk};

    /// A datagram of a client waits; one whose message lies about a length, and one of no client, end their connections.
    #[test]
    fn corpus_of_registrar_has_datagrams() {
        let data = include_bytes!("../corpus/registrar/later.bin");
        assert_eq!(walk(data).map(|model| model.driver.datagrams()), Some(1));
        run(data);
    }

    type Case = (&'static str, &'static [u8], (usize, usize, usize));

    /// The corpus reaches what its names say: clients that a worker had, streams that were answered, connections
    /// that stayed (the last one is the other namespace's, unless the daemon drains).
    #[test]
    fn corpus_of_registrar_gets_far() {
        let cases: [Case; 10] = [
            ("attach", include_bytes!("../corpus/registrar/attach.bin"), (1, 2, 2)),
            ("attach-twice", include_bytes!("../corpus/registrar/attach-twice.bin"), (2, 2, 3)),
            ("end", include_bytes!("../corpus/registrar/end.bin"), (1, 0, 1)),
            ("crowd", include_bytes!("../corpus/registrar/crowd.bin"), (0, 0, 2)),
            ("process-max", include_bytes!("../corpus/registrar/process-max.bin"), (0, 0, 17)),
            ("memory-max", include_bytes!("../corpus/registrar/memory-max.bin"), (0, 0, 4)),
            ("sealed", include_bytes!("../corpus/registrar/sealed.bin"), (0, 0, 1)),
            ("flood", include_bytes!("../corpus/registrar/flood.bin"), (1, 61, 2)),
            ("drain", include_bytes!("../corpus/registrar/drain.bin"), (0, 0, 1)),
            ("refused", include_bytes!("../corpus/registrar/refused.bin"), (1, 2, 2)),
        ];
        for (name, data, expected) in cases {
            assert_eq!(run(data), expected, "{name}");
        }
    }
}
