// SPDX-License-Identifier: Apache-2.0
//! Fewer points for the screen: in: every sample. Out: at most [`POINTS_MAX`] points that show the same picture.
//! Only plots are thinned, and never so that a least or greatest value disappears. Histograms count every sample.

/// Most points that one trace of a plot has.
pub const POINTS_MAX: usize = 2_000;

/// Bins of a histogram per factor of ten.
pub(super) const BINS_PER_DECADE: i32 = 20;

/// Least magnitude that a logarithmic axis shows, in nanoseconds; what is smaller is drawn here.
pub(super) const FLOOR_NS: f64 = 10.0;

/// Keeps of each run of neighbours the lowest and the highest point, in their order in time: at most `limit`
/// points, all extremes among them. Fewer points than `limit` stay as they are. `limit` is at least 2.
pub(super) fn keep_extremes(points: &[(f64, f64)], limit: usize) -> Vec<(f64, f64)> {
    if points.len() <= limit {
        return points.to_vec();
    }
    let run = points.len().div_ceil((limit / 2).max(1));
    let mut kept = Vec::with_capacity(limit);
    for chunk in points.chunks(run) {
        let indexed = || chunk.iter().enumerate();
        let lowest = indexed().min_by(|a, b| a.1.1.total_cmp(&b.1.1)).map_or(0, |(index, _)| index);
        let highest = indexed().max_by(|a, b| a.1.1.total_cmp(&b.1.1)).map_or(0, |(index, _)| index);
        kept.push(chunk[lowest.min(highest)]);
        if lowest != highest {
            kept.push(chunk[lowest.max(highest)]);
        }
    }
    kept
}

/// Points `(value, share of samples that do not exceed it)` of the distribution of `sorted`: an even grid of
/// ranks, a logarithmic one at the upper end (where the rare frames are), the least and the greatest sample.
pub(super) fn distribution(sorted: &[i64]) -> Vec<(f64, f64)> {
    const EVEN: usize = 400;
    const TAIL_PER_DECADE: i32 = 40;
    let count = sorted.len();
    let mut ranks: Vec<usize> = if count <= EVEN {
        (1..=count).collect()
    } else {
        let even = (0..=EVEN).map(|step| (count * step / EVEN).max(1));
        let tail = (0..).map(|step| 10_f64.powf(-f64::from(step) / f64::from(TAIL_PER_DECADE)));
        let tail = tail.map(|above| (above * count as f64).floor() as usize).take_while(|&above| above >= 1);
        even.chain(tail.map(|above| count - above + 1)).collect()
    };
    ranks.sort_unstable();
    ranks.dedup();
    ranks.into_iter().map(|rank| (sorted[rank - 1] as f64, rank as f64 / count as f64)).collect()
}

/// Index of the logarithmic bin of a magnitude in nanoseconds; bin 0 begins at 1 ns × 10^0.
pub(super) fn bin_of(magnitude_ns: f64) -> i32 {
    (magnitude_ns.max(FLOOR_NS).log10() * f64::from(BINS_PER_DECADE)).floor() as i32
}

/// Lower edge of a bin, in nanoseconds.
pub(super) fn bin_edge(bin: i32) -> f64 {
    10_f64.powf(f64::from(bin) / f64::from(BINS_PER_DECADE))
}

/// How many of `magnitudes` lie in each bin of `first..=last`; a magnitude outside counts in the bin at the end.
pub(super) fn histogram(magnitudes: &[i64], first: i32, last: i32) -> Vec<u64> {
    let mut counts = vec![0; usize::try_from(last - first + 1).unwrap_or(0)];
    for &magnitude in magnitudes {
        let bin = bin_of(magnitude as f64).clamp(first, last);
        if let Some(count) = usize::try_from(bin - first).ok().and_then(|index| counts.get_mut(index)) {
            *count += 1;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bins_hold_their_edges() {
        assert_eq!(bin_of(0.0), bin_of(FLOOR_NS));
        assert_eq!(bin_of(1000.0), 3 * BINS_PER_DECADE);
        assert!((bin_edge(3 * BINS_PER_DECADE) - 1000.0).abs() < 1e-6);
        assert_eq!(histogram(&[10, 10, 999_999_999], 20, 30), [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn a_distribution_ends_at_one_and_shows_the_rare_frames() {
        let sorted: Vec<i64> = (1..=100_000).collect();
        let points = distribution(&sorted);
        assert_eq!(points.first().unwrap().0, 1.0);
        assert_eq!(*points.last().unwrap(), (100_000.0, 1.0));
        assert!(points.iter().filter(|point| point.1 > 0.999).count() > 20, "the tail has points of its own");
        assert!(points.len() <= POINTS_MAX);
        assert_eq!(distribution(&[]), []);
        assert_eq!(distribution(&[7]), [(7.0, 1.0)]);
    }

    proptest! {
        #[test]
        fn thinning_keeps_extremes_order_and_limit(
            values in prop::collection::vec(-1_000_000_i64..1_000_000, 1..3_000),
            limit in 2_usize..500,
        ) {
            let points: Vec<(f64, f64)> = values.iter().enumerate().map(|(i, &v)| (i as f64, v as f64)).collect();
            let kept = keep_extremes(&points, limit);
            prop_assert!(kept.len() <= limit);
            let least = |points: &[(f64, f64)]| points.iter().map(|p| p.1).fold(f64::INFINITY, f64::min);
            let greatest = |points: &[(f64, f64)]| points.iter().map(|p| p.1).fold(f64::NEG_INFINITY, f64::max);
            prop_assert_eq!(least(&kept), least(&points));
            prop_assert_eq!(greatest(&kept), greatest(&points));
            prop_assert!(kept.windows(2).all(|pair| pair[0].0 < pair[1].0));
            prop_assert!(kept.iter().all(|point| points.contains(point)));
            if points.len() <= limit {
                prop_assert_eq!(kept, points);
            }
        }

        #[test]
        fn distribution_points_are_true_and_within_limits(mut values in prop::collection::vec(0_i64..10_000, 1..5_000)) {
            values.sort_unstable();
            let points = distribution(&values);
            prop_assert!(points.len() <= POINTS_MAX);
            prop_assert_eq!(points[0].0, values[0] as f64);
            prop_assert_eq!(points[points.len() - 1], (values[values.len() - 1] as f64, 1.0));
            for (value, share) in points {
                let rank = (share * values.len() as f64).round() as usize;
                prop_assert_eq!(values[rank - 1] as f64, value);
            }
        }

        #[test]
        fn a_histogram_counts_every_sample(values in prop::collection::vec(0_i64..i64::MAX, 0..500)) {
            prop_assert_eq!(histogram(&values, 20, 150).iter().sum::<u64>(), values.len() as u64);
        }
    }
}
