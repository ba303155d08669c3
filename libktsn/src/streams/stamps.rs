// SPDX-License-Identifier: Apache-2.0
//! Which reports a program wants about a timed datagram afterwards: errors, transmit timestamps.
//!
//! In: SO_TXTIME's flags, SO_TIMESTAMPING of the socket and of this message. Out: the slot's flags. A program that
//! wants no report pays two loads.

use core::sync::atomic::Ordering::Relaxed;

use ktsn_ring::{SlotFlags, SlotFrame};

use crate::call::control_messages::Parsed;
use crate::process::region::RegionUse;
use crate::streams::Stream;
pub(crate) use crate::streams::reports::OPT_ID;

/// SO_TXTIME: errors are to be reported.
const REPORT_ERRORS: u32 = 1 << 1;

const TX_HARDWARE: u32 = 1;
const TX_SOFTWARE: u32 = 1 << 1;
const TX_SCHED: u32 = 1 << 8;
const TX_ACK: u32 = 1 << 9;
/// The flags that one message may set.
const TX_RECORD: u32 = TX_HARDWARE | TX_SOFTWARE | TX_SCHED | TX_ACK;

/// Software times are shown (without it only that something happened).
pub(crate) const SOFTWARE: u32 = 1 << 4;
/// The datagram's addresses are shown too.
pub(crate) const OPT_CMSG: u32 = 1 << 10;
/// Timestamps come without the datagram.
pub(crate) const OPT_TSONLY: u32 = 1 << 11;

/// Lets the daemon report about this stream; its registration has just been answered.
pub(crate) fn begin(stream: Stream, held: &RegionUse) {
    let reports = stream.reports();
    let place = 1u32.wrapping_shl(held.place() as u32);
    if reports.reporters.load(Relaxed) & place == 0 {
        reports.reporters.fetch_or(place, Relaxed);
        let is_older = |frame: &SlotFrame| frame.stream_index == stream.index && !reports.has_sent(frame);
        held.producer().drop_completions(is_older);
    }
    held.producer().opened(stream.index);
}

/// Whether this stream sent a frame.
pub(crate) fn is_sent_by(stream: Stream, frame: &SlotFrame) -> bool {
    frame.stream_index == stream.index && stream.reports().has_sent(frame)
}

/// The flags of a datagram of this stream; `None` when only the kernel knows what is asked.
pub(crate) fn requested_flags(stream: Stream, control: &Parsed) -> Option<SlotFlags> {
    let flags = stream.reports().flags();
    if control.key.is_some() && flags & OPT_ID == 0 {
        return None; // EINVAL
    }
    let record = match control.timestamping {
        Some(record) if record & !TX_RECORD != 0 => return None, // newer than this library, or EINVAL
        Some(record) => record,
        None => flags,
    };
    let mut asked = SlotFlags::NONE;
    if record & TX_SOFTWARE != 0 {
        asked = asked.with(SlotFlags::STAMP_SOFTWARE);
    }
    if record & TX_SCHED != 0 {
        asked = asked.with(SlotFlags::STAMP_SCHED);
    }
    if stream.txtime().flags & REPORT_ERRORS != 0 {
        asked = asked.with(SlotFlags::REPORT);
    }
    Some(asked)
}

/// Whether a frame may have a report.
pub(crate) fn wants_report(frame: &SlotFrame) -> bool {
    frame.flags.wants_report()
}

/// The key of one datagram's timestamps.
#[derive(Clone, Copy)]
pub(crate) enum Key {
    /// The key is this number; 0 if there is none.
    Is(u32),
    /// The socket's next one, once it is clear that the datagram is taken.
    Next,
}

impl Key {
    /// The number; the socket counts on.
    pub(crate) fn take(self, stream: Stream) -> u32 {
        match self {
            Self::Is(key) => key,
            Self::Next => {
                let reports = stream.reports();
                reports.has_own_keys.store(true, Relaxed);
                reports.next_key()
            }
        }
    }

    /// The key that the kernel needs with a datagram that it sends: the number, where its count is another than ours. The
    /// socket counts on. [`Self::give_back`] if the datagram failed.
    pub(crate) fn pass(self, stream: Stream) -> Option<u32> {
        match self {
            Self::Is(_) => None,
            Self::Next => {
                let reports = stream.reports();
                let key = reports.next_key();
                reports.has_own_keys.load(Relaxed).then_some(key)
            }
        }
    }

    /// The datagram failed: the socket counts as if it had not been.
    pub(crate) fn give_back(self, stream: Stream) {
        if matches!(self, Self::Next) {
            stream.reports().return_key();
        }
    }
}

/// The key of a datagram: as in the kernel there is one for each call that asks for a timestamp, hardware stamps that
/// never come included.
pub(crate) fn key(stream: Stream, control: &Parsed) -> Key {
    let flags = stream.reports().flags();
    if flags & OPT_ID == 0 || control.timestamping.unwrap_or(flags) & TX_RECORD == 0 {
        return Key::Is(0);
    }
    control.key.map_or(Key::Next, Key::Is)
}
