// SPDX-License-Identifier: Apache-2.0
//! List config (802.1Q-2022 clause 8.6.9.3): when a configured list takes over.
//!
//! In: base time and cycle time of the new list, and the instant it was configured. Out: ConfigChangeTime.
//! Pure arithmetic in integers wide enough that nothing overflows.

/// `base_time` if that is not past, else the first `base_time + N · cycle_time` that is not; held at 2^64 − 1.
pub(crate) fn config_change_time(base_time: u64, cycle_time: u64, now: u64) -> u64 {
    let Some(past) = now.checked_sub(base_time) else { return base_time };
    let cycle_time = u128::from(cycle_time);
    let change = u128::from(base_time) + u128::from(past).div_ceil(cycle_time) * cycle_time;
    u64::try_from(change).unwrap_or(u64::MAX)
}

/// Whether the change counts as a ConfigChangeError: the base time has passed while gates run.
pub(crate) fn is_config_change_error(base_time: u64, now: u64, is_oper_enabled: bool) -> bool {
    is_oper_enabled && base_time < now
}
