// SPDX-License-Identifier: Apache-2.0
//! The send buffer of a socket whose program set SO_SNDBUF: what is queued is charged to it, as by the kernel.
//!
//! In: SO_SNDBUF as the kernel says it, the frames in the rings of the namespace's attachments. Out: whether there is room for one more. A frame is charged
//! until it has left: its slot is free again, or holds what became of it. The charge is not counted down: a send that finds the buffer full
//! looks at the slots in use. A socket with the system's default buffer is not charged, its limit is the ring's slots.
//!
//! A slot that another thread has claimed and not filled yet shows the frame it held before, and may be charged once more
//! for these microseconds: the buffer then looks fuller than it is, never emptier.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::process::abi::{SO_SNDBUF, SOL_SOCKET};
use crate::process::page::Page;
use crate::process::region::RegionUse;
use crate::streams::{STREAMS_COUNT, Stream};
use crate::{process::sys, streams::stamps};

/// SO_SNDBUF of a new socket (net.core.wmem_default).
const DEFAULT: u32 = 212_992;
/// What a datagram of 64-bit Linux takes beside its payload: headers with the room in front of them and the allocator's
/// end mark, `struct skb_shared_info`, `struct sk_buff`.
const HEADERS: u32 = 59;
const SHARED_INFO: u32 = 320;
const BUFFER: u32 = 256;
/// The kernel's smallest head of a buffer (SKB_SMALL_HEAD_SIZE), and the granularity of what goes into one.
const SMALL_HEAD: u32 = 704;
const LINE: u32 = 64;

/// Charged octets in the low half (as last counted, and what was sent since), the limit in the high one; 0 = none.
static BUFFERS: [AtomicU64; STREAMS_COUNT] = [const { AtomicU64::new(0) }; STREAMS_COUNT];

fn word(stream: u32) -> Option<&'static AtomicU64> {
    BUFFERS.get(stream as usize)
}

/// What the kernel charges for a datagram of so many octets (`truesize`).
const fn charge(octets: u32) -> u32 {
    let head = octets.saturating_add(HEADERS).saturating_add(LINE - 1) & !(LINE - 1);
    let head = head.saturating_add(SHARED_INFO);
    let head = if head <= SMALL_HEAD {
        SMALL_HEAD
    } else {
        match head.checked_next_power_of_two() {
            Some(octets) => octets,
            None => u32::MAX,
        }
    };
    head.saturating_add(BUFFER)
}

/// Asks a stream's socket for its limit.
pub(crate) fn read(stream: u32, fd: c_int) {
    let limit = sys::option_int(fd, SOL_SOCKET, SO_SNDBUF).and_then(|octets| u32::try_from(octets).ok());
    let limit = limit.filter(|octets| *octets != DEFAULT).unwrap_or(0);
    let Some(word) = word(stream) else { return };
    if word.load(Relaxed) >> 32 != u64::from(limit) {
        word.store(u64::from(limit) << 32, Relaxed); // 0 charged: what is queued is found when it seems full
    }
}

/// Whether what a stream sends is charged.
#[inline(always)]
pub(crate) fn is_charged(stream: u32) -> bool {
    word(stream).is_some_and(|word| word.load(Relaxed) != 0)
}

/// Charges a datagram that was sent.
pub(crate) fn add(stream: u32, octets: usize) {
    let Some(word) = word(stream) else { return };
    let charged = |now: u64| u64::from((now as u32).saturating_add(charge(octets as u32)));
    let more = |now: u64| (now >> 32 != 0).then(|| now >> 32 << 32 | charged(now));
    let _ = word.fetch_update(Relaxed, Relaxed, more);
}

/// Whether a charged stream's buffer has room: as in the kernel, the last datagram may exceed it.
pub(crate) fn has_room(stream: Stream, page: &Page) -> bool {
    let Some(word) = word(stream.index) else { return true };
    let now = word.load(Relaxed);
    let limit = (now >> 32) as u32;
    if limit == 0 || (now as u32) < limit {
        return true; // (0: another thread has just set the default)
    }
    let mut charged = 0u32;
    // One buffer, whichever of the namespace's attachments its datagrams leave by.
    for held in RegionUse::all(page) {
        held.producer().for_each_queued(|frame, octets| {
            if stamps::is_sent_by(stream, frame) {
                charged = charged.saturating_add(charge(octets.into()));
            }
        });
    }
    // What another thread sends meanwhile is found the next time.
    let _ = word.compare_exchange(now, u64::from(limit) << 32 | u64::from(charged), Relaxed, Relaxed);
    charged < limit
}

#[cfg(test)]
mod tests {
    use super::charge;

    #[test]
    fn a_datagram_costs_what_linux_6_18_charges() {
        for (octets, expected) in
            [(0, 960), (64, 960), (325, 960), (326, 1280), (500, 1280), (1200, 2304), (1472, 2304)]
        {
            assert_eq!(charge(octets), expected, "{octets}");
        }
    }
}
