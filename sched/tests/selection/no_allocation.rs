// SPDX-License-Identifier: Apache-2.0
//! Nothing allocates once the strategy is made, full and flooded included.

use crate::flood::flood;
use crate::sys;
use ktsn_sched::{TimeAware, TimeAwareOptions};
use std::hint::black_box;

#[test]
fn the_counter_counts() {
    let before = sys::allocations();
    drop(black_box(Box::new(1)));
    assert_eq!(sys::allocations(), before + 1);
}

#[test]
fn nothing_allocates_after_new() {
    flood(&mut TimeAware::new(TimeAwareOptions::tx_time(512, 4)), 40, 7);
}
