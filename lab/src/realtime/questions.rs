// SPDX-License-Identifier: Apache-2.0
//! What the end of a run is asked, and what comes back: lengths and times of answers are bounded.

use super::plan::{Parts, Plan, System};
use super::store::Late;
use crate::vm::Cache;
use ktsn_realtime::Profile;
use ktsn_realtime::causes::Cause;
use ktsn_realtime::requirements::table_1;
use ktsn_realtime::results::Skip;
use ktsn_realtime::verdict::Share;
use ktsn_time::Nanos;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Most latencies of an answer, and most late ones with their causes: an answer stays below the longest line of a session.
pub(super) const SAMPLES_MAX: usize = 20_000;
pub(super) const LATE_MAX: usize = 400;
/// What the first host wants measured: its plan, as far as it concerns this one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    period_ns: i64,
    duration_ns: i64,
    limit_ns: i64,
    workers: u32,
    worker_mib: u64,
    cpu: Option<u32>,
    profiles: Vec<Profile>,
}

impl Asked {
    pub(super) fn of(plan: &Plan) -> Self {
        Self {
            period_ns: plan.period.get(),
            duration_ns: plan.duration.get(),
            limit_ns: plan.limit.get(),
            workers: plan.workers,
            worker_mib: plan.worker_mib,
            cpu: plan.cpu,
            profiles: plan.profiles.clone(),
        }
    }

    /// This host's own plan.
    pub(super) fn plan(&self, out: PathBuf) -> Plan {
        Plan {
            systems: vec![System::Host],
            profiles: self.profiles.clone(),
            period: Nanos::new(self.period_ns),
            duration: Nanos::new(self.duration_ns),
            limit: Nanos::new(self.limit_ns),
            requirements: table_1(),
            share: Share::default(),
            workers: self.workers,
            worker_mib: self.worker_mib,
            cpu: self.cpu,
            guests: Parts {
                tools: Err("not used".to_owned()),
                cache: Cache::find(Some(&out)),
                accelerator: None,
                workspace: out.clone(),
            },
            out,
            resume: false,
            lock: None,
            other: None,
            command: Vec::new(),
        }
    }
}

/// What the first host may ask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Question {
    /// What this host allows: [`Looked`].
    Look,
    /// Start the probe: [`Begun`].
    Begin { profile: Profile, loops: u64 },
    /// What has come since the last question: [`Turn`]. `median_ns`: the usual latency so far.
    Read { median_ns: u64 },
}

/// What this host allows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Looked {
    /// What limits a run here, in words.
    pub(super) notices: Vec<String>,
    /// Profiles that cannot be measured.
    pub(super) skips: Vec<(Profile, Skip)>,
    /// Causes that no counter of this host shows.
    pub(super) unseen: Vec<Cause>,
}

/// How the probe runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Begun {
    /// Its priority under SCHED_FIFO: in a guest the guest's.
    pub(super) fifo: Option<u8>,
    /// The CPU that it stays on: in a Linux guest the guest's.
    pub(super) cpu: Option<u32>,
}

/// What came in one turn.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Turn {
    /// Latencies in nanoseconds; negative: the wake-up came before its instant.
    pub(super) ns: Vec<i64>,
    /// The late ones among them.
    pub(super) late: Vec<Late>,
    /// Whether the probe has ended.
    pub(super) is_last: bool,
}

impl Turn {
    /// Why it is none of a probe that has `left` wake-ups to go: the bounds of what is recorded here.
    pub(super) fn refusal(&self, left: u64) -> Option<String> {
        let Self { ns, late, .. } = self;
        if ns.len() > SAMPLES_MAX || late.len() > LATE_MAX {
            return Some(format!("it gave {} latencies at once, {} late", ns.len(), late.len()));
        }
        if ns.len() as u64 > left {
            return Some(format!("it gave {} latencies, {left} were left of those asked for", ns.len()));
        }
        let odd = late.iter().find(|late| late.index >= ns.len());
        odd.map(|late| format!("its late wake-up {} is none of those that it gave", late.index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_recorded_is_refused() {
        let late = |index| Late { index, lateness_ns: 1, causes: Vec::new(), thread: None };
        let turn = |count, late| Turn { ns: vec![1; count], late, is_last: false };
        assert_eq!(turn(100, vec![late(0), late(99)]).refusal(100), None);
        for (turn, word) in [
            (turn(101, Vec::new()), "100 were left"),
            (turn(SAMPLES_MAX + 1, Vec::new()), "at once"),
            (turn(1, vec![late(0); LATE_MAX + 1]), "at once"),
            (turn(2, vec![late(2)]), "late wake-up 2 is none"),
        ] {
            let problem = turn.refusal(100).unwrap();
            assert!(problem.contains(word), "{word}: {problem}");
        }
    }
}
