// SPDX-License-Identifier: Apache-2.0
//! Nothing allocates once a strategy is made, full and flooded included.

use crate::flood::flood;
use ktsn_sched::{CreditOptions, TimeAware, TimeAwareOptions};

const CAPACITY: usize = 256;

#[test]
fn strict_priority_allocates_nothing_after_new() {
    flood(&mut TimeAware::new(TimeAwareOptions::strict_priority(CAPACITY, 4)), 20, 97);
}

#[test]
fn credit_based_allocates_nothing_after_new() {
    let mut classes = [None; 8];
    classes[6] = Some(CreditOptions::new(200_000_000));
    classes[5] = Some(CreditOptions::with_limits(100_000_000, 1_000_000_000, 1_542, 1_542));
    let options = TimeAwareOptions::credit_based(CAPACITY, 4, Some(1_000_000_000), classes);
    flood(&mut TimeAware::new(options), 20, 97);
}
