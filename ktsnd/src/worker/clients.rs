// SPDX-License-Identifier: Apache-2.0
//! The clients of one worker: their places, their turns, and which rings are polled.
//!
//! In: clients as they come and go, doorbells, instants. Out: the next client with a frame; whether the worker may sleep. A pass
//! costs what the clients cost that send: a quiet client's ring is not polled until its doorbell rings (`attention`). Doorbells are
//! read after each sleep, and each [`limits::LISTEN_AFTER`] by a worker that does not sleep. A doorbell may be lost: a poll of the
//! quiet rings each [`limits::SLEEP_MAX`] finds the frame. Memory is allocated when the worker is made.

use ktsn_resolve::AttachmentIndex;
use ktsn_ring::RegionState;
use ktsn_time::{Monotonic, Now};

use super::attachments::Attachments;
use super::client::{Client, ClientKey};
use super::closing::Closing;
use super::command::{Command, Inbox, Returned};
use super::environment::{EVENTS, Environment, Woken};
use super::expectations::Expectations;
use super::owner::Owner;
use super::turns::{LEVELS, Round, Turns};
use crate::limits;
use crate::stats::{WorkerStats, count};

mod doorbells;

/// All clients of one worker. A client keeps its place as long as it is there.
#[derive(Debug)]
pub(super) struct Clients {
    /// The frames that are expected of their streams.
    expectations: Expectations,
    places: Vec<Option<Box<Client>>>,
    /// One above the highest place in use.
    end: usize,
    count: usize,
    /// The clients' names by place; 0 where there is none.
    keys: Box<[ClientKey]>,
    /// The clients' attachments by place.
    attachments: Box<[AttachmentIndex]>,
    /// The clients with rings that are polled.
    turns: Turns,
    /// Rounds of intake in which a frame was taken.
    rounds: usize,
    /// Places of clients with doorbells that are not listened to; the one that was polled last, and when.
    muted: Vec<u16>,
    muted_turn: usize,
    muted_at: Monotonic,
    /// The first place with a promise that the next sleep makes nearer.
    nearer_turn: usize,
    /// The client with the frame that the next sleep is for: its promise is made nearer too.
    nearer: Option<usize>,
    /// When doorbells were read last.
    listened_at: Monotonic,
    /// When the housekeeping of all clients began last.
    housekeeping_at: Monotonic,
    /// The place that housekeeping serves next.
    housekeeping_next: usize,
    /// Room for the news of one sleep.
    woken: Woken,
}

impl Clients {
    /// No clients.
    pub(super) fn new() -> Self {
        Self {
            expectations: Expectations::new(),
            places: (0..limits::CLIENTS_MAX).map(|_| None).collect(),
            end: 0,
            count: 0,
            keys: vec![ClientKey(0); limits::CLIENTS_MAX].into_boxed_slice(),
            attachments: vec![AttachmentIndex(u16::MAX); limits::CLIENTS_MAX].into_boxed_slice(),
            turns: Turns::new(limits::CLIENTS_MAX, limits::ATTACHMENTS_MAX),
            rounds: 1,
            muted: Vec::with_capacity(limits::CLIENTS_MAX),
            muted_turn: 0,
            muted_at: Monotonic::ZERO,
            nearer_turn: 0,
            nearer: None,
            listened_at: Monotonic::ZERO,
            housekeeping_at: Monotonic::ZERO,
            housekeeping_next: usize::MAX,
            woken: Woken { doorbells: Vec::with_capacity(EVENTS), ..Woken::default() },
        }
    }

    /// How many clients there are.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The client in this place.
    pub(super) fn get(&self, at: usize) -> Option<&Client> {
        self.places.get(at)?.as_deref()
    }

    /// The client in this place, to take from it.
    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut Client> {
        self.places.get_mut(at)?.as_deref_mut()
    }

    /// The client in this place, with the frames that are expected of all.
    pub(super) fn with_expectations(&mut self, at: usize) -> Option<(&mut Client, &mut Expectations)> {
        let Self { places, expectations, .. } = self;
        Some((places.get_mut(at)?.as_deref_mut()?, expectations))
    }

    /// The frames that are expected of the clients' streams.
    pub(super) fn expectations(&mut self) -> &mut Expectations {
        &mut self.expectations
    }

    /// The place of the client with this name.
    pub(super) fn find(&self, key: ClientKey) -> Option<usize> {
        self.keys[..self.end].iter().position(|other| *other == key)
    }

    /// The client with this name.
    pub(super) fn named(&mut self, key: ClientKey) -> Option<&mut Client> {
        let at = self.find(key)?;
        self.get_mut(at)
    }

    /// The attachment of the client in this place.
    pub(super) fn attachment_at(&self, at: usize) -> Option<AttachmentIndex> {
        self.attachments.get(at).copied()
    }

    /// Adds a client and begins to listen to its doorbell; its place. Without a place, or where the kernel refuses, the client is
    /// returned.
    pub(super) fn add(
        &mut self,
        client: Box<Client>,
        env: &mut impl Environment,
    ) -> Result<usize, Box<Client>> {
        let Some(at) = self.places.iter().position(Option::is_none) else { return Err(client) };
        if env.watch(client.doorbell(), Owner::Client(at).number()).is_err() {
            return Err(client);
        }
        self.keys[at] = client.key;
        self.attachments[at] = client.attachment;
        self.places[at] = Some(client);
        self.count += 1;
        self.end = self.end.max(at + 1);
        Ok(at)
    }

    /// Takes the client out when it has ended and no frame of it is queued.
    pub(super) fn take_if_over(&mut self, at: usize, env: &mut impl Environment) -> Option<Box<Client>> {
        let mut client = self.places.get_mut(at)?.take_if(|client| client.is_over())?;
        self.expectations.forget_client(client.marks_mut(), at);
        self.count -= 1;
        self.keys[at] = ClientKey(0);
        self.attachments[at] = AttachmentIndex(u16::MAX);
        self.turns.remove(at);
        if client.muted_at.is_some() {
            self.muted.retain(|place| usize::from(*place) != at);
        }
        env.unwatch(client.doorbell());
        while self.end > 0 && self.places[self.end - 1].is_none() {
            self.end -= 1;
        }
        Some(client)
    }

    /// The attachment's clients take turns at the level of the highest class that it is granted (bit n = class n).
    pub(super) fn set_level(&mut self, attachment: AttachmentIndex, classes: u8) {
        let level = LEVELS.saturating_sub(1 + classes.leading_zeros() as usize);
        self.turns.set_level(usize::from(attachment.0), level);
    }

    /// The ring of the client in this place is polled from now on, unless it is closed or being emptied.
    pub(super) fn activate(&mut self, at: usize, now: Now) {
        if let Some(client) = self.get_mut(at).filter(|client| client.is_open()) {
            client.attention().activate(now);
            let attachment = usize::from(client.attachment.0);
            self.turns.insert(at, attachment);
        }
    }
}

/// Commands to one client.
impl Clients {
    /// Applies a command about a client's streams or destinations; others are none of its business.
    pub(super) fn apply<P>(&mut self, command: Command<P>, inbox: &mut Inbox<P>, stats: &WorkerStats) {
        let mut is_bug = false;
        match command {
            Command::Register(key, index, info) => {
                is_bug = self.named(key).is_some_and(|client| !client.register(index, &info));
                inbox.hand_back(Returned::Boxed(info));
            }
            Command::Unregister(key, index) => {
                self.named(key).into_iter().for_each(|client| client.unregister(index, None));
            }
            Command::Refuse(key, index, status) => {
                self.named(key).into_iter().for_each(|client| client.unregister(index, Some(status)));
            }
            Command::SetClientTables(key, client_tables) => {
                is_bug = self.named(key).is_some_and(|client| !client.set_client_tables(&client_tables));
                inbox.hand_back(Returned::Boxed(client_tables));
            }
            _ => {}
        }
        if is_bug {
            count(&stats.bugs);
        }
    }
}

/// Turns of the intake.
impl Clients {
    /// Begins a round of intake. Attachments that are granted a higher class come first; one round in [`limits::LOWER_FIRST_IN`]
    /// begins at a lower level, so that each level has a part that no other one can take.
    pub(super) fn begin_round(&mut self) -> Round {
        self.turns.begin_round(self.rounds.is_multiple_of(limits::LOWER_FIRST_IN))
    }

    /// Frames of one client before the next one's turn.
    pub(super) fn quantum(&self) -> usize {
        if self.turns.len() > 1 { limits::INTAKE_QUANTUM } else { limits::INTAKE_BUDGET }
    }

    /// The next client with a frame that `may_take`. Empty rings on the way get a young promise.
    pub(super) fn next_waiting(
        &mut self,
        round: &mut Round,
        now: Monotonic,
        env: &mut impl Environment,
        may_take: impl Fn(AttachmentIndex) -> bool,
    ) -> Option<usize> {
        let Self { turns, places, .. } = self;
        turns.next_in_round(round, |at| poll(places, at, now, env).is_some_and(&may_take))
    }

    /// The client that [`Self::next_waiting`] returned was served: the next attachment has the turn.
    pub(super) fn pass_turn(&mut self, round: &mut Round) {
        self.turns.pass_round(round);
    }

    /// Ends a round of intake; only one in which a frame was taken counts.
    pub(super) fn end_round(&mut self, has_taken: bool) {
        self.rounds = self.rounds.wrapping_add(usize::from(has_taken));
    }

    /// Polls one ring, of all attachments in turn; its place where it has a frame.
    pub(super) fn poll_one(&mut self, now: Monotonic, env: &mut impl Environment) -> Option<usize> {
        let at = self.turns.next_of_any()?;
        poll(&mut self.places, at, now, env).is_some().then_some(at)
    }

    /// A frame was taken from the client's ring at `now`.
    #[inline]
    pub(super) fn note_taken(&mut self, at: usize, now: Monotonic) {
        if let Some(client) = self.get_mut(at) {
            client.attention().note_taken(now);
        }
    }
}

/// Housekeeping: what is done for each client now and then.
impl Clients {
    /// Begins the housekeeping of all clients if the last time was [`limits::SLEEP_MAX`] ago; true when it does.
    pub(super) fn begin_housekeeping(&mut self, now: Monotonic) -> bool {
        let is_due =
            now.since(self.housekeeping_at) >= limits::SLEEP_MAX && self.housekeeping_next >= self.end;
        if is_due {
            (self.housekeeping_at, self.housekeeping_next) = (now, 0);
        }
        is_due
    }

    /// True when clients are left for the housekeeping.
    pub(super) fn is_housekeeping(&self) -> bool {
        self.housekeeping_next < self.end
    }

    /// Does the housekeeping of a few clients: their own counters, muted doorbells, lost doorbells. True when clients are left.
    pub(super) fn housekeeping(
        &mut self,
        now: Monotonic,
        attachments: &Attachments,
        env: &mut impl Environment,
    ) -> bool {
        let end = self.end.min(self.housekeeping_next + limits::HOUSEKEEPING_A_PASS);
        for at in self.housekeeping_next..end {
            let Some(client) = self.get_mut(at) else { continue };
            count_claims(client, attachments);
            if client.unmute(now) {
                env.mute(client.doorbell(), Owner::Client(at).number(), false);
                self.muted.retain(|place| usize::from(*place) != at);
            }
            self.poll_quiet(at, env);
        }
        self.housekeeping_next = end;
        end < self.end
    }

    /// Begins to empty the ring of the client in this place, to be closed then; true when it does. `ends`: its process is gone.
    pub(super) fn begin_close(&mut self, at: usize, ends: bool) -> bool {
        let begins = self.get_mut(at).is_some_and(|client| client.begin_close(ends));
        if begins {
            // A program that lives on reads it after it has published: its frame is there when the ring is emptied, or it sees this.
            self.get(at).into_iter().for_each(|client| client.set_state(RegionState::Detached));
            ktsn_ring::sleep_fence();
            self.turns.remove(at);
        }
        begins
    }

    /// Begins to close a bounded number of clients, from a place on, if their attachment is `its`; `closing` empties their rings.
    /// Returns where to go on, if there may be more.
    pub(super) fn close_from(
        &mut self,
        from: usize,
        its: impl Fn(AttachmentIndex) -> bool,
        closing: &mut Closing,
    ) -> Option<usize> {
        let mut found = 0;
        for at in from..self.end {
            if found == limits::CLOSED_A_PASS || at - from == limits::PLACES_A_PASS {
                return Some(at);
            }
            // A walk by the attachments touches no client of another one.
            if !its(self.attachments[at]) {
                continue;
            }
            if self.get(at).is_some() {
                found += 1;
                if self.begin_close(at, false) {
                    closing.push_ring(at);
                }
            }
        }
        None
    }

    /// Closes the ring of the client in this place if it has been emptied; true when it did, or there is no client.
    pub(super) fn try_close(&mut self, at: usize, attachments: &Attachments) -> bool {
        let Some(client) = self.get_mut(at) else { return true };
        let is_emptied = client.is_emptied();
        if is_emptied {
            count_claims(client, attachments);
            client.close();
        }
        is_emptied
    }

    /// Gives the ring of the client in this place up, as its links are impossible; its name and attachment the first time.
    pub(super) fn retire(
        &mut self,
        at: usize,
        env: &mut impl Environment,
    ) -> Option<(ClientKey, AttachmentIndex)> {
        let client = self.get_mut(at).filter(|client| !client.is_retired)?;
        client.is_retired = true;
        env.unwatch(client.doorbell());
        Some((client.key, client.attachment))
    }
}

/// Polls one ring, and keeps the client's promise young. The client's attachment where the ring has a frame.
#[inline]
fn poll(
    places: &mut [Option<Box<Client>>],
    at: usize,
    now: Monotonic,
    env: &mut impl Environment,
) -> Option<AttachmentIndex> {
    let client = places.get_mut(at)?.as_deref_mut()?;
    let mut attention = client.attention();
    if attention.is_old(now) {
        attention.promise(env.now());
    }
    client.is_waiting().then_some(client.attachment)
}

/// Adds what the client counted by itself to its attachment. A closed client's attachment may be another one by now.
fn count_claims(client: &mut Client, attachments: &Attachments) {
    if let Some(policy) = attachments.get(client.attachment).filter(|_| !client.is_closed()) {
        client.count_claims(&policy.stats);
    }
}

#[cfg(test)]
#[path = "clients_tests.rs"]
mod tests;
