// SPDX-License-Identifier: Apache-2.0
//! The order in which rings are polled: fair by attachment, not by connection.
//!
//! In: which clients are active, and the attachment and level of each. Out: the client to poll next. Attachments of one
//! level take turns, and so do the clients of one attachment: an attachment with 256 active clients gets as many polls as one
//! with a single client. The level is the highest traffic class that the configuration grants the attachment; what a slot
//! says of its priority plays no part, as the program writes it. It allocates when it is made, never later; each call takes
//! constant time.

use crate::limits::{EMPTY_LOOKS, LOOKS_A_PASS};

/// No client, no attachment.
const NONE: u16 = u16::MAX;
/// One level for each traffic class.
pub(super) const LEVELS: usize = 8;

/// One round of intake: the levels in turn, and in each level the attachments.
#[derive(Debug)]
pub(super) struct Round {
    /// The level at which the round began.
    first: usize,
    /// How many levels were begun.
    levels: usize,
    polls_left: usize,
    /// Empty rings of the attachment that has the turn.
    empty: usize,
}

impl Round {
    fn level(&self) -> usize {
        (self.first + LEVELS + 1 - self.levels) % LEVELS
    }
}

/// A ring of numbers: each knows the next and the one before.
#[derive(Debug)]
struct Links {
    next: Box<[u16]>,
    before: Box<[u16]>,
}

impl Links {
    fn new(count: usize) -> Self {
        Self { next: vec![NONE; count].into_boxed_slice(), before: vec![NONE; count].into_boxed_slice() }
    }

    /// True when the number is in a ring.
    fn is_in(&self, number: u16) -> bool {
        self.next.get(usize::from(number)).is_some_and(|next| *next != NONE)
    }

    /// Puts `number` at the end of the ring that begins with `first`; the ring's first.
    fn append(&mut self, first: u16, number: u16) -> u16 {
        let at = usize::from(number);
        if first == NONE {
            (self.next[at], self.before[at]) = (number, number);
            return number;
        }
        let last = self.before[usize::from(first)];
        (self.next[at], self.before[at]) = (first, last);
        self.next[usize::from(last)] = number;
        self.before[usize::from(first)] = number;
        first
    }

    /// Takes `number` out of the ring that begins with `first`; the ring's first.
    fn remove(&mut self, first: u16, number: u16) -> u16 {
        let at = usize::from(number);
        let (next, before) = (self.next[at], self.before[at]);
        (self.next[at], self.before[at]) = (NONE, NONE);
        if next == number {
            return NONE;
        }
        self.next[usize::from(before)] = next;
        self.before[usize::from(next)] = before;
        if first == number { next } else { first }
    }
}

/// The active clients, in rings by attachment and level.
#[derive(Debug)]
pub(super) struct Turns {
    clients: Links,
    /// The attachment of each active client.
    attachment_of: Box<[u16]>,
    /// By attachment: the client that has the turn, and how many are active.
    client_turn: Box<[u16]>,
    counts: Box<[u16]>,
    attachments: Links,
    levels: Box<[u8]>,
    /// By level: the attachment that has the turn, and how many clients are active.
    attachment_turn: [u16; LEVELS],
    level_counts: [usize; LEVELS],
    /// The level of the last poll of [`Self::next_of_any`].
    level_turn: usize,
    /// The level below the highest that began an intake last.
    lower_turn: usize,
    /// The active clients in no order, and where each stands there.
    all: Vec<u16>,
    places: Box<[u16]>,
}

impl Turns {
    /// Room for clients and attachments below these counts, none of them active.
    pub(super) fn new(clients: usize, attachments: usize) -> Self {
        Self {
            clients: Links::new(clients),
            attachment_of: vec![NONE; clients].into_boxed_slice(),
            client_turn: vec![NONE; attachments].into_boxed_slice(),
            counts: vec![0; attachments].into_boxed_slice(),
            attachments: Links::new(attachments),
            levels: vec![0; attachments].into_boxed_slice(),
            attachment_turn: [NONE; LEVELS],
            level_counts: [0; LEVELS],
            level_turn: 0,
            lower_turn: 0,
            all: Vec::with_capacity(clients),
            places: vec![0; clients].into_boxed_slice(),
        }
    }

    /// Active clients.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// The active client at `place`, below [`Self::len`]. A removal moves the last one into the place that it leaves.
    pub(super) fn at(&self, place: usize) -> Option<usize> {
        self.all.get(place).map(|client| usize::from(*client))
    }

    /// Active clients of one level.
    pub(super) fn len_of(&self, level: usize) -> usize {
        self.level_counts[level]
    }

    /// Makes a client active: the last one of its attachment. One that is active stays where it is.
    pub(super) fn insert(&mut self, client: usize, attachment: usize) {
        if client >= self.attachment_of.len() || attachment >= self.counts.len() {
            return;
        }
        let (number, of) = (client as u16, attachment as u16); // both are below their counts, which are u16
        if self.clients.is_in(number) {
            return;
        }
        self.attachment_of[client] = of;
        self.client_turn[attachment] = self.clients.append(self.client_turn[attachment], number);
        let level = usize::from(self.levels[attachment]);
        if self.counts[attachment] == 0 {
            self.attachment_turn[level] = self.attachments.append(self.attachment_turn[level], of);
        }
        self.counts[attachment] += 1;
        self.level_counts[level] += 1;
        self.places[client] = self.all.len() as u16; // below the count of clients
        self.all.push(number);
    }

    /// Makes a client inactive.
    pub(super) fn remove(&mut self, client: usize) {
        if !self.contains(client) {
            return;
        }
        let of = std::mem::replace(&mut self.attachment_of[client], NONE);
        let attachment = usize::from(of);
        self.client_turn[attachment] = self.clients.remove(self.client_turn[attachment], client as u16);
        let level = usize::from(self.levels[attachment]);
        self.counts[attachment] -= 1;
        if self.counts[attachment] == 0 {
            self.attachment_turn[level] = self.attachments.remove(self.attachment_turn[level], of);
        }
        self.level_counts[level] -= 1;
        let place = self.places[client];
        self.all.swap_remove(usize::from(place));
        if let Some(moved) = self.all.get(usize::from(place)) {
            self.places[usize::from(*moved)] = place;
        }
    }

    /// True when the client is active.
    pub(super) fn contains(&self, client: usize) -> bool {
        self.attachment_of.get(client).is_some_and(|of| *of != NONE)
    }

    /// From now on the attachment is of `level`; one above the highest counts as that.
    pub(super) fn set_level(&mut self, attachment: usize, level: usize) {
        let level = level.min(LEVELS - 1);
        let Some(old) = self.levels.get(attachment).map(|old| usize::from(*old)) else { return };
        self.levels[attachment] = level as u8;
        let count = usize::from(self.counts[attachment]);
        if level == old || count == 0 {
            return;
        }
        self.attachment_turn[old] = self.attachments.remove(self.attachment_turn[old], attachment as u16);
        self.attachment_turn[level] = self.attachments.append(self.attachment_turn[level], attachment as u16);
        self.level_counts[old] -= count;
        self.level_counts[level] += count;
    }

    /// The client to poll next, of those of one level.
    pub(super) fn turn_of(&self, level: usize) -> Option<usize> {
        let turn = self.client_turn.get(usize::from(self.attachment_turn[level]))?;
        Some(usize::from(*turn))
    }

    /// The next poll at this level is of the same attachment's next client. Returns how many clients the attachment has.
    pub(super) fn pass_on_client(&mut self, level: usize) -> usize {
        let attachment = usize::from(self.attachment_turn[level]);
        let Some(turn) = self.client_turn.get_mut(attachment) else { return 0 };
        *turn = self.clients.next[usize::from(*turn)];
        usize::from(self.counts[attachment])
    }

    /// The next poll at this level is of the next attachment.
    pub(super) fn pass_on_attachment(&mut self, level: usize) {
        if let Some(next) = self.attachments.next.get(usize::from(self.attachment_turn[level])) {
            self.attachment_turn[level] = *next;
        }
    }

    /// The next poll at this level is of the next attachment, and the one after of this attachment's next client.
    pub(super) fn pass_on(&mut self, level: usize) {
        self.pass_on_client(level);
        self.pass_on_attachment(level);
    }

    /// The client to poll next, of all: levels take turns, too. The next poll is of another one.
    pub(super) fn next_of_any(&mut self) -> Option<usize> {
        for _ in 0..LEVELS {
            self.level_turn = (self.level_turn + 1) % LEVELS;
            if let Some(client) = self.turn_of(self.level_turn) {
                self.pass_on(self.level_turn);
                return Some(client);
            }
        }
        None
    }

    /// A level with clients below the highest one with clients, each in turn; where there is none, the highest of all.
    pub(super) fn next_lower_level(&mut self) -> usize {
        let has_clients = |level: &usize| self.level_counts[*level] > 0;
        let highest = (0..LEVELS).rev().find(has_clients).unwrap_or(0);
        let mut lower = (0..self.lower_turn).rev().chain((0..highest).rev());
        let next = lower.find(|level| *level < highest && has_clients(level));
        self.lower_turn = next.unwrap_or(LEVELS - 1);
        self.lower_turn
    }

    /// Begins a round at the highest level, or at a lower one.
    pub(super) fn begin_round(&mut self, is_lower_first: bool) -> Round {
        let first = if is_lower_first { self.next_lower_level() } else { LEVELS - 1 };
        Round { first, levels: 0, polls_left: 0, empty: 0 }
    }

    /// Polls rings in turn, a bounded number at each level, until one `has_frame`; its client, which keeps the turn until
    /// [`Self::pass_round`].
    pub(super) fn next_in_round(
        &mut self,
        round: &mut Round,
        mut has_frame: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        loop {
            if round.polls_left == 0 {
                if round.levels == LEVELS {
                    return None;
                }
                round.levels += 1;
                (round.polls_left, round.empty) = (self.len_of(round.level()).min(LOOKS_A_PASS), 0);
                continue;
            }
            round.polls_left -= 1;
            let level = round.level();
            let Some(client) = self.turn_of(level) else {
                round.polls_left = 0;
                continue;
            };
            if has_frame(client) {
                return Some(client);
            }
            // An empty ring costs its attachment no turn, unless it has many of them.
            round.empty += 1;
            if round.empty >= self.pass_on_client(level).min(EMPTY_LOOKS) {
                round.empty = 0;
                self.pass_on_attachment(level);
            }
        }
    }

    /// The client that [`Self::next_in_round`] returned was served: the next attachment has the turn.
    pub(super) fn pass_round(&mut self, round: &mut Round) {
        round.empty = 0;
        self.pass_on(round.level());
    }

    /// The next poll of the client's attachment is of this client.
    pub(super) fn point_at(&mut self, client: usize) {
        if let Some(of) = self.attachment_of.get(client)
            && let Some(turn) = self.client_turn.get_mut(usize::from(*of))
        {
            *turn = client as u16;
        }
    }
}

#[cfg(test)]
#[path = "turns_tests.rs"]
mod tests;
