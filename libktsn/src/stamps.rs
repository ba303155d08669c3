// SPDX-License-Identifier: Apache-2.0
//! What a timed datagram's program wants to be told afterwards: error reports, transmit timestamps.
//!
//! In: SO_TXTIME's flags, SO_TIMESTAMPING of the socket and of this message. Out: the slot's flags. Whoever asks for
//! nothing pays two loads.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use ktsn_ring::{Frame, SlotFlags};

use crate::abi::{SO_TIMESTAMPING, SOL_SOCKET};
use crate::control_messages::Parsed;
use crate::region::Use;
use crate::streams::Stream;
use crate::{page, sys};

/// SO_TXTIME: errors are to be reported.
const REPORT_ERRORS: u32 = 1 << 1;

const TX_HARDWARE: u32 = 1;
const TX_SOFTWARE: u32 = 1 << 1;
const TX_SCHED: u32 = 1 << 8;
const TX_ACK: u32 = 1 << 9;
/// What one message may ask for.
const TX_RECORD: u32 = TX_HARDWARE | TX_SOFTWARE | TX_SCHED | TX_ACK;

/// Software times are shown (without it only that something happened).
pub(crate) const SOFTWARE: u32 = 1 << 4;
/// Each datagram has a key.
pub(crate) const OPT_ID: u32 = 1 << 7;
/// The datagram's addresses are shown too.
pub(crate) const OPT_CMSG: u32 = 1 << 10;
/// Timestamps come without the datagram.
pub(crate) const OPT_TSONLY: u32 = 1 << 11;

/// How often a close looks whether the daemon has let go of the socket, and the pause, ns. It does within microseconds,
/// unless the machine is busy with others.
const CLOSE_ATTEMPTS: u32 = 1000;
const CLOSE_NAP: u32 = 50_000;

/// What one stream's program wants to be told, and its count of keys.
pub(crate) struct Telling {
    /// SO_TIMESTAMPING.
    flags: AtomicU32,
    /// The next datagram's key (SOF_TIMESTAMPING_OPT_ID).
    key: AtomicU32,
    /// The last token before this stream: frames of older ones were another socket's.
    born: AtomicU32,
    /// The daemon may tell something by its error queue, about frames of the attachments of these places.
    told_by: AtomicU32,
    /// A key was given to a datagram that the kernel has not seen: its count is another now.
    has_own_keys: AtomicBool,
}

impl Telling {
    /// Of no stream.
    pub(crate) const fn new() -> Self {
        Self {
            flags: AtomicU32::new(0),
            key: AtomicU32::new(0),
            born: AtomicU32::new(0),
            told_by: AtomicU32::new(0),
            has_own_keys: AtomicBool::new(false),
        }
    }

    /// A new stream's, whose tokens come after `born`.
    pub(crate) fn begin(&self, born: u32) {
        self.flags.store(0, Relaxed);
        self.key.store(0, Relaxed);
        self.born.store(born, Relaxed);
        self.told_by.store(0, Relaxed);
        self.has_own_keys.store(false, Relaxed);
    }

    /// SO_TIMESTAMPING.
    pub(crate) fn flags(&self) -> u32 {
        self.flags.load(Relaxed)
    }

    /// Asks the socket for SO_TIMESTAMPING. Where keys are switched on they begin at 0, as in the kernel.
    pub(crate) fn read_flags(&self, fd: c_int) {
        let flags = sys::option_int(fd, SOL_SOCKET, SO_TIMESTAMPING).unwrap_or(0).cast_unsigned();
        let before = self.flags.swap(flags, Relaxed);
        if flags & !before & OPT_ID != 0 {
            self.key.store(0, Relaxed);
            self.has_own_keys.store(false, Relaxed);
        }
    }

    /// Whether its datagrams have keys.
    pub(crate) fn has_keys(&self) -> bool {
        self.flags() & OPT_ID != 0
    }

    fn next_key(&self) -> u32 {
        self.key.fetch_add(1, Relaxed)
    }

    fn return_key(&self) {
        self.key.fetch_sub(1, Relaxed);
    }

    /// Whether a frame of the stream's index is its own, and not of an earlier stream's.
    fn sent(&self, frame: &Frame) -> bool {
        frame.token.wrapping_sub(self.born.load(Relaxed)).cast_signed() > 0
    }

    /// The stream ends: nobody reads its completions any more, and the daemon keeps its hands off the socket from here
    /// on. If it holds it right now that takes microseconds; a daemon that was stopped meanwhile is not waited for.
    pub(crate) fn end(&self, index: u32) {
        if self.told_by.load(Relaxed) == 0 {
            return;
        }
        let Some(page) = page::get() else { return };
        for held in Use::all(page) {
            let producer = held.producer();
            producer.closing(index);
            for _ in 0..CLOSE_ATTEMPTS {
                if !producer.is_notified(index) {
                    break;
                }
                sys::nap(CLOSE_NAP);
            }
            producer.drop_completions(|frame| frame.stream_index == index);
        }
    }
}

/// From now on the daemon may tell something about this stream; its registration has just been answered.
pub(crate) fn begin(stream: Stream, held: &Use) {
    let telling = stream.telling();
    let place = 1u32.wrapping_shl(held.place() as u32);
    if telling.told_by.load(Relaxed) & place == 0 {
        telling.told_by.fetch_or(place, Relaxed);
        let is_older = |frame: &Frame| frame.stream_index == stream.index && !telling.sent(frame);
        held.producer().drop_completions(is_older);
    }
    held.producer().opened(stream.index);
}

/// Whether this stream sent a frame.
pub(crate) fn sent(stream: Stream, frame: &Frame) -> bool {
    frame.stream_index == stream.index && stream.telling().sent(frame)
}

/// The flags of a datagram of this stream; `None` when only the kernel knows what is asked.
pub(crate) fn asked(stream: Stream, control: &Parsed) -> Option<SlotFlags> {
    let flags = stream.telling().flags();
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

/// Whether something may be told of a frame.
pub(crate) fn is_told(frame: &Frame) -> bool {
    frame.flags.is_told()
}

/// The key of one datagram's timestamps.
#[derive(Clone, Copy)]
pub(crate) enum Key {
    /// It has none, or it is this one.
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
                let telling = stream.telling();
                telling.has_own_keys.store(true, Relaxed);
                telling.next_key()
            }
        }
    }

    /// What the kernel has to be told with a datagram that goes there: the number, where it does not count as we do; the
    /// socket counts on. [`Self::give_back`] if the datagram failed.
    pub(crate) fn pass(self, stream: Stream) -> Option<u32> {
        match self {
            Self::Is(_) => None,
            Self::Next => {
                let telling = stream.telling();
                let key = telling.next_key();
                telling.has_own_keys.load(Relaxed).then_some(key)
            }
        }
    }

    /// The datagram failed: the socket counts as if it had not been.
    pub(crate) fn give_back(self, stream: Stream) {
        if matches!(self, Self::Next) {
            stream.telling().return_key();
        }
    }
}

/// The key of a datagram: as in the kernel there is one for each call that asks for a timestamp, hardware stamps that
/// never come included.
pub(crate) fn key(stream: Stream, control: &Parsed) -> Key {
    let flags = stream.telling().flags();
    if flags & OPT_ID == 0 || control.timestamping.unwrap_or(flags) & TX_RECORD == 0 {
        return Key::Is(0);
    }
    control.key.map_or(Key::Next, Key::Is)
}
