// SPDX-License-Identifier: Apache-2.0
//! Which descriptor is which stream: one word for each descriptor number, changed by single atomic operations.
//!
//! In: what the hooks of close, dup, socket, … saw succeed. Out: the stream of a descriptor. Descriptors beyond
//! [`FDS_COUNT`] are never ours. A table that has missed a close (by a raw system call) is at worst wrong about a
//! number that the program uses again for another timed socket; that socket's `setsockopt` puts it right.

use core::ffi::c_int;
use core::sync::atomic::{
    AtomicU32,
    Ordering::{AcqRel, Acquire},
};

use crate::process::abi::FDS_COUNT;
use crate::process::page;
use crate::streams::{self, Stream};

/// Nothing is known about the descriptor.
const UNKNOWN: u32 = 0;
/// No timed datagram socket.
const NOT_OURS: u32 = 1;
/// No timed datagram socket, and the daemon was asked whether another process was granted SO_TXTIME on it.
const ASKED: u32 = 2;
/// Stream `n` is stored as `n + FIRST`.
const FIRST: u32 = 3;

static FDS: [AtomicU32; FDS_COUNT] = [const { AtomicU32::new(UNKNOWN) }; FDS_COUNT];

/// What the table says.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    /// It has not been looked at.
    Unknown,
    /// The kernel's alone.
    NotOurs,
    /// A stream's index.
    Stream(u32),
}

const fn decode(word: u32) -> Entry {
    match word {
        UNKNOWN => Entry::Unknown,
        NOT_OURS | ASKED => Entry::NotOurs,
        word => Entry::Stream(word.wrapping_sub(FIRST)),
    }
}

fn slot(fd: c_int) -> Option<&'static AtomicU32> {
    FDS.get(usize::try_from(fd).ok()?)
}

/// What is known about a descriptor.
pub(crate) fn get(fd: c_int) -> Entry {
    slot(fd).map_or(Entry::NotOurs, |word| decode(word.load(Acquire)))
}

fn replace(fd: c_int, word: u32) {
    let Some(slot) = slot(fd) else { return };
    if let Entry::Stream(index) = decode(slot.swap(word, AcqRel)) {
        streams::release(index);
    }
}

/// The descriptor and its stream; `None` where it is not known to have one.
pub(crate) fn stream_of(fd: c_int) -> Option<(c_int, Stream)> {
    match get(fd) {
        Entry::Stream(index) => streams::get(index).map(|stream| (fd, stream)),
        Entry::Unknown | Entry::NotOurs => None,
    }
}

/// Any stream, and a descriptor of it.
pub(crate) fn any_stream() -> Option<(c_int, Stream)> {
    (0..FDS_COUNT as c_int).find_map(stream_of)
}

/// Names a stream for a descriptor; the stream's reference goes to the table.
pub(crate) fn set(fd: c_int, index: u32) {
    if slot(fd).is_none() {
        streams::release(index);
        return;
    }
    replace(fd, index.wrapping_add(FIRST));
}

/// The descriptor is the kernel's alone.
pub(crate) fn set_not_ours(fd: c_int) {
    if slot(fd).is_some_and(|word| word.load(Acquire) != NOT_OURS) && page::may_change() {
        replace(fd, NOT_OURS);
    }
}

/// The daemon knows of no grant for this descriptor's socket.
pub(crate) fn set_asked(fd: c_int) {
    if page::may_change() {
        replace(fd, ASKED);
    }
}

/// Whether [`set_asked`] was its last word.
pub(crate) fn was_asked(fd: c_int) -> bool {
    slot(fd).is_some_and(|word| word.load(Acquire) == ASKED)
}

/// The descriptor is closed, or is something new.
pub(crate) fn forget(fd: c_int) {
    if get(fd) != Entry::Unknown && slot(fd).is_some() && page::may_change() {
        replace(fd, UNKNOWN);
    }
}

/// `new` is a duplicate of `old`, or a negative answer; returned as it came.
pub(crate) fn copy(old: c_int, new: c_int) -> c_int {
    if new >= 0
        && old != new
        && (get(old), get(new)) != (Entry::Unknown, Entry::Unknown)
        && page::may_change()
    {
        duplicate(old, new);
    }
    new
}

fn duplicate(old: c_int, new: c_int) {
    match get(old) {
        Entry::Stream(index) if streams::retain(index) => set(new, index),
        Entry::Stream(_) | Entry::Unknown => replace(new, UNKNOWN),
        Entry::NotOurs => replace(new, NOT_OURS),
    }
}

/// All descriptors from `first` to `last` are closed, except one that is ours.
pub(crate) fn forget_range(first: u32, last: u32) {
    if !page::may_change() {
        return;
    }
    let last = (last as usize).min(FDS_COUNT.saturating_sub(1));
    let Some(range) = FDS.get(first as usize..=last) else { return };
    for word in range {
        // Read first: a page of the table that no thread has written stays unwritten.
        if word.load(Acquire) != UNKNOWN
            && let Entry::Stream(index) = decode(word.swap(UNKNOWN, AcqRel))
        {
            streams::release(index);
        }
    }
}
