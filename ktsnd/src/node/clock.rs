// SPDX-License-Identifier: Apache-2.0
//! The clock's policy: workers get a command at each change, the log has one line for it, `Health` shows the state.

use ktsn_model::UnsynchronisedPolicy;
use ktsn_proto::v1;
use tracing::{info, warn};

use super::Node;
use crate::clock::Known;
use crate::worker::{Command, monotonic_now};

impl Node {
    /// The clock is watched from now on.
    pub(crate) fn follow_clock(&mut self, known: Known) {
        self.clock = known;
    }

    /// The clock was judged first, or went from good to not good or back.
    pub(super) fn clock_changed(&self) {
        let view = self.clock.view();
        let source = self.config.daemon.clock_source.word();
        match &view.fault {
            None => info!(source, "the clock is good"),
            Some(why) => warn!(source, why, waiting = ?self.waiting_for_clock(), "the clock is not good"),
        }
        for worker in self.workers.values() {
            worker.send(Command::ClockIsGood(view.fault.is_none()));
        }
    }

    /// Uplinks whose frames are held or dropped while the clock is not good.
    fn waiting_for_clock(&self) -> Vec<String> {
        let waits = |uplink: &&String| self.port_config(uplink).unsynchronised != UnsynchronisedPolicy::Send;
        self.workers.keys().filter(waits).cloned().collect()
    }

    pub(super) fn clock_message(&self) -> v1::ClockState {
        let view = self.clock.view();
        v1::ClockState {
            source: self.config.daemon.clock_source.word().to_owned(),
            is_good: view.fault.is_none(),
            for_ns: monotonic_now().since(view.since).get().unsigned_abs(),
            transitions: view.transitions,
            steps: view.steps,
            error_ns: view.error.map(|error| error.get().unsigned_abs()),
            holding: if view.fault.is_some() { self.waiting_for_clock() } else { Vec::new() },
            reason: view.fault.unwrap_or_default(),
        }
    }
}
