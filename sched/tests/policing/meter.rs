// SPDX-License-Identifier: Apache-2.0
//! The flow meter, 802.1Q-2022 8.6.5.5 and MEF 10.3.

use crate::{at, metered, passes};
use ktsn_sched::policing::{FlowMeter, PolicingConfig};
use proptest::prelude::*;

/// 8 Mbit/s: one octet in a microsecond.
const OCTET_PER_MICROSECOND: u64 = 8_000_000;

fn committed(octets: u32) -> FlowMeter {
    FlowMeter {
        committed_information_rate: OCTET_PER_MICROSECOND,
        committed_burst_size: octets,
        ..FlowMeter::default()
    }
}

#[test]
fn clause_8_6_5_5_the_burst_passes_at_once_and_the_rate_from_then_on() {
    let mut police = metered(committed(1_000));
    assert!(passes(&mut police, 600, at(0)));
    assert!(passes(&mut police, 400, at(0)));
    assert!(!passes(&mut police, 1, at(999)));
    assert!(passes(&mut police, 1, at(1_000)));
    assert!(!passes(&mut police, 100, at(100_999)));
    assert!(passes(&mut police, 100, at(101_000)));
}

#[test]
fn clause_8_6_5_5_the_bucket_holds_no_more_than_the_burst() {
    let mut police = metered(committed(1_000));
    assert!(passes(&mut police, 1_000, at(0)));
    assert!(!passes(&mut police, 1_001, at(1 << 60)));
    assert!(passes(&mut police, 1_000, at(1 << 60)));
    assert!(!passes(&mut police, 1, at(1 << 60)));
}

#[test]
fn a_rate_that_is_no_whole_number_of_octets_in_a_nanosecond_does_not_drift() {
    // 3 bit/s: an octet takes 2,666,666,666 2/3 ns, so three octets take 8 s to the nanosecond. Two fit into the bucket, so
    // that what is over when one has come together is kept.
    let meter = FlowMeter { committed_information_rate: 3, committed_burst_size: 2, ..FlowMeter::default() };
    let mut police = metered(meter);
    assert!(passes(&mut police, 2, at(0)));
    let mut now = 0;
    for round in 1..=3_000u64 {
        let due = (round * 8_000_000_000).div_ceil(3);
        // Polled a hundred times in between, each time with a frame that takes nothing.
        for step in 0..100 {
            assert!(passes(&mut police, 0, at(now + (due - now) * step / 100)));
        }
        assert!(!passes(&mut police, 1, at(due - 1)), "round {round}");
        assert!(passes(&mut police, 1, at(due)), "round {round}");
        now = due;
    }
}

#[test]
fn yellow_passes_unless_it_is_dropped() {
    for drop_on_yellow in [false, true] {
        let mut police = metered(FlowMeter {
            excess_information_rate: OCTET_PER_MICROSECOND,
            excess_burst_size: 500,
            drop_on_yellow,
            ..committed(1_000)
        });
        assert!(passes(&mut police, 1_000, at(0)));
        assert_eq!(passes(&mut police, 500, at(0)), !drop_on_yellow);
        assert!(!passes(&mut police, 500, at(0)));
    }
}

#[test]
fn mef_10_3_coupling_flag_gives_the_overflow_to_the_excess_bucket() {
    for coupling_flag in [false, true] {
        let mut police = metered(FlowMeter { excess_burst_size: 500, coupling_flag, ..committed(1_000) });
        assert!(passes(&mut police, 1_000, at(0)));
        assert!(passes(&mut police, 500, at(0)));
        // 1,300 octets later the committed bucket is full and 300 have run over.
        assert!(passes(&mut police, 1_000, at(1_300_000)));
        assert!(!passes(&mut police, 301, at(1_300_000)));
        assert_eq!(passes(&mut police, 300, at(1_300_000)), coupling_flag);
    }
}

#[test]
fn clause_8_6_5_5_mark_all_frames_red() {
    let mut police = metered(FlowMeter { mark_all_frames_red_enabled: true, ..committed(100) });
    assert!(passes(&mut police, 100, at(0)));
    assert!(!police.tripped(0).unwrap().all_frames_red);
    assert!(!passes(&mut police, 1, at(0)));
    assert!(!passes(&mut police, 1, at(1 << 40)));
    assert!(police.tripped(0).unwrap().all_frames_red);
    police.clear(0);
    assert!(passes(&mut police, 1, at(1 << 40)));
}

#[test]
fn an_instant_that_lies_back_gives_nothing_twice() {
    let mut police = metered(committed(100));
    assert!(passes(&mut police, 100, at(1_000_000)));
    assert!(!passes(&mut police, 1, at(0)));
    assert!(!passes(&mut police, 1, at(1_000_000)));
    assert!(passes(&mut police, 1, at(1_001_000)));
}

#[test]
fn a_rate_without_a_bucket_is_a_fault() {
    let meter = FlowMeter { committed_information_rate: 1, ..FlowMeter::default() };
    let config = PolicingConfig { flow_meters: vec![committed(1), meter], ..PolicingConfig::default() };
    let fault = ktsn_sched::policing::Police::new(&config).unwrap_err();
    assert_eq!((fault.list, fault.index, fault.leaf), ("flow-meter", 1, "committed-burst-size"));
    assert!(fault.to_string().starts_with("flow-meter[1].committed-burst-size: 0 found, expected"));
}

/// A bucket as the bound itself: a frame conforms exactly if no span that ends with it carries more than the rate gives plus the burst.
/// No tokens are kept, so nothing can drift.
struct Bound {
    rate: u64,
    burst: u32,
    /// Frames that came, with their octets if they were let through.
    past: Vec<(u64, u32)>,
}

impl Bound {
    /// Rates of up to 2^64 over spans of up to 2^64 need 128 bits, and the octets of the past some more.
    fn conforms(&mut self, now: u64, octets: u32) -> bool {
        let mut sum = u128::from(octets);
        let mut conforms = octets <= self.burst;
        for &(then, octets) in self.past.iter().rev() {
            sum += u128::from(octets);
            let given = u128::from(self.rate) * u128::from(now - then);
            let over = sum.saturating_sub(self.burst.into()) * 8_000_000_000;
            conforms &= over <= given;
        }
        self.past.push((now, if conforms { octets } else { 0 }));
        conforms
    }
}

/// A meter that lives through every nanosecond: MEF 10.3 with its overflow. Tokens are billionths of a bit.
struct EveryNanosecond {
    config: FlowMeter,
    committed: u128,
    excess: u128,
}

impl EveryNanosecond {
    fn new(config: FlowMeter) -> Self {
        let tokens = |octets| u128::from(octets) * 8_000_000_000;
        let (committed, excess) = (tokens(config.committed_burst_size), tokens(config.excess_burst_size));
        Self { config, committed, excess }
    }
    fn tick(&mut self) {
        let full = Self::new(self.config);
        self.committed += u128::from(self.config.committed_information_rate);
        self.excess += u128::from(self.config.excess_information_rate);
        if self.committed > full.committed {
            if self.config.coupling_flag {
                self.excess += self.committed - full.committed;
            }
            self.committed = full.committed;
        }
        self.excess = self.excess.min(full.excess);
    }
    fn passes(&mut self, octets: u32) -> bool {
        let tokens = u128::from(octets) * 8_000_000_000;
        if tokens <= self.committed {
            self.committed -= tokens;
            true
        } else if tokens <= self.excess {
            self.excess -= tokens;
            !self.config.drop_on_yellow
        } else {
            false
        }
    }
}

/// Instants in order: near each other, far from each other, at the ends of the range.
fn instants() -> impl Strategy<Value = Vec<(u64, u32)>> {
    let span = prop_oneof![4 => 0u64..3_000, 2 => 0u64..1 << 34, 1 => any::<u64>(), 2 => Just(0)];
    let octets = prop_oneof![4 => 0u32..3_000, 1 => any::<u32>()];
    (any::<u32>(), prop::collection::vec((span, octets), 1..80)).prop_map(|(begin, frames)| {
        let mut now = u64::from(begin);
        let mut walk = |(span, octets)| {
            now = now.saturating_add(span);
            (now, octets)
        };
        frames.into_iter().map(&mut walk).collect()
    })
}

/// Both buckets: rates in bit/s, bursts in octets.
pub(crate) fn rates(committed: (u64, u32), excess: (u64, u32)) -> FlowMeter {
    FlowMeter {
        committed_information_rate: committed.0,
        committed_burst_size: committed.1,
        excess_information_rate: excess.0,
        excess_burst_size: excess.1,
        ..FlowMeter::default()
    }
}

fn rate() -> impl Strategy<Value = u64> {
    prop_oneof![2 => 1u64..20_000_000_000, 1 => any::<u64>(), 1 => Just(OCTET_PER_MICROSECOND), 1 => Just(0)]
}

proptest! {
    #![proptest_config(crate::cases(50))]

    /// Exact at every boundary, for any rate and any instant of 64 bits.
    #[test]
    fn two_buckets_are_two_bounds(
        (cir, cbs, eir, ebs) in (rate(), 1u32..6_000, rate(), 1u32..6_000),
        frames in instants(),
    ) {
        let mut police = metered(rates((cir, cbs), (eir, ebs)));
        let mut green = Bound { rate: cir, burst: cbs, past: Vec::new() };
        let mut yellow = Bound { rate: eir, burst: ebs, past: Vec::new() };
        for (now, octets) in frames {
            let is_green = green.conforms(now, octets);
            // What is green does not count for the second bucket, but the instant does.
            let is_yellow = yellow.conforms(now, if is_green { 0 } else { octets }) && !is_green;
            prop_assert_eq!(passes(&mut police, octets, at(now)), is_green || is_yellow);
        }
    }

    #[test]
    fn agrees_with_every_nanosecond(
        (cir, cbs, eir, ebs) in (0u64..9_000_000_000, 1u32..40, 0u64..9_000_000_000, 1u32..40),
        (coupling_flag, drop_on_yellow) in any::<(bool, bool)>(),
        frames in prop::collection::vec((0u64..30, 0u32..30), 1..100),
    ) {
        let meter = FlowMeter { coupling_flag, drop_on_yellow, ..rates((cir, cbs), (eir, ebs)) };
        let (mut ours, mut theirs, mut now) = (metered(meter), EveryNanosecond::new(meter), 1_000);
        for (span, octets) in frames {
            for _ in 0..span {
                theirs.tick();
            }
            now += span;
            prop_assert_eq!(passes(&mut ours, octets, at(now)), theirs.passes(octets));
        }
    }

    /// A babbling talker: whatever it sends, no span carries more than CIR · t + CBS + EIR · t + EBS.
    #[test]
    fn a_babbling_talker_is_bounded_over_any_span(
        (cir, cbs, eir, ebs) in (rate(), 1u32..6_000, rate(), 1u32..6_000),
        (coupling_flag, drop_on_yellow) in any::<(bool, bool)>(),
        frames in instants(),
    ) {
        let mut police = metered(FlowMeter { coupling_flag, drop_on_yellow, ..rates((cir, cbs), (eir, ebs)) });
        let admitted: Vec<_> =
            frames.into_iter().filter(|&(now, octets)| passes(&mut police, octets, at(now))).collect();
        let (rate, burst) = if drop_on_yellow {
            (u128::from(cir), u128::from(cbs))
        } else {
            (u128::from(cir) + u128::from(eir), u128::from(cbs) + u128::from(ebs))
        };
        for first in 0..admitted.len() {
            let mut octets = 0u128;
            for &(now, more) in &admitted[first..] {
                octets += u128::from(more);
                let given = rate.saturating_mul(u128::from(now - admitted[first].0));
                prop_assert!(octets.saturating_sub(burst) * 8_000_000_000 <= given);
            }
        }
    }
}
