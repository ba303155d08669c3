// SPDX-License-Identifier: Apache-2.0
//! What became of a frame, reported in the slot that brought it: the daemon posts, the program takes.
//!
//! In: an outcome and a slot that the daemon holds. Out: entries, each taken by one reader; the last one frees the
//! slot. Like [`crate::algorithm`] it runs on any [`Words`], never waits and follows no link.
//!
//! ```text
//! daemon    outcome → pending = sequence, kinds (release) → done bit        (its claim on the slot ends here)
//! program   pending (acquire) → copy → pending −= kind (exchange: one reader has it)
//!                                      └ no kind left: done bit off → free bit on
//! ```
//! A reader that loses the exchange has copied what may be another frame's by now; it drops the copy.
//!
//! The daemon holds a program's socket for a moment to notify the program ([`notify_begin`]); the program that closes its last
//! descriptor waits for that ([`closing`]), so that a port is free when `close` returns:
//!
//! ```text
//! program   closing bit on → fence → notifying = stream?  wait : close
//! daemon    notifying = stream → fence → closing bit?  give up : take the socket, notify, close → notifying = 0
//! ```

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use crate::algorithm;
use crate::frame::{self, SlotHeader};
use crate::layout::{self, Layout};
use crate::words::Words;

/// Where `sequence | kinds` lies in a slot: sequence in bits 32–63, kinds in 0–7.
const PENDING: usize = 72;
/// Outcome in octet 0, octets of headers in 1, interface in 4–7.
const OUTCOME: usize = 80;
const HANDED_AT: usize = 88;
const SCHEDULED_AT: usize = 96;
const DONE_AT: usize = 104;
const HEADERS: usize = 112;
/// Octets of headers that a slot keeps: Ethernet with a tag, IPv6 and UDP are 66.
pub const HEADERS_MAX: usize = 80;

const _: () = assert!(frame::REPORT + 8 == PENDING);
const _: () = assert!(HEADERS + HEADERS_MAX == layout::SLOT_HEADER_OCTETS);

/// Kinds of entries that one frame can make, as bits.
pub mod kind {
    /// The instant of the taking over.
    pub const SCHEDULED: u8 = 1;
    /// The instant of the hand-over.
    pub const SOFTWARE: u8 = 2;
    /// The frame was dropped for its transmit time's sake.
    pub const ERROR: u8 = 4;
    /// All kinds of completion.
    pub const ALL: u8 = 7;
}

/// What became of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    /// Handed to a port.
    #[default]
    Sent = 0,
    /// Dropped: its transmit time had passed.
    Missed = 1,
    /// Dropped: such a transmit time is too far away to wait for.
    Invalid = 2,
    /// Dropped for a reason that no error report has.
    Dropped = 3,
}

impl Outcome {
    const fn from_octet(octet: u8) -> Self {
        match octet {
            0 => Self::Sent,
            1 => Self::Missed,
            2 => Self::Invalid,
            _ => Self::Dropped,
        }
    }
}

/// The report about one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Entries that are still unread ([`kind`]).
    pub kinds: u8,
    /// What became of it.
    pub outcome: Outcome,
    /// Index of the pod's interface; 0 = unknown.
    pub interface: u32,
    /// When it was handed over, nanoseconds of `CLOCK_REALTIME`.
    pub handed_at: u64,
    /// When it was taken over, nanoseconds of `CLOCK_REALTIME`.
    pub scheduled_at: u64,
    /// When this was posted, nanoseconds of `CLOCK_MONOTONIC`.
    pub done_at: u64,
    /// The headers in front of the payload.
    pub headers: [u8; HEADERS_MAX],
    /// How many octets of them there are.
    pub headers_octets: u8,
}

impl Default for Completion {
    fn default() -> Self {
        Self {
            kinds: 0,
            outcome: Outcome::Sent,
            interface: 0,
            handed_at: 0,
            scheduled_at: 0,
            done_at: 0,
            headers: [0; HEADERS_MAX],
            headers_octets: 0,
        }
    }
}

/// Names one completion: a slot is used again, a sequence not before 2^32 others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The slot.
    pub slot: u16,
    /// Its number in the region.
    pub sequence: u32,
}

const fn pending(sequence: u32, kinds: u8) -> u64 {
    (sequence as u64) << 32 | kinds as u64
}

/// Posts what became of the frame in `place`, and gives the slot to the reader of its last entry. The caller holds
/// it, and `completion.kinds` is not 0.
#[inline]
pub fn post(words: &impl Words, layout: &Layout, place: Place, completion: &Completion) {
    let Some(at) = layout.slot(place.slot) else { return };
    let field = |offset: usize| at.wrapping_add(offset);
    let [outcome, octets] = [completion.outcome as u64, u64::from(completion.headers_octets)];
    words.store64(field(OUTCOME), outcome | octets << 8 | u64::from(completion.interface) << 32, Relaxed);
    words.store64(field(HANDED_AT), completion.handed_at, Relaxed);
    words.store64(field(SCHEDULED_AT), completion.scheduled_at, Relaxed);
    words.store64(field(DONE_AT), completion.done_at, Relaxed);
    let headers_words = usize::from(completion.headers_octets).div_ceil(8);
    for (index, word) in completion.headers.as_chunks::<8>().0.iter().take(headers_words).enumerate() {
        words.store64(field(HEADERS).wrapping_add(8 * index), u64::from_le_bytes(*word), Relaxed);
    }
    words.store64(field(PENDING), pending(place.sequence, completion.kinds), Release);
    words.set_bits64(done_word(place.slot), bit(place.slot), Release);
}

const fn done_word(slot: u16) -> usize {
    layout::DONE.wrapping_add(((slot >> 6) as usize).wrapping_mul(8))
}

const fn bit(slot: u16) -> u64 {
    1u64.wrapping_shl((slot & 63) as u32)
}

/// The report in `slot` now, its sequence, and what the program itself had written there.
#[inline]
pub fn read(words: &impl Words, layout: &Layout, slot: u16) -> Option<(Place, Completion, SlotHeader)> {
    let at = layout.slot(slot)?;
    let field = |offset: usize| words.load64(at.wrapping_add(offset), Relaxed);
    let pending = words.load64(at.wrapping_add(PENDING), Acquire);
    if pending as u8 == 0 {
        return None;
    }
    let outcome = field(OUTCOME);
    let mut headers = [0; HEADERS_MAX];
    words.read_octets(at.wrapping_add(HEADERS), &mut headers);
    let completion = Completion {
        kinds: pending as u8 & kind::ALL,
        outcome: Outcome::from_octet(outcome as u8),
        interface: (outcome >> 32) as u32,
        handed_at: field(HANDED_AT),
        scheduled_at: field(SCHEDULED_AT),
        done_at: field(DONE_AT),
        headers,
        headers_octets: ((outcome >> 8) as u8).min(HEADERS_MAX as u8),
    };
    let place = Place { slot, sequence: (pending >> 32) as u32 };
    Some((place, completion, SlotHeader::load(words, at)))
}

/// Takes entries (`kinds`, bits) of a completion; the bits that this caller has now. With the last one the slot is
/// free again.
#[inline]
pub fn take(words: &impl Words, layout: &Layout, place: Place, kinds: u8) -> u8 {
    let Some(at) = layout.slot(place.slot) else { return 0 };
    let at = at.wrapping_add(PENDING);
    let mut current = words.load64(at, Relaxed);
    loop {
        let taken = current as u8 & kinds;
        if (current >> 32) as u32 != place.sequence || taken == 0 {
            return 0;
        }
        let left = current & !u64::from(taken);
        // Release: the copy was made before; acquire: the slot is freed after all other readers have copied.
        match words.exchange64(at, current, left, AcqRel) {
            Ok(_) => {
                if left as u8 == 0 {
                    free(words, place.slot);
                }
                return taken;
            }
            Err(now) => current = now,
        }
    }
}

fn free(words: &impl Words, slot: u16) {
    let at = done_word(slot);
    let mut current = words.load64(at, Relaxed);
    while let Err(now) = words.exchange64(at, current, current & !bit(slot), Relaxed) {
        current = now;
    }
    algorithm::release(words, slot);
}

/// The slots of all completions, in no order.
pub fn done<'a>(words: &'a impl Words, layout: &'a Layout) -> impl Iterator<Item = u16> + 'a {
    (0..layout.free_words()).flat_map(move |index| {
        let at = layout::DONE.wrapping_add(index.wrapping_mul(8));
        let mut left = words.load64(at, Acquire) & layout.free_mask(index);
        core::iter::from_fn(move || {
            let lowest = left & left.wrapping_neg();
            left &= !lowest;
            (lowest != 0)
                .then(|| index.wrapping_mul(64).wrapping_add(lowest.trailing_zeros() as usize) as u16)
        })
    })
}

fn closing_bit(stream: u32) -> (usize, u64) {
    (layout::CLOSING.wrapping_add((stream >> 6) as usize * 8), 1u64.wrapping_shl(stream & 63))
}

/// The program closes a stream's last descriptor. Whether it must wait: ask [`is_notified`] until it is false.
pub fn closing(words: &impl Words, stream: u32) {
    let (at, bit) = closing_bit(stream);
    words.set_bits64(at, bit, Relaxed);
    words.fence(SeqCst);
}

/// Whether the daemon holds the socket of this stream right now.
pub fn is_notified(words: &impl Words, stream: u32) -> bool {
    // Acquire: what the daemon did with the socket is done.
    words.load32(layout::NOTIFYING, Acquire) == stream.wrapping_add(1)
}

/// The stream index is in use again, and the daemon has answered its new registration.
pub fn opened(words: &impl Words, stream: u32) {
    let (at, bit) = closing_bit(stream);
    let mut current = words.load64(at, Relaxed);
    while current & bit != 0 {
        match words.exchange64(at, current, current & !bit, Relaxed) {
            Ok(_) => return,
            Err(now) => current = now,
        }
    }
}

/// The daemon is about to take the socket of `stream`; false when the program closes it: hands off. `is_current` is
/// asked behind the fence: the program takes the closing bit back only after it has seen another registration.
pub fn notify_begin(words: &impl Words, stream: u32, is_current: impl FnOnce() -> bool) -> bool {
    words.store32(layout::NOTIFYING, stream.wrapping_add(1), Relaxed);
    words.fence(SeqCst);
    let (at, bit) = closing_bit(stream);
    if words.load64(at, Relaxed) & bit == 0 && is_current() {
        return true;
    }
    notify_end(words);
    false
}

/// The daemon has closed the socket again.
pub fn notify_end(words: &impl Words) {
    words.store32(layout::NOTIFYING, 0, Release);
}
