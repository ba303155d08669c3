// SPDX-License-Identifier: Apache-2.0
//! One namespace as long as it is held: a netlink socket in it, and what the last dump showed.
//!
//! In: announcements. Out: snapshots that are dumped again where something was hinted at. It waits for nothing but the
//! kernel's answer to a dump.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use super::netlink::{Hints, Listener, Netlink};
use super::snapshot::{Snapshot, use_neighbour};
use crate::tables::error::TablesError;

/// One namespace as long as it is held.
pub(crate) struct Space {
    pub(crate) socket: Listener,
    pub(crate) snapshot: Snapshot,
    /// The snapshot's revision: grows when the snapshot changes.
    pub(crate) revision: u64,
    /// VXLAN devices whose forwarding tables are learnt.
    pub(crate) learnt: BTreeSet<String>,
    /// True for the daemon's own namespace, the node's.
    is_own: bool,
}

impl Space {
    /// The daemon's own namespace.
    pub(crate) fn own(netlink: Netlink) -> Result<Self, TablesError> {
        let mut space = Self::new(netlink)?;
        space.is_own = true;
        space.snapshot.take_routers();
        Ok(space)
    }

    /// The namespace that the socket is in.
    pub(crate) fn new(mut netlink: Netlink) -> Result<Self, TablesError> {
        let snapshot = Snapshot::take(&mut netlink)?;
        let socket =
            Listener::new(netlink).map_err(|source| TablesError::Netlink { what: "socket", source })?;
        Ok(Self { socket, snapshot, revision: 0, learnt: BTreeSet::new(), is_own: false })
    }

    /// Whether something was announced that no dump has shown yet.
    pub(crate) fn is_behind(&self) -> bool {
        self.socket.netlink.hints.any()
    }

    /// Reads what was announced by now, and dumps what it hints at; whether the snapshot is another one now. What was done in
    /// the namespace before this call was announced before it.
    pub(crate) fn catch_up(&mut self) -> Result<bool, TablesError> {
        self.socket.netlink.drain();
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
        let mut next = self.snapshot.clone();
        dump(netlink, &mut next, hints, &self.learnt).inspect_err(|_| netlink.hints = Hints::all())?;
        if self.is_own && hints.layout {
            next.take_routers();
        }
        let changed = next != self.snapshot;
        self.snapshot = next;
        self.revision += u64::from(changed);
        Ok(changed)
    }

    /// Asks the kernel to resolve a neighbour, or to probe it once more.
    pub(crate) fn ask(&mut self, device: u32, address: IpAddr) -> io::Result<()> {
        self.socket.netlink.ask(use_neighbour(device, address))
    }
}

/// Takes what was hinted at. A device's number may be another one after each change of the layout.
fn dump(
    netlink: &mut Netlink,
    next: &mut Snapshot,
    hints: Hints,
    learnt: &BTreeSet<String>,
) -> Result<(), TablesError> {
    if hints.layout {
        next.take_layout(netlink)?;
    }
    if hints.layout || hints.neighbours {
        next.take_neighbours(netlink)?;
    }
    if hints.layout || hints.forwarding {
        netlink.learnt = next.take_forwarding(netlink, learnt.iter().map(String::as_str))?;
    }
    Ok(())
}
