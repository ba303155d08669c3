// SPDX-License-Identifier: Apache-2.0
//! What the first host asks a machine that measures itself, and what comes back.

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
    /// What has come since the last question: [`Turn`].
    Read,
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
