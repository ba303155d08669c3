// SPDX-License-Identifier: Apache-2.0
//! Signals while a thread waits. One that expects blocks them outside the kernel's waits, so that none is handled unseen.
//!
//! In: the thread's mask, the process's handlers. Out: the program's mask for the waits, and whether a call that a handler has
//! interrupted goes on.
//!
//! A handler runs only inside a wait that passes the program's own mask (`ppoll`), and the wait says EINTR. For poll, select and epoll that
//! is the answer. For a receive call without SO_RCVTIMEO the kernel asks the handler's SA_RESTART. Which of several handlers ran cannot be
//! seen, so such a call expects only where all handlers of the process agree ([`Handlers`]).

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::{process::originals, process::sys};

/// `sigset_t` of both C libraries; the kernel reads the first word.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct Mask([u64; 16]);

impl Mask {
    /// A mask of the kernel's one word.
    pub(crate) const fn new(word: u64) -> Self {
        let mut words = [0; 16];
        words[0] = word;
        Self(words)
    }

    /// The kernel's word.
    pub(crate) const fn word(&self) -> u64 {
        self.0[0]
    }
}

const fn bit(signal: u32) -> u64 {
    1 << signal.wrapping_sub(1)
}

/// Signals that the kernel raises for what a thread itself does: a blocked one ends the process.
const OWN: u64 = bit(4) | bit(5) | bit(6) | bit(7) | bit(8) | bit(11) | bit(31);
/// The C libraries' own: cancellation, set-user-id in all threads. The third one is musl's alone; in glibc it is the program's SIGRTMIN.
const LIBRARYS: u64 = bit(32) | bit(33);
const MUSLS: u64 = bit(34);

/// The signals that are never blocked here.
static LEFT: AtomicU64 = AtomicU64::new(OWN | LIBRARYS | MUSLS);

/// Finds out which signals are the C library's (by the constructor).
pub(crate) fn find() {
    LEFT.store(left_by(!originals::any(c"gnu_get_libc_version").is_null()), Relaxed);
}

const fn left_by(is_glibc: bool) -> u64 {
    if is_glibc { OWN | LIBRARYS } else { OWN | LIBRARYS | MUSLS }
}

const SIG_BLOCK: usize = 0;
const SIG_SETMASK: usize = 2;
const SA_RESTART: u64 = 0x1000_0000;

/// Blocks signals in the calling thread; its mask as it was, or `None` where a sandbox forbids that.
pub(crate) fn block() -> Option<Mask> {
    sys::change_mask(SIG_BLOCK, !LEFT.load(Relaxed)).map(Mask::new)
}

/// Gives the thread its mask back. What came meanwhile is handled here.
pub(crate) fn restore(mask: &Mask) {
    sys::change_mask(SIG_SETMASK, mask.word());
}

/// Whether a call without a timeout goes on that a handler of this thread has just interrupted: all handlers have SA_RESTART.
pub(crate) fn restarts_now() -> bool {
    sys::change_mask(SIG_BLOCK, 0)
        .is_some_and(|word| Handlers::look().restart_after(Handlers::default(), &Mask::new(word)))
}

/// Which signals have handlers, and of which kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Handlers {
    /// With SA_RESTART.
    pub(crate) restart: u64,
    /// Without.
    pub(crate) interrupt: u64,
}

impl Handlers {
    /// The handlers of the process now.
    pub(crate) fn look() -> Self {
        let (mut found, left) = (Self::default(), LEFT.load(Relaxed));
        for signal in 1..65 {
            if left & bit(signal) != 0 {
                continue;
            }
            match sys::handler_flags(signal) {
                Some(flags) if flags & SA_RESTART != 0 => found.restart |= bit(signal),
                Some(_) => found.interrupt |= bit(signal),
                None => {}
            }
        }
        found
    }

    /// Whether some of the handlers that `mask` lets run restart a call and others end it.
    pub(crate) const fn disagree(self, mask: &Mask) -> bool {
        self.restart & !mask.word() != 0 && self.interrupt & !mask.word() != 0
    }

    /// Whether a call goes on that one of these handlers has interrupted, where `before` were there when it began. In doubt it ends: a
    /// handler may be gone by now (SA_RESETHAND), or be new.
    pub(crate) const fn restart_after(self, before: Self, mask: &Mask) -> bool {
        let unblocked = !mask.word();
        (self.restart | before.restart) & unblocked != 0
            && (self.interrupt | before.interrupt) & unblocked == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_goes_on_only_where_all_handlers_restart() {
        let mask = Mask::new(bit(3));
        let with = |restart, interrupt| Handlers { restart, interrupt };
        let none = Handlers::default();
        assert!(with(bit(1), 0).restart_after(none, &mask));
        assert!(!with(bit(1), bit(2)).restart_after(none, &mask));
        assert!(with(bit(1), bit(3)).restart_after(none, &mask), "a blocked one does not count");
        assert!(!none.restart_after(none, &mask), "the handler is gone");
        assert!(none.restart_after(with(bit(1), 0), &mask));
        assert!(!with(bit(1), 0).restart_after(with(0, bit(1)), &mask));
        assert!(with(bit(1), bit(2)).disagree(&mask) && !with(bit(1), bit(3)).disagree(&mask));
    }

    #[test]
    fn what_a_thread_does_itself_is_never_blocked() {
        for is_glibc in [true, false] {
            let left = left_by(is_glibc);
            for signal in [4, 5, 7, 8, 11, 31, 32, 33] {
                assert_ne!(left & bit(signal), 0, "{signal}");
            }
            for signal in [1, 2, 10, 12, 14, 15, 17, 35, 64] {
                assert_eq!(left & bit(signal), 0, "{signal}");
            }
        }
    }

    /// SIGRTMIN is 34 in glibc and 35 in musl.
    #[test]
    fn the_first_real_time_signal_is_the_programs() {
        assert_eq!(left_by(true) & bit(34), 0);
        assert_ne!(left_by(false) & bit(34), 0);
    }
}
