// SPDX-License-Identifier: Apache-2.0
//! The rule by which an innocent stream is judged, with and without an attack beside it.
//!
//! In: the rounds of both sides, one each by turns. Out: the figures of both, and what is worse than allowed. The rule is
//! fixed before any result exists:
//!
//! * **lost** (frames that did not reach the wire, missed ones among them): an exact one-sided permutation test. Losses come in
//!   blocks, so that frames are not independent and a test that counts frames (Fisher's) would see too much; rounds
//!   are. The statistic is the sum over the attacked rounds of the square root of what a round lost: the root keeps one round that
//!   the hypervisor spoilt from hiding nine. `p` is the share of all ways to deal the rounds to two sides whose
//!   statistic is at least this. Worse: `p` ≤ 0.05. Fewer than three rounds cannot show that.
//! * **lost in one round**: the worst attacked round may not lose 150 frames, 150 ms of the stream, more than the worst round of the
//!   control. Three lost rounds of ten alone are not rare enough for the test above.
//! * **share lost more**: the upper 95 % bound of what an attacked round loses more than the control's round before it. Where it is above
//!   0.1 % of the frames, and nothing is worse, the case is void: the rounds were too noisy, or too few, to show that the attack does no
//!   harm. The bound is that of Wilcoxon's signed-rank test (Hollander, Wolfe, Chicken: Nonparametric Statistical Methods, 3.3).
//! * **p99** of the instant on the wire after the transmit time: the median over the rounds may not exceed the control's by
//!   more than a bar.
//! * **p50** of the same: at most 1.2 times the control's, or that of a round in which a program without any contact to the daemon
//!   computes on its CPU, if that is more. A median of less than a microsecond is the time of a few dozen cache lines: whatever runs on
//!   a CPU between two frames, another tenant's frames or another program, leaves it cold. Where the attacker's frames are due in the
//!   stream's own class, [`ONE_FRAME_NS`] more: the worker serves tenants by turns, and does not interrupt a hand-over.

/// Fewest rounds that the test can say anything with: 1 of 20 ways.
pub const ROUNDS_MIN: usize = 3;
/// Most rounds: 2,704,156 ways.
pub const ROUNDS_MAX: usize = 12;
/// One minus the confidence.
pub const LEVEL: f64 = 0.05;
/// The share of the frames that an attack may cost, in 100,000.
pub const SHARE_MORE: u64 = 100;
/// How many more frames than the control's worst round the worst one may lose.
pub const ROUND_LOST_MORE: u64 = 150;
/// How much later than in the control a frame may be, at p99, nanoseconds.
pub const P99_MORE_NS: i64 = 50_000;
/// The most that p50 may be beside a program that only computes, nanoseconds: what a cold way into the kernel takes, three times over.
/// More shows a machine that is not quiet, or a ktsnd whose cold way is too long: then only the control counts for the others.
pub const COMPUTING_P50_MAX_NS: i64 = 10_000;
/// What the hand-over of one frame of the attacker's may take, nanoseconds. It took some 3 µs: 6,900 frames in 56 % of 35 ms.
pub const ONE_FRAME_NS: i64 = 4_000;
/// How many times the control's p50 may be, in hundredths.
pub const P50_PERCENT: i64 = 120;

/// One side of one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// Frames that never came to the wire, or came before their transmit time.
    pub lost: u64,
    /// Median of the instant on the wire after the transmit time, nanoseconds; `None`: no frame came.
    pub p50: Option<i64>,
    /// Its 99th percentile.
    pub p99: Option<i64>,
}

/// The figures of a side: sum of the lost, medians over the rounds of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Frames lost in all rounds.
    pub lost: u64,
    /// Median of the rounds' p50, nanoseconds; `i64::MAX` where most rounds brought no frame.
    pub p50: i64,
    /// Median of the rounds' p99.
    pub p99: i64,
}

impl Figures {
    /// Of these rounds.
    #[must_use]
    pub fn of(rounds: &[Round]) -> Self {
        Self {
            lost: rounds.iter().map(|round| round.lost).sum(),
            p50: median(rounds.iter().map(|round| round.p50.unwrap_or(i64::MAX)).collect()),
            p99: median(rounds.iter().map(|round| round.p99.unwrap_or(i64::MAX)).collect()),
        }
    }
}

/// The lower of the two in the middle.
fn median(mut values: Vec<i64>) -> i64 {
    values.sort_unstable();
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(i64::MAX)
}

/// Nearest rank, in per mille, of sorted values.
#[must_use]
pub fn percentile(sorted: &[i64], per_mille: usize) -> Option<i64> {
    let rank = (sorted.len() * per_mille).div_ceil(1000);
    sorted.get(rank.max(1) - 1).copied()
}

/// The share of all ways to deal the rounds that give the attacked side at least what it lost.
#[must_use]
pub fn p_value(control: &[u64], attacked: &[u64]) -> f64 {
    let root = |lost: &u64| (*lost as f64).sqrt();
    let all: Vec<f64> = control.iter().chain(attacked).map(root).collect();
    let seen: f64 = attacked.iter().map(root).sum();
    // Sums of the same numbers in another order differ by less.
    let (mut at_least, mut ways) = (0_u64, 0_u64);
    deal(&all, attacked.len(), 0.0, &mut |sum| {
        ways += 1;
        at_least += u64::from(sum >= seen - 1e-6);
    });
    at_least as f64 / ways as f64
}

/// Gives the sum of each choice of `count` of `values`.
fn deal(values: &[f64], count: usize, sum: f64, each: &mut impl FnMut(f64)) {
    match values.split_first() {
        _ if count == 0 => each(sum),
        Some((first, rest)) if values.len() >= count => {
            deal(rest, count - 1, sum + first, each);
            deal(rest, count, sum, each);
        }
        _ => {}
    }
}

/// The upper bound, at 95 %, of what an attacked round loses more than the control's round before it, in frames; `None`: fewer than five
/// rounds have none.
#[must_use]
pub fn more_at_most(control: &[u64], attacked: &[u64]) -> Option<f64> {
    let more: Vec<f64> = control.iter().zip(attacked).map(|(c, a)| *a as f64 - *c as f64).collect();
    let mut means: Vec<f64> = (0..more.len())
        .flat_map(|i| (0..=i).map(move |j| (i, j)))
        .map(|(i, j)| (more[i] + more[j]) / 2.0)
        .collect();
    means.sort_unstable_by(|one, other| other.total_cmp(one));
    // Ways to give the ranks 1 to n a sign each, by the sum of the positive ones.
    let mut ways = vec![0.0; means.len() + 1];
    ways[0] = 1.0;
    for rank in 1..=more.len() {
        for sum in (rank..ways.len()).rev() {
            ways[sum] += ways[sum - rank];
        }
    }
    let all: f64 = ways.iter().sum();
    let mut below = 0.0;
    let rejected = ways.iter().take_while(|ways| {
        below += *ways;
        below <= LEVEL * all
    });
    let rejected = rejected.count();
    (rejected > 0).then(|| means[rejected - 1])
}

/// Why the rounds do not show that the attack does no harm, if so.
#[must_use]
pub fn void(control: &[Round], attacked: &[Round], frames: u64) -> Option<String> {
    let lost = |rounds: &[Round]| rounds.iter().map(|round| round.lost).collect::<Vec<_>>();
    // A loss that was seen is never beyond its own bound.
    let seen =
        (Figures::of(attacked).lost as f64 - Figures::of(control).lost as f64) / control.len().max(1) as f64;
    let Some(more) = more_at_most(&lost(control), &lost(attacked)).map(|more| more.max(seen)) else {
        return Some(format!("{} rounds are too few to show how much is lost: ROUNDS=10", control.len()));
    };
    let allowed = frames as f64 * SHARE_MORE as f64 / 100_000.0;
    (more > allowed).then(|| {
        format!("too noisy: up to {more} of {frames} frames more may be lost, {allowed} would be allowed")
    })
}

/// What may be worse under attack, besides the losses.
#[derive(Clone, Copy, Debug)]
pub struct Bars {
    /// p50 may be so much more than the control's, nanoseconds.
    pub p50_more_ns: i64,
    /// p50 beside a program that only computes on the worker's CPU, nanoseconds.
    pub computing_p50_ns: i64,
}

impl Bars {
    /// The p50 that is allowed beside this control.
    #[must_use]
    pub fn p50(&self, control: &Figures) -> i64 {
        let by_share = control.p50.saturating_mul(P50_PERCENT) / 100;
        by_share.max(self.computing_p50_ns).max(control.p50.saturating_add(self.p50_more_ns))
    }

    /// The p99 that is allowed beside this control.
    #[must_use]
    pub fn p99(&self, control: &Figures) -> i64 {
        control.p99.saturating_add(P99_MORE_NS)
    }
}

/// What is worse than allowed; nothing = the attack did no harm.
#[must_use]
pub fn worse(control: &[Round], attacked: &[Round], bars: &Bars) -> Vec<String> {
    let lost = |rounds: &[Round]| rounds.iter().map(|round| round.lost).collect::<Vec<_>>();
    let (before, after) = (Figures::of(control), Figures::of(attacked));
    let p = p_value(&lost(control), &lost(attacked));
    let mut found = Vec::new();
    if p <= LEVEL {
        found.push(format!("lost {} instead of {} (p = {p:.4})", after.lost, before.lost));
    }
    let worst = |rounds: &[Round]| rounds.iter().map(|round| round.lost).max().unwrap_or(0);
    if worst(attacked) > worst(control).saturating_add(ROUND_LOST_MORE) {
        found.push(format!("lost {} in one round instead of {}", worst(attacked), worst(control)));
    }
    if after.p99 > bars.p99(&before) {
        found.push(format!("p99 {} instead of {}", micros(after.p99), micros(before.p99)));
    }
    if after.p50 > bars.p50(&before) {
        found.push(format!("p50 {} instead of {}", micros(after.p50), micros(before.p50)));
    }
    found
}

/// Why the control says nothing, if so: the testbed itself loses frames, or does not see them.
#[must_use]
pub fn spoilt(control: &[Round], frames: u64) -> Option<String> {
    let is_bad = |round: &&Round| round.lost * 10 > frames || round.p50.is_none_or(|p50| p50 <= 0);
    let bad = control.iter().filter(is_bad).count();
    (2 * bad >= control.len())
        .then(|| format!("the control itself is bad in {bad} of {} rounds: {control:?}", control.len()))
}

/// For people.
#[must_use]
pub fn micros(nanos: i64) -> String {
    if nanos == i64::MAX { "none".to_owned() } else { format!("{:.1} us", nanos as f64 / 1000.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BARS: Bars = Bars { p50_more_ns: 0, computing_p50_ns: 0 };

    fn rounds(lost: &[u64], p50: i64, p99: i64) -> Vec<Round> {
        lost.iter().map(|&lost| Round { lost, p50: Some(p50), p99: Some(p99) }).collect()
    }

    #[test]
    fn the_test_of_losses_is_exact() {
        let close = |p: f64, expected: f64| assert!((p - expected).abs() < 1e-9, "{p} {expected}");
        close(p_value(&[0, 0, 0], &[5, 6, 7]), 1.0 / 20.0);
        close(p_value(&[0, 0, 0], &[0, 0, 0]), 1.0);
        close(p_value(&[5, 6, 7], &[0, 0, 0]), 1.0);
        close(p_value(&[0; 10], &[1; 10]), 1.0 / 184_756.0);
        // One of the ten is as likely on either side.
        close(p_value(&[0; 10], &[0, 0, 0, 0, 9, 0, 0, 0, 0, 0]), 0.5);
    }

    /// The bounds of the test's own tables: n = 5 has the largest mean, n = 10 the eleventh of 55.
    #[test]
    fn the_bound_of_what_is_lost_more_is_wilcoxons() {
        assert_eq!(more_at_most(&[0; 4], &[0; 4]), None);
        assert_eq!(more_at_most(&[0; 5], &[0, 1, 2, 3, 9]), Some(9.0));
        assert_eq!(more_at_most(&[5; 10], &[5; 10]), Some(0.0));
        assert_eq!(more_at_most(&[0; 10], &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]), Some(7.5));
        // One round that the machine spoilt says nothing; three do.
        assert_eq!(more_at_most(&[0; 10], &[0, 0, 300, 0, 0, 0, 0, 0, 0, 0]), Some(0.0));
        assert_eq!(more_at_most(&[0; 10], &[0, 300, 300, 0, 0, 300, 0, 0, 0, 0]), Some(150.0));
        assert_eq!(void(&rounds(&[0; 10], 1, 1), &rounds(&[1; 10], 1, 1), 1500), None);
        assert!(void(&rounds(&[0; 10], 1, 1), &rounds(&[2; 10], 1, 1), 1500).is_some());
        let once = rounds(&[0, 0, 0, 0, 300, 0, 0, 0, 0, 0], 1, 1);
        assert!(
            void(&rounds(&[0; 10], 1, 1), &once, 1500).is_some(),
            "one bad round is not shown to be chance"
        );
        assert!(void(&rounds(&[0; 3], 1, 1), &rounds(&[0; 3], 1, 1), 1500).is_some());
    }

    #[test]
    fn one_spoilt_round_hides_nothing() {
        let spoilt = [0, 0, 0, 0, 300, 0, 0, 0, 0, 0];
        assert!(p_value(&spoilt, &[30; 10]) <= LEVEL);
        assert!(p_value(&spoilt, &[0; 10]) > LEVEL);
    }

    #[test]
    fn few_lost_rounds_are_seen() {
        let control = rounds(&[3; 10], 3000, 20_000);
        let attacked = rounds(&[0, 0, 0, 0, 154, 0, 0, 0, 0, 0], 3000, 20_000);
        assert_eq!(worse(&control, &attacked, &BARS).len(), 1);
        assert!(
            worse(&attacked, &control, &BARS).is_empty() && worse(&attacked, &attacked, &BARS).is_empty()
        );
    }

    #[test]
    fn each_bar_can_be_missed() {
        let control = rounds(&[0, 1, 0], 3000, 20_000);
        assert!(worse(&control, &control, &BARS).is_empty());
        assert!(worse(&control, &rounds(&[0, 0, 2], 3600, 70_000), &BARS).is_empty());
        assert_eq!(worse(&control, &rounds(&[9, 9, 9], 3000, 20_000), &BARS).len(), 1);
        assert_eq!(worse(&control, &rounds(&[0, 0, 0], 3000, 70_001), &BARS).len(), 1);
        assert_eq!(worse(&control, &rounds(&[0, 0, 0], 3601, 20_000), &BARS).len(), 1);
        let computing = Bars { computing_p50_ns: 4000, ..BARS };
        assert!(worse(&control, &rounds(&[0, 0, 0], 4000, 20_000), &computing).is_empty());
        assert_eq!(worse(&control, &rounds(&[0, 0, 0], 4001, 20_000), &computing).len(), 1);
        assert!(
            worse(&control, &rounds(&[0, 0, 0], 3600, 20_000), &Bars { computing_p50_ns: 1, ..BARS })
                .is_empty()
        );
        let same_class = Bars { p50_more_ns: ONE_FRAME_NS, ..BARS };
        assert!(worse(&control, &rounds(&[0, 0, 0], 7000, 20_000), &same_class).is_empty());
        assert_eq!(worse(&control, &rounds(&[0, 0, 0], 7001, 20_000), &same_class).len(), 1);
        let none = [Round { lost: 100, p50: None, p99: None }; 3];
        assert_eq!(worse(&control, &none, &BARS).len(), 3);
    }

    #[test]
    fn a_control_that_sees_nothing_proves_nothing() {
        let good = rounds(&[3; 4], 700, 20_000);
        assert_eq!(spoilt(&good, 1500), None);
        let none = Round { lost: 0, p50: None, p99: None };
        let early = Round { lost: 0, p50: Some(-400_000), p99: Some(1) };
        let lossy = Round { lost: 151, p50: Some(700), p99: Some(1) };
        for bad in [none, early, lossy] {
            assert_eq!(spoilt(&[good[0], good[0], good[0], bad], 1500), None, "one of four is the machine");
            assert!(spoilt(&[good[0], good[0], bad, bad], 1500).is_some(), "{bad:?}");
        }
        assert!(spoilt(&[], 1500).is_some());
    }

    #[test]
    fn percentiles_are_nearest_rank() {
        let values: Vec<i64> = (1..=100).collect();
        assert_eq!((percentile(&values, 500), percentile(&values, 990)), (Some(50), Some(99)));
        assert_eq!(percentile(&[], 990), None);
    }
}
