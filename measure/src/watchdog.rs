// SPDX-License-Identifier: Apache-2.0
//! The watchdog: a thread of its own that shows when a CPU stood still.
//!
//! In: instants to look at, and the CPU with a priority above that of the thread that is watched. Out: when it was to wake and when
//! it did. It knows nothing of the daemon. A wake-up that comes late proves that the CPU ran no thread of its priority
//! from then until it woke: the hypervisor, an interrupt or the kernel had it.
//!
//! It looks only at the instants that matter, some [`AHEAD`] before the last instant at which a frame may begin on the
//! link and still be off it when its gate closes. A worker with a longer reserve of its own begins no hand-over after such
//! a look, so a frame that overruns was under way across it.
//!
//! Two rules say what proves that the machine stood still, each with a count of how often it would hold by accident:
//!
//! | rule | evidence | chance by accident |
//! |---|---|---|
//! | 1 | a look that was late by more than [`GAP_MIN`] | share of such looks among all |
//! | 2 | a hand-over in which the kernel did nothing else for [`STALL_MIN`] and never left the CPU, by its own trace; and a look within that span that was answered only after the frame was out | share of hand-overs that long |
//!
//! What is usual shows nothing: of a round's looks rule 1 counts at most [`ACCIDENT_MAX_PERMILLE`], the latest; rule 2 is void where its share is
//! above that.
//!
//! A shorter look is no proof anywhere: even where the watched thread had the CPU in user mode, a third of them come more than 25 µs late
//! on a busy host.
//!
//! What it costs: where a look interrupts a thread in user mode, that thread goes on some 20 µs later (2 virtual CPUs, Linux
//! 6.18, three looks a millisecond: 3.8 % of one CPU). With the looks right at the close, the first frame of the next
//! window left 20.0 µs after its opening instead of 0.6 µs (p50); that is why they come before it.

use ktsn_time::{Nanos, Tai, TxTime};
use ktsn_traffic::clock::{self, RealTime, RealTimeError, ScheduleClock, nanos_of};
use ktsn_traffic::stats::Statistics;

/// A wake-up later than this is a gap. Most wake-ups here, from an idle CPU included, take less than 35 µs; how many are
/// gaps by this rule is counted, and that share is the chance that one proves something by accident.
pub const GAP_MIN: Nanos = Nanos::from_micros(50);
/// From the beginning of a system call that hands one frame over to the frame's stamp on the wire lie some 2 µs of copying (p99:
/// 6 µs). One that takes longer than this stood still on the way: an interrupt, a page that the hypervisor had taken, a stolen CPU.
pub const STALL_MIN: Nanos = Nanos::from_micros(25);
/// The greatest chance of an accident, in parts per thousand, with which either rule still proves something.
pub const ACCIDENT_MAX_PERMILLE: u64 = 50;
/// How long before the last instant to begin a look should be: it is over when the next window opens.
pub const AHEAD: Nanos = Nanos::from_micros(25);
/// After a gap a thread that was stopped in the middle goes on within this.
pub const RESUME_MAX: Nanos = Nanos::from_micros(20);

/// When the watchdog looks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The first cycle.
    pub base_time: Tai,
    /// How long a cycle is.
    pub cycle_time: Nanos,
    /// Where in a cycle to look; ascending.
    pub offsets: Vec<Nanos>,
    /// The last instant.
    pub until: Tai,
    /// CPU and priority.
    pub real_time: RealTime,
}

/// One look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// When the thread was to wake.
    pub due_at: Tai,
    /// When it did.
    pub woke_at: Tai,
}

impl Look {
    /// How late.
    #[must_use]
    pub const fn late_by(&self) -> Nanos {
        self.woke_at.since(self.due_at)
    }
}

/// What shows that the machine stood still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// A look that came late by itself: rule 1.
    Gap,
    /// A look that came late within a hand-over that stood still: rule 2.
    Stall,
}

/// What the watchdog saw.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Every look, in order.
    pub looks: Vec<Look>,
    /// CPU time of the thread over elapsed time.
    pub cpu_ratio: f64,
}

impl Outcome {
    /// How late it woke.
    #[must_use]
    pub fn lateness(&self) -> Option<Statistics> {
        Statistics::of(self.looks.iter().map(Look::late_by))
    }

    /// The gaps; where they are too many, only the latest of them, [`ACCIDENT_MAX_PERMILLE`] of all looks, say anything by themselves.
    #[must_use]
    pub fn gaps(&self) -> Gaps {
        let gaps = Gaps::of(&self.looks);
        let mut late: Vec<Nanos> = self.looks.iter().map(Look::late_by).collect();
        late.sort_unstable();
        let few = self.looks.len() as u64 * ACCIDENT_MAX_PERMILLE / 1_000;
        // Of all looks, `few` at most came later than this.
        let usual_max = late.iter().rev().nth(usize::try_from(few).unwrap_or(usize::MAX));
        Gaps { alone_over: usual_max.map_or(GAP_MIN, |late| (*late).max(GAP_MIN)), ..gaps }
    }
}

/// Spans in which the watched CPU stood still, in order of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gaps {
    looks: Vec<Look>,
    /// Later than this, one says something by itself.
    alone_over: Nanos,
}

impl Default for Gaps {
    fn default() -> Self {
        Self { looks: Vec::new(), alone_over: GAP_MIN }
    }
}

impl Gaps {
    /// Those among `looks`: late enough to say something, if only together with the trace of a hand-over.
    #[must_use]
    pub fn of(looks: &[Look]) -> Self {
        let late = |look: &Look| look.late_by() > STALL_MIN;
        let mut gaps: Vec<Look> = looks.iter().copied().filter(late).collect();
        gaps.sort_unstable_by_key(|gap| gap.due_at);
        Self { looks: gaps, alone_over: GAP_MIN }
    }

    /// How many there are that say something by themselves, wherever they fall.
    #[must_use]
    pub fn count(&self) -> usize {
        self.looks.iter().filter(|gap| gap.late_by() > self.alone_over).count()
    }

    /// Whether one of them explains that what should have been done by `from` was done at `to` only: the CPU stood still
    /// at `from` or later, and went on no more than [`RESUME_MAX`] before `to`.
    #[must_use]
    pub fn explain(&self, from: Tai, to: Tai) -> bool {
        self.until(to).iter().any(|gap| {
            let goes_on = gap.woke_at >= from && gap.woke_at.saturating_add(RESUME_MAX) >= to;
            goes_on && gap.late_by() > self.alone_over
        })
    }

    /// Rule 2, for a frame that was on the wire at `to` while the kernel did nothing but hand it over since `since`, on a CPU
    /// that it never left: a look within that span that was not answered before the frame was out.
    #[must_use]
    pub fn explain_call(&self, since: Tai, to: Tai) -> bool {
        let within = |gap: &Look| gap.due_at >= since && gap.woke_at >= to;
        to.since(since) > STALL_MIN && self.until(to).iter().any(within)
    }

    fn until(&self, to: Tai) -> &[Look] {
        &self.looks[..self.looks.partition_point(|gap| gap.due_at <= to)]
    }
}

impl Plan {
    /// All instants from `now` on.
    pub fn instants(&self, now: Tai) -> impl Iterator<Item = Tai> + '_ {
        let cycle = self.cycle_time.get().max(1);
        let begun = (now.since(self.base_time).get().max(0) / cycle).max(0);
        (begun..)
            .map(move |number| self.base_time.saturating_add(Nanos::new(cycle.saturating_mul(number))))
            .flat_map(|start| self.offsets.iter().map(move |&offset| start.saturating_add(offset)))
            .skip_while(move |&at| at <= now)
            .take_while(|&at| at <= self.until)
    }

    fn looks_max(&self, now: Tai) -> usize {
        let cycles = self.until.since(now).get().max(0) / self.cycle_time.get().max(1) + 2;
        usize::try_from(cycles).unwrap_or(0).saturating_mul(self.offsets.len()).min(1 << 22)
    }
}

/// Watches until the plan's end or until `stop` says so. Allocates nothing on the way.
///
/// # Errors
/// The system refuses CPU or priority.
pub fn run(plan: &Plan, ready: impl FnOnce(), stop: &dyn Fn() -> bool) -> Result<Outcome, RealTimeError> {
    let begun = clock::tai_now();
    // The pages are there before the first look: a fault would look like a gap.
    let mut looks = vec![Look { due_at: Tai::MAX, woke_at: Tai::MAX }; plan.looks_max(begun)];
    looks.clear();
    plan.real_time.apply()?;
    ready();
    let cpu = clock::thread_cpu_time();
    for due_at in plan.instants(begun) {
        if looks.len() == looks.capacity() || stop() {
            break;
        }
        clock::sleep_until(TxTime::Tai(due_at));
        let woke_at = Tai::from_nanos(nanos_of(ScheduleClock::Tai.now()));
        looks.push(Look { due_at, woke_at });
    }
    let elapsed = clock::tai_now().since(begun).get().max(1);
    let used = clock::thread_cpu_time().saturating_sub(cpu);
    Ok(Outcome { looks, cpu_ratio: used.get() as f64 / elapsed as f64 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(nanos: u64) -> Tai {
        Tai::from_nanos(nanos)
    }

    fn look(due: u64, woke: u64) -> Look {
        Look { due_at: at(due), woke_at: at(woke) }
    }

    #[test]
    fn a_gap_explains_what_it_covers_and_nothing_else() {
        let gaps = Gaps::of(&[look(1_000_000, 1_000_003), look(2_000_000, 2_300_000)]);
        assert_eq!(gaps.count(), 1);
        // Should have happened by 2.0 ms; the CPU came back at 2.3 ms.
        assert!(gaps.explain(at(2_000_000), at(2_305_000)));
        assert!(gaps.explain(at(1_990_000), at(2_100_000)));
        // Too long after the gap, before it, and where the watchdog woke in time.
        assert!(!gaps.explain(at(2_000_000), at(2_320_001)));
        assert!(!gaps.explain(at(1_900_000), at(1_999_999)));
        assert!(!gaps.explain(at(2_300_001), at(2_300_002)));
        assert!(!gaps.explain(at(1_000_000), at(1_000_010)));
    }

    #[test]
    fn gaps_that_come_all_the_time_prove_nothing_by_themselves() {
        // But one that stands out does.
        let mut looks: Vec<Look> = (0..99).map(|k| look(k * 1_000_000, k * 1_000_000 + 60_000)).collect();
        looks.push(look(99_000_000, 131_000_000));
        let gaps = Outcome { looks, cpu_ratio: 0.0 }.gaps();
        assert!(gaps.explain(at(99_500_000), at(131_001_000)) && !gaps.explain(at(30_000), at(65_000)));
        let explained = |late: u64| {
            let looks =
                (0..100).map(|k| look(k * 1_000_000, k * 1_000_000 + if k < late { 60_000 } else { 9 }));
            let gaps = Outcome { looks: looks.collect(), cpu_ratio: 0.0 }.gaps();
            (gaps.explain(at(30_000), at(65_000)), gaps.explain_call(at(0), at(59_000)), gaps.count())
        };
        assert_eq!(explained(5), (true, true, 5));
        assert_eq!(explained(6), (false, true, 0));
    }

    #[test]
    fn within_a_hand_over_that_stands_still_a_shorter_gap_counts() {
        let gaps = Gaps::of(&[look(964_000, 1_004_000)]);
        assert_eq!(gaps.count(), 0);
        assert!(!gaps.explain(at(989_000), at(990_000)));
        assert!(gaps.explain_call(at(950_000), at(990_000)));
        assert!(gaps.explain_call(at(964_000), at(989_001)));
        // A hand-over that was not long, and one that began after the look: the CPU may have been idle then.
        assert!(!gaps.explain_call(at(964_000), at(989_000)));
        assert!(!gaps.explain_call(at(964_001), at(990_000)));
        // The watchdog ran before the frame was out: the CPU was to be had, the call waited for something else.
        assert!(!gaps.explain_call(at(950_000), at(1_004_001)));
        // It woke as late as it does without a stall.
        assert!(!Gaps::of(&[look(964_000, 989_000)]).explain_call(at(950_000), at(988_000)));
        assert!(!Gaps::default().explain_call(at(0), at(1_000_000)));
    }

    #[test]
    fn a_late_wake_up_within_the_usual_is_no_gap() {
        let limit = GAP_MIN.get() as u64;
        assert_eq!(Gaps::of(&[look(5, 5 + limit)]).count(), 0);
        assert_eq!(Gaps::of(&[look(5, 6 + limit)]).count(), 1);
    }

    #[test]
    fn it_looks_where_it_is_told_to() {
        let now = clock::tai_now();
        let plan = Plan {
            base_time: now.saturating_sub(Nanos::from_millis(7)),
            cycle_time: Nanos::from_millis(2),
            offsets: vec![Nanos::from_micros(500), Nanos::from_micros(1_500)],
            until: now.saturating_add(Nanos::from_millis(40)),
            real_time: RealTime::default(),
        };
        let outcome = run(&plan, || (), &|| false).unwrap();
        assert!(outcome.looks.len() >= 30, "{}", outcome.looks.len());
        for look in &outcome.looks {
            assert!(look.woke_at >= look.due_at);
            let phase = look.due_at.since(plan.base_time).get() % 2_000_000;
            assert!([500_000, 1_500_000].contains(&phase), "{phase}");
        }
        assert!(run(&plan, || (), &|| true).unwrap().looks.is_empty());
    }

    proptest! {
        #[test]
        fn instants_ascend_and_none_is_left_out(
            base in 0_u64..5_000, cycle in 1_i64..500, now in 0_u64..10_000, span in 0_i64..3_000,
            marks in prop::collection::btree_set(0_i64..500, 1..4),
        ) {
            let plan = Plan {
                base_time: at(base),
                cycle_time: Nanos::new(cycle),
                offsets: marks.iter().filter(|&&mark| mark < cycle).map(|&mark| Nanos::new(mark)).collect(),
                until: at(now).saturating_add(Nanos::new(span)),
                real_time: RealTime::default(),
            };
            prop_assume!(!plan.offsets.is_empty());
            let found: Vec<Tai> = plan.instants(at(now)).collect();
            let wanted: Vec<Tai> = (now + 1..=plan.until.as_nanos())
                .filter(|&nanos| nanos >= base)
                .map(at)
                .filter(|&instant| {
                    let phase = instant.since(plan.base_time).get() % cycle;
                    plan.offsets.contains(&Nanos::new(phase))
                })
                .collect();
            prop_assert!(found.len() <= plan.looks_max(at(now)));
            prop_assert_eq!(found, wanted);
        }
    }
}
