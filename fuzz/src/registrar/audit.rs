// SPDX-License-Identifier: Apache-2.0
//! What holds after every step: the budgets, and the order in which the worker hears of clients and streams.

use std::collections::{BTreeMap, BTreeSet};

use ktsnd::fuzzing::registrar::{ATTACHMENTS, CLIENTS_A_PROCESS, Counted, Told};

use super::Model;
use super::client::Client;

impl Model {
    /// Reads the commands that the worker gets; true if there was one.
    pub(super) fn take_commands(&mut self) -> bool {
        let commands = self.driver.commands();
        for told in &commands {
            let (number, of_stream) = match *told {
                Told::Add(number) => {
                    assert!(!self.clients.contains_key(&number), "client {number} comes once");
                    self.clients.insert(number, Client::default());
                    continue;
                }
                Told::Register(number, index, token) => (number, Some((index, Some(token), true))),
                Told::Refuse(number, index, token) => (number, Some((index, Some(token), false))),
                Told::Unregister(number, index) => (number, Some((index, None, false))),
                Told::End(number) | Told::ClientTables(number) => (number, None),
            };
            let client = self.clients.get_mut(&number).expect("a client that the worker knows");
            assert!(!client.is_ended, "client {number} is over: {told:?}");
            client.is_ended = matches!(told, Told::End(_));
            let Some((index, token, is_registered)) = of_stream else { continue };
            // A stream with a changed status is sent again.
            let is_again = is_registered && token == client.streams.get(&index).copied();
            match token {
                Some(token) if is_registered => client.streams.insert(index, token),
                _ => client.streams.remove(&index),
            };
            if let Some(token) = token.filter(|_| !is_again) {
                self.answered(number, token);
            }
        }
        !commands.is_empty()
    }

    /// A registration is answered: they are in their order, each once.
    fn answered(&mut self, number: u64, token: u32) {
        let Some(program) = self.programs.iter_mut().find(|program| program.peer.number == number) else {
            return;
        };
        let expected = program.registered.get(program.answered.len());
        assert_eq!(expected, Some(&token), "client {number}: registrations keep their order");
        program.answered.push(token);
    }

    /// Holds the daemon's counts against its limits, and against the commands that the worker got.
    pub(super) fn audit(&mut self) {
        let counted = self.driver.counted();
        self.budgets_hold(&counted);
        let now: BTreeSet<u64> = counted.iter().map(|client| client.number).collect();
        for client in &counted {
            let known = self.clients.get(&client.number);
            if let Some(known) = known.filter(|_| !client.is_ending) {
                assert!(client.streams.iter().eq(known.streams.keys()), "the list of streams: {client:?}");
            }
            assert!(known.is_none_or(|known| !known.is_given_back), "given back once: {client:?}");
        }
        for gone in self.counted.difference(&now) {
            let is_over = self.clients.get(gone).is_none_or(|client| client.is_given_back);
            assert!(is_over, "client {gone} counts until the worker gives it back");
        }
        for program in &self.programs {
            let number = program.peer.number;
            let view = counted.iter().find(|client| client.number == number);
            let is_over = program.is_closed && view.is_some_and(|view| !view.is_ending);
            assert!(!is_over, "client {number}: its connection is closed, so it ends");
            let is_known = view.is_some() || program.peer.region_octets == 0;
            assert!(
                is_known || self.driver.is_given_back(&program.peer),
                "client {number}: its memory counts"
            );
        }
        if let Some(admitted) = &self.admitted {
            assert!(now.is_subset(admitted), "a daemon that drains admits no client");
        }
        assert!(self.driver.is_consistent(), "who is paused is listed");
        self.counted = now;
    }

    fn budgets_hold(&self, counted: &[Counted]) {
        for attachment in 0..ATTACHMENTS {
            let own = || counted.iter().filter(|client| client.attachment == attachment);
            assert!(own().count() <= self.limits.clients_max as usize, "clients_max");
            let octets: u64 = own().map(|client| client.octets).sum();
            assert!(octets <= self.limits.memory_max, "memory_max: {octets}");
        }
        let octets: u64 = counted.iter().map(|client| client.octets).sum();
        assert!(octets <= self.limits.memory_max_of_all, "the daemon's memory: {octets}");
        let mut processes: BTreeMap<u32, usize> = BTreeMap::new();
        for client in counted.iter().filter(|client| client.pid != 0 && !client.is_ending) {
            *processes.entry(client.pid).or_default() += 1;
        }
        assert!(processes.values().all(|clients| *clients <= CLIENTS_A_PROCESS), "{processes:?}");
    }
}
