// SPDX-License-Identifier: Apache-2.0
use super::*;
use proptest::prelude::*;

proptest! {
    #[test]
    fn since_is_the_inverse_of_add(a in any::<u64>(), span in any::<i64>()) {
        if let Some(b) = Tai::from_nanos(a).checked_add(Nanos::new(span)) {
            prop_assert_eq!(b.since(Tai::from_nanos(a)), Nanos::new(span));
        }
    }

    #[test]
    fn arithmetic_never_wraps(a in any::<u64>(), span in any::<i64>()) {
        let wide = i128::from(a) + i128::from(span);
        let at = Monotonic::from_nanos(a);
        prop_assert_eq!(
            i128::from(at.saturating_add(Nanos::new(span)).as_nanos()),
            wide.clamp(0, i128::from(u64::MAX))
        );
        let wide = i128::from(a) - i128::from(span);
        prop_assert_eq!(
            i128::from(at.saturating_sub(Nanos::new(span)).as_nanos()),
            wide.clamp(0, i128::from(u64::MAX))
        );
    }

    #[test]
    fn spans_hold_every_distance(a in any::<u64>(), b in any::<u64>()) {
        let (early, late) = (Tai::from_nanos(a.min(b)), Tai::from_nanos(a.max(b)));
        let span = late.span_since(early);
        prop_assert_eq!(late.checked_span_since(early), Some(span));
        prop_assert_eq!((early.after(span), early.checked_after(span), late.before(span)), (late, Some(late), early));
        if a != b {
            prop_assert_eq!((early.span_since(late), early.checked_span_since(late)), (Span::ZERO, None));
        }
        let nanos = Span::from_nanos(a).to_nanos();
        prop_assert_eq!(Span::not_negative(nanos).as_nanos(), a.min(i64::MAX as u64));
        prop_assert_eq!(nanos.get(), i64::try_from(a).unwrap_or(i64::MAX));
        let sum = u128::from(a) + u128::from(b);
        let saturated = Span::from_nanos(a).saturating_add(Span::from_nanos(b));
        prop_assert_eq!(Span::from_wide(sum), saturated);
        let exact = Span::from_nanos(a).checked_add(Span::from_nanos(b));
        prop_assert_eq!(exact, u64::try_from(sum).ok().map(Span::from_nanos));
    }

    #[test]
    fn a_negative_span_counts_as_none(nanos in i64::MIN..0) {
        prop_assert_eq!(Span::not_negative(Nanos::new(nanos)), Span::ZERO);
    }

    #[test]
    fn offset_round_trips(mono in 0..1u64 << 62, tai in 0..1u64 << 62, at in 0..1u64 << 62) {
        let offset = Offset::between(Tai::from_nanos(tai), Monotonic::from_nanos(mono));
        prop_assert_eq!(offset.tai(Monotonic::from_nanos(mono)), Tai::from_nanos(tai));
        let there = offset.tai(Monotonic::from_nanos(at));
        if there > Tai::ZERO {
            prop_assert_eq!(offset.monotonic(there), Monotonic::from_nanos(at));
        }
    }

    #[test]
    fn ahead_of_uses_the_clock_of_the_value(tai in any::<u64>(), mono in any::<u64>(), at in any::<u64>()) {
        let now = Now { tai: Tai::from_nanos(tai), monotonic: Monotonic::from_nanos(mono) };
        prop_assert_eq!(TxTime::Tai(Tai::from_nanos(at)).ahead_of(now), Tai::from_nanos(at).since(now.tai));
        prop_assert_eq!(
            TxTime::Monotonic(Monotonic::from_nanos(at)).ahead_of(now),
            Monotonic::from_nanos(at).since(now.monotonic)
        );
    }
}

#[test]
fn ends_of_the_range() {
    assert_eq!(Tai::MAX.since(Tai::ZERO), Nanos::MAX);
    assert_eq!(Tai::ZERO.since(Tai::MAX), Nanos::MIN);
    assert_eq!(Tai::MAX.checked_add(Nanos::new(1)), None);
    assert_eq!(Tai::ZERO.checked_add(Nanos::new(-1)), None);
    assert_eq!(Tai::ZERO.saturating_sub(Nanos::MIN).as_nanos(), 1 << 63);
    assert_eq!(Nanos::MIN.abs(), Nanos::MAX);
    assert_eq!(Nanos::MAX.checked_add(Nanos::new(1)), None);
}
