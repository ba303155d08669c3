// SPDX-License-Identifier: Apache-2.0
//! Latencies between two clocks that agree in nothing. In: for each frame the transmit time (one clock) and the arrival (another clock).
//! Out: for each frame how much longer it took than the fastest one. Pure.
//!
//! The differences of the two readings lie above a straight line: the clocks' difference, their drift, and the fastest frames' latency. Of
//! all lines that no frame is below, the one with the least sum of distances is taken: an edge of the points' lower convex hull, the one
//! above the mean transmit time. So nothing is assumed about the clocks but a constant rate.

/// How much longer each frame took than the fastest one, nanoseconds, in the order of `frames`: (transmit time, arrival), nanoseconds.
pub(super) fn above_fastest(frames: &[(u64, u64)]) -> Vec<i64> {
    let Some(&(first, _)) = frames.iter().min_by_key(|frame| frame.0) else { return Vec::new() };
    // Small numbers, so that nothing is lost to rounding.
    let base = frames[0].1.wrapping_sub(frames[0].0).cast_signed();
    let point = |&(sent, arrived): &(u64, u64)| {
        let apart = arrived.wrapping_sub(sent).cast_signed().wrapping_sub(base);
        ((sent - first) as f64, apart as f64)
    };
    let points: Vec<(f64, f64)> = frames.iter().map(point).collect();
    let mean = points.iter().map(|point| point.0).sum::<f64>() / points.len() as f64;
    let (at, height, slope) = edge_over(&lower_hull(&points), mean);
    points.iter().map(|&(x, y)| (y - height - slope * (x - at)).round() as i64).collect()
}

/// The lower convex hull, from left to right.
fn lower_hull(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut sorted = points.to_vec();
    sorted.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.total_cmp(&other.1)));
    sorted.dedup_by_key(|point| point.0);
    let mut hull: Vec<(f64, f64)> = Vec::new();
    for point in sorted {
        while let [.., before, last] = hull[..] {
            let turn =
                (last.0 - before.0) * (point.1 - before.1) - (last.1 - before.1) * (point.0 - before.0);
            if turn > 0.0 {
                break;
            }
            hull.pop();
        }
        hull.push(point);
    }
    hull
}

/// A point and the slope of the hull's edge over `x`.
fn edge_over(hull: &[(f64, f64)], x: f64) -> (f64, f64, f64) {
    let edge = hull.windows(2).find(|edge| edge[1].0 >= x);
    match edge {
        Some([from, to]) => (from.0, from.1, (to.1 - from.1) / (to.0 - from.0)),
        _ => hull.last().map_or((0.0, 0.0, 0.0), |last| (last.0, last.1, 0.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever the clocks' difference and drift: the waits come back, but for the least of them.
        #[test]
        fn offset_and_drift_are_removed(
            offset in -3_000_000_000_i64..3_000_000_000,
            drift_ppm in -50_i64..50,
            waits in prop::collection::vec(0_i64..1_000_000, 3..400),
        ) {
            let mut waits = waits;
            // The fastest frames at both ends and in the middle.
            let (middle, last) = (waits.len() / 2, waits.len() - 1);
            for at in [0, middle, last] {
                waits[at] = 0;
            }
            let frames: Vec<(u64, u64)> = waits.iter().enumerate().map(|(index, wait)| {
                let sent = 5_000_000_000 + index as u64 * 1_000_000;
                let apart = offset + index as i64 * drift_ppm + wait;
                (sent, sent.checked_add_signed(apart).unwrap())
            }).collect();
            for (found, wait) in above_fastest(&frames).into_iter().zip(&waits) {
                prop_assert!((found - wait).abs() <= 1, "{} {}", found, wait);
            }
        }
    }

    #[test]
    fn few_frames_are_no_trouble() {
        assert!(above_fastest(&[]).is_empty());
        assert_eq!(above_fastest(&[(5, 900)]), [0]);
        assert_eq!(above_fastest(&[(5, 900), (6, 800)]), [0, 0]);
        assert_eq!(above_fastest(&[(0, 10), (100, 150), (200, 210)]), [0, 40, 0]);
    }
}
