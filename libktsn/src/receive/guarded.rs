// SPDX-License-Identifier: Apache-2.0
//! Plain data that threads and signal handlers share without waiting: a user that finds it in use goes on without.
//!
//! In: a value. Out: access to it for one closure at a time. A thread that never comes back (cancelled, or left by `longjmp`) in the
//! nanoseconds of a closure leaves the value in use for this process: then the kernel's behaviour is what the program has.

use core::cell::UnsafeCell;
use core::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
};

/// A value that one user at a time has.
pub(crate) struct Guarded<T> {
    is_used: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only in `with`, by the thread that changed `is_used` from false to true, until it changes it back.
unsafe impl<T: Send> Sync for Guarded<T> {}

impl<T> Guarded<T> {
    /// A value that is not in use.
    pub(crate) const fn new(value: T) -> Self {
        Self { is_used: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Uses the value; `None` at once where another user has it. The closure must not call this again.
    pub(crate) fn with<R>(&self, user: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.is_used.compare_exchange(false, true, Acquire, Relaxed).ok()?;
        // SAFETY: `is_used` was false and is ours until it is false again.
        let result = user(unsafe { &mut *self.value.get() });
        self.is_used.store(false, Release);
        Some(result)
    }

    /// In a fork's child: the thread that had the value is not there.
    pub(crate) fn free(&self) {
        self.is_used.store(false, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::Guarded;

    #[test]
    fn a_second_user_goes_on_without() {
        let guarded = Guarded::new(5);
        let inner = guarded.with(|value| {
            *value += 1;
            guarded.with(|value| *value += 100)
        });
        assert_eq!(inner, Some(None));
        assert_eq!(guarded.with(|value| *value), Some(6));
    }
}
