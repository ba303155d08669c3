// SPDX-License-Identifier: Apache-2.0
//! Faults that tests let happen in a thread of a real ktsnd. This module is in debug builds only.
//!
//! In: the file that KTSND_TEST_FAULT names, read by the supervisor: `panic THREAD`, `stall THREAD` or `hold rtnl`. Out: that
//! thread panics, or never goes on, at its next sign of life; or every thread that would ask for the kernel's RTNL lock waits
//! until the file says something else, as if a driver held the lock.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static FAULT: OnceLock<(Kind, String)> = OnceLock::new();
static IS_ARMED: AtomicBool = AtomicBool::new(false);
static IS_RTNL_HELD: AtomicBool = AtomicBool::new(false);
/// How often a thread that waits for the lock asks again.
const RTNL_LOOK: std::time::Duration = std::time::Duration::from_millis(10);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Panic,
    Stall,
}

/// Reads the fault, once there is one.
pub(super) fn look() {
    let Some(path) = std::env::var_os("KTSND_TEST_FAULT") else { return };
    let Ok(text) = std::fs::read_to_string(path) else { return };
    IS_RTNL_HELD.store(text.trim() == "hold rtnl", Relaxed);
    let kind = |word| match word {
        "panic" => Some(Kind::Panic),
        "stall" => Some(Kind::Stall),
        _ => None,
    };
    if let Some((word, thread)) = text.trim().split_once(' ')
        && let Some(kind) = kind(word)
    {
        let _ = FAULT.set((kind, thread.to_owned()));
        IS_ARMED.store(true, Relaxed);
    }
}

/// A sign of life of the thread `name`.
#[inline]
pub(crate) fn point(name: &str) {
    if IS_ARMED.load(Relaxed) {
        happen(name);
    }
}

#[cold]
fn happen(name: &str) {
    match FAULT.get() {
        Some((Kind::Panic, thread)) if thread == name => panic!("as the test asked for"),
        Some((Kind::Stall, thread)) if thread == name => loop {
            std::thread::park();
        },
        _ => {}
    }
}

/// The calling thread is about to ask the kernel for something that takes its RTNL lock.
pub(crate) fn rtnl() {
    while IS_RTNL_HELD.load(Relaxed) {
        std::thread::sleep(RTNL_LOOK);
    }
}
