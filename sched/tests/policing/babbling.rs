// SPDX-License-Identifier: Apache-2.0
//! A babbling talker behind a flow meter, a paced link behind both: by how much another attachment's frame is delayed. The bounds are
//! those of docs/guide/guarantees.md.

use crate::{at, metered};
use ktsn_model::{DropReason, LatePolicy, Priority, TrafficClass};
use ktsn_sched::policing::{FlowMeter, Judged};
use ktsn_sched::{Decision, Frame, FrameId, TimeAware, TimeAwareOptions};
use ktsn_time::{Monotonic, Nanos, TxTime};
use proptest::prelude::*;

const LINK: u64 = 1_000_000_000;
const LONGEST: u32 = 1_592;
const VICTIM: u32 = 0;
const BABBLER: u32 = 1;

fn frame(id: u64, attachment: u32, class: u8, wire_octets: u32, tx_time: Option<u64>, now: u64) -> Frame {
    Frame {
        id: FrameId(id),
        attachment,
        class: TrafficClass::new(class).unwrap(),
        tx_time: tx_time.map(|tx_time| TxTime::Monotonic(Monotonic::from_nanos(tx_time))),
        pushed_at: Monotonic::from_nanos(now),
        wire_octets,
        sdu_octets: wire_octets - 38,
        late: LatePolicy::Send,
        overrun_limit: Nanos::MAX,
        horizon: Nanos::MAX,
    }
}

/// Sends both attachments' frames; gives back by how much the victim's were delayed.
fn delays(
    meter: FlowMeter,
    (victim_class, babbler_class): (u8, u8),
    victims: &[u64],
    babble: &[(u64, u32)],
    gather_at: Option<u64>,
) -> Vec<u64> {
    let mut police = metered(meter);
    let options = TimeAwareOptions::credit_based(10_000, 1, Some(LINK), [None; 8]);
    let mut link = TimeAware::new(options);
    let mut arrivals: Vec<(u64, Frame)> = Vec::new();
    for (&due, id) in victims.iter().zip(0..) {
        arrivals.push((due, frame(id, VICTIM, victim_class, 84, None, due)));
    }
    for (&(now, octets), id) in babble.iter().zip(0..) {
        arrivals
            .push((now, frame(id, BABBLER, babbler_class, octets, gather_at.filter(|&due| due > now), now)));
    }
    arrivals.sort_by_key(|&(now, frame)| (now, frame.attachment != BABBLER));
    let mut arrivals = arrivals.into_iter().peekable();
    let (mut now, mut delays) = (0, Vec::new());
    loop {
        while let Some((_, frame)) = arrivals.next_if(|&(due, _)| due <= now) {
            let is_policed = frame.attachment == BABBLER && {
                let Frame { sdu_octets, wire_octets, .. } = frame;
                let judged = police.judge(None, Priority::default(), sdu_octets, wire_octets, at(now));
                judged == Judged::Drop(DropReason::Policed)
            };
            if !is_policed {
                link.offer(frame, at(now)).unwrap();
            }
        }
        let next = arrivals.peek().map(|&(due, _)| due);
        match link.decide(at(now)) {
            Decision::Transmit { frame, .. } if frame.attachment == VICTIM => {
                delays.push(now - victims[frame.id.0 as usize]);
            }
            Decision::Transmit { .. } => {}
            Decision::WakeAt { at: TxTime::Monotonic(wake), .. } => {
                now = next.map_or(wake.as_nanos(), |due| due.min(wake.as_nanos()));
            }
            Decision::Idle => match next {
                Some(due) => now = due,
                None => return delays,
            },
            decision => panic!("{decision:?}"),
        }
    }
}

/// Nanoseconds that `octets` take while the babbler's rate goes on coming.
fn served(octets: u64, rate: u64) -> u64 {
    (octets * 8 * 1_000_000_000).div_ceil(LINK - rate)
}

/// A victim that sends so rarely that its own frames do not meet.
fn victims() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(0u64..100_000, 1..8).prop_map(|spans| {
        let mut now = 0;
        spans
            .into_iter()
            .map(|span| {
                now += 200_000 + span;
                now
            })
            .collect()
    })
}

/// Floods and pauses, frames of all lengths.
fn babble() -> impl Strategy<Value = Vec<(u64, u32)>> {
    let frame =
        (prop_oneof![4 => 0u64..3_000, 1 => 0u64..400_000], prop_oneof![84u32..=LONGEST, Just(LONGEST)]);
    prop::collection::vec(frame, 1..300).prop_map(|frames| {
        let mut now = 0;
        frames
            .into_iter()
            .map(|(span, octets)| {
                now += span;
                (now, octets)
            })
            .collect()
    })
}

fn meter() -> impl Strategy<Value = FlowMeter> {
    (0u64..LINK / 4, 1u32..8_000, 0u64..LINK / 4, 1u32..8_000, any::<bool>()).prop_map(
        |(cir, cbs, eir, ebs, coupling_flag)| FlowMeter {
            committed_information_rate: cir,
            committed_burst_size: cbs,
            excess_information_rate: eir,
            excess_burst_size: ebs,
            coupling_flag,
            ..FlowMeter::default()
        },
    )
}

proptest! {
    #![proptest_config(crate::cases(100))]

    #[test]
    fn in_a_lower_class_it_costs_one_frame(meter in meter(), victims in victims(), babble in babble()) {
        for delay in delays(meter, (6, 5), &victims, &babble, None) {
            prop_assert!(delay <= served(LONGEST.into(), 0), "{delay} ns");
        }
    }

    #[test]
    fn in_the_same_or_a_higher_class_it_costs_one_burst_and_one_frame(
        meter in meter(),
        higher in any::<bool>(),
        victims in victims(),
        babble in babble(),
    ) {
        let rate = meter.committed_information_rate + meter.excess_information_rate;
        let burst = u64::from(meter.committed_burst_size) + u64::from(meter.excess_burst_size);
        let bound = served(burst + u64::from(LONGEST), rate) + 1;
        for delay in delays(meter, (5, 5 + u8::from(higher)), &victims, &babble, None) {
            prop_assert!(delay <= bound, "{delay} ns, {bound} are allowed");
        }
    }

    /// With TxTimes what its rate gives over the horizon comes at once.
    #[test]
    fn gathered_by_txtime_it_costs_the_horizon_too(meter in meter(), victim in 200_000u64..600_000, babble in babble()) {
        let gather_at = 200_000;
        let rate = meter.committed_information_rate + meter.excess_information_rate;
        let burst = u64::from(meter.committed_burst_size) + u64::from(meter.excess_burst_size);
        let gathered = burst + (rate * gather_at).div_ceil(8_000_000_000);
        let bound = served(gathered + u64::from(LONGEST), rate) + 1;
        for delay in delays(meter, (5, 6), &[victim], &babble, Some(gather_at)) {
            prop_assert!(delay <= bound, "{delay} ns, {bound} are allowed");
        }
    }
}

/// The bound is not far away: the burst in front, one frame on the wire.
#[test]
fn one_burst_and_one_frame_are_reached() {
    let meter = FlowMeter {
        committed_information_rate: 1_000,
        committed_burst_size: 4 * LONGEST,
        ..FlowMeter::default()
    };
    let babble: Vec<_> = (0..50).map(|_| (200_000, LONGEST)).collect();
    let delays = delays(meter, (5, 5), &[200_000], &babble, None);
    assert_eq!(delays, [4 * u64::from(LONGEST) * 8]);
}
