// SPDX-License-Identifier: Apache-2.0
//! The credit alone, 802.1Q-2022 8.6.8.2.

use ktsn_sched::{Credit, CreditOptions};
use ktsn_time::{Monotonic, Nanos};
use proptest::prelude::*;

fn at(nanos: u64) -> Monotonic {
    Monotonic::from_nanos(nanos)
}

/// 100 Mbit/s of a link of 1 Gbit/s: a frame of 125 octets takes 1 µs and costs 900 bits of credit.
fn tenth() -> Credit {
    let mut credit = Credit::new(CreditOptions::new(100_000_000));
    credit.set_waiting(true);
    credit
}

#[test]
fn clause_8_6_8_2_falls_with_send_slope_while_transmitting() {
    let mut credit = tenth();
    credit.transmit(at(0), at(1_000), 125);
    assert_eq!((credit.bits(), credit.as_of()), (-900, at(1_000)));
    assert!(!credit.is_transmit_allowed());
}

#[test]
fn clause_8_6_8_2_rises_with_idle_slope_while_waiting_and_is_allowed_at_zero_exactly() {
    let mut credit = tenth();
    credit.transmit(at(0), at(1_000), 125);
    assert_eq!(credit.allowed_at(), at(10_000));
    credit.advance(at(9_999), Nanos::MAX);
    assert!(!credit.is_transmit_allowed());
    credit.advance(at(10_000), Nanos::MAX);
    assert!(credit.is_transmit_allowed());
    assert_eq!(credit.bits(), 0);
    credit.advance(at(20_000), Nanos::MAX);
    assert_eq!(credit.bits(), 1_000);
}

#[test]
fn clause_8_6_8_2_credit_of_an_empty_queue_is_lost() {
    let mut credit = tenth();
    credit.advance(at(10_000), Nanos::MAX);
    assert_eq!(credit.bits(), 1_000);
    credit.set_waiting(false);
    credit.advance(at(10_000), Nanos::ZERO);
    assert_eq!(credit.bits(), 0);
}

#[test]
fn clause_8_6_8_2_debt_of_an_empty_queue_is_worked_off_up_to_zero() {
    let mut credit = tenth();
    credit.transmit(at(0), at(1_000), 125);
    credit.set_waiting(false);
    credit.advance(at(6_000), Nanos::MAX);
    assert_eq!(credit.bits(), -400);
    credit.advance(at(60_000), Nanos::MAX);
    assert_eq!(credit.bits(), 0);
}

#[test]
fn clause_8_6_8_2_credit_is_kept_for_a_frame_that_comes_while_the_last_is_on_the_wire() {
    let mut credit = tenth();
    credit.transmit(at(20_000), at(21_000), 125); // 2,000 saved up, 900 spent
    credit.set_waiting(false);
    credit.advance(at(20_500), Nanos::MAX);
    credit.set_waiting(true);
    credit.advance(at(21_000), Nanos::MAX);
    assert_eq!(credit.bits(), 1_100);
}

#[test]
fn clause_8_6_8_2_nothing_changes_while_the_gate_is_closed() {
    let mut credit = tenth();
    credit.transmit(at(0), at(1_000), 125);
    credit.advance(at(50_000), Nanos::new(4_000));
    assert_eq!(credit.bits(), -500);
    assert_eq!(credit.open_time_needed(), Nanos::new(5_000));
    credit.advance(at(90_000), Nanos::ZERO);
    assert_eq!(credit.bits(), -500);
    // It can't have been open for longer than the time that passed.
    credit.advance(at(91_000), Nanos::new(5_000));
    assert_eq!(credit.bits(), -400);
}

#[test]
fn limits_of_annex_l() {
    // 1,542 octets of interference and of a frame: 12,336 bits, of which a tenth and nine tenths.
    let options = CreditOptions::with_limits(100_000_000, 1_000_000_000, 1_542, 1_542);
    assert_eq!((options.hi_credit, options.lo_credit), (Some(1_234), Some(11_103)));
    let mut credit = Credit::new(options);
    credit.set_waiting(true);
    credit.advance(at(1 << 40), Nanos::MAX);
    assert_eq!(credit.bits(), 1_234);
    for _ in 0..9 {
        let start = credit.as_of();
        credit.transmit(start, start, 10_000);
    }
    assert_eq!(credit.bits(), -11_103);
}

#[test]
fn what_is_saved_up_is_limited_before_the_transmission_not_after() {
    let mut credit = Credit::new(CreditOptions { hi_credit: Some(200), ..CreditOptions::new(100_000_000) });
    credit.set_waiting(true);
    credit.transmit(at(20_000), at(21_000), 125);
    assert_eq!(credit.bits(), 200 - 900);
}

#[test]
fn no_slope_counts_as_one_bit_per_second() {
    let mut credit = Credit::new(CreditOptions::new(0));
    credit.transmit(at(0), at(0), 1);
    assert_eq!(credit.allowed_at(), at(8_000_000_000));
}

#[test]
fn whatever_is_told_nothing_overflows() {
    let mut credit = Credit::new(CreditOptions::new(u64::MAX));
    credit.set_waiting(true);
    credit.advance(Monotonic::MAX, Nanos::MAX);
    assert_eq!(credit.bits(), i64::MAX);
    let mut credit = Credit::new(CreditOptions::new(1));
    for _ in 0..10 {
        credit.transmit(Monotonic::MAX, Monotonic::MAX, u32::MAX);
    }
    assert_eq!(credit.allowed_at(), Monotonic::MAX);
    assert!(!credit.is_transmit_allowed());
}

proptest! {
    #![proptest_config(crate::cases(70))]

    /// A span in pieces gives what the span gives: nothing drifts.
    #[test]
    fn pieces_add_up(
        slope in 1u64..1 << 40,
        debt in 0u32..5_000,
        pieces in prop::collection::vec(0u64..1 << 30, 1..50),
        waits in any::<bool>(),
    ) {
        let mut whole = Credit::new(CreditOptions { hi_credit: Some(10_000), ..CreditOptions::new(slope) });
        whole.transmit(at(0), at(0), debt);
        whole.set_waiting(waits);
        let mut parts = whole;
        let mut now = 0;
        for piece in pieces {
            now += piece;
            parts.advance(at(now), Nanos::MAX);
        }
        whole.advance(at(now), Nanos::MAX);
        prop_assert_eq!(whole, parts);
    }

    /// At `allowed_at` it is allowed, and not a nanosecond before.
    #[test]
    fn allowed_at_is_the_first_instant(slope in 1u64..1 << 40, octets in 1u32..20_000, start in 0u64..1 << 40) {
        let mut credit = Credit::new(CreditOptions::new(slope));
        credit.transmit(at(start), at(start), octets);
        // Saved up from zero to start; without that it would be in debt for certain.
        if credit.is_transmit_allowed() {
            prop_assert_eq!(credit.allowed_at(), at(start));
            return Ok(());
        }
        let allowed_at = credit.allowed_at().as_nanos();
        let mut before = credit;
        before.advance(at(allowed_at - 1), Nanos::MAX);
        prop_assert!(!before.is_transmit_allowed());
        credit.advance(at(allowed_at), Nanos::MAX);
        prop_assert!(credit.is_transmit_allowed());
    }
}
