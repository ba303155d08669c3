// SPDX-License-Identifier: Apache-2.0
//! The spin margins that workers learn: kept for the next worker, and by the next daemon.

use super::Node;
use super::worker_thread::WorkerThread;
use crate::margins::MarginCache;

impl Node {
    /// Takes what the last daemon left: workers begin with what is known of this machine, counters where they were.
    pub(crate) fn go_on_from(&mut self, margins: MarginCache) {
        self.margins = Some(margins);
        self.go_on_counting();
    }

    /// Takes what the running workers have learnt, and saves it now and then.
    pub(super) fn look_at_margins(&mut self) {
        if let Some(margins) = &mut self.margins {
            margins.learn(self.workers.values().map(WorkerThread::margins));
            margins.save_sometimes();
        }
    }

    /// At the daemon's end: saves what the workers have learnt, and the counters.
    pub(crate) fn keep_for_the_next(&mut self) {
        self.keep_counters();
        self.look_at_margins();
        if let Some(margins) = &mut self.margins {
            margins.save();
        }
    }
}
