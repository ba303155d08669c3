// SPDX-License-Identifier: Apache-2.0
//! Why a wake-up was late. In: what the kernel counted in the window around it, and what it counts usually. Out: how much of the lateness
//! each cause can explain, and a ranking over all late wake-ups.
//!
//! A counter is evidence, not proof: it says what happened on the probe's CPU in the same tenth of a second. Causes that are counted in
//! time (steal, throttling, other real-time threads) explain as much as that time. Causes that are only counted explain their number times
//! a cost that is assumed here ([`Cause::cost`]). From all but those that stop the probe itself goes what the same counters show in windows
//! without a late wake-up. One wake-up may have several causes, so the shares of a ranking need not sum up to 1.

use ktsn_time::Span;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

macro_rules! causes {
    ($($(#[$doc:meta])* $name:ident = $word:literal, $text:literal, $cost:expr;)*) => {
        /// A cause. Those that stand first are measured in time on the probe's own CPU; equal shares are ranked in this order.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Cause {
            $($(#[$doc])* #[serde(rename = $word)] $name,)*
        }

        impl Cause {
            /// All causes.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The name in results.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self { $(Self::$name => $word),* }
            }

            /// The cause in words.
            #[must_use]
            pub const fn describe(self) -> &'static str {
                match self { $(Self::$name => $text),* }
            }

            /// How much lateness one unit of the counter can explain: 1 ns where the counter is a time in nanoseconds.
            #[must_use]
            pub const fn cost(self) -> Span {
                Span::from_nanos(match self { $(Self::$name => $cost),* })
            }
        }
    };
}

causes! {
    /// Time that the probe's process, or the guest's, was stopped.
    Stopped = "stopped", "the system's process was stopped (SIGSTOP)", 1;
    /// Time that the control group was throttled by its CPU quota.
    CfsThrottling = "cfs_throttling", "the control group had used up its CPU quota", 1;
    /// Time that real-time threads were throttled (`sched_rt_runtime_us`).
    RtThrottling = "rt_throttling", "real-time threads had used up their share of the CPU", 1;
    /// CPU time of other real-time threads with at least the probe's priority.
    RtThreads = "rt_threads", "another real-time thread had the CPU", 1;
    /// System management interrupts.
    Smi = "smi", "the firmware took the CPU (system management interrupt)", 200_000;
    /// Time that the hypervisor gave to others.
    Steal = "steal", "the hypervisor gave the CPU to another guest", 1;
    /// Page faults that had to read.
    MajorFaults = "major_faults", "the probe waited for a page to be read", 5_000_000;
    /// Time that the probe was ready and had no CPU, less the causes above that explain it.
    Waiting = "waiting", "the probe was ready, and another thread had the CPU", 1;
    /// Exit latency of the idle states that the CPU left.
    IdleStates = "idle_states", "the CPU had to leave a deep idle state", 1;
    /// Changes of the CPU's frequency.
    FrequencyChanges = "frequency_changes", "the CPU changed its frequency", 50_000;
    /// Moves of the probe to another CPU.
    Migrations = "migrations", "the probe was moved to another CPU", 50_000;
    /// Softirqs on the CPU.
    Softirqs = "softirqs", "the kernel worked off softirqs", 10_000;
    /// Interrupts of the CPU.
    Interrupts = "interrupts", "devices interrupted the CPU", 5_000;
    /// Page faults without reading.
    MinorFaults = "minor_faults", "the probe touched a page for the first time", 1_000;
}

/// What stops the probe itself. It explains lateness however usual it is: a quota that is always used up is a cause, too.
const STOPS: [Cause; 4] = [Cause::Stopped, Cause::CfsThrottling, Cause::RtThrottling, Cause::RtThreads];

/// What was counted in a window: nanoseconds or events by cause. A cause that the machine does not show is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// The length of the window.
    pub window_ns: u64,
    /// The counters.
    pub counted: BTreeMap<Cause, u64>,
    /// The thread that used most CPU time of those behind [`Cause::RtThreads`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
}

/// What the counters show in windows without a late wake-up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usual {
    window_ns: u128,
    counted: BTreeMap<Cause, u128>,
}

impl Usual {
    /// Adds a window without a late wake-up.
    pub fn add(&mut self, evidence: &Evidence) {
        self.window_ns += u128::from(evidence.window_ns);
        for (&cause, &amount) in &evidence.counted {
            *self.counted.entry(cause).or_default() += u128::from(amount);
        }
    }

    /// What a window of this length usually shows.
    fn of(&self, cause: Cause, window_ns: u64) -> u64 {
        let counted = self.counted.get(&cause).copied().unwrap_or(0);
        let usual = (counted * u128::from(window_ns)).checked_div(self.window_ns).unwrap_or(0);
        u64::try_from(usual).unwrap_or(u64::MAX)
    }
}

/// How much of a lateness a cause can explain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explained {
    /// The cause.
    pub cause: Cause,
    /// At most the lateness.
    pub explained_ns: u64,
}

/// The causes of one late wake-up, the strongest first; none that explains nothing.
#[must_use]
pub fn attribute(lateness: Span, evidence: &Evidence, usual: &Usual) -> Vec<Explained> {
    let beyond = |cause: Cause| {
        let counted = evidence.counted.get(&cause).copied().unwrap_or(0);
        let usual = if STOPS.contains(&cause) { 0 } else { usual.of(cause, evidence.window_ns) };
        counted.saturating_sub(usual).saturating_mul(cause.cost().as_nanos())
    };
    // The probe waits behind whatever keeps its CPU: what is named already is no cause of its own.
    let named = STOPS.into_iter().map(beyond).fold(0, u64::saturating_add);
    let mut explained: Vec<Explained> = Cause::ALL
        .iter()
        .map(|&cause| {
            let time =
                if cause == Cause::Waiting { beyond(cause).saturating_sub(named) } else { beyond(cause) };
            Explained { cause, explained_ns: time.min(lateness.as_nanos()) }
        })
        .filter(|one| one.explained_ns > 0)
        .collect();
    explained.sort_by_key(|one| (std::cmp::Reverse(one.explained_ns), one.cause));
    explained
}

/// One line of a ranking.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankedCause {
    /// The cause.
    pub cause: Cause,
    /// The share of all lateness that it can explain.
    pub explained_ratio: f64,
    /// How many late wake-ups it explains by half or more.
    pub wake_ups: u64,
    /// The thread behind [`Cause::RtThreads`] that was seen most often.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
}

/// Sums up the causes of all late wake-ups of a run, in constant memory.
#[derive(Clone, Debug, Default)]
pub struct Ranking {
    lateness_ns: u128,
    unexplained_ns: u128,
    sums: BTreeMap<Cause, (u128, u64)>,
    threads: BTreeMap<String, u64>,
}

/// Most names of threads that a ranking keeps.
const THREADS_MAX: usize = 64;

impl Ranking {
    /// Adds a late wake-up with its causes, and the thread that its evidence names.
    pub fn add(&mut self, lateness: Span, explained: &[Explained], thread: Option<&str>) {
        self.lateness_ns += u128::from(lateness.as_nanos());
        let most = explained.iter().map(|one| one.explained_ns).max().unwrap_or(0);
        self.unexplained_ns += u128::from(lateness.as_nanos().saturating_sub(most));
        for one in explained {
            let (sum, wake_ups) = self.sums.entry(one.cause).or_default();
            *sum += u128::from(one.explained_ns);
            *wake_ups += u64::from(one.explained_ns >= lateness.as_nanos().div_ceil(2));
        }
        let is_named = explained.iter().any(|one| one.cause == Cause::RtThreads);
        if let Some(thread) = thread.filter(|_| is_named)
            && (self.threads.len() < THREADS_MAX || self.threads.contains_key(thread))
        {
            *self.threads.entry(thread.to_owned()).or_default() += 1;
        }
    }

    /// The causes, the strongest first.
    #[must_use]
    pub fn ranked(&self) -> Vec<RankedCause> {
        let thread = self.threads.iter().max_by_key(|(_, count)| **count).map(|(name, _)| name.clone());
        let mut ranked: Vec<RankedCause> = self
            .sums
            .iter()
            .map(|(&cause, &(sum, wake_ups))| RankedCause {
                cause,
                explained_ratio: sum as f64 / self.lateness_ns.max(1) as f64,
                wake_ups,
                thread: thread.clone().filter(|_| cause == Cause::RtThreads),
            })
            .collect();
        ranked.sort_by(|a, b| b.explained_ratio.total_cmp(&a.explained_ratio).then(a.cause.cmp(&b.cause)));
        ranked
    }

    /// The share of all lateness that no single cause explains.
    #[must_use]
    pub fn unexplained_ratio(&self) -> f64 {
        self.unexplained_ns as f64 / self.lateness_ns.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    fn evidence(counted: &[(Cause, u64)]) -> Evidence {
        Evidence { window_ns: 200 * MS, counted: counted.iter().copied().collect(), thread: None }
    }

    fn first(lateness: u64, counted: &[(Cause, u64)], usual: &Usual) -> Option<(Cause, u64)> {
        let found = attribute(Span::from_nanos(lateness), &evidence(counted), usual);
        found.first().map(|one| (one.cause, one.explained_ns))
    }

    #[test]
    fn a_hog_is_the_cause_and_the_waiting_behind_it_is_not() {
        let counted = [
            (Cause::RtThreads, 5 * MS),
            (Cause::Waiting, 4 * MS),
            (Cause::Interrupts, 60),
            (Cause::Softirqs, 30),
        ];
        assert_eq!(first(4 * MS, &counted, &Usual::default()), Some((Cause::RtThreads, 4 * MS)));
        let all = attribute(Span::from_nanos(4 * MS), &evidence(&counted), &Usual::default());
        assert!(all.iter().all(|one| one.cause != Cause::Waiting), "{all:?}");
    }

    #[test]
    fn a_quota_comes_before_steal_and_waiting() {
        let counted = [(Cause::CfsThrottling, 60 * MS), (Cause::Steal, 60 * MS), (Cause::Waiting, 55 * MS)];
        assert_eq!(first(50 * MS, &counted, &Usual::default()), Some((Cause::CfsThrottling, 50 * MS)));
    }

    #[test]
    fn waiting_is_named_where_nothing_else_is() {
        let counted = [(Cause::Waiting, 3 * MS), (Cause::Migrations, 1)];
        assert_eq!(first(3 * MS, &counted, &Usual::default()), Some((Cause::Waiting, 3 * MS)));
        assert_eq!(first(MS, &[(Cause::Smi, 1)], &Usual::default()), Some((Cause::Smi, 200_000)));
        assert_eq!(first(MS, &[], &Usual::default()), None);
    }

    #[test]
    fn what_is_usual_explains_nothing() {
        let mut usual = Usual::default();
        usual.add(&evidence(&[(Cause::Interrupts, 400), (Cause::Steal, 10 * MS)]));
        usual.add(&evidence(&[(Cause::Interrupts, 600), (Cause::Steal, 30 * MS)]));
        assert_eq!(first(MS, &[(Cause::Interrupts, 500), (Cause::Steal, 20 * MS)], &usual), None);
        // A quota that is always used up stays a cause.
        usual.add(&evidence(&[(Cause::CfsThrottling, 100 * MS)]));
        assert_eq!(first(MS, &[(Cause::CfsThrottling, 20 * MS)], &usual), Some((Cause::CfsThrottling, MS)));
        let mut usual = Usual::default();
        usual.add(&evidence(&[(Cause::Interrupts, 500)]));
        assert_eq!(first(MS, &[(Cause::Interrupts, 520)], &usual), Some((Cause::Interrupts, 100_000)));
    }

    #[test]
    fn the_ranking_sums_up() {
        let mut ranking = Ranking::default();
        let one = |cause, explained_ns| Explained { cause, explained_ns };
        ranking.add(
            Span::from_nanos(100),
            &[one(Cause::RtThreads, 100), one(Cause::Steal, 40)],
            Some("hog (FIFO 99)"),
        );
        ranking.add(Span::from_nanos(300), &[one(Cause::Steal, 150)], Some("other"));
        let ranked = ranking.ranked();
        assert_eq!(ranked[0].cause, Cause::Steal);
        assert!((ranked[0].explained_ratio - 190.0 / 400.0).abs() < 1e-9);
        assert_eq!((ranked[0].wake_ups, ranked[1].wake_ups), (1, 1));
        assert_eq!(ranked[1].thread.as_deref(), Some("hog (FIFO 99)"));
        assert!((ranking.unexplained_ratio() - 150.0 / 400.0).abs() < 1e-9);
        assert_eq!((Ranking::default().ranked(), Ranking::default().unexplained_ratio()), (vec![], 0.0));
    }

    #[test]
    fn names_are_stable() {
        for &cause in Cause::ALL {
            assert_eq!(serde_json::to_value(cause).unwrap(), cause.word());
            assert!(!cause.describe().is_empty());
        }
    }

    proptest! {
        /// No cause explains more than the lateness or than it was counted, and more evidence never explains less.
        #[test]
        fn explanations_are_bounded(lateness in 0_u64..10 * MS, amounts in prop::collection::vec(0_u64..20 * MS, 14), more in 0_u64..MS) {
            let counted: Vec<(Cause, u64)> = Cause::ALL.iter().copied().zip(amounts).collect();
            let lateness = Span::from_nanos(lateness);
            let found = attribute(lateness, &evidence(&counted), &Usual::default());
            for one in &found {
                let amount = counted.iter().find(|(cause, _)| *cause == one.cause).unwrap().1;
                prop_assert!(one.explained_ns <= lateness.as_nanos());
                prop_assert!(one.explained_ns <= amount.saturating_mul(one.cause.cost().as_nanos()));
            }
            prop_assert!(found.is_sorted_by_key(|one| std::cmp::Reverse(one.explained_ns)));
            let mut richer = counted.clone();
            richer[4].1 += more;
            let steal = |counted: &[(Cause, u64)]| {
                let found = attribute(lateness, &evidence(counted), &Usual::default());
                found.iter().find(|one| one.cause == Cause::Steal).map_or(0, |one| one.explained_ns)
            };
            prop_assert!(steal(&richer) >= steal(&counted));
        }
    }
}
