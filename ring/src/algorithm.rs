// SPDX-License-Identifier: Apache-2.0
//! The lock-free steps of the ring, on any [`Words`]: claim and release, push (of one slot or of a run) and take-all, attention.
//!
//! In: words and a layout. Out: a slot, a link, a verdict. `tests/loom.rs` runs exactly these functions on loom's
//! atomics; [`Producer`](crate::Producer) and the consumer run them on the mapping.
//!
//! ```text
//! producer   claim ─ fill ─ publish ───────────────────── fence ─ doorbell?
//!              ▲                 │ release                   ╳ (one of the two sees the other)
//! consumer   release ◄─ copy ◄─ take_all (acquire)        promise_poll_by ─ fence ─ empty? ─ sleep
//! ```

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use crate::frame::ClockId;
use crate::layout::{self, Layout};
use crate::words::Words;

/// The `next` word of a slot (at its beginning): slot + 1, or 0 at the end.
pub const NEXT: usize = 0;

/// How long after its promise the worker must have looked, in nanoseconds; later than this it may be dead.
pub const ATTENTION_GRACE: u64 = 5_000_000;

/// Takes a free slot, the lowest that is found; `None` when no bit was set.
#[inline]
pub fn claim(words: &impl Words, layout: &Layout) -> Option<u16> {
    let (first, bits) = claim_some(words, layout, 1)?;
    Some(first.wrapping_add(bits.trailing_zeros() as u16))
}

/// Takes free slots of one word of the bitmap, `count_max` at most, by one exchange: the slot of bit 0, and the bits;
/// `None` when no bit was set anywhere.
///
/// Lock-free: it begins again only when another thread took or gave a slot meanwhile.
#[inline]
pub fn claim_some(words: &impl Words, layout: &Layout, count_max: u32) -> Option<(u16, u64)> {
    loop {
        let mut contended = false;
        for index in 0..layout.free_words() {
            let at = layout::FREE.wrapping_add(index.wrapping_mul(8));
            let current = words.load64(at, Relaxed);
            let free = current & layout.free_mask(index);
            if free == 0 {
                continue;
            }
            let bits = lowest(free, count_max);
            // Acquire: the last owner is done with the slots.
            if words.exchange64(at, current, current & !bits, Acquire).is_ok() {
                return u16::try_from(index.wrapping_mul(64)).ok().map(|first| (first, bits));
            }
            // Another thread is busy in this word: the next one is likely to be calmer.
            contended = true;
        }
        if !contended {
            return None;
        }
    }
}

/// The lowest `count_max` of some bits, one at least.
#[inline]
const fn lowest(bits: u64, count_max: u32) -> u64 {
    if bits.count_ones() <= count_max {
        return bits;
    }
    let mut left = bits & bits.wrapping_sub(1);
    let mut count = 1;
    while count < count_max {
        left &= left.wrapping_sub(1);
        count += 1;
    }
    bits & !left
}

/// Gives slots of the word that begins with slot `first` back: as [`release`] does one.
#[inline]
pub fn release_some(words: &impl Words, first: u16, bits: u64) {
    words.set_bits64(layout::FREE.wrapping_add(usize::from(first >> 6).wrapping_mul(8)), bits, Release);
}

/// Gives a slot back: everything read or written in it before happens before its next claim.
#[inline]
pub fn release(words: &impl Words, slot: u16) {
    release_some(words, slot, 1u64.wrapping_shl(u32::from(slot & 63)));
}

/// Publishes a filled slot that lies at `slot_at`. Lock-free; a signal handler may publish in the midst of it.
#[inline]
pub fn publish(words: &impl Words, slot: u16, slot_at: usize) {
    publish_run(words, slot_at, slot);
}

/// Puts the filled slot at `slot_at` behind the slot `before`, in a run that is not published yet.
#[inline]
pub fn link(words: &impl Words, slot_at: usize, before: u16) {
    words.store32(slot_at.wrapping_add(NEXT), u32::from(before).wrapping_add(1), Relaxed);
}

/// Publishes a run of filled slots at once: each but the first was put behind the one before it by [`link`]. The
/// first lies at `first_at`, `last` is the newest. Lock-free, as [`publish`].
#[inline]
pub fn publish_run(words: &impl Words, first_at: usize, last: u16) {
    let mut head = words.load32(layout::HEAD, Relaxed);
    loop {
        words.store32(first_at.wrapping_add(NEXT), head, Relaxed);
        // Release: slots and links are visible to whom takes the list. A later push keeps them visible too, as its
        // exchange continues the release sequence.
        match words.exchange32(layout::HEAD, head, u32::from(last).wrapping_add(1), Release) {
            Ok(_) => return,
            Err(current) => head = current,
        }
    }
}

/// Whether something is published. One load, no order.
#[inline]
pub fn is_published(words: &impl Words) -> bool {
    words.load32(layout::HEAD, Relaxed) != 0
}

/// Takes the whole list: slot + 1 of the newest, or 0.
#[inline]
pub fn take_all(words: &impl Words) -> u32 {
    // An empty ring is the usual case in a pass: it costs a load, not an exchange.
    if is_published(words) { words.swap32(layout::HEAD, 0, AcqRel) } else { 0 }
}

/// The link after the slot at `slot_at`.
#[inline]
pub fn next(words: &impl Words, slot_at: usize) -> u32 {
    words.load32(slot_at.wrapping_add(NEXT), Relaxed)
}

/// The turn after `turn`: even, and never 0.
#[inline]
#[must_use]
pub const fn next_turn(turn: u32) -> u32 {
    match turn.wrapping_add(2) & !1 {
        0 => 2,
        turn => turn,
    }
}

/// Promises to poll the ring no later than at this instant (in both clocks, nanoseconds). `turn` is another one at every call
/// ([`next_turn`]): a doorbell that was rung before does not wake from the sleep that follows.
#[inline]
pub fn promise_poll_by(words: &impl Words, monotonic: u64, tai: u64, turn: u32) {
    words.store64(layout::LOOKS_AT_MONOTONIC, monotonic, Relaxed);
    words.store64(layout::LOOKS_AT_TAI, tai, Relaxed);
    words.store32(layout::TURN, turn, Relaxed);
}

/// Whether the consumer may sleep until what it promised by [`promise_poll_by`]: nothing is published. What rings from here on
/// must end the sleep.
#[inline]
pub fn sleep_check(words: &impl Words) -> bool {
    words.fence(SeqCst);
    !is_published(words)
}

/// A doorbell that is to be rung, and then noted by [`rung`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the worker sleeps"]
pub struct Bell {
    turn: u32,
}

/// Whether a frame just published for `tx_time` would be looked at too late, or the worker broke its promise; `None`
/// too where a client has rung since the worker's last promise: it wakes, and looks once more before it sleeps
/// again.
#[inline]
pub fn bell(words: &impl Words, clock: ClockId, tx_time: u64, now_monotonic: u64) -> Option<Bell> {
    words.fence(SeqCst);
    let monotonic = words.load64(layout::LOOKS_AT_MONOTONIC, Relaxed);
    let looks_at = match clock {
        ClockId::Monotonic => monotonic,
        ClockId::Tai => words.load64(layout::LOOKS_AT_TAI, Relaxed),
    };
    let is_overdue = now_monotonic > monotonic.saturating_add(ATTENTION_GRACE);
    if !is_overdue && tx_time >= looks_at {
        return None;
    }
    let turn = words.load32(layout::TURN, Relaxed);
    (is_overdue || turn & 1 == 0).then_some(Bell { turn })
}

/// Notes that a doorbell was rung, unless the worker has promised something new meanwhile: perhaps it had heard this
/// one before.
#[inline]
pub fn rung(words: &impl Words, bell: Bell) {
    // 0: a daemon that knows of no turns would leave the mark for ever.
    if bell.turn != 0 && bell.turn & 1 == 0 {
        // Once: where it fails for no reason, the next frame rings too.
        let _ = words.exchange32(layout::TURN, bell.turn, bell.turn | 1, Relaxed);
    }
}
