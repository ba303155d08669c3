// SPDX-License-Identifier: Apache-2.0
//! When a send of this process last waited for a slot. A frame is late for that reason if its TxTime passed in that time.
//!
//! In: the waits, by the clock of the frame that waited. Out: whether a TxTime lies in the last one. The ring is the process's, and so is the
//! wait: a thread that waits on one socket is late with its other sockets, too. Threads that wait at once have one wait together. The two
//! words of a wait are not written together. A reader in between may count a frame as `missed` instead of `waited`, or the reverse.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ktsn_ring::ClockId;

use crate::process::sys;

/// Waits less than this apart are one, in nanoseconds: threads that wait at once look at different instants.
const GAP: u64 = 5_000_000;

/// The last wait on a clock, in its nanoseconds.
struct Wait {
    since: AtomicU64,
    until: AtomicU64,
}

static WAITS: [Wait; 2] = [const { Wait { since: AtomicU64::new(0), until: AtomicU64::new(0) } }; 2];

fn wait_on(clock: ClockId) -> &'static Wait {
    let [on_monotonic, on_tai] = &WAITS;
    match clock {
        ClockId::Monotonic => on_monotonic,
        ClockId::Tai => on_tai,
    }
}

/// True when this TxTime passed while a send waited.
#[inline(always)]
pub(crate) fn passed_while_waiting(clock: ClockId, tx_time: u64) -> bool {
    let wait = wait_on(clock);
    tx_time < wait.until.load(Relaxed) && tx_time >= wait.since.load(Relaxed)
}

/// When the wait of a send with this TxTime begins. That is now; or the begin of the last wait, where that ended just now or made this send
/// late.
pub(crate) fn begin(clock: ClockId, tx_time: u64) -> u64 {
    let (wait, now) = (wait_on(clock), now_on(clock));
    let is_same = now < wait.until.load(Relaxed).saturating_add(GAP);
    if is_same || passed_while_waiting(clock, tx_time) { wait.since.load(Relaxed) } else { now }
}

/// A send has waited since then.
pub(crate) fn note(clock: ClockId, since: u64) {
    let wait = wait_on(clock);
    wait.since.store(since, Relaxed);
    wait.until.store(now_on(clock), Relaxed);
}

/// Now, in nanoseconds of a socket's clock.
fn now_on(clock: ClockId) -> u64 {
    sys::clock_by_call(clock.id().into())
}
