// SPDX-License-Identifier: Apache-2.0
//! The credit-based strategy, 802.1Q-2022 8.6.8.2: against the reference in every nanosecond, and the share of the link.

use crate::events::{Asks, Event, Sent, advance, event, step_tai};
use crate::happen::{happen, rest};
use crate::reference::Reference;
use crate::world::{class, decide_all, frame, has_come, mono, now, transmitted};
use ktsn_sched::{CreditOptions, Decision, Frame, FrameId, Shaper, TimeAware, TimeAwareOptions};
use ktsn_time::{Nanos, Now, TxTime};
use proptest::prelude::*;

const GBIT: u64 = 1_000_000_000;

fn options(link_speed: Option<u64>, shaped: &[(u8, CreditOptions)]) -> TimeAwareOptions {
    let mut classes = [None; 8];
    for &(class, credit) in shaped {
        classes[usize::from(class)] = Some(credit);
    }
    TimeAwareOptions::credit_based(64, 4, link_speed, classes)
}

#[test]
fn clause_8_6_8_2_a_class_in_debt_lets_others_pass_and_returns_in_time() {
    let mut s = TimeAware::new(options(Some(GBIT), &[(6, CreditOptions::new(GBIT / 10))]));
    for (id, value) in [(0, 6), (1, 6), (2, 0)] {
        let f = Frame { class: class(value), wire_octets: 125, ..frame(id, None) };
        s.offer(f, now(1_000, 1_000)).unwrap();
    }
    assert_eq!(transmitted(&[s.decide(now(1_000, 1_000))]), [0]);
    // The link is busy for 1 µs; then class 6 owes 900 bits until 11,000.
    assert_eq!(s.decide(now(1_000, 1_000)), Decision::WakeAt { at: mono(2_000), next: FrameId(2) });
    assert_eq!(transmitted(&[s.decide(now(2_000, 2_000))]), [2]);
    assert_eq!(s.decide(now(2_000, 2_000)), Decision::WakeAt { at: mono(11_000), next: FrameId(1) });
    assert!(matches!(s.decide(now(10_999, 10_999)), Decision::WakeAt { .. }));
    assert_eq!(transmitted(&[s.decide(now(11_000, 11_000))]), [1]);
}

#[test]
fn waiting_for_a_distant_txtime_saves_up_nothing() {
    let mut s = TimeAware::new(options(Some(GBIT), &[(6, CreditOptions::new(GBIT / 2))]));
    for id in 0..2 {
        let f = Frame { class: class(6), wire_octets: 125, ..frame(id, Some(mono(1_000_000))) };
        s.offer(f, now(1_000, 1_000)).unwrap();
    }
    assert_eq!(transmitted(&decide_all(&mut s, now(1_000_000, 1_000_000))), [0]);
    let wake = s.decide(now(1_001_000, 1_001_000));
    assert_eq!(wake, Decision::WakeAt { at: mono(1_002_000), next: FrameId(1) });
}

#[test]
fn clause_8_6_8_2_credit_saved_up_during_interference_is_a_burst_afterwards() {
    let mut s = TimeAware::new(options(Some(GBIT), &[(6, CreditOptions::new(GBIT / 2))]));
    s.offer(Frame { wire_octets: 500, ..frame(0, None) }, now(0, 0)).unwrap();
    assert_eq!(transmitted(&[s.decide(now(0, 0))]), [0]);
    for id in 1..6 {
        s.offer(Frame { class: class(6), wire_octets: 125, ..frame(id, None) }, now(0, 0)).unwrap();
    }
    // 2,000 bits are saved up by 4,000; each frame costs 500 until credit is below 0: five in a row.
    for (id, at) in [(1, 4_000), (2, 5_000), (3, 6_000), (4, 7_000), (5, 8_000)] {
        assert_eq!(transmitted(&[s.decide(now(at, at))]), [id]);
    }
    assert_eq!(s.credit(class(6), now(8_000, 8_000)).map(|credit| credit.bits()), Some(-500));
}

#[test]
fn removal_counts_as_of_the_last_offer() {
    let mut s = TimeAware::new(options(Some(GBIT), &[(6, CreditOptions::new(GBIT / 2))]));
    let of_six = |id, tx_time| Frame { class: class(6), wire_octets: 125, ..frame(id, tx_time) };
    s.offer(Frame { class: class(7), wire_octets: 500, ..frame(0, None) }, now(10_000, 0)).unwrap();
    assert_eq!(transmitted(&[s.decide(now(10_000, 0))]), [0]);
    s.offer(Frame { attachment: 1, ..of_six(1, None) }, now(10_000, 0)).unwrap();
    s.offer(of_six(2, Some(mono(12_000))), now(10_000, 0)).unwrap();
    // At 13,000 the first one has waited for 3 µs, and the second one for 1 µs of these: 1,500 bits are kept.
    s.offer(frame(3, None), now(13_000, 3_000)).unwrap();
    s.remove(&mut |f| f.attachment == 1, &mut |_| ());
    assert_eq!(transmitted(&[s.decide(now(14_000, 4_000))]), [2]);
    assert_eq!(s.credit(class(6), now(14_000, 4_000)).map(|credit| credit.bits()), Some(2_000 - 500));
}

/// The clause names no elapsed time: between two calls of one instant an empty queue loses its credit.
#[test]
fn clause_8_6_8_2_credit_is_lost_between_two_events_of_one_instant() {
    let mut s = TimeAware::new(options(Some(GBIT), &[(6, CreditOptions::new(GBIT / 2))]));
    let of_six = |id| Frame { class: class(6), wire_octets: 125, ..frame(id, None) };
    s.offer(Frame { class: class(7), wire_octets: 500, ..frame(0, None) }, now(0, 0)).unwrap();
    assert_eq!(transmitted(&[s.decide(now(0, 0))]), [0]);
    s.offer(of_six(1), now(0, 0)).unwrap();
    // It has saved up 1,000 bits by 2,000.
    assert!(matches!(s.decide(now(2_000, 2_000)), Decision::WakeAt { .. }));
    assert_eq!(s.credit(class(6), now(2_000, 2_000)).map(|credit| credit.bits()), Some(1_000));
    s.remove(&mut |f| f.class == class(6), &mut |_| ());
    s.offer(of_six(2), now(2_000, 2_000)).unwrap();
    assert_eq!(s.credit(class(6), now(2_000, 2_000)).map(|credit| credit.bits()), Some(0));
}

/// Small worlds: frames of few octets, slow links, so that everything happens within some hundred nanoseconds.
fn small(sent: &Sent, id: u64, at: Now) -> Frame {
    let mut frame = sent.frame(id, at);
    if matches!(sent.asks, Asks::Anything { .. }) {
        frame.tx_time = None;
    }
    Frame { wire_octets: (id % 7) as u32, ..frame }
}

fn shaped() -> impl Strategy<Value = TimeAwareOptions> {
    let limit = || prop::option::weighted(0.3, 0u64..40);
    let credit = (GBIT / 8..8 * GBIT, limit(), limit())
        .prop_map(|(idle_slope, hi_credit, lo_credit)| CreditOptions { idle_slope, hi_credit, lo_credit });
    let link_speed = prop_oneof![
        1 => Just(None),
        3 => prop::sample::select(vec![8 * GBIT, 3 * GBIT, GBIT]).prop_map(Some),
    ];
    let classes = [(); 8].map(|()| prop::option::weighted(0.6, credit.clone()));
    (link_speed, classes).prop_map(|(link_speed, mut classes)| {
        // idleSlope is part of the link.
        for credit in classes.iter_mut().flatten() {
            credit.idle_slope = credit.idle_slope.min(link_speed.unwrap_or(u64::MAX));
        }
        TimeAwareOptions::credit_based(24, 4, link_speed, classes)
    })
}

/// The credits of the classes, for the reference.
fn credits(options: &TimeAwareOptions) -> [Option<CreditOptions>; 8] {
    options.classes.map(|class| match class.shaper {
        Shaper::CreditBased(credit) => Some(credit),
        Shaper::StrictPriority => None,
    })
}

/// Everything that is decided at one instant is the same on both sides, and with a quiet link so are the credits.
fn settle(ours: &mut TimeAware, theirs: &mut Reference, at: Now) -> Result<(), TestCaseError> {
    loop {
        let decision = ours.decide(at);
        prop_assert_eq!(decision, theirs.decide());
        if matches!(decision, Decision::WakeAt { .. } | Decision::Idle) {
            break;
        }
    }
    for value in (0..8).filter(|_| !theirs.is_on_wire()) {
        let credit = ours.credit(class(value), at).map(|credit| i128::from(credit.bits()));
        prop_assert_eq!(credit, theirs.credit(value), "class {}", value);
    }
    Ok(())
}

proptest! {
    #![proptest_config(crate::cases(70))]

    #[test]
    fn agrees_with_the_reference(
        options in shaped(),
        begin in (1_000u64..1 << 40, 1_000u64..1 << 40),
        events in prop::collection::vec(event(), 0..120),
    ) {
        let mut at = now(begin.0, begin.1);
        let mut ours = TimeAware::new(options);
        let mut theirs = Reference::new(options.capacity, options.link_speed, credits(&options), at);
        let mut told = now(0, 0);
        for (id, event) in events.iter().enumerate() {
            match event {
                Event::Offer(sent) => {
                    let frame = small(sent, id as u64, at);
                    let offered = ours.offer(frame, at);
                    prop_assert_eq!(offered, theirs.offer(frame));
                    // A refused frame does not bring the credits to its instant.
                    if offered.is_ok() {
                        told = at;
                    }
                }
                Event::Decide if id % 3 == 0 => settle(&mut ours, &mut theirs, at)?,
                Event::Decide => prop_assert_eq!(ours.decide(at), theirs.decide()),
                Event::Remove { attachment } => {
                    // Removal counts as of the last instant that a call had.
                    if told != at {
                        prop_assert_eq!(ours.decide(at), theirs.decide());
                    }
                    let mut gone = Vec::new();
                    ours.remove(&mut |f| f.attachment == *attachment, &mut |f| gone.push(f.id.0));
                    gone.sort_unstable();
                    prop_assert_eq!(gone, theirs.remove(*attachment));
                }
                Event::Advance(span) => {
                    advance(&mut at, *span);
                    theirs.advance(*span);
                }
                Event::StepTai(span) => {
                    // A step shows at the next call; what waited until it is settled before.
                    settle(&mut ours, &mut theirs, at)?;
                    step_tai(&mut at, *span);
                    theirs.set_now(at);
                }
            }
            if matches!(event, Event::Decide | Event::Remove { .. }) {
                told = at;
            }
            prop_assert_eq!(ours.len(), theirs.len());
        }
        settle(&mut ours, &mut theirs, at)?;
        while theirs.is_on_wire() {
            advance(&mut at, 1);
            theirs.advance(1);
        }
        settle(&mut ours, &mut theirs, at)?;
    }

    /// Of a class that floods, no span of time carries more than idleSlope gives plus hiCredit plus one frame, and a class that always
    /// waits gets its share: never less than idleSlope gives, but for what interference holds back.
    #[test]
    fn the_share_of_the_link_over_any_span(
        slope in GBIT / 100..GBIT,
        octets in 64u32..1_600,
        others in prop::collection::vec((0u64..100_000, 64u32..1_600, prop::sample::select(vec![0u8, 7])), 0..20),
    ) {
        let credit = CreditOptions::with_limits(slope, GBIT, 1_600, octets);
        let mut s = TimeAware::new(options(Some(GBIT), &[(5, CreditOptions { lo_credit: None, ..credit })]));
        let hi_credit = i128::from(credit.hi_credit.unwrap_or(0));
        let mut others = others;
        others.sort_unstable();
        let mut others = others.into_iter().enumerate().peekable();
        let (mut at, mut id, mut sent) = (0u64, 1_000u64, Vec::new());
        let flood = |id: u64| Frame { class: class(5), wire_octets: octets, ..frame(id, None) };
        s.offer(flood(id), now(0, 0)).unwrap();
        while at < 300_000 {
            while let Some((n, (_, octets, value))) = others.next_if(|(_, (due, ..))| *due <= at) {
                let f = Frame { class: class(value), wire_octets: octets, ..frame(n as u64, None) };
                s.offer(f, now(at, at)).unwrap();
            }
            match s.decide(now(at, at)) {
                Decision::Transmit { frame, .. } if frame.class == class(5) => {
                    sent.push((i128::from(at), i128::from(octets) * 8));
                    id += 1;
                    s.offer(flood(id), now(at, at)).unwrap();
                }
                Decision::Transmit { .. } => {}
                Decision::WakeAt { at: TxTime::Monotonic(wake), .. } => {
                    let wake = wake.as_nanos();
                    prop_assert!(wake > at);
                    at = others.peek().map_or(wake, |(_, (due, ..))| wake.min((*due).max(at + 1)));
                }
                decision => prop_assert!(false, "{decision:?}"),
            }
        }
        for first in 0..sent.len() {
            let mut bits = 0;
            for &(instant, frame_bits) in &sent[first..] {
                bits += frame_bits;
                let span = instant - sent[first].0;
                let allowed = i128::from(slope) * span / i128::from(GBIT) + hi_credit + frame_bits;
                prop_assert!(bits <= allowed + 1, "{bits} bits in {span} ns, {allowed} allowed");
            }
        }
        // All waiting time but the last debt and the interference has become transmissions.
        let bits: i128 = sent.iter().map(|(_, bits)| bits).sum();
        let interference = 20 * 1_600 * 8;
        let due = (i128::from(slope) * 300_000 / i128::from(GBIT)) - interference - i128::from(octets) * 8;
        prop_assert!(bits >= due, "{bits} bits, {due} were its share");
    }

    #[test]
    fn never_early_and_conserved(options in shaped(), events in prop::collection::vec(event(), 0..120)) {
        let (mut s, mut at, mut queued) = (TimeAware::new(options), now(1_000, 5_000), Vec::<Frame>::new());
        for (id, event) in events.iter().enumerate() {
            match event {
                Event::Offer(sent) => {
                    let frame = small(sent, id as u64, at);
                    if s.offer(frame, at).is_ok() {
                        queued.push(frame);
                    }
                }
                Event::Decide => {
                    if let Decision::Transmit { frame, .. } | Decision::Drop { frame, .. } = s.decide(at) {
                        prop_assert!(has_come(frame.not_before(), at));
                        let is_of_its = |q: &Frame| q.class == frame.class && q.attachment == frame.attachment;
                        let first = queued.iter().position(is_of_its).unwrap();
                        prop_assert_eq!(queued.remove(first), frame);
                    }
                }
                other => happen(other, &mut s, &mut at, &mut queued),
            }
            prop_assert_eq!(s.len(), queued.len());
        }
        prop_assert_eq!(rest(&mut s), queued);
    }

    /// Jumping to every wake-up sends what polling each nanosecond sends, at the same instants.
    #[test]
    fn jumping_equals_polling(
        options in shaped(),
        frames in prop::collection::vec((0u8..8, 0u32..8, prop::option::of(0u64..200)), 0..20),
    ) {
        let run = |jump: bool| {
            let (mut s, mut at, mut sent) = (TimeAware::new(options), 1_000u64, Vec::new());
            for (id, &(value, wire_octets, ahead)) in frames.iter().enumerate() {
                let tx_time = ahead.map(|ahead| mono(at + ahead));
                let f = Frame { class: class(value), wire_octets, ..frame(id as u64, tx_time) };
                s.offer(f, now(at, at)).unwrap();
            }
            loop {
                match s.decide(now(at, at)) {
                    Decision::Transmit { frame, overrun, .. } => sent.push((at, frame.id.0, overrun)),
                    Decision::WakeAt { at: TxTime::Monotonic(wake), .. } if jump => at = wake.as_nanos(),
                    Decision::WakeAt { .. } => at += 1,
                    Decision::Idle => return sent,
                    Decision::Drop { .. } => sent.push((at, u64::MAX, Nanos::ZERO)),
                }
            }
        };
        prop_assert_eq!(run(true), run(false));
    }
}
