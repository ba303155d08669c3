// SPDX-License-Identifier: Apache-2.0
//! Which listeners are in which epoll set, and under which data.
//!
//! In: what `epoll_ctl` the kernel accepted, listeners by their numbers. Out: the listeners of a set, and those that events name.
//! Events only ever come from the kernel: a table that is incomplete, or wrong about a number that was used again behind our back,
//! costs a spin and nothing else.

use core::ffi::c_int;
use core::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::process::page;

/// Members of all sets that are remembered; further ones are waited for as the kernel waits.
const MEMBERS_COUNT: usize = 64;

struct Member {
    /// The set's descriptor in bits 8 to 39, the listener in bits 0 to 7, [`USED`]; 0 = free.
    key: AtomicU64,
    /// The program's `epoll_data`.
    data: AtomicU64,
}

const USED: u64 = 1 << 63;
/// A key that is just being written.
const CHANGING: u64 = 1 << 62;

static MEMBERS: [Member; MEMBERS_COUNT] =
    [const { Member { key: AtomicU64::new(0), data: AtomicU64::new(0) } }; MEMBERS_COUNT];

const fn set_of(key: u64) -> u32 {
    (key >> 8) as u32
}

const fn key_of(set: c_int, listener: u8) -> u64 {
    USED | (set.cast_unsigned() as u64) << 8 | listener as u64
}

/// The listener is in the set, and its events carry this data.
pub(crate) fn put(set: c_int, listener: u8, data: u64) {
    let key = key_of(set, listener);
    if let Some(member) = MEMBERS.iter().find(|member| member.key.load(Relaxed) == key) {
        member.data.store(data, Relaxed);
        return;
    }
    for member in &MEMBERS {
        if member.key.load(Relaxed) == 0 && member.key.compare_exchange(0, CHANGING, Acquire, Relaxed).is_ok()
        {
            member.data.store(data, Relaxed);
            member.key.store(key, Release);
            return;
        }
    }
}

/// The listener is in the set no more, or its events are not those of arrivals.
pub(crate) fn remove(set: c_int, listener: u8) {
    let key = key_of(set, listener);
    remove_where(|found| found == key);
}

fn remove_where(is_gone: impl Fn(u64) -> bool) {
    for member in &MEMBERS {
        let key = member.key.load(Relaxed);
        if key & USED != 0 && is_gone(key) {
            let _ = member.key.compare_exchange(key, 0, Release, Relaxed);
        }
    }
}

/// The descriptor is closed, or is something new: if it was an epoll set, that set is not waited for by this number any more.
pub(crate) fn forget_set(fd: c_int) {
    if page::may_change() {
        remove_where(|key| set_of(key) == fd.cast_unsigned());
    }
}

/// All descriptors from `first` to `last` are closed.
pub(crate) fn forget_sets(first: u32, last: u32) {
    remove_where(|key| (first..=last).contains(&set_of(key)));
}

/// The listener's socket has no descriptor any more: the kernel takes it out of all sets.
pub(crate) fn forget_listener(index: u8) {
    remove_where(|key| key as u8 == index);
}

/// The listeners of a set: bit `n` is listener `n`.
pub(crate) fn listeners_of(set: c_int) -> u32 {
    let mut found = 0;
    for member in &MEMBERS {
        let key = member.key.load(Acquire);
        if key & USED != 0 && set_of(key) == set.cast_unsigned() {
            found |= 1 << (key & 31);
        }
    }
    found
}

/// The listener of a set to which an event with this data belongs; `None` where it is no listener's, or that of several.
pub(crate) fn listener_of(set: c_int, data: u64) -> Option<u8> {
    let mut found = None;
    for member in &MEMBERS {
        let key = member.key.load(Acquire);
        if key & USED != 0 && set_of(key) == set.cast_unsigned() && member.data.load(Relaxed) == data {
            if found.is_some() {
                return None;
            }
            found = Some(key as u8);
        }
    }
    found
}
