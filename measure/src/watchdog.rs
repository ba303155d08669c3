// SPDX-License-Identifier: Apache-2.0
//! The watchdog: a thread of its own that shows when a CPU stood still.
//!
//! In: instants to look at, and the CPU with a priority above whoever is watched there. Out: when it was to wake and when
//! it did. It knows nothing of the daemon. A wake-up that comes late proves that the CPU ran nobody of its priority
//! from then until it woke: the hypervisor, an interrupt or the kernel had it.
//!
//! It looks only at the instants that matter, some [`AHEAD`] before the last instant at which a frame may begin on the
//! link and still be off it when its gate closes. A worker whose own reserve is longer begins no hand-over after such
//! a look, so a frame that overruns was under way across it.
//!
//! What it costs: where a look interrupts a thread in user mode, that thread goes on some 20 µs later (2 virtual CPUs, Linux
//! 6.18, three looks a millisecond: 3.8 % of one CPU). With the looks right at the close, the first frame of the next
//! window left 20.0 µs after its opening instead of 0.6 µs (p50); that is why they come before it.

use crate::clock::{self, RealTime, RealTimeError, ScheduleClock, nanos_of};
use crate::stats::Statistics;
use ktsn_time::{Nanos, Tai, TxTime};

/// A wake-up later than this is a gap. Most wake-ups here, from an idle CPU included, take less than 35 µs; how many are
/// gaps by this rule is counted, and that share is the chance that one proves something by accident.
pub const GAP_MIN: Nanos = Nanos::from_micros(50);
/// The same where the look falls into a system call of whoever is watched that has lasted longer than [`GAP_MIN`]: the CPU
/// was not idle. Alone it says little (a third of the looks that fall into any call come this late); with the trace's length
/// of the call it confirms that the time passed in the kernel, after the watched program had done its part.
pub const GAP_MIN_BUSY: Nanos = Nanos::from_micros(25);
/// How long before the last instant to begin a look should be: it is over when the next window opens.
pub const AHEAD: Nanos = Nanos::from_micros(25);
/// After a gap a thread that was stopped in the middle goes on within this.
pub const RESUME_MAX: Nanos = Nanos::from_micros(20);

/// When to look.
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

    /// Its gaps.
    #[must_use]
    pub fn gaps(&self) -> Gaps {
        Gaps::of(&self.looks)
    }
}

/// Spans in which the watched CPU stood still, in order of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gaps(Vec<Look>);

impl Gaps {
    /// Those among `looks`.
    #[must_use]
    pub fn of(looks: &[Look]) -> Self {
        let late = |look: &Look| look.late_by() > GAP_MIN_BUSY;
        let mut gaps: Vec<Look> = looks.iter().copied().filter(late).collect();
        gaps.sort_unstable_by_key(|gap| gap.due_at);
        Self(gaps)
    }

    /// How many there are, wherever they fall.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.iter().filter(|gap| gap.late_by() > GAP_MIN).count()
    }

    /// Whether one of them explains that what should have been done by `from` was done at `to` only: the CPU stood still
    /// at `from` or later, and went on no more than [`RESUME_MAX`] before `to`.
    #[must_use]
    pub fn explain(&self, from: Tai, to: Tai) -> bool {
        self.find(from, to).any(|gap| gap.late_by() > GAP_MIN)
    }

    /// The same for what was done by a system call that began at `called_at` and was not over at `to`. Of a call of usual length
    /// only a gap of [`GAP_MIN`] says anything.
    #[must_use]
    pub fn explain_call(&self, called_at: Tai, from: Tai, to: Tai) -> bool {
        let is_long = to.since(called_at) > GAP_MIN;
        self.explain(from, to) || is_long && self.find(from, to).any(|gap| gap.due_at >= called_at)
    }

    fn find(&self, from: Tai, to: Tai) -> impl Iterator<Item = &Look> {
        let until = self.0.partition_point(|gap| gap.due_at <= to);
        let goes_on = move |gap: &&Look| gap.woke_at >= from && gap.woke_at.saturating_add(RESUME_MAX) >= to;
        self.0[..until].iter().filter(goes_on)
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
    fn within_a_call_a_shorter_gap_counts() {
        let gaps = Gaps::of(&[look(964_000, 993_000)]);
        assert_eq!(gaps.count(), 0);
        assert!(!gaps.explain(at(989_000), at(993_350)));
        assert!(gaps.explain_call(at(901_000), at(989_000), at(993_350)));
        // A call of usual length.
        assert!(!gaps.explain_call(at(950_000), at(989_000), at(993_350)));
        // The look came before the call: the CPU may have been idle.
        assert!(!gaps.explain_call(at(964_001), at(989_000), at(993_350)));
        // As late as a call may make it.
        assert!(!Gaps::of(&[look(964_000, 989_000)]).explain_call(at(901_000), at(980_000), at(989_000)));
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
