// SPDX-License-Identifier: Apache-2.0
//! List config (802.1Q-2022 clause 8.6.9.3): when a configured list takes over.
//!
//! In: base time and cycle time of the new list, and the instant it was configured. Out: ConfigChangeTime.
//! Pure arithmetic in integers wide enough that nothing overflows.

use ktsn_time::{Span, Tai};

/// `base_time` if that is not past, else the first `base_time + N · cycle_time` that is not; held at the end of the range.
pub(crate) fn config_change_time(base_time: Tai, cycle_time: Span, now: Tai) -> Tai {
    let count = now.span_since(base_time).as_nanos().div_ceil(cycle_time.as_nanos());
    let span = u128::from(count) * u128::from(cycle_time.as_nanos());
    base_time.after(Span::from_wide(span))
}

/// Whether the change counts as a ConfigChangeError: the base time has passed while gates run.
pub(crate) fn is_config_change_error(base_time: Tai, now: Tai, is_oper_enabled: bool) -> bool {
    is_oper_enabled && base_time < now
}
