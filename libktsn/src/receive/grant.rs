// SPDX-License-Identifier: Apache-2.0
//! How long this process may spin, and where its listeners are counted: the receive area of a region.
//!
//! In: the daemon's grant. Out: the spin time that is left, counts. Without a region, or without a grant, no time is left.
//! A region is held for the moment of a read or a count only: a cancelled thread would never let it go.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use ktsn_expect::SpinBudget;
use ktsn_ring::RegionState;
use ktsn_ring::control::Expect;
use ktsn_ring::receive::{Listener as Counted, Receive, ReceiveCount};
use ktsn_time::{Monotonic, Nanos, Span};

use super::entries::areas;
use super::listeners::Listener;
use crate::attach::handshake;
use crate::process::page::{self, PLACES_COUNT, Page};
use crate::process::region::RegionUse;
use crate::{process::env, process::sys};

static BUDGET: SpinBudget = SpinBudget::new(0);

/// No spin before that instant (CLOCK_MONOTONIC, ns): the process does not get the CPU that it spins on.
static PAUSED_UNTIL: AtomicU64 = AtomicU64::new(0);
/// When the first of the last losses of the CPU was, and how many they are.
static LOSSES_SINCE: AtomicU64 = AtomicU64::new(0);
static LOSSES: AtomicU32 = AtomicU32::new(0);
/// The next look whether a daemon that grants nothing still lives (CLOCK_MONOTONIC, ns).
static LOOK_AT: AtomicU64 = AtomicU64::new(0);

/// The epoch of the region at each place whose daemon was asked for a grant.
static ASKED: [AtomicU32; PLACES_COUNT] = [const { AtomicU32::new(0) }; PLACES_COUNT];

/// A spinning thread that does not run for so long has lost the CPU.
pub(crate) const LOSS: Nanos = Nanos::from_millis(2);
/// So many losses within [`LOSSES_WITHIN`] stop the spinning for [`PAUSE`].
const LOSSES_MAX: u32 = 4;
const LOSSES_WITHIN: Nanos = Nanos::from_seconds(1);
const PAUSE: Nanos = Nanos::from_seconds(10);
/// Between two looks at a daemon that grants nothing.
const LOOK_AGAIN: Nanos = Nanos::from_seconds(1);

/// What one wait comes to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Expected arrivals that came while the thread spun.
    pub(crate) hit: u64,
    /// Expected arrivals that came before it.
    pub(crate) early: u64,
    /// Expected arrivals that did not come in their window.
    pub(crate) missed: u64,
    /// How long the thread spun.
    pub(crate) spun: Span,
}

/// How long the process may spin at `now`; makes a step towards a region where there is none. `socket` is one that the daemon may know.
pub(crate) fn left(page: &'static Page, socket: c_int, now: Monotonic) -> Span {
    if now.as_nanos() < PAUSED_UNTIL.load(Relaxed) {
        return Span::ZERO;
    }
    let share = areas(page).map(|(_, area)| area.grant(now)).max().unwrap_or(0);
    if share == 0 {
        seek(page, socket, now);
        return Span::ZERO;
    }
    BUDGET.set(share);
    BUDGET.left(now)
}

/// Whether a daemon that lives knows this process.
pub(crate) fn is_served(page: &'static Page) -> bool {
    areas(page).any(|(held, _)| held.producer().state() == RegionState::Attached)
}

/// How long the process may spin at `now`, by the last grant.
pub(crate) fn left_of_last(now: Monotonic) -> Span {
    if now.as_nanos() < PAUSED_UNTIL.load(Relaxed) { Span::ZERO } else { BUDGET.left(now) }
}

/// The listener's entry in a region; claimed where it has none.
fn entry_of(listener: Listener, held: &RegionUse, area: Receive) -> Option<Counted> {
    listener.counted().entry(held.epoch(), area, || Some((listener.name()?, listener.cookie())))
}

/// Asks the daemon of a region for a grant, once.
fn ask(held: &RegionUse) {
    let Some(asked) = ASKED.get(held.place()) else { return };
    if asked.load(Relaxed) == held.epoch() || held.producer().receive().is_none() {
        return;
    }
    if let Some(control) = held.region().control.get()
        && sys::send(control, &Expect.encode(), None).is_ok()
    {
        asked.store(held.epoch(), Relaxed);
    }
}

/// Requests a grant for this process, which has none: an arrival is expected at `listener`. It claims the listener's entry in the region
/// before it sends `Expect`, because the daemon grants only to processes with an entry.
#[cold]
#[inline(never)]
pub(crate) fn request(page: &'static Page, listener: Listener) {
    if let Some((held, area)) = areas(page).next()
        && entry_of(listener, &held, area).is_some()
    {
        ask(&held);
    }
}

/// Where no region grants: gives up regions of daemons that are gone, and makes one step towards another region. Never blocks.
#[cold]
#[inline(never)]
fn seek(page: &'static Page, socket: c_int, now: Monotonic) {
    if RegionUse::current(page).is_some() {
        if now.as_nanos() < LOOK_AT.swap(now.saturating_add(LOOK_AGAIN).as_nanos(), Relaxed) {
            return;
        }
        for held in RegionUse::all(page) {
            if held.producer().state() != RegionState::Attached || held.region().is_daemon_gone() {
                held.give_up(page);
            }
        }
    }
    if RegionUse::current(page).is_none() {
        handshake::advance(page, socket);
    }
}

/// A thread has spun for so long.
pub(crate) fn spend(spun: Span) {
    BUDGET.spend(spun.to_nanos());
}

/// Counts what a wait for a listener came to.
pub(crate) fn count(listener: Listener, counts: &Counts) {
    spend(counts.spun);
    let Some((held, area)) = page::get().and_then(|page| areas(page).next()) else { return };
    let Some(counted) = entry_of(listener, &held, area) else { return };
    let expected = counts.hit.wrapping_add(counts.early).wrapping_add(counts.missed);
    let numbers = [
        (ReceiveCount::Expected, expected),
        (ReceiveCount::Hit, counts.hit),
        (ReceiveCount::Early, counts.early),
        (ReceiveCount::Missed, counts.missed),
        (ReceiveCount::Spun, counts.spun.as_nanos()),
    ];
    for (which, number) in numbers {
        if number != 0 {
            area.add(counted, which, number);
        }
    }
}

/// The thread was off the CPU in the middle of a spin. After several such losses this process pauses: a container's CPU quota is used up, or
/// other threads want the CPU, and the spin only makes it worse.
pub(crate) fn note_loss(now: Monotonic) {
    if now.since(Monotonic::from_nanos(LOSSES_SINCE.load(Relaxed))) > LOSSES_WITHIN {
        LOSSES_SINCE.store(now.as_nanos(), Relaxed);
        LOSSES.store(0, Relaxed);
    }
    if LOSSES.fetch_add(1, Relaxed).wrapping_add(1) >= LOSSES_MAX {
        PAUSED_UNTIL.store(now.saturating_add(PAUSE).as_nanos(), Relaxed);
        env::warn_once(&[
            b"ktsn: this program loses the CPU while it expects arrivals (a CPU quota, or a busy CPU): it pauses for 10 s at a time and ",
            b"receives as without KTSN_RECEIVE=expect. Give it more CPU; KTSN_LOG=off hides this line.",
        ]);
    }
}
