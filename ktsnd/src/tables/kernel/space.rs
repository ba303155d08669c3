// SPDX-License-Identifier: Apache-2.0
//! One namespace as long as it is held: a netlink socket in it, and what the last dump showed.
//!
//! In: announcements. Out: snapshots that are dumped again where something was hinted at. It waits for nothing but the
//! kernel's answer to a dump.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use super::ends::End;
use super::netlink::{Hints, Listener, Netlink};
use super::snapshot::{Snapshot, use_neighbour};
use crate::tables::error::{TablesError, netlink_error};

/// One namespace as long as it is held.
pub(crate) struct Space {
    pub(crate) socket: Listener,
    pub(crate) snapshot: Arc<Snapshot>,
    /// The snapshot's revision: grows when the snapshot changes.
    pub(crate) revision: u64,
    /// The revision of the kernel's answers about routes: grows when older answers hold no more.
    pub(crate) answers: u64,
    /// VXLAN devices whose forwarding tables are learnt.
    pub(crate) learnt: BTreeSet<String>,
    /// Messages of routers were lost: only the kernel knows which destinations have routes of their own.
    pub(crate) is_unsure: bool,
    /// True for the daemon's own namespace, the node's.
    is_own: bool,
}

impl Space {
    /// The daemon's own namespace.
    pub(crate) fn own(netlink: Netlink) -> Result<Self, TablesError> {
        let mut netlink = netlink;
        let mut snapshot = Snapshot::take(&mut netlink)?;
        snapshot.take_routers();
        let mut space = Self::new(netlink, snapshot)?;
        space.is_own = true;
        Ok(space)
    }

    /// The namespace that the socket hears of, as it was after the socket had been opened.
    pub(crate) fn new(netlink: Netlink, snapshot: Snapshot) -> Result<Self, TablesError> {
        let snapshot = Arc::new(snapshot);
        let socket = Listener::new(netlink).map_err(netlink_error("socket"))?;
        let (is_own, is_unsure) = (false, false);
        Ok(Self { socket, snapshot, revision: 0, answers: 1, learnt: BTreeSet::new(), is_unsure, is_own })
    }

    /// Whether something was announced that no dump has shown yet.
    pub(crate) fn is_behind(&self) -> bool {
        self.socket.netlink.hints.any()
    }

    /// Reads what was announced by now, and dumps what it hints at; whether the snapshot is another one now. What was done in
    /// the namespace before this call was announced before it.
    pub(crate) fn catch_up(&mut self) -> Result<bool, TablesError> {
        while !self.socket.netlink.drain() {}
        self.refresh()
    }

    /// Dumps what was hinted at; whether the snapshot is another one now.
    pub(crate) fn refresh(&mut self) -> Result<bool, TablesError> {
        let netlink = &mut self.socket.netlink;
        // What is announced while dumping may or may not be in the dump, and is hinted at again.
        let hints = std::mem::take(&mut netlink.hints);
        if !hints.any() {
            return Ok(false);
        }
        let mut next = Snapshot::clone(&self.snapshot);
        dump(netlink, &mut next, hints, &self.learnt).inspect_err(|_| netlink.hints = Hints::all())?;
        if self.is_own && hints.layout {
            next.take_routers();
        }
        Ok(self.show(next, hints.layout))
    }

    /// Takes over what a dump showed, of links, addresses, routes and rules where `is_layout`; whether something else holds now than
    /// before.
    pub(crate) fn show(&mut self, next: Snapshot, is_layout: bool) -> bool {
        // Answers follow from all tables and rules, also from those that no snapshot shows.
        let is_other_way = !next.has_same_failures(&self.snapshot)
            || next.routing.exceptions != self.snapshot.routing.exceptions;
        let is_lapsed = (is_layout || is_other_way) && (self.is_unsure || next.is_asked());
        self.answers += u64::from(is_lapsed);
        let is_other = next != *self.snapshot;
        if is_other {
            self.snapshot = Arc::new(next);
        }
        let changed = is_other || is_lapsed;
        self.revision += u64::from(changed);
        changed
    }

    /// Asks the kernel about tunnel ends that the main table alone does not reach, as far as it was not asked before; whether there
    /// are new answers.
    pub(crate) fn ask_ends(&mut self, ends: impl Iterator<Item = End>) -> Result<bool, TablesError> {
        let snapshot = Arc::make_mut(&mut self.snapshot);
        let mut asked = false;
        for end in ends {
            if !snapshot.ends.has(&end) && snapshot.must_ask(end.vtep) {
                let answered = snapshot.ends.ask(&mut self.socket.netlink, end);
                answered.map_err(netlink_error("routes"))?;
                asked = true;
            }
        }
        self.revision += u64::from(asked);
        Ok(asked)
    }

    /// Asks the kernel to resolve a neighbour, or to probe it once more.
    pub(crate) fn ask(&mut self, device: u32, address: IpAddr) -> io::Result<()> {
        self.socket.netlink.ask(use_neighbour(device, address))
    }
}

/// Takes what was hinted at. A device's number may be another one after each change of the layout.
pub(super) fn dump(
    netlink: &mut Netlink,
    next: &mut Snapshot,
    hints: Hints,
    learnt: &BTreeSet<String>,
) -> Result<(), TablesError> {
    if hints.layout {
        next.take_layout(netlink)?;
    } else if hints.exceptions {
        next.take_routing(netlink)?;
    }
    if hints.layout {
        let asked = next.ends.ask_again(netlink);
        asked.map_err(netlink_error("routes"))?;
    }
    if hints.layout || hints.neighbours {
        next.take_neighbours(netlink)?;
    }
    if hints.layout || hints.forwarding {
        netlink.learnt = next.take_forwarding(netlink, learnt.iter().map(String::as_str))?;
    }
    Ok(())
}
