// SPDX-License-Identifier: Apache-2.0
//! Cycle timer (802.1Q-2022 clause 8.6.9.1): when cycles start.
//!
//! In: the start of oper's first cycle, its cycle time and extension, and what is pending. Out: starts of cycles.
//! Pure arithmetic in integers wide enough that nothing overflows.

use ktsn_time::{Span, Tai};

/// The start of the cycle that holds at `now` (not before `first`).
pub(crate) fn cycle_start(first: Tai, cycle_time: Span, now: Tai) -> Tai {
    now.before(now.span_since(first) % cycle_time)
}

/// The start of oper's last cycle before the change at `change_at`, which was configured at `configured_at`: the first
/// start that sees the change and is near enough to it. `None` if the change comes before such a start, and cuts the running cycle.
///
/// ```text
///           configured_at                change_at
///  ──┬─────────┬─┴────────┬──────────┬──────┴───►   starts from configured_at on decide; the last cycle is the first
///    start     start      start      start          with start + cycle_time + extension ≥ change_at
/// ```
pub(crate) fn last_cycle_start(
    first: Tai,
    cycle_time: Span,
    extension: Span,
    configured_at: Tai,
    change_at: Tai,
) -> Option<Tai> {
    let near = change_at.before(cycle_time.saturating_add(extension));
    let earliest = near.max(configured_at).max(first);
    let count = earliest.span_since(first).as_nanos().div_ceil(cycle_time.as_nanos());
    let span = u128::from(count) * u128::from(cycle_time.as_nanos());
    first.checked_after(Span::from_wide(span)).filter(|&start| start < change_at)
}
