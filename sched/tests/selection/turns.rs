// SPDX-License-Identifier: Apache-2.0
//! Turns between the attachments of a class: by example, in random worlds against the naive rule, in all small worlds, and the
//! bound that they are there for.

use crate::events::{self, Event, advance, begin, step_tai};
use crate::reference::Reference;
use crate::sequences::sequences;
use crate::world::{class, decide_all, frame, mono, now, tai, transmitted};
use ktsn_sched::{ClassOptions, Decision, Frame, FrameId, Order, TimeAware, TimeAwareOptions};
use ktsn_time::{Nanos, Now, TxTime};
use proptest::prelude::{
    Just, Strategy as Draw, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest,
};
use proptest::test_runner::{Config, TestCaseError};
use std::collections::HashMap;

fn time_aware(order: Order, capacity: usize, attachments: usize) -> TimeAware {
    TimeAware::new(TimeAwareOptions {
        classes: [ClassOptions { order, ..ClassOptions::default() }; 8],
        ..TimeAwareOptions::gates(capacity, attachments)
    })
}

/// Strategies in TxTime order within an attachment, and those in order of arrival.
fn strategies(by_arrival: bool, capacity: usize, attachments: usize) -> [TimeAware; 2] {
    if by_arrival {
        [
            TimeAware::new(TimeAwareOptions::strict_priority(capacity, attachments)),
            time_aware(Order::Fifo, capacity, attachments),
        ]
    } else {
        [
            TimeAware::new(TimeAwareOptions::tx_time(capacity, attachments)),
            time_aware(Order::TxTime, capacity, attachments),
        ]
    }
}

fn all(capacity: usize, attachments: usize) -> impl Iterator<Item = TimeAware> {
    [false, true].into_iter().flat_map(move |by_arrival| strategies(by_arrival, capacity, attachments))
}

fn of(attachment: u32, id: u64, tx_time: TxTime) -> Frame {
    Frame { attachment, ..frame(id, Some(tx_time)) }
}

/// Offers `frames` of class 0 and gives back the order in which they leave at `at`, all at one reading of the clock.
fn order(strategy: &mut TimeAware, frames: &[Frame], at: u64) -> Vec<u64> {
    for frame in frames {
        strategy.offer(*frame, now(10, 10)).unwrap();
    }
    transmitted(&decide_all(strategy, now(at, at)))
}

#[test]
fn a_flood_for_one_instant_goes_behind_one_frame_of_each_other_attachment() {
    for mut s in all(64, 4) {
        let flood = (0..20).map(|id| of(0, id, tai(100)));
        let others = [of(1, 30, tai(100)), of(2, 31, tai(100)), of(1, 32, tai(100))];
        let frames: Vec<_> = flood.chain(others).collect();
        assert_eq!(order(&mut s, &frames, 100)[..6], [0, 30, 31, 1, 32, 2]);
    }
}

#[test]
fn a_flood_on_both_clocks_is_one_turn() {
    for mut s in all(64, 4) {
        let flood = (0..20).map(|id| of(0, id, if id % 2 == 0 { tai(100) } else { mono(100) }));
        let frames: Vec<_> = flood.chain([of(1, 30, tai(100)), of(2, 31, mono(100))]).collect();
        assert_eq!(order(&mut s, &frames, 100)[..5], [0, 30, 31, 1, 2]);
    }
}

/// With a frame each, the order is that of one queue.
#[test]
fn with_one_frame_each_the_order_is_by_due_instant() {
    for mut s in all(64, 64) {
        let frames: Vec<_> = (0..40).map(|id| of(id, id.into(), tai(100 + u64::from(id) * 7 % 40))).collect();
        let mut expected: Vec<_> = frames.iter().map(|frame| frame.id.0).collect();
        expected.sort_by_key(|id| id * 7 % 40);
        assert_eq!(order(&mut s, &frames, 200), expected);
    }
}

#[test]
fn in_order_of_arrival_a_distant_txtime_holds_up_its_own_attachment_alone() {
    for mut s in strategies(true, 8, 4) {
        let frames = [of(0, 1, tai(5_000)), of(0, 2, tai(20)), of(1, 3, mono(30)), of(2, 4, tai(25))];
        assert_eq!(order(&mut s, &frames, 40), [4, 3]);
        assert_eq!(transmitted(&decide_all(&mut s, now(5_000, 5_000))), [1, 2]);
    }
}

/// What runs empty keeps its place: frames that trickle in late gain nothing by it.
#[test]
fn a_turn_outlives_the_frames() {
    for mut s in all(8, 4) {
        let late = |attachment, id| Frame { overrun_limit: Nanos::new(50), ..of(attachment, id, mono(0)) };
        s.offer(late(0, 1), now(100, 100)).unwrap();
        assert_eq!(transmitted(&decide_all(&mut s, now(100, 100))), [1]);
        // Both are due since 51; attachment 1 was not served since.
        s.offer(late(0, 2), now(101, 101)).unwrap();
        s.offer(late(1, 3), now(101, 101)).unwrap();
        assert_eq!(transmitted(&decide_all(&mut s, now(101, 101))), [3, 2]);
    }
}

#[test]
fn after_a_step_back_no_turn_counts() {
    for mut s in all(8, 4) {
        let frames = [of(0, 1, tai(50)), of(0, 2, tai(50)), of(1, 3, tai(60)), of(0, 4, tai(45))];
        for frame in &frames[..3] {
            s.offer(*frame, now(10, 10)).unwrap();
        }
        assert_eq!(transmitted(&[s.decide(now(100, 100))]), [1]);
        assert_eq!(transmitted(&decide_all(&mut s, now(101, 55))), [2]);
        assert_eq!(transmitted(&decide_all(&mut s, now(106, 60))), [3]);
    }
}

#[test]
fn a_frame_that_did_not_leave_has_its_turn_still_before_it() {
    for mut s in all(8, 4) {
        for frame in [of(0, 1, tai(50)), of(1, 2, tai(50)), of(0, 3, tai(50))] {
            s.offer(frame, now(10, 10)).unwrap();
        }
        let Decision::Transmit { frame, .. } = s.decide(now(50, 50)) else { panic!("due") };
        s.put_back(frame, now(51, 51)).unwrap();
        assert_eq!(transmitted(&decide_all(&mut s, now(52, 52))), [1, 2, 3]);
    }
}

#[test]
fn attachments_beyond_the_last_one_share_turns() {
    for mut s in all(8, 2) {
        let frames = [of(1, 1, tai(50)), of(3, 2, tai(50)), of(0, 3, tai(50)), of(2, 4, tai(50))];
        assert_eq!(order(&mut s, &frames, 50), [1, 3, 2, 4]);
    }
}

#[test]
fn an_attachment_is_removed_in_steps() {
    for mut s in all(64, 4) {
        for id in 0..40 {
            let tx_time = if id % 3 == 0 { mono(100) } else { tai(100) };
            let f = Frame { class: class((id % 8) as u8), ..of(id as u32 % 2, id, tx_time) };
            s.offer(f, now(10, 10)).unwrap();
        }
        let mut taken = Vec::new();
        for (most, is_more) in [(0, true), (7, true), (12, true), (1, false), (5, false)] {
            let before = taken.len();
            assert_eq!(s.remove_attachment(1, most, &mut |frame| taken.push(frame.id.0)), is_more);
            assert!(taken.len() - before <= most);
        }
        taken.sort_unstable();
        assert_eq!(taken, (0..40).filter(|id| id % 2 == 1).collect::<Vec<_>>());
        assert_eq!(transmitted(&decide_all(&mut s, now(100, 100))).len(), 20);
        // Nothing of it is there, of others is: none are taken, not even where they share a place.
        s.offer(of(5, 50, tai(200)), now(100, 100)).unwrap();
        assert!(!s.remove_attachment(1, 5, &mut |frame| panic!("{frame:?}")));
        assert_eq!(s.len(), 1);
    }
}

/// What happens in a world with turns.
#[derive(Clone, Debug)]
enum Turn {
    World(Event),
    /// What was transmitted last comes back, if it is gone.
    PutBack,
    RemoveSome {
        attachment: u32,
        most: usize,
    },
}

fn turn(attachments: u32) -> impl Draw<Value = Turn> {
    let sent = move || {
        (events::sent(), 0..attachments).prop_map(|(sent, attachment)| events::Sent { attachment, ..sent })
    };
    prop_oneof![
        12 => sent().prop_map(Event::Offer).prop_map(Turn::World),
        // Many frames for few instants of one class.
        12 => sent().prop_map(|sent| Turn::World(Event::Offer(events::Sent { class: 7, ..sent }))),
        14 => Just(Turn::World(Event::Decide)),
        6 => (1u64..10).prop_map(|span| Turn::World(Event::Advance(span))),
        1 => (-30i64..30).prop_map(|span| Turn::World(Event::StepTai(span))),
        3 => Just(Turn::PutBack),
        1 => (0..attachments).prop_map(|attachment| Turn::World(Event::Remove { attachment })),
        1 => (0..attachments, 0usize..4).prop_map(|(attachment, most)| Turn::RemoveSome { attachment, most }),
    ]
}

/// A strategy and a reference to which the same happens.
struct Pair {
    ours: TimeAware,
    theirs: Reference,
    places: u32,
    last: Option<Frame>,
}

impl Pair {
    fn meet(&mut self, id: u64, turn: &Turn, at: &mut Now) -> Result<(), TestCaseError> {
        let Self { ours, theirs, .. } = self;
        match turn {
            Turn::World(Event::Offer(sent)) => {
                let frame = sent.frame(id, *at);
                prop_assert_eq!(ours.offer(frame, *at), theirs.offer(frame, *at));
            }
            Turn::World(Event::Decide) => {
                let decision = ours.decide(*at);
                prop_assert_eq!(decision, theirs.decide(*at));
                if let Decision::Transmit { frame, .. } = decision {
                    self.last = Some(frame);
                }
            }
            Turn::World(Event::Remove { attachment }) => {
                let (mut gone, mut wanted) = (Vec::new(), Vec::new());
                ours.remove(&mut |f| f.attachment == *attachment, &mut |f| gone.push(f.id.0));
                theirs.remove(&mut |f| f.attachment == *attachment, &mut |f| wanted.push(f.id.0));
                gone.sort_unstable();
                wanted.sort_unstable();
                prop_assert_eq!(gone, wanted);
            }
            Turn::RemoveSome { attachment, most } => {
                let mut gone: Vec<FrameId> = Vec::new();
                let is_more = ours.remove_attachment(*attachment, *most, &mut |f| gone.push(f.id));
                let mut count = 0;
                theirs.remove(&mut |f| f.attachment == *attachment && gone.contains(&f.id), &mut |_| {
                    count += 1;
                });
                prop_assert_eq!(count, gone.len(), "another's, or one twice");
                let left = theirs.count(*attachment);
                prop_assert!(is_more || left == 0, "{} are left", left);
                if *attachment < self.places && theirs.count_beyond(self.places) == 0 {
                    prop_assert_eq!((gone.len() <= *most, is_more), (true, left > 0));
                }
            }
            Turn::PutBack => {
                if let Some(frame) = self.last.take() {
                    prop_assert_eq!(ours.put_back(frame, *at), theirs.put_back(frame, *at));
                }
            }
            Turn::World(Event::Advance(span)) => advance(at, *span),
            Turn::World(Event::StepTai(span)) => step_tai(at, *span),
        }
        prop_assert_eq!(self.ours.len(), self.theirs.len());
        Ok(())
    }
}

/// The random worlds of one kind of strategy.
fn agrees(
    by_arrival: bool,
    begin: Now,
    (capacity, places): (usize, u32),
    turns: &[Turn],
) -> Result<(), TestCaseError> {
    for ours in strategies(by_arrival, capacity, places as usize) {
        let theirs = match by_arrival {
            true => Reference::by_arrival(capacity, places),
            false => Reference::new(capacity, places),
        };
        let (mut pair, mut at) = (Pair { ours, theirs, places, last: None }, begin);
        for (id, turn) in turns.iter().enumerate() {
            pair.meet(id as u64, turn, &mut at)?;
        }
        for _ in 0..=pair.ours.len() {
            pair.meet(0, &Turn::World(Event::Decide), &mut at)?;
        }
    }
    Ok(())
}

/// Attachment, on TAI, how much later it is due than the first ones, and how much later it is offered.
type Offered = (u32, bool, u64, u64);

/// Each frame that is the first one of its attachment waits for one frame of each other attachment at most once it is due.
fn overtaken(
    s: &mut TimeAware,
    by_arrival: bool,
    offers: &[Offered],
    ahead: u64,
    pace: u64,
) -> Result<(), TestCaseError> {
    let (mut queued, mut at): (HashMap<u64, (Frame, Vec<u32>)>, u64) = (HashMap::new(), 100);
    let (mut offers, mut count): (Vec<_>, u64) = (offers.iter().collect(), 0);
    offers.sort_by_key(|offer| offer.3);
    let mut offers = offers.into_iter().peekable();
    loop {
        while let Some(&(attachment, on_tai, due, _)) = offers.next_if(|offer| 100 + offer.3 <= at) {
            let tx_time = if on_tai { tai(150 + due + ahead) } else { mono(150 + due) };
            let f = of(attachment, count, tx_time);
            count += 1;
            let offered = s.offer(f, now(at, at + ahead));
            prop_assert!(offered.is_ok());
            queued.insert(f.id.0, (f, Vec::new()));
        }
        match s.decide(now(at, at + ahead)) {
            Decision::Transmit { frame, .. } => {
                queued.remove(&frame.id.0);
                let is_due =
                    |f: &Frame| f.tx_time.is_some_and(|due| due.ahead_of(now(at, at + ahead)).get() <= 0);
                let first: HashMap<u32, u64> = queued.values().fold(HashMap::new(), |mut first, (f, _)| {
                    let id = first.entry(f.attachment).or_insert(f.id.0);
                    *id = f.id.0.min(*id);
                    first
                });
                let is_first = |f: &Frame| !by_arrival || first[&f.attachment] == f.id.0;
                for (waiting, others) in queued.values_mut().filter(|(f, _)| is_due(f) && is_first(f)) {
                    if waiting.attachment == frame.attachment {
                        // It waits for its own, too: the others may go once more.
                        others.clear();
                        continue;
                    }
                    prop_assert!(!others.contains(&frame.attachment), "{waiting:?} waits for {frame:?}");
                    others.push(frame.attachment);
                }
                at += pace;
            }
            Decision::WakeAt { .. } => at += 1,
            Decision::Idle if offers.peek().is_some() => at += 1,
            Decision::Idle => return Ok(()),
            Decision::Drop { frame, reason } => prop_assert!(false, "{frame:?}: {reason}"),
        }
    }
}

proptest! {
    #![proptest_config(Config { cases: 600, failure_persistence: None, ..Config::default() })]

    #[test]
    fn agrees_with_the_reference(
        by_arrival in any::<bool>(),
        begin in begin(),
        room in (0usize..40, 1u32..7),
        turns in prop::collection::vec(turn(6), 0..200),
    ) {
        agrees(by_arrival, begin, room, &turns)?;
    }

    /// The bound. `pace` 0: all of it at one reading of the clocks.
    #[test]
    fn a_due_frame_waits_for_one_frame_of_each_other_attachment(
        offers in prop::collection::vec((0u32..5, any::<bool>(), 0u64..12, 0u64..60), 1..60),
        ahead in 0u64..50,
        pace in 0u64..4,
    ) {
        for by_arrival in [false, true] {
            for mut s in strategies(by_arrival, 64, 5) {
                overtaken(&mut s, by_arrival, &offers, ahead, pace)?;
            }
        }
    }
}

/// Three attachments, two clocks, two instants, and every order of six offers and decisions.
#[test]
fn every_small_world_of_turns() {
    let offer = |attachment, at: TxTime| Some((attachment, at));
    let choices =
        [offer(0, tai(3)), offer(0, mono(3)), offer(1, tai(3)), offer(1, mono(4)), offer(2, tai(4)), None];
    for by_arrival in [false, true] {
        sequences(choices.len(), 6, |picks| {
            for mut ours in strategies(by_arrival, 8, 3) {
                let mut theirs = if by_arrival { Reference::by_arrival(8, 3) } else { Reference::new(8, 3) };
                let (mut at, mut last) = (2, None);
                for (id, &pick) in picks.iter().enumerate() {
                    match choices[pick] {
                        Some((attachment, tx_time)) => {
                            let f = of(attachment, id as u64, tx_time);
                            assert_eq!(ours.offer(f, now(at, at)), theirs.offer(f, now(at, at)));
                        }
                        None => {
                            at += 1;
                            let decision = ours.decide(now(at, at));
                            assert_eq!(decision, theirs.decide(now(at, at)), "{picks:?}");
                            last = if let Decision::Transmit { frame, .. } = decision {
                                Some(frame)
                            } else {
                                last
                            };
                        }
                    }
                }
                // One that left comes back, whatever has left since.
                if let Some(frame) = last {
                    assert_eq!(ours.put_back(frame, now(at, at)), theirs.put_back(frame, now(at, at)));
                }
                for at in [at, at, 9, 9, 9, 9, 9, 9] {
                    assert_eq!(ours.decide(now(at, at)), theirs.decide(now(at, at)), "{picks:?}");
                }
                assert!(ours.is_empty());
            }
        });
    }
}
