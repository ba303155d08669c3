// SPDX-License-Identifier: Apache-2.0
//! Counters over a restart: a daemon that drains leaves its counters in the run directory, and the next daemon starts with them.
//!
//! In: the counters of the attachments. Out: the same, by attachment and counter. Counters of an attachment that the next daemon does not
//! have are part of the sums of detached attachments. A killed daemon leaves no counters. A file that cannot be read counts as
//! missing. Distributions are not kept.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use serde::{Deserialize, Serialize};
use tracing::warn;

use super::Node;
use crate::stats::{AttachmentStats, add};

type Counts = BTreeMap<String, u64>;

/// The counters of a daemon that ended.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptCounters {
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
    pub(super) fn begin(&mut self, name: &str) -> AttachmentStats {
        let stats = AttachmentStats::without_room();
        if let Some(counts) = self.attachments.remove(name) {
            put(&stats, &counts);
        }
        stats
    }

    /// Adds all that is of no attachment now.
    pub(super) fn add_to(&self, sums: &AttachmentStats) {
        for counts in self.attachments.values().chain([&self.detached]) {
            put(sums, counts);
        }
    }
}

impl Node {
    /// Starts with the counters of the previous daemon. Counters of an earlier daemon are not used: an older ktsnd, which leaves none, ran
    /// in between. The file stays until [`Node::counts_on`]: a start that fails has counted nothing.
    pub(super) fn go_on_counting(&mut self) {
        let (started, started_before) = self.run_dir.starts();
        let read = self.run_dir.counters().and_then(|octets| match octets {
            Some(octets) => serde_json::from_slice(&octets).map_err(std::io::Error::from),
            None => Ok(KeptCounters::default()),
        });
        match read {
            Ok(kept) if kept.started == started_before => {
                self.kept_counters = KeptCounters { started, ..kept };
                let written = self.leave(&self.kept_counters);
                if let Err(error) = written {
                    warn!(%error, "the counters of the last ktsnd are lost if this start fails");
                }
            }
            Ok(_) => {}
            Err(error) => warn!(%error, "the counters of the last ktsnd cannot be read: they begin at zero"),
        }
    }

    /// Removes the file once the start is complete: a daemon that is killed from here on leaves no counters.
    pub(super) fn counts_on(&self) {
        self.run_dir.forget_counters();
    }

    /// Leaves the counters to the next daemon.
    pub(super) fn keep_counters(&self) {
        let sums = self.detached.sums();
        self.kept_counters.add_to(&sums);
        let of_each = self.attached.iter().flatten();
        let attachments = of_each
            .map(|of| (of.attachment.name.clone(), counts_of(&of.stats)))
            .filter(|(_, counts)| !counts.is_empty());
        let started = self.run_dir.starts().0;
        let kept = KeptCounters { started, attachments: attachments.collect(), detached: counts_of(&sums) };
        if let Err(error) = self.leave(&kept) {
            warn!(%error, "the counters are not kept for the next ktsnd");
        }
    }

    fn leave(&self, kept: &KeptCounters) -> std::io::Result<()> {
        let octets = serde_json::to_vec(kept)?;
        self.run_dir.leave_counters(&octets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::count;
    use ktsn_model::DropReason;

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
}
