// SPDX-License-Identifier: Apache-2.0
//! What changes in a pod's namespace beside its links, addresses, routes and neighbours: its packet filter, and exceptions of its routes.
//!
//! In: announcements of nf_tables, the list of older tables, ICMP messages. Out: hints, and when exceptions are looked at. A message of a
//! router is looked at once more a little later: the kernel may take it over after us. A flood of them costs a reading each pause.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;

use crate::tables::kernel::icmp::Icmp;
use crate::tables::kernel::namespace::BesideSockets;
use crate::tables::kernel::netlink::{Hints, Listener};
use crate::tables::kernel::pod_filter::{Nft, OlderTables};
use crate::tables::kernel::raw::Raw;
use crate::tables::kernel::snapshot::Snapshot;

/// The pause between two readings because of ICMP messages.
const PAUSE: Duration = Duration::from_millis(100);
/// How often exceptions are read that are there. The kernel may drop one before its time.
const PERIOD: Duration = Duration::from_secs(10);

/// The sockets of one namespace, and what they said.
#[derive(Debug)]
pub(super) struct Beside {
    icmp: Icmp,
    filter: Option<Listener<Raw<Nft>>>,
    older: OlderTables,
    had_older: bool,
    /// Destinations that are asked about once more.
    again: BTreeSet<IpAddr>,
    look_at: Option<Instant>,
    not_before: Instant,
}

impl Beside {
    /// Listens from now on, in a namespace that was read after the sockets had been opened.
    pub(super) fn new(sockets: BesideSockets, snapshot: &Snapshot) -> io::Result<Self> {
        let BesideSockets { icmp, filter, older } = sockets;
        let (had_older, again, look_at) = (older.are_there(), BTreeSet::new(), None);
        let (icmp, filter) = (Icmp::new(icmp)?, filter.map(Listener::new).transpose()?);
        let now = Instant::now();
        let mut beside = Self { icmp, filter, older, had_older, again, look_at, not_before: now };
        beside.shown(snapshot, now);
        Ok(beside)
    }

    /// Whether a message of a router came that no reading has followed yet.
    pub(super) fn has_news(&self) -> bool {
        self.icmp.has_news()
    }

    /// Whether a message of a router was lost, once.
    pub(super) fn is_unsure(&self) -> bool {
        self.icmp.is_unsure()
    }

    /// When exceptions are to be looked at.
    pub(super) fn look_at(&self) -> Option<Instant> {
        self.look_at
    }

    /// A reading begins. The destinations whose routes may have exceptions.
    pub(super) fn begin(&mut self, now: Instant) -> BTreeSet<IpAddr> {
        let mut excepted = std::mem::take(&mut self.again);
        self.look_at = None;
        if self.icmp.has_news() {
            self.again = self.icmp.take();
            self.not_before = now + PAUSE;
            self.look_at = Some(self.not_before);
            excepted.extend(&self.again);
        }
        excepted
    }

    /// The namespace was read.
    pub(super) fn shown(&mut self, snapshot: &Snapshot, now: Instant) {
        let next = snapshot.routing.exceptions.lasts(PERIOD).map(|lasts| now + lasts);
        self.look_at = [self.look_at, next].into_iter().flatten().min();
    }

    /// Whether there are tables of the older iptables, or were at the last look.
    pub(super) fn has_older_tables(&mut self) -> bool {
        let has_older = self.older.are_there();
        std::mem::replace(&mut self.had_older, has_older) || has_older
    }

    /// Listens, and adds to the hints; ready when the first thing came that matters.
    pub(super) fn poll(&mut self, hints: &mut Hints, context: &mut Context<'_>) -> Poll<()> {
        let mut is_ready = false;
        if let Some(filter) = self.filter.as_mut().filter(|_| !hints.filter)
            && filter.poll(context).is_ready()
        {
            hints.filter = std::mem::take(&mut filter.netlink.hints).any();
            is_ready = hints.filter;
        }
        if self.icmp.poll(context).is_ready() {
            let due = self.not_before.max(Instant::now());
            self.look_at = Some(self.look_at.map_or(due, |at| at.min(due)));
            is_ready = true;
        }
        if is_ready { Poll::Ready(()) } else { Poll::Pending }
    }
}
