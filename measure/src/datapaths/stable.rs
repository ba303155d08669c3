// SPDX-License-Identifier: Apache-2.0
//! The stable part of a run: what a publication calls its "range of data used".
//!
//! In: the latencies of a run in order, lost frames too. Out: which third of them is stable. The rule looks at the whole run, so its
//! figures are never shown alone.

use ktsn_time::Nanos;

/// A latency above this counts against a part.
pub const SPIKE_MIN: Nanos = Nanos::from_micros(500);
/// A part begins at a multiple of a thirtieth of the run, and is ten of them long.
const STEPS: usize = 30;
const STEPS_OF_PART: usize = 10;

/// The rule in words, for the results.
pub const RULE: &str = "of the parts of a run that are a third of its frames long and begin at a thirtieth of them, the one with the \
                        fewest frames that were lost or took more than 500 µs; of equal ones that with the least standard deviation, \
                        then the earliest";

/// A part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The first frame, from 0.
    pub first: usize,
    /// How many frames.
    pub frames: usize,
}

/// Chooses the stable part by [`RULE`]. `None`: the run has fewer than 30 frames, or no part has a frame that arrived.
#[must_use]
pub fn choose(latencies: &[Option<Nanos>]) -> Option<Part> {
    let step = latencies.len() / STEPS;
    if step == 0 {
        return None;
    }
    let frames = step * STEPS_OF_PART;
    let parts = (0..=STEPS - STEPS_OF_PART).map(|index| Part { first: index * step, frames });
    let scored = parts.filter_map(|part| Some((score(part.of(latencies))?, part)));
    let least = scored.min_by(|(one, _), (other, _)| one.0.cmp(&other.0).then(one.1.total_cmp(&other.1)));
    least.map(|(_, part)| part)
}

impl Part {
    /// The frames of the part.
    #[must_use]
    pub fn of<T>(self, run: &[T]) -> &[T] {
        &run[self.first..self.first + self.frames]
    }
}

/// Frames that count against a part, and its standard deviation.
fn score(part: &[Option<Nanos>]) -> Option<(usize, f64)> {
    let arrived: Vec<f64> = part.iter().flatten().map(|latency| latency.get() as f64).collect();
    if arrived.is_empty() {
        return None;
    }
    let spikes = part.iter().flatten().filter(|&&latency| latency > SPIKE_MIN).count();
    let mean = arrived.iter().sum::<f64>() / arrived.len() as f64;
    let squares: f64 = arrived.iter().map(|latency| (latency - mean).powi(2)).sum();
    Some((part.len() - arrived.len() + spikes, (squares / arrived.len() as f64).sqrt()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn micros(latency: i64) -> Option<Nanos> {
        Some(Nanos::from_micros(latency))
    }

    #[test]
    fn the_part_without_spikes_and_losses_is_chosen() {
        // Calm is only the last third.
        let run: Vec<_> = (0..300)
            .map(|index| match index {
                50 => micros(900),
                150 => None,
                200.. => micros(60 + index % 2),
                _ => micros(60),
            })
            .collect();
        let part = choose(&run).unwrap();
        assert!(part.first >= 160, "{part:?}");
        assert_eq!(part.frames, 100);
        let latencies: Vec<_> = part.of(&run).iter().flatten().collect();
        assert_eq!(latencies.len(), 100);
    }

    #[test]
    fn of_equal_parts_the_earliest_is_chosen() {
        assert_eq!(choose(&[micros(7); 300]), Some(Part { first: 0, frames: 100 }));
        // A spike in the first thirtieth moves it by one step, no further.
        let mut run = [micros(7); 300];
        run[3] = micros(501);
        assert_eq!(choose(&run), Some(Part { first: 10, frames: 100 }));
        run[3] = micros(500);
        assert_eq!(choose(&run).unwrap().first, 10, "no spike, but a deviation");
        run[3] = None;
        assert_eq!(choose(&run).unwrap().first, 10, "a loss");
    }

    #[test]
    fn fewer_spikes_come_before_less_deviation() {
        let mut run = vec![micros(50); 300];
        // 0..100: no spike, but restless. All later parts have a spike.
        for (index, latency) in run.iter_mut().enumerate().take(100) {
            *latency = micros(if index % 2 == 0 { 10 } else { 400 });
        }
        run[104] = micros(600);
        run[204] = micros(600);
        run[299] = micros(600);
        assert_eq!(choose(&run), Some(Part { first: 0, frames: 100 }));
    }

    #[test]
    fn short_and_empty_runs_have_none() {
        assert_eq!(choose(&[]), None);
        assert_eq!(choose(&[micros(1); 29]), None);
        assert_eq!(choose(&[micros(1); 30]), Some(Part { first: 0, frames: 10 }));
        assert_eq!(choose(&[None; 60]), None);
    }

    proptest! {
        /// Against the rule, written down once more: no part at a thirtieth is better.
        #[test]
        fn no_other_part_is_better(run in prop::collection::vec(prop::option::weighted(0.95, 0_i64..700), 30..400)) {
            let run: Vec<_> = run.into_iter().map(|latency| latency.map(Nanos::from_micros)).collect();
            let Some(part) = choose(&run) else { return Ok(()) };
            prop_assert!(part.first + part.frames <= run.len() && part.frames == run.len() / 30 * 10);
            let bad = |first: usize| {
                run[first..first + part.frames].iter().filter(|l| l.is_none_or(|l| l > SPIKE_MIN)).count()
            };
            for index in 0..=20 {
                prop_assert!(bad(part.first) <= bad(index * (run.len() / 30)));
            }
        }
    }
}
