// SPDX-License-Identifier: Apache-2.0
//! What the program behind one socket wants to know about its datagrams afterwards, and the count of its keys.
//!
//! In: SO_TIMESTAMPING as the socket has it. Out: flags and keys. When the socket is closed, its unread reports are dropped.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use ktsn_ring::SlotFrame;

use crate::process::abi::{SO_TIMESTAMPING, SOL_SOCKET};
use crate::process::region::RegionUse;
use crate::{process::page, process::sys};

/// Each datagram has a key.
pub(crate) const OPT_ID: u32 = 1 << 7;
/// How often a close looks whether the daemon has let go of the socket, and the pause, ns. It does within microseconds,
/// unless the machine is busy with others.
const CLOSE_ATTEMPTS: u32 = 1000;
const CLOSE_NAP: u32 = 50_000;

/// Which reports one stream's program wants, and its count of keys.
pub(crate) struct Reports {
    /// SO_TIMESTAMPING.
    flags: AtomicU32,
    /// The next datagram's key (SOF_TIMESTAMPING_OPT_ID).
    key: AtomicU32,
    /// The last token before this stream: frames of older ones were another socket's.
    born: AtomicU32,
    /// The daemon may report by its error queue about frames of the attachments at these places.
    pub(crate) reporters: AtomicU32,
    /// A key was given to a datagram that the kernel has not seen: its count is another now.
    pub(crate) has_own_keys: AtomicBool,
}

impl Reports {
    /// The reports of a stream that asks for none.
    pub(crate) const fn new() -> Self {
        Self {
            flags: AtomicU32::new(0),
            key: AtomicU32::new(0),
            born: AtomicU32::new(0),
            reporters: AtomicU32::new(0),
            has_own_keys: AtomicBool::new(false),
        }
    }

    /// Begins with a new stream: its tokens come after `born`.
    pub(crate) fn begin(&self, born: u32) {
        self.flags.store(0, Relaxed);
        self.key.store(0, Relaxed);
        self.born.store(born, Relaxed);
        self.reporters.store(0, Relaxed);
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

    pub(crate) fn next_key(&self) -> u32 {
        self.key.fetch_add(1, Relaxed)
    }

    pub(crate) fn return_key(&self) {
        self.key.fetch_sub(1, Relaxed);
    }

    /// Whether a frame of the stream's index is its own, and not of an earlier stream's.
    pub(crate) fn has_sent(&self, frame: &SlotFrame) -> bool {
        frame.token.wrapping_sub(self.born.load(Relaxed)).cast_signed() > 0
    }

    /// The stream ends: no thread reads its completions any more, and the daemon does not take the socket from here
    /// on. If it holds it right now that takes microseconds; a daemon that was stopped meanwhile is not waited for.
    pub(crate) fn end(&self, index: u32) {
        if self.reporters.load(Relaxed) == 0 {
            return;
        }
        let Some(page) = page::get() else { return };
        for held in RegionUse::all(page) {
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
