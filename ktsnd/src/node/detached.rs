// SPDX-License-Identifier: Apache-2.0
//! What attachments counted that are gone: their sums, so that nothing that was dropped is forgotten with its pod.
//!
//! In: the counters of attachments that end. Out: one value of the same kind. A worker may still count for one that ends,
//! until it has dropped what was queued; it joins the sums when no other part holds it.

use std::sync::Arc;

use crate::stats::AttachmentStats;

/// The counters of detached attachments: their sums, and those that a worker may still change.
#[derive(Debug, Default)]
pub(super) struct Detached {
    sums: AttachmentStats,
    /// Counters of attachments that a worker may still count for.
    ending: Vec<Arc<AttachmentStats>>,
}

impl Detached {
    /// An attachment ends.
    pub(super) fn add(&mut self, stats: Arc<AttachmentStats>) {
        let Self { sums, ending } = self;
        ending.retain(|of| {
            let is_over = Arc::strong_count(of) == 1;
            if is_over {
                sums.join(of);
            }
            !is_over
        });
        ending.push(stats);
    }

    /// The sums as they are now.
    pub(super) fn sums(&self) -> AttachmentStats {
        let sums = AttachmentStats::default();
        sums.join(&self.sums);
        for of in &self.ending {
            sums.join(of);
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{add, count};
    use ktsn_model::DropReason;
    use ktsn_time::Nanos;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn nothing_is_counted_twice_or_lost() {
        let mut detached = Detached::default();
        for round in 1..=20 {
            let stats = Arc::new(AttachmentStats::default());
            count(&stats.taken);
            add(&stats.sent, 10);
            add(&stats.bypassed[1], 2);
            stats.transmit_error.record(Nanos::new(500));
            let of_worker = stats.clone();
            detached.add(stats);
            // The worker drops what was queued a moment later.
            of_worker.drop_frame(DropReason::Detached);
            let sums = detached.sums();
            assert_eq!(sums.taken.load(Relaxed), round);
            assert_eq!(sums.sent.load(Relaxed), 10 * round);
            assert_eq!(sums.bypassed[1].load(Relaxed), 2 * round);
            assert_eq!(sums.dropped[usize::from(DropReason::Detached.number())].load(Relaxed), round);
            assert_eq!(sums.transmit_error.snapshot().len(), round);
        }
        assert_eq!(detached.ending.len(), 1, "what nobody counts for any more was summed up");
    }
}
