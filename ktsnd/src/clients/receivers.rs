// SPDX-License-Identifier: Apache-2.0
//! Processes that asked for a grant of expected arrival: who gets which share, and what they count.
//!
//! In: the receive areas of clients, the attachments that grant, the node's cap. Out: leases in the areas, sums in the attachments'
//! counters, and a list to be shown. The registrar adds and ends receivers, the node's task renews; no worker comes here. What a
//! program writes decides one thing: whether it uses its entry, and so whether it has a part of its attachment's share.

mod division;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard};

use ktsn_resolve::AttachmentIndex;
use ktsn_ring::receive::{ListenerReading, ReceiveArea, ReceiveCounts};
use ktsn_time::{Monotonic, Nanos};
use tokio::sync::Notify;

use crate::limits::RECEIVE_LEASE;
use crate::stats::{AttachmentStats, add_claimed};
use crate::worker::ClientKey;
use division::{Process, User, divide};

/// A client that asked.
#[derive(Debug)]
pub(super) struct Grantee {
    /// Its process; 0 = not visible.
    pub pid: u32,
    /// Its attachment.
    pub attachment: AttachmentIndex,
    /// Where its counts are added up.
    pub stats: Arc<AttachmentStats>,
    /// Its receive area, in a sealed region.
    pub area: ReceiveArea,
}

/// A receiver, as it is listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Receiving {
    /// Its listeners.
    pub listeners: Vec<ListenerReading>,
    /// The share of one CPU that its process may spin, parts per thousand.
    pub granted: u32,
}

#[derive(Debug)]
struct Known {
    of: Grantee,
    /// The counts that were added to the attachment's.
    seen: ReceiveCounts,
    shown: Receiving,
}

impl Known {
    /// Reads the area and adds what is new to the attachment's counters.
    fn look(&mut self) {
        let reading = self.of.area.read();
        let total = reading.total.at_least(self.seen);
        let added = total.since(self.seen).to_array();
        for (counter, more) in self.of.stats.receive.iter().zip(added) {
            add_claimed(counter, more);
        }
        self.seen = total;
        self.shown.listeners = reading.listeners;
    }

    /// Gives the process this share from `now` on; 0 withdraws.
    fn grant(&mut self, share: u32, now: Monotonic) {
        match (share, self.shown.granted) {
            (0, 0) => {}
            (0, _) => self.of.area.withdraw(),
            (share, _) => self.of.area.grant(share, now.saturating_add(RECEIVE_LEASE)),
        }
        self.shown.granted = share;
    }
}

#[derive(Debug, Default)]
struct Book {
    by_client: BTreeMap<ClientKey, Known>,
    /// The daemon drains: nothing is granted any more.
    is_closed: bool,
}

/// All receivers of the daemon, and the word that one has asked.
#[derive(Clone, Debug, Default)]
pub struct Receivers(Arc<Mutex<Book>>, Arc<Notify>);

impl Receivers {
    fn lock(&self) -> MutexGuard<'_, Book> {
        // A panic elsewhere leaves plain values that are still right.
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// A client asks. A second time changes nothing, and costs nothing: each word makes the node renew all grants.
    pub(super) fn add(&self, key: ClientKey, grantee: Grantee) {
        let known = Known { of: grantee, seen: ReceiveCounts::default(), shown: Receiving::default() };
        if let Entry::Vacant(place) = self.lock().by_client.entry(key) {
            place.insert(known);
            self.1.notify_one();
        }
    }

    /// Waits until a new client has asked since the last wait ended.
    pub async fn wait_for_request(&self) {
        self.1.notified().await;
    }

    /// A client is over: what it counted last is added up.
    pub(super) fn end(&self, key: ClientKey) {
        if let Some(mut known) = self.lock().by_client.remove(&key) {
            known.look();
        }
    }

    /// An attachment goes: its clients' grants are withdrawn, and what they counted last is added up.
    pub fn end_attachment(&self, index: AttachmentIndex) {
        let mut book = self.lock();
        for mut known in
            book.by_client.extract_if(.., |_, known| known.of.attachment == index).map(|(_, k)| k)
        {
            known.grant(0, Monotonic::ZERO);
            known.look();
        }
    }

    /// Whether nothing is kept of any client.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().by_client.is_empty()
    }

    /// The daemon drains: all grants are withdrawn, and none is given any more.
    pub fn close(&self) {
        let mut book = self.lock();
        book.is_closed = true;
        for known in book.by_client.values_mut() {
            known.grant(0, Monotonic::ZERO);
            known.look();
        }
    }

    /// Divides `cap` (parts per thousand of one CPU) over the processes that use their entries at attachments which grant, and renews
    /// the leases at `now`.
    pub fn renew(&self, now: Monotonic, cap: u32, does_grant: impl Fn(AttachmentIndex) -> bool) {
        let mut book = self.lock();
        for known in book.by_client.values_mut() {
            known.look();
        }
        let is_user = |known: &Known| !known.shown.listeners.is_empty() && does_grant(known.of.attachment);
        let users: Vec<User> = book
            .by_client
            .iter()
            .filter(|(_, known)| is_user(known))
            .map(|(key, known)| User {
                attachment: known.of.attachment,
                process: Process::of(known.of.pid, *key),
            })
            .collect();
        let shares = if book.is_closed { BTreeMap::new() } else { divide(cap, &users) };
        for (key, known) in &mut book.by_client {
            let share = if is_user(known) { shares.get(&Process::of(known.of.pid, *key)) } else { None };
            known.grant(share.copied().unwrap_or(0), now);
        }
    }

    /// Reads what every receiver counts.
    pub fn look(&self) {
        for known in self.lock().by_client.values_mut() {
            known.look();
        }
    }

    /// Reads what every receiver counts, and lists all of them.
    #[must_use]
    pub fn list(&self) -> BTreeMap<ClientKey, Receiving> {
        let mut book = self.lock();
        for known in book.by_client.values_mut() {
            known.look();
        }
        book.by_client.iter().map(|(key, known)| (*key, known.shown.clone())).collect()
    }

    /// The processes with a grant at each attachment that has any, and the sum of their shares.
    #[must_use]
    pub fn granted(&self) -> BTreeMap<AttachmentIndex, (u32, u32)> {
        let mut sums: BTreeMap<AttachmentIndex, BTreeMap<Process, u32>> = BTreeMap::new();
        for (key, known) in &self.lock().by_client {
            if known.shown.granted > 0 {
                let process = Process::of(known.of.pid, *key);
                sums.entry(known.of.attachment).or_default().insert(process, known.shown.granted);
            }
        }
        sums.into_iter().map(|(index, of)| (index, (of.len() as u32, of.values().sum()))).collect()
    }
}

const _: () = assert!(RECEIVE_LEASE.get() > Nanos::ZERO.get());

#[cfg(test)]
mod tests;
