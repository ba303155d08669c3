// SPDX-License-Identifier: Apache-2.0
//! A pod's namespace as long as one of its interfaces is attached.
//!
//! In: what a thread read of it. Out: the namespace's snapshot, its identity, its number among those that the daemon's namespace
//! knows, and when it is read again. A namespace pays for itself: after a reading it rests four times as long as that took, and
//! one that is too large for a pause that doubles.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;

use super::beside::Beside;
use crate::log_limit::LogLimit;
use crate::tables::error::{TablesError, netlink_error};
use crate::tables::kernel::device::namespace_number;
use crate::tables::kernel::namespace::Identity;
use crate::tables::kernel::netlink::Hints;
use crate::tables::kernel::reader::Opened;
use crate::tables::kernel::space::Space;
use crate::tables::tracked::TrackedAttachment;

/// A change after a quiet time waits so long for those that come with it: a frame may wait for its next hop's MAC address.
const GATHER: Duration = Duration::from_millis(1);
/// What goes on changing is read in one part of the time out of this many and one.
const REST_RATIO: u32 = 4;
/// The pause after a reading that failed; it doubles up to the longest one.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// A pod's namespace.
pub(super) struct Pod {
    pub(super) space: Space,
    pub(super) identity: Identity,
    pub(super) cookie: u64,
    /// The number that the daemon's namespace has for the pod's namespace.
    pub(super) number: Option<i32>,
    /// Why its snapshot does not hold now, where it does not.
    pub(super) fault: Option<String>,
    /// The reading that goes on, by its number.
    pub(super) reading: Option<u64>,
    /// That reading is of links, addresses, routes and rules.
    pub(super) reads_layout: bool,
    pub(super) log_limit: LogLimit,
    beside: Beside,
    hinted_at: Option<Instant>,
    not_before: Instant,
    pause: Duration,
}

impl Pod {
    /// A namespace that was read just now.
    pub(super) fn new(opened: Opened) -> Result<Self, TablesError> {
        let Opened { entered, snapshot, cost } = opened;
        let beside = Beside::new(entered.beside, &snapshot).map_err(netlink_error("socket"))?;
        Ok(Self {
            beside,
            space: Space::new(entered.netlink, snapshot)?,
            identity: entered.identity,
            cookie: entered.cookie,
            number: None,
            fault: None,
            reading: None,
            reads_layout: false,
            log_limit: LogLimit::default(),
            hinted_at: None,
            not_before: Instant::now() + cost * REST_RATIO,
            pause: PAUSE,
        })
    }

    /// When it is to be read; `None`: nothing was announced, or it is being read.
    pub(super) fn due(&mut self, now: Instant) -> Option<Instant> {
        if self.reading.is_some() {
            return None;
        }
        self.space.socket.netlink.hints.exceptions |= self.beside.look_at().is_some_and(|at| at <= now);
        if !self.space.is_behind() {
            return self.beside.look_at();
        }
        Some((*self.hinted_at.get_or_insert(now) + GATHER).max(self.not_before))
    }

    /// It is read from now on. What is announced meanwhile may or may not be in the answer, and is hinted at again.
    pub(super) fn begin(&mut self, number: u64) -> (Hints, BTreeSet<IpAddr>) {
        self.hinted_at = None;
        self.reading = Some(number);
        let hints = std::mem::take(&mut self.space.socket.netlink.hints);
        self.space.is_unsure = self.beside.is_unsure();
        // Where rules decide, an exception shows in the kernel's answers only.
        self.reads_layout = hints.layout || self.beside.has_news();
        (hints, self.beside.begin(Instant::now()))
    }

    /// Listens to what is announced; ready when the first thing came that matters.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let hints = &mut self.space.socket.netlink.hints;
        let is_beside = self.beside.poll(hints, context).is_ready();
        // More announcements of what is to be read anyway say nothing: they wait, or are lost, at its cost.
        if !self.space.is_behind() && self.space.socket.poll(context).is_ready() || is_beside {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    /// Looks at what announces nothing.
    pub(super) fn look(&mut self) {
        self.space.socket.netlink.hints.filter |= self.beside.has_older_tables();
    }

    /// It was read, and its tables were made, at this cost.
    pub(super) fn rest(&mut self, cost: Duration) {
        self.beside.shown(&self.space.snapshot, Instant::now());
        self.pause = PAUSE;
        self.not_before = Instant::now() + cost * REST_RATIO;
    }

    /// It could not be read: it is read again as a whole after a pause.
    pub(super) fn failed(&mut self, cost: Duration) {
        self.space.socket.netlink.hints = Hints::all();
        self.not_before = Instant::now() + self.pause.max(cost * REST_RATIO);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    /// Finds the number, where an attachment needs its host end found among the daemon's devices. It never changes.
    pub(super) fn find_number(&mut self, tracked: &TrackedAttachment, host: &mut Space) {
        if tracked.attachment.is_short() && self.number.is_none() {
            // A namespace that is gone is seen to elsewhere.
            self.number =
                namespace_number(&mut host.socket.netlink, &tracked.attachment.netns).ok().flatten();
        }
    }
}
