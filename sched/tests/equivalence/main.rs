// SPDX-License-Identifier: Apache-2.0
//! A port with gates and no program decides as one without gates, if no link speed is set, hand-overs take no time and the classes are in
//! TxTime order. That holds whatever the clocks do. The worlds are those of the selection tests. And nothing allocates.

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
use ktsn_sched::{ClassOptions, TimeAware, TimeAwareOptions};
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
        let options = TimeAwareOptions {
hand_over: Nanos::new(hand_over),
classes,
..TimeAwareOptions::gates(capacity, 4)
};
        let (mut ours, mut theirs) = (TimeAware::new(options), TimeAware::new(TimeAwareOptions::tx_time(capacity, 4)));
        // Without gates frames are not paced, whatever speed is set.
        theirs.set_link_speed(Some(1_000));
        let mut at = begin;
        for (id, event) in events.iter().enumerate() {
            match event {
                Event::Offer(sent) => {
                    let frame = sent.frame(id as u64, at);
                    prop_assert_eq!(ours.offer(frame, at), theirs.offer(frame, at));
                }
                Event::Decide => prop_assert_eq!(ours.decide(at), theirs.decide(at)),
                Event::Remove { attachment } => {
                    let (mut here, mut there) = (Vec::new(), Vec::new());
                    ours.remove(&mut |frame| frame.attachment == *attachment, &mut |frame| here.push(frame));
                    theirs.remove(&mut |frame| frame.attachment == *attachment, &mut |frame| there.push(frame));
                    prop_assert_eq!(here, there);
                }
                Event::Advance(span) => advance(&mut at, *span),
                Event::StepTai(span) => step_tai(&mut at, *span),
            }
            prop_assert_eq!(ours.len(), theirs.len());
        }
    }
}
