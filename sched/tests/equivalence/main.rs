// SPDX-License-Identifier: Apache-2.0
//! Time-aware selection that has no program, no link speed, hand-overs that take no time and classes in TxTime order decides exactly as earliest
//! TxTime first does, whatever the clocks do. The worlds are those of the selection tests. And it never allocates.

// What this test does not use of the shared worlds is used there.
#[allow(dead_code)]
#[path = "../selection/events.rs"]
mod events;
mod no_allocation;
#[allow(unsafe_code)]
#[path = "../selection/sys.rs"]
mod sys;
#[allow(dead_code)]
#[path = "../selection/world.rs"]
mod world;

use events::{Event, advance, begin, event, step_tai};
use ktsn_sched::{ClassOptions, EarliestTxTime, Strategy as _, TimeAware, TimeAwareOptions};
use ktsn_time::Nanos;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn without_a_program_it_is_earliest_tx_time_first(
        begin in begin(),
        capacity in 0usize..24,
        hand_over in i64::MIN..=0,
        events in prop::collection::vec(event(), 0..120),
    ) {
        let classes = [ClassOptions::default(); 8];
        let options = TimeAwareOptions { capacity, tenants: 4, link_speed: None, hand_over: Nanos::new(hand_over), classes };
        let (mut ours, mut theirs) = (TimeAware::new(options), EarliestTxTime::new(capacity, 4));
        let mut at = begin;
        for (id, event) in events.iter().enumerate() {
            match event {
                Event::Offer(sent) => {
                    let frame = sent.frame(id as u64, at);
                    prop_assert_eq!(ours.offer(frame, at), theirs.offer(frame, at));
                }
                Event::Decide => prop_assert_eq!(ours.decide(at), theirs.decide(at)),
                Event::Remove { tenant } => {
                    let (mut here, mut there) = (Vec::new(), Vec::new());
                    ours.remove(&mut |frame| frame.tenant == *tenant, &mut |frame| here.push(frame));
                    theirs.remove(&mut |frame| frame.tenant == *tenant, &mut |frame| there.push(frame));
                    prop_assert_eq!(here, there);
                }
                Event::Advance(span) => advance(&mut at, *span),
                Event::StepTai(span) => step_tai(&mut at, *span),
            }
            prop_assert_eq!(ours.len(), theirs.len());
        }
    }
}
