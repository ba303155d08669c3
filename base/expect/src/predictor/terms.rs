// SPDX-License-Identifier: Apache-2.0
//! What the parts of the predictor share: its bounds, what is known of an event, and the difference of two instants.

use ktsn_time::{Nanos, Span};

/// Shorter periods never lock: there is no time to sleep between two events.
pub const PERIOD_MIN: Nanos = Nanos::from_micros(50);
/// Longer periods never lock: five events would take a minute, and the talker's clock wanders by more than the spread between two.
pub const PERIOD_MAX: Nanos = Nanos::from_seconds(10);
/// The greatest spread. A spin of more than twice as long costs more than a wake-up.
pub const SPREAD_MAX: Span = Span::from_nanos(250_000);
/// The least spread: readings of the clock around a system call differ by so much.
pub const SPREAD_MIN: Span = Span::from_nanos(1_000);
/// Periodic streams that are followed at once. Each costs 32 octets and a look for each event.
pub const TRACKS: usize = 4;
/// A thread that slept is usually woken so long after the event (measured: 25 to 50 µs): the event is taken to have come so long before.
pub const LATENESS: Span = Span::from_nanos(30_000);

/// What is known of the instant of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The event came at this instant.
    Exact,
    /// The event came at or before this instant: the thread slept and was woken.
    NotAfter,
}

/// `at - earlier`, limited to the range.
pub(super) const fn since(at: u64, earlier: u64) -> i64 {
    Span::from_nanos(at.saturating_sub(earlier)).to_nanos().get()
        - Span::from_nanos(earlier.saturating_sub(at)).to_nanos().get()
}
