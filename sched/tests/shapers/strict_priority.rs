// SPDX-License-Identifier: Apache-2.0
//! Strict priority, 802.1Q-2022 8.6.8.1.

use crate::events::{Event, advance, begin, event, forward_event, step_tai};
use crate::happen::{happen, rest};
use crate::reference::Reference;
use crate::world::{class, decide_all, frame, has_come, mono, now, tai, transmitted};
use ktsn_sched::{Decision, Frame, FrameId, TimeAware, TimeAwareOptions};
use ktsn_time::Nanos;
use proptest::prelude::*;

#[test]
fn clause_8_6_8_1_highest_class_first_whatever_the_order_of_arrival() {
    let mut s = TimeAware::new(TimeAwareOptions::strict_priority(8, 4));
    for (id, value) in [(0, 0), (1, 7), (2, 3), (3, 7), (4, 0)] {
        s.offer(Frame { class: class(value), ..frame(id, None) }, now(5, 5)).unwrap();
    }
    assert_eq!(transmitted(&decide_all(&mut s, now(5, 5))), [1, 3, 2, 0, 4]);
}

#[test]
fn first_in_first_out_although_the_second_is_due_first() {
    let mut s = TimeAware::new(TimeAwareOptions::strict_priority(8, 4));
    s.offer(frame(0, Some(mono(100))), now(10, 10)).unwrap();
    s.offer(frame(1, Some(mono(50))), now(10, 10)).unwrap();
    assert_eq!(s.decide(now(60, 60)), Decision::WakeAt { at: mono(100), next: FrameId(0) });
    assert_eq!(transmitted(&decide_all(&mut s, now(100, 100))), [0, 1]);
}

#[test]
fn a_class_that_waits_for_its_txtime_does_not_hold_up_another() {
    let mut s = TimeAware::new(TimeAwareOptions::strict_priority(8, 4));
    s.offer(Frame { class: class(7), ..frame(0, Some(tai(100))) }, now(10, 10)).unwrap();
    s.offer(frame(1, None), now(10, 10)).unwrap();
    let wake = Decision::WakeAt { at: tai(100), next: FrameId(0) };
    let decisions = decide_all(&mut s, now(10, 10));
    assert_eq!((transmitted(&decisions), decisions.last()), (vec![1], Some(&wake)));
}

#[test]
fn kept_waiting_beyond_its_limit_by_its_own_class_is_an_overrun() {
    let mut s = TimeAware::new(TimeAwareOptions::strict_priority(8, 4));
    let limit = Nanos::new(20);
    s.offer(frame(0, Some(tai(100))), now(10, 10)).unwrap();
    s.offer(Frame { overrun_limit: limit, ..frame(1, Some(tai(79))) }, now(10, 10)).unwrap();
    s.offer(Frame { overrun_limit: limit, ..frame(2, Some(tai(80))) }, now(10, 10)).unwrap();
    let decisions = decide_all(&mut s, now(100, 100));
    assert_eq!(transmitted(&decisions), [0, 2]);
    assert!(matches!(decisions[1], Decision::Drop { frame, .. } if frame.id.0 == 1));
}

/// The first frame of each attachment in each class.
fn heads(queued: &[Frame]) -> impl Iterator<Item = &Frame> {
    queued.iter().enumerate().filter_map(|(index, frame)| {
        let is_of_its = |q: &&Frame| q.class == frame.class && q.attachment == frame.attachment;
        (!queued[..index].iter().any(|q| is_of_its(&q))).then_some(frame)
    })
}

proptest! {
    #![proptest_config(crate::cases(70))]

    #[test]
    fn agrees_with_the_reference(
        begin in begin(),
        capacity in 0usize..24,
        events in prop::collection::vec(event(), 0..120),
    ) {
        let mut at = begin;
        let (mut ours, mut theirs) = (TimeAware::new(TimeAwareOptions::strict_priority(capacity, 4)), Reference::new(capacity, None, [None; 8], at));
        for (id, event) in events.iter().enumerate() {
            match event {
                Event::Offer(sent) => {
                    let frame = sent.frame(id as u64, at);
                    prop_assert_eq!(ours.offer(frame, at), theirs.offer(frame));
                }
                Event::Decide => prop_assert_eq!(ours.decide(at), theirs.decide()),
                Event::Remove { attachment } => {
                    let mut gone = Vec::new();
                    ours.remove(&mut |f| f.attachment == *attachment, &mut |f| gone.push(f.id.0));
                    gone.sort_unstable();
                    prop_assert_eq!(gone, theirs.remove(*attachment));
                }
                Event::Advance(span) => advance(&mut at, *span),
                Event::StepTai(span) => step_tai(&mut at, *span),
            }
            theirs.set_now(at);
            prop_assert_eq!(ours.len(), theirs.len());
        }
    }

    /// Whatever leaves is not early, no due head of a higher class stays behind, and nothing overtakes in its class and attachment.
    #[test]
    fn never_early_highest_class_first_in_order(
        begin in begin(),
        events in prop::collection::vec(forward_event(), 0..120),
    ) {
        let (mut s, mut at) = (TimeAware::new(TimeAwareOptions::strict_priority(64, 4)), begin);
        let mut queued: Vec<Frame> = Vec::new();
        for (id, event) in events.iter().enumerate() {
            match event {
                Event::Offer(sent) => {
                    let frame = sent.frame(id as u64, at);
                    if s.offer(frame, at).is_ok() {
                        queued.push(frame);
                    }
                }
                Event::Decide => match s.decide(at) {
                    Decision::Transmit { frame, .. } | Decision::Drop { frame, .. } => {
                        prop_assert!(has_come(frame.not_before(), at));
                        let is_of_its = |q: &Frame| q.class == frame.class && q.attachment == frame.attachment;
                        let first = queued.iter().position(is_of_its).unwrap();
                        prop_assert_eq!(queued.remove(first), frame);
                        for head in heads(&queued).filter(|head| head.class > frame.class) {
                            prop_assert!(!has_come(head.not_before(), at), "{head:?} at {at:?}");
                        }
                    }
                    Decision::WakeAt { .. } => {
                        for head in heads(&queued) {
                            prop_assert!(!has_come(head.not_before(), at), "{head:?} at {at:?}");
                        }
                    }
                    Decision::Idle => prop_assert!(queued.is_empty()),
                },
                other => happen(other, &mut s, &mut at, &mut queued),
            }
            prop_assert_eq!(s.len(), queued.len());
        }
        // Conservation: what is still queued is all there, each frame once and unchanged.
        prop_assert_eq!(rest(&mut s), queued);
        prop_assert!(s.is_empty());
    }
}
