// SPDX-License-Identifier: Apache-2.0
//! Turns against a naive model: plain lists that are rotated.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::*;

const CLIENTS: usize = 24;
const ATTACHMENTS: usize = 5;

/// By level, the attachments in turn; by attachment, its clients in turn.
#[derive(Debug, Default)]
struct Model {
    levels: BTreeMap<usize, usize>,
    turns: BTreeMap<usize, VecDeque<usize>>,
    clients: BTreeMap<usize, VecDeque<usize>>,
}

impl Model {
    fn insert(&mut self, client: usize, attachment: usize) {
        if self.clients.values().any(|ring| ring.contains(&client)) {
            return;
        }
        let ring = self.clients.entry(attachment).or_default();
        ring.push_back(client);
        if ring.len() == 1 {
            let level = self.levels.get(&attachment).copied().unwrap_or(0);
            self.turns.entry(level).or_default().push_back(attachment);
        }
    }
    fn remove(&mut self, client: usize) {
        for (attachment, ring) in &mut self.clients {
            let had = !ring.is_empty();
            ring.retain(|other| *other != client);
            if had && ring.is_empty() {
                self.turns.values_mut().for_each(|turn| turn.retain(|other| other != attachment));
            }
        }
    }
    fn set_level(&mut self, attachment: usize, level: usize) {
        let old = self.levels.insert(attachment, level).unwrap_or(0);
        if old != level && self.turns.entry(old).or_default().contains(&attachment) {
            self.turns.entry(old).or_default().retain(|other| *other != attachment);
            self.turns.entry(level).or_default().push_back(attachment);
        }
    }
    fn next_of(&mut self, level: usize) -> Option<usize> {
        let turn = self.turns.entry(level).or_default();
        let attachment = turn.pop_front()?;
        turn.push_back(attachment);
        let ring = self.clients.get_mut(&attachment)?;
        let client = ring.pop_front()?;
        ring.push_back(client);
        Some(client)
    }
    fn pass_on_client(&mut self, level: usize) -> usize {
        let Some(attachment) = self.turns.entry(level).or_default().front() else { return 0 };
        let ring = self.clients.entry(*attachment).or_default();
        ring.rotate_left(1);
        ring.len()
    }
    fn point_at(&mut self, client: usize) {
        for ring in self.clients.values_mut() {
            if let Some(at) = ring.iter().position(|other| *other == client) {
                ring.rotate_left(at);
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Insert(usize, usize),
    Remove(usize),
    SetLevel(usize, usize),
    Next(usize),
    NextClient(usize),
    PointAt(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..CLIENTS, 0..ATTACHMENTS).prop_map(|(client, attachment)| Step::Insert(client, attachment)),
        2 => (0..CLIENTS).prop_map(Step::Remove),
        1 => (0..ATTACHMENTS, 0..LEVELS).prop_map(|(attachment, level)| Step::SetLevel(attachment, level)),
        4 => (0..LEVELS).prop_map(Step::Next),
        2 => (0..LEVELS).prop_map(Step::NextClient),
        1 => (0..CLIENTS).prop_map(Step::PointAt),
    ]
}

proptest! {
    #[test]
    fn behaves_like_rotated_lists(steps in proptest::collection::vec(step(), 0..200)) {
        let (mut turns, mut model) = (Turns::new(CLIENTS, ATTACHMENTS), Model::default());
        for step in steps {
            match step {
                Step::Insert(client, attachment) => {
                    turns.insert(client, attachment);
                    model.insert(client, attachment);
                }
                Step::Remove(client) => {
                    turns.remove(client);
                    model.remove(client);
                }
                Step::SetLevel(attachment, level) => {
                    turns.set_level(attachment, level);
                    model.set_level(attachment, level);
                }
                Step::Next(level) => {
                    prop_assert_eq!(turns.turn_of(level), model.next_of(level));
                    turns.pass_on(level);
                }
                Step::NextClient(level) => {
                    prop_assert_eq!(turns.pass_on_client(level), model.pass_on_client(level));
                }
                Step::PointAt(client) => {
                    turns.point_at(client);
                    model.point_at(client);
                }
            }
            let all: BTreeSet<usize> = model.clients.values().flatten().copied().collect();
            prop_assert_eq!(turns.len(), all.len());
            prop_assert_eq!((0..turns.len()).filter_map(|place| turns.at(place)).collect::<BTreeSet<_>>(), all);
            for level in 0..LEVELS {
                let attachments = model.turns.get(&level).into_iter().flatten();
                let count = attachments.map(|attachment| model.clients[attachment].len()).sum::<usize>();
                prop_assert_eq!(turns.len_of(level), count);
            }
        }
    }
}

#[test]
fn an_attachment_gains_nothing_by_many_clients() {
    let mut turns = Turns::new(300, 2);
    for client in 0..256 {
        turns.insert(client, 0);
    }
    turns.insert(256, 1);
    let looks = (0..100).filter_map(|_| turns.next_of_any()).filter(|client| *client == 256).count();
    assert_eq!(looks, 50);
}
