// SPDX-License-Identifier: Apache-2.0
//! Cycle timer (802.1Q-2022 clause 8.6.9.1): when cycles start.
//!
//! In: the start of oper's first cycle, its cycle time and extension, and what is pending. Out: starts of cycles.
//! Pure arithmetic in integers wide enough that nothing overflows.

/// The start of the cycle that holds at `now` (not before `first`).
pub(crate) fn cycle_start(first: u64, cycle_time: u64, now: u64) -> u64 {
    now - (now - first) % cycle_time
}

/// The start of oper's last cycle before the change at `change_at`, which was configured at `configured_at`: the first
/// start that sees the change and is near enough to it. `None` if the change comes before such a start, and cuts whatever runs.
///
/// ```text
///           configured_at                change_at
///  ──┬─────────┬─┴────────┬──────────┬──────┴───►   starts from configured_at on decide; the last cycle is the first
///    start     start      start      start          with start + cycle_time + extension ≥ change_at
/// ```
pub(crate) fn last_cycle_start(
    first: u64,
    cycle_time: u64,
    extension: u64,
    configured_at: u64,
    change_at: u64,
) -> Option<u64> {
    let near = u128::from(change_at).saturating_sub(u128::from(cycle_time) + u128::from(extension));
    let earliest = near.max(configured_at.into()).max(first.into());
    let count = (earliest - u128::from(first)).div_ceil(cycle_time.into());
    let start = u128::from(first) + count * u128::from(cycle_time);
    u64::try_from(start).ok().filter(|&start| start < change_at)
}
