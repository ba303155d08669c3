// SPDX-License-Identifier: Apache-2.0
//! Counters that outlive their attachment, and their daemon.
//!
//! In: the counters of the attachments. Out: the sums of those that are gone, so that nothing that was dropped is forgotten with its
//! pod. A worker may still count for an attachment that ends, until it has dropped what was queued: its counters join the sums when no
//! other part holds them. A daemon that drains leaves its counters in the run directory, by attachment and counter, and the next
//! daemon starts with them. Those of an attachment that it does not have are part of the sums. A killed daemon leaves none. A file
//! that cannot be read counts as missing. Distributions are not kept.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use serde::{Deserialize, Serialize};
use tracing::warn;

use super::ServedAttachments;
use crate::run_dir::RunDir;
use crate::stats::{AttachmentStats, add};

type Counts = BTreeMap<String, u64>;

/// The counters of a daemon that ended.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct KeptCounters {
    /// When that daemon was started, as its run directory says ([`crate::run_dir::RunDir::starts`]).
    started: i128,
    /// Counters by attachment.
    attachments: BTreeMap<String, Counts>,
    /// The sum of attachments that were detached before.
    detached: Counts,
}

fn counts_of(stats: &AttachmentStats) -> Counts {
    let plain = stats.plain().map(|(name, counter)| (name.to_owned(), counter.load(Relaxed)));
    let by_reason =
        stats.by_reason().map(|(of, reason, counter)| (format!("{of}.{reason}"), counter.load(Relaxed)));
    plain.into_iter().chain(by_reason).filter(|(_, count)| *count > 0).collect()
}

/// Adds counts to counters; those of unknown names (a newer daemon's) are left out.
fn put(stats: &AttachmentStats, counts: &Counts) {
    for (name, counter) in stats.plain() {
        add(counter, counts.get(name).copied().unwrap_or(0));
    }
    for (of, reason, counter) in stats.by_reason() {
        let more = counts.get(&format!("{of}.{reason}")).copied().unwrap_or(0);
        counter.store(counter.load(Relaxed).saturating_add(more), Relaxed);
    }
}

impl KeptCounters {
    /// New counters of an attachment, which go on from what was kept of one with this name.
    fn begin(&mut self, name: &str) -> AttachmentStats {
        let stats = AttachmentStats::without_room();
        if let Some(counts) = self.attachments.remove(name) {
            put(&stats, &counts);
        }
        stats
    }

    /// Adds all that is of no attachment now.
    fn add_to(&self, sums: &AttachmentStats) {
        for counts in self.attachments.values().chain([&self.detached]) {
            put(sums, counts);
        }
    }
}

/// The counters of detached attachments: their sums, and those that a worker may still change.
#[derive(Debug, Default)]
struct Detached {
    sums: AttachmentStats,
    /// Counters of attachments that a worker may still count for.
    ending: Vec<Arc<AttachmentStats>>,
}

impl Detached {
    /// An attachment ends.
    fn add(&mut self, stats: Arc<AttachmentStats>) {
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
    fn sums(&self) -> AttachmentStats {
        let sums = AttachmentStats::default();
        sums.join(&self.sums);
        for of in &self.ending {
            sums.join(of);
        }
        sums
    }
}

/// What all attachments count beside those that are served.
#[derive(Debug, Default)]
pub(super) struct Counters {
    detached: Detached,
    /// The counters that the previous ktsnd left, of attachments that this ktsnd does not have yet.
    kept: KeptCounters,
}

impl Counters {
    /// An attachment ends.
    pub(super) fn ended(&mut self, stats: Arc<AttachmentStats>) {
        self.detached.add(stats);
    }

    /// The sums of all attachments that are not served.
    fn sums(&self) -> AttachmentStats {
        let sums = self.detached.sums();
        self.kept.add_to(&sums);
        sums
    }
}

impl ServedAttachments {
    /// The sums of all attachments that are gone.
    pub(crate) fn sums_of_detached(&self) -> AttachmentStats {
        self.counters.sums()
    }

    /// New counters of an attachment, which go on from what the previous daemon counted.
    pub(in crate::node) fn begin_counters(&mut self, name: &str) -> AttachmentStats {
        self.counters.kept.begin(name)
    }

    /// Starts with the counters of the previous daemon. Counters of an earlier daemon are not used: an older ktsnd, which leaves none, ran
    /// in between. The file stays until [`RunDir::forget_counters`]: a start that fails has counted nothing.
    pub(in crate::node) fn go_on_counting(&mut self, run_dir: &RunDir) {
        let (started, started_before) = run_dir.starts();
        let read = run_dir.counters().and_then(|octets| match octets {
            Some(octets) => serde_json::from_slice(&octets).map_err(std::io::Error::from),
            None => Ok(KeptCounters::default()),
        });
        match read {
            Ok(kept) if kept.started == started_before => {
                let kept = KeptCounters { started, ..kept };
                if let Err(error) = leave(run_dir, &kept) {
                    warn!(%error, "the counters of the last ktsnd are lost if this start fails");
                }
                self.counters.kept = kept;
            }
            Ok(_) => {}
            Err(error) => warn!(%error, "the counters of the last ktsnd cannot be read: they begin at zero"),
        }
    }

    /// Leaves the counters to the next daemon.
    pub(in crate::node) fn keep_counters(&self, run_dir: &RunDir) {
        let attachments = self
            .iter()
            .map(|of| (of.name().to_owned(), counts_of(&of.stats)))
            .filter(|(_, counts)| !counts.is_empty());
        let (started, detached) = (run_dir.starts().0, counts_of(&self.counters.sums()));
        let kept = KeptCounters { started, attachments: attachments.collect(), detached };
        if let Err(error) = leave(run_dir, &kept) {
            warn!(%error, "the counters are not kept for the next ktsnd");
        }
    }
}

fn leave(run_dir: &RunDir, kept: &KeptCounters) -> std::io::Result<()> {
    run_dir.leave_counters(&serde_json::to_vec(kept)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::count;
    use ktsn_model::DropReason;
    use ktsn_time::Nanos;

    fn counted(times: u64) -> AttachmentStats {
        let stats = AttachmentStats::default();
        for (_, counter) in stats.plain() {
            add(counter, times);
        }
        for (.., counter) in stats.by_reason() {
            add(counter, times);
        }
        stats
    }

    #[test]
    fn the_next_daemon_goes_on() {
        let attachments =
            [("a", 1), ("b", 2)].map(|(name, times)| (name.to_owned(), counts_of(&counted(times))));
        let kept =
            KeptCounters { started: 7, attachments: attachments.into(), detached: counts_of(&counted(4)) };
        let octets = serde_json::to_vec(&kept).unwrap();
        let mut kept: KeptCounters = serde_json::from_slice(&octets).unwrap();
        let stats = kept.begin("a");
        count(&stats.sent);
        assert_eq!((stats.sent.load(Relaxed), stats.ring_full.load(Relaxed)), (2, 1));
        assert_eq!(kept.begin("a").sent.load(Relaxed), 0, "once");
        assert_eq!(kept.begin("c").sent.load(Relaxed), 0);
        let sums = AttachmentStats::default();
        kept.add_to(&sums);
        assert_eq!(counts_of(&sums), counts_of(&counted(6)));
    }

    #[test]
    fn a_newer_daemons_counters_are_left_out() {
        let counts = Counts::from([
            ("newer".to_owned(), 1),
            ("dropped.newer".to_owned(), 2),
            ("dropped.missed".to_owned(), 3),
        ]);
        let stats = AttachmentStats::default();
        put(&stats, &counts);
        assert_eq!(counts_of(&stats), Counts::from([("dropped.missed".to_owned(), 3)]));
        assert_eq!(stats.dropped[usize::from(DropReason::Missed.number())].load(Relaxed), 3);
    }

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
        assert_eq!(detached.ending.len(), 1, "the counters of an attachment without clients are summed up");
    }
}
