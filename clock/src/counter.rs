// SPDX-License-Identifier: Apache-2.0
//! The processor's counter: the time stamp counter of x86-64, the virtual counter of aarch64.
//!
//! In: nothing. Out: the counter's value, and which counter this is. Nothing else in this crate knows an architecture.

use crate::page::CounterKind;
use crate::sys;

/// This processor's counter.
#[cfg(target_arch = "x86_64")]
pub const KIND: CounterKind = CounterKind::X86Tsc;
/// This processor's counter.
#[cfg(target_arch = "aarch64")]
pub const KIND: CounterKind = CounterKind::ArmVirtual;

/// The counter's value now.
#[must_use]
pub fn read() -> u64 {
    sys::counter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    /// It counts with time: never back on a thread, and at a rate that a page may state.
    #[test]
    fn the_counter_counts_time() {
        let (began, first) = (Instant::now(), read());
        let mut before = first;
        while began.elapsed() < Duration::from_millis(20) {
            let now = read();
            assert!(now >= before, "{now} after {before}");
            before = now;
        }
        let period = began.elapsed().as_nanos() as f64 / (before - first) as f64;
        assert!((0.01..=1000.0).contains(&period), "{period} ns");
    }
}
