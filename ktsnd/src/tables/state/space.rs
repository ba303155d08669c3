// SPDX-License-Identifier: Apache-2.0
//! One namespace as long as it is held: a netlink socket in it, and what the last dump showed.
//!
//! In: announcements. Out: snapshots that are dumped anew where something was hinted at. It waits for nothing but the
//! kernel's answer to a dump.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Context, Poll};

use tokio::io::unix::AsyncFd;

use super::super::netlink::{Hints, Netlink};
use super::super::snapshot::{Snapshot, use_neighbour};
use super::super::{TablesError, sys};

/// One namespace as long as it is held.
pub(super) struct Space {
    pub(super) netlink: Netlink,
    /// A second descriptor of the same socket.
    ready: AsyncFd<OwnedFd>,
    pub(super) snapshot: Snapshot,
    /// Of the snapshot: grows with each other one.
    pub(super) revision: u64,
    pub(super) hints: Hints,
    /// VXLAN devices whose forwarding tables are learnt.
    pub(super) learnt: BTreeSet<String>,
    /// It is the daemon's own: the node's.
    is_own: bool,
}

impl Space {
    /// The daemon's own namespace.
    pub(super) fn own(netlink: Netlink) -> Result<Self, TablesError> {
        let mut space = Self::new(netlink)?;
        space.is_own = true;
        space.snapshot.take_routers();
        Ok(space)
    }

    pub(super) fn new(mut netlink: Netlink) -> Result<Self, TablesError> {
        let ready = netlink.as_fd().try_clone_to_owned().and_then(sys::readiness);
        let ready = ready.map_err(|source| TablesError::Netlink { what: "socket", source })?;
        let snapshot = Snapshot::take(&mut netlink)?;
        let hints = netlink.take_hints();
        Ok(Self { netlink, ready, snapshot, revision: 0, hints, learnt: BTreeSet::new(), is_own: false })
    }

    /// Reads announcements; ready when the first one came that matters.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let before = self.hints.any();
        while let Poll::Ready(Ok(mut guard)) = self.ready.poll_read_ready(context) {
            if self.netlink.drain().is_err() {
                self.hints = Hints::all(); // whatever it is, dumps will tell
            }
            guard.clear_ready();
            self.hints.join(self.netlink.take_hints());
        }
        if self.hints.any() && !before { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Reads what was announced by now, and dumps what it hints at; whether the snapshot is another one now. What was done in
    /// the namespace before this call was announced before it.
    pub(super) fn catch_up(&mut self) -> Result<bool, TablesError> {
        if self.netlink.drain().is_err() {
            self.hints = Hints::all(); // whatever it is, dumps will tell
        }
        self.refresh()
    }

    /// Dumps what was hinted at; whether the snapshot is another one now.
    pub(super) fn refresh(&mut self) -> Result<bool, TablesError> {
        let netlink = &mut self.netlink;
        let mut hints = std::mem::take(&mut self.hints);
        hints.join(netlink.take_hints());
        if !hints.any() {
            return Ok(false);
        }
        let mut next = self.snapshot.clone();
        let taken = dump(netlink, &mut next, hints, &self.learnt);
        // What was announced while dumping may or may not be in the dump.
        self.hints = netlink.take_hints();
        if let Err(error) = taken {
            self.hints = Hints::all();
            return Err(error);
        }
        if self.is_own && hints.layout {
            next.take_routers();
        }
        let changed = next != self.snapshot;
        self.snapshot = next;
        self.revision += u64::from(changed);
        Ok(changed)
    }

    pub(super) fn ask(&mut self, device: u32, address: IpAddr) -> io::Result<()> {
        self.netlink.ask(use_neighbour(device, address))
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
        let devices = next.take_forwarding(netlink, learnt.iter().map(String::as_str))?;
        netlink.watch_forwarding(devices);
    }
    Ok(())
}
