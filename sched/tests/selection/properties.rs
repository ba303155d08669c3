// SPDX-License-Identifier: Apache-2.0
//! Random worlds: every decision equals the reference's, and the properties that must hold whatever the
//! reference says.

use crate::events::{Asks, Event, Sent, advance, begin, event, forward_event, sent, step_tai, tx_time};
use crate::reference::Reference;
use crate::world::{self, decide_all, has_come, now};
use ktsn_model::{DropReason, LatePolicy};
use ktsn_sched::{Decision, Frame, TimeAware, TimeAwareOptions};
use ktsn_time::{Monotonic, Nanos, Now, Tai, TxTime};
use proptest::prelude::*;
use std::collections::HashMap;

/// Runs `events`; `seen` gets every decision with its instant and the frames queued before it.
fn run(
    begin: Now,
    capacity: usize,
    events: &[Event],
    mut seen: impl FnMut(Now, &Decision, &HashMap<u64, Frame>) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    let mut selection = TimeAware::new(TimeAwareOptions::tx_time(capacity, 4));
    let mut queued: HashMap<u64, Frame> = HashMap::new();
    let mut at = begin;
    for (id, event) in events.iter().enumerate() {
        match event {
            Event::Offer(sent) => {
                let frame = sent.frame(id as u64, at);
                if selection.offer(frame, at).is_ok() {
                    queued.insert(frame.id.0, frame);
                }
            }
            Event::Decide => {
                let decision = selection.decide(at);
                seen(at, &decision, &queued)?;
                if let Decision::Transmit { frame, .. } | Decision::Drop { frame, .. } = decision {
                    queued.remove(&frame.id.0);
                }
            }
            Event::Remove { attachment } => {
                selection.remove(&mut |frame| frame.attachment == *attachment, &mut |frame| {
                    queued.remove(&frame.id.0);
                });
            }
            Event::Advance(span) => advance(&mut at, *span),
            Event::StepTai(span) => step_tai(&mut at, *span),
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 700, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_the_reference(
        begin in begin(),
        capacity in 0usize..24,
        events in prop::collection::vec(event(), 0..120),
    ) {
        let (mut selection, mut reference) = (TimeAware::new(TimeAwareOptions::tx_time(capacity, 4)), Reference::new(capacity, 4));
        let mut at = begin;
        for (id, event) in events.iter().enumerate() {
            match event {
                Event::Offer(sent) => {
                    let frame = sent.frame(id as u64, at);
                    prop_assert_eq!(selection.offer(frame, at), reference.offer(frame, at));
                }
                Event::Decide => prop_assert_eq!(selection.decide(at), reference.decide(at)),
                Event::Remove { attachment } => {
                    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
                    selection.remove(&mut |f| f.attachment == *attachment, &mut |f| ours.push(f.id.0));
                    reference.remove(&mut |f| f.attachment == *attachment, &mut |f| theirs.push(f.id.0));
                    ours.sort_unstable();
                    prop_assert_eq!(ours, theirs);
                }
                Event::Advance(span) => advance(&mut at, *span),
                Event::StepTai(span) => step_tai(&mut at, *span),
            }
            prop_assert_eq!(selection.len(), reference.len());
        }
    }

    #[test]
    fn never_early(begin in begin(), events in prop::collection::vec(event(), 0..120)) {
        run(begin, 64, &events, |at, decision, _| {
            if let Decision::Transmit { frame, overrun, .. } = decision {
                prop_assert!(has_come(frame.not_before(), at), "{frame:?} at {at:?}");
                prop_assert!(!overrun.is_negative());
            }
            Ok(())
        })?;
    }

    /// offered = refused + transmitted + dropped + removed + still queued, each frame once and unchanged.
    #[test]
    fn conservation(begin in begin(), capacity in 0usize..24, events in prop::collection::vec(event(), 0..120)) {
        let mut selection = TimeAware::new(TimeAwareOptions::tx_time(capacity, 4));
        let (mut at, mut offered, mut gone) = (begin, HashMap::new(), HashMap::new());
        let leave = |gone: &mut HashMap<u64, Frame>, frame: Frame| {
            prop_assert!(gone.insert(frame.id.0, frame).is_none(), "twice: {frame:?}");
            Ok(())
        };
        for (id, event) in events.iter().enumerate() {
            match event {
                Event::Offer(sent) => {
                    let frame = sent.frame(id as u64, at);
                    offered.insert(frame.id.0, frame);
                    if let Err(refused) = selection.offer(frame, at) {
                        leave(&mut gone, refused.frame)?;
                    }
                }
                Event::Decide => match selection.decide(at) {
                    Decision::Transmit { frame, .. } | Decision::Drop { frame, .. } => {
                        leave(&mut gone, frame)?;
                    }
                    Decision::WakeAt { .. } | Decision::Idle => {}
                },
                Event::Remove { attachment } => {
                    let mut taken = Vec::new();
                    selection.remove(&mut |f| f.attachment == *attachment, &mut |f| taken.push(f));
                    for frame in taken {
                        prop_assert_eq!(frame.attachment, *attachment);
                        leave(&mut gone, frame)?;
                    }
                }
                Event::Advance(span) => advance(&mut at, *span),
                Event::StepTai(span) => step_tai(&mut at, *span),
            }
            prop_assert_eq!(selection.len(), offered.len() - gone.len());
        }
        let mut rest = Vec::new();
        selection.remove(&mut |_| true, &mut |f| rest.push(f));
        for frame in rest {
            leave(&mut gone, frame)?;
        }
        prop_assert!(selection.is_empty());
        prop_assert_eq!(gone, offered);
    }

    /// What is due and queued is never answered with a wait.
    #[test]
    fn work_conserving(begin in begin(), events in prop::collection::vec(forward_event(), 0..120)) {
        run(begin, 64, &events, |at, decision, queued| {
            match decision {
                Decision::WakeAt { .. } => {
                    for frame in queued.values() {
                        prop_assert!(!has_come(frame.tx_time, at), "{frame:?} waits at {at:?}");
                    }
                    prop_assert!(!queued.is_empty());
                }
                Decision::Idle => prop_assert!(queued.is_empty()),
                Decision::Transmit { .. } | Decision::Drop { .. } => {}
            }
            Ok(())
        })?;
    }

    #[test]
    fn highest_class_first(begin in begin(), events in prop::collection::vec(forward_event(), 0..120)) {
        run(begin, 64, &events, |at, decision, queued| {
            if let Decision::Transmit { frame, .. } | Decision::Drop { frame, .. } = decision {
                for other in queued.values().filter(|other| has_come(other.tx_time, at)) {
                    prop_assert!(other.class <= frame.class, "{frame:?} before {other:?}");
                }
            }
            Ok(())
        })?;
    }

    /// A drop is always an on-time frame that overran its limit.
    #[test]
    fn drops_are_overruns(begin in begin(), events in prop::collection::vec(event(), 0..120)) {
        run(begin, 64, &events, |at, decision, _| {
            if let Decision::Drop { frame, reason } = decision {
                prop_assert_eq!(*reason, DropReason::Overrun);
                if frame.late == LatePolicy::Deadline {
                    prop_assert!(frame.tx_time.is_some_and(|last| last.ahead_of(at).is_negative()));
                    return Ok(());
                }
                let overrun = match frame.tx_time {
                    Some(TxTime::Monotonic(_)) if frame.late != LatePolicy::Drop => {
                        return Err(TestCaseError::fail("fq sends a frame however late"));
                    }
                    Some(tx_time) => tx_time.ahead_of(at).saturating_mul(-1),
                    None => return Err(TestCaseError::fail("an untimed frame was dropped")),
                };
                prop_assert!(overrun > frame.overrun_limit && overrun > Nanos::ZERO);
            }
            Ok(())
        })?;
    }

    /// On-time frames of one class leave by TxTime across both clocks, equal ones by arrival.
    #[test]
    fn order_is_txtime_then_arrival(
        ahead in 0u64..1_000,
        spans in prop::collection::vec((0u64..20, any::<bool>()), 0..200),
    ) {
        let mut selection = TimeAware::new(TimeAwareOptions::tx_time(spans.len(), 4));
        for (id, (span, on_tai)) in spans.iter().enumerate() {
            let at = 50 + span + if *on_tai { ahead } else { 0 };
            let frame = world::frame(id as u64, Some(tx_time(at, *on_tai)));
            prop_assert!(selection.offer(frame, now(10, 10 + ahead)).is_ok());
        }
        let mut expected: Vec<u64> = (0..spans.len() as u64).collect();
        expected.sort_by_key(|&id| spans[id as usize].0); // a stable sort: arrival breaks ties
        prop_assert_eq!(world::transmitted(&decide_all(&mut selection, now(100, 100 + ahead))), expected);
    }

    /// Sleeping until each `WakeAt` decides the same at the same instants as asking at every nanosecond.
    #[test]
    fn jumping_to_wake_at_equals_polling(
        ahead in 0u64..50,
        offers in prop::collection::vec(sent(), 0..24),
    ) {
        let begin = now(40, 40 + ahead);
        let (mut polled, mut jumped) = (TimeAware::new(TimeAwareOptions::tx_time(24, 4)), TimeAware::new(TimeAwareOptions::tx_time(24, 4)));
        for (id, sent) in offers.iter().enumerate() {
            let sent = Sent { horizon: sent.horizon.clamp(0, 40), ..sent.clone() };
            let frame = sent.frame(id as u64, begin);
            prop_assert_eq!(polled.offer(frame, begin), jumped.offer(frame, begin));
        }
        let mut by_polling = Vec::new();
        for span in 0..=41 {
            let mut at = begin;
            advance(&mut at, span);
            let mut decisions = decide_all(&mut polled, at);
            decisions.pop();
            by_polling.extend(decisions.into_iter().map(|decision| (at, decision)));
        }
        let (mut by_jumping, mut at, mut expected) = (Vec::new(), begin, None);
        loop {
            let mut decisions = decide_all(&mut jumped, at);
            let last = decisions.pop();
            if let Some(next) = expected {
                match decisions.first() {
                    Some(Decision::Transmit { frame, overrun, .. }) => {
                        prop_assert_eq!((frame.id, *overrun), (next, Nanos::ZERO));
                    }
                    other => prop_assert!(false, "woken for {next:?}, got {other:?}"),
                }
            }
            by_jumping.extend(decisions.into_iter().map(|decision| (at, decision)));
            let Some(Decision::WakeAt { at: wake_at, next }) = last else { break };
            expected = Some(next);
            let wait = wake_at.ahead_of(at);
            prop_assert!(wait > Nanos::ZERO);
            advance(&mut at, wait.get() as u64);
        }
        prop_assert_eq!(by_jumping, by_polling);
        prop_assert!(polled.is_empty() && jumped.is_empty());
    }

    /// Only differences count: both clocks moved by any spans, the decisions move along.
    #[test]
    fn shifting_both_clocks_shifts_the_decisions(
        shift_monotonic in 0u64..1 << 62,
        shift_tai in 0u64..1 << 62,
        events in prop::collection::vec(event(), 0..100),
    ) {
        let begin = now(1_000_000, 1_000_000);
        let moved = |at: Now| Now {
            tai: Tai::from_nanos(at.tai.as_nanos() + shift_tai),
            monotonic: Monotonic::from_nanos(at.monotonic.as_nanos() + shift_monotonic),
        };
        let moved_time = |at: TxTime| match at {
            TxTime::Tai(Tai::ZERO) | TxTime::Monotonic(Monotonic::ZERO) => at,
            TxTime::Tai(at) => world::tai(at.as_nanos() + shift_tai),
            TxTime::Monotonic(at) => world::mono(at.as_nanos() + shift_monotonic),
        };
        let moved_frame = |frame: Frame| Frame {
            tx_time: frame.tx_time.map(moved_time),
            pushed_at: Monotonic::from_nanos(frame.pushed_at.as_nanos() + shift_monotonic),
            ..frame
        };
        let (mut here, mut there) = (TimeAware::new(TimeAwareOptions::tx_time(16, 4)), TimeAware::new(TimeAwareOptions::tx_time(16, 4)));
        let mut at = begin;
        for (id, event) in events.iter().enumerate() {
            match event {
                Event::Offer(sent) => {
                    let near = match sent.asks {
                        Asks::Anything { on_tai, .. } => Asks::After { span: 0, on_tai },
                        ref other => other.clone(),
                    };
                    let sent = Sent { asks: near, age: sent.age.clamp(-50, 50), ..sent.clone() };
                    let frame = sent.frame(id as u64, at);
                    let refused = here.offer(frame, at).map_err(|refused| refused.reason);
                    let refused_there =
                        there.offer(moved_frame(frame), moved(at)).map_err(|refused| refused.reason);
                    prop_assert_eq!(refused, refused_there);
                }
                Event::Decide => {
                    let expected = match here.decide(at) {
                        Decision::Transmit { frame, overrun, late, window } => {
                            Decision::Transmit { frame: moved_frame(frame), overrun, late, window }
                        }
                        Decision::Drop { frame, reason } => {
                            Decision::Drop { frame: moved_frame(frame), reason }
                        }
                        Decision::WakeAt { at, next } => Decision::WakeAt { at: moved_time(at), next },
                        Decision::Idle => Decision::Idle,
                    };
                    prop_assert_eq!(there.decide(moved(at)), expected);
                }
                Event::Remove { attachment } => {
                    here.remove(&mut |f| f.attachment == *attachment, &mut |_| ());
                    there.remove(&mut |f| f.attachment == *attachment, &mut |_| ());
                }
                Event::Advance(span) => advance(&mut at, *span),
                Event::StepTai(span) => step_tai(&mut at, *span),
            }
        }
    }

    /// Offers to a full queue change nothing: what follows equals a world in which they never happened.
    #[test]
    fn a_full_queue_is_not_disturbed(
        kept in prop::collection::vec(sent(), 1..12),
        refused in prop::collection::vec(sent(), 0..12),
        pauses in prop::collection::vec(1u64..8, 1..20),
    ) {
        let begin = now(100, 130);
        let mut plain = TimeAware::new(TimeAwareOptions::tx_time(kept.len(), 4));
        for (id, sent) in kept.iter().enumerate() {
            let frame = Frame { late: LatePolicy::Send, horizon: Nanos::MAX, ..sent.frame(id as u64, begin) };
            let fits = plain.offer(frame, begin).is_ok();
            // Frames with a fault of their own leave a gap; an ordinary one fills it.
            prop_assert!(fits || plain.offer(world::frame(id as u64, None), begin).is_ok());
        }
        let mut flooded = TimeAware::new(TimeAwareOptions::tx_time(kept.len(), 4));
        for (id, sent) in kept.iter().enumerate() {
            let frame = Frame { late: LatePolicy::Send, horizon: Nanos::MAX, ..sent.frame(id as u64, begin) };
            if flooded.offer(frame, begin).is_err() {
                prop_assert!(flooded.offer(world::frame(id as u64, None), begin).is_ok());
            }
        }
        for (id, sent) in refused.iter().enumerate() {
            let frame = sent.frame(1_000 + id as u64, begin);
            prop_assert_eq!(flooded.offer(frame, begin).map_err(|refused| refused.frame), Err(frame));
        }
        let mut at = begin;
        for pause in pauses {
            prop_assert_eq!(decide_all(&mut flooded, at), decide_all(&mut plain, at));
            advance(&mut at, pause);
        }
    }
}
