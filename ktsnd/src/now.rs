// SPDX-License-Identifier: Apache-2.0
//! The system's clocks, read now.
//!
//! In: nothing. Out: an instant of `CLOCK_MONOTONIC` or `CLOCK_TAI`. It must never convert one clock into the other.

use ktsn_time::{Monotonic, Tai};
use rustix::time::{ClockId, DynamicClockId, Timespec, clock_gettime, clock_gettime_dynamic};

/// Nanoseconds since the clock's epoch.
pub(crate) fn nanos(t: Timespec) -> u64 {
    (t.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(t.tv_nsec as u64)
}

/// CLOCK_MONOTONIC now.
#[must_use]
#[inline]
pub fn monotonic_now() -> Monotonic {
    Monotonic::from_nanos(nanos(clock_gettime(ClockId::Monotonic)))
}

/// CLOCK_TAI now.
#[must_use]
#[inline]
pub fn tai_now() -> Tai {
    // Every kernel that KTSN supports has CLOCK_TAI (3.10). Zero would make all frames wait; none would leave early.
    clock_gettime_dynamic(DynamicClockId::Tai).map_or(Tai::ZERO, |t| Tai::from_nanos(nanos(t)))
}
