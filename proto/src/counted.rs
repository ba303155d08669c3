// SPDX-License-Identifier: Apache-2.0
//! Differences and sums of counters.
//!
//! In: two statistics of one attachment, port or worker. Out: the same message with what was counted between them, or by both;
//! what is no counter is as in the later one. A counter that went backwards started again from 0. Distributions are left as they
//! are.

use crate::v1;
use std::collections::BTreeMap;

/// What was counted since.
fn since(now: u64, before: u64) -> u64 {
    now.checked_sub(before).unwrap_or(now)
}

fn each_since(now: &[u64], before: &[u64]) -> Vec<u64> {
    let before = before.iter().copied().chain(std::iter::repeat(0));
    now.iter().zip(before).map(|(now, before)| since(*now, before)).collect()
}

/// Both tables, combined reason by reason; a count of 0 is left out.
fn combined(
    these: &BTreeMap<String, u64>,
    others: &BTreeMap<String, u64>,
    combine: fn(u64, u64) -> u64,
) -> BTreeMap<String, u64> {
    let count = |counts: &BTreeMap<String, u64>, reason: &str| counts.get(reason).copied().unwrap_or(0);
    let reasons = these.keys().chain(others.keys());
    let counted =
        reasons.map(|reason| (reason.clone(), combine(count(these, reason), count(others, reason))));
    counted.filter(|(_, count)| *count > 0).collect()
}

impl v1::AttachmentStatistics {
    fn combined(&self, other: &Self, combine: fn(u64, u64) -> u64) -> Self {
        Self {
            taken: combine(self.taken, other.taken),
            sent: combine(self.sent, other.sent),
            sent_octets: combine(self.sent_octets, other.sent_octets),
            late: combine(self.late, other.late),
            overrun: combine(self.overrun, other.overrun),
            waited: combine(self.waited, other.waited),
            ring_full: combine(self.ring_full, other.ring_full),
            doorbells: combine(self.doorbells, other.doorbells),
            kernel_sent: combine(self.kernel_sent, other.kernel_sent),
            passed: combine(self.passed, other.passed),
            kernel_dropped: combined(&self.kernel_dropped, &other.kernel_dropped, combine),
            dropped: combined(&self.dropped, &other.dropped, combine),
            bypassed: combined(&self.bypassed, &other.bypassed, combine),
            ..self.clone()
        }
    }

    /// What both have counted, but for the ingress fast path and expected arrivals.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.combined(other, u64::saturating_add)
    }

    /// What was counted since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let arrived = before.ingress.as_ref().map_or(0, |before| before.taken);
        let expected = before.receive.and_then(|before| before.counts).unwrap_or_default();
        Self {
            ingress: self
                .ingress
                .clone()
                .map(|now| v1::IngressStatistics { taken: since(now.taken, arrived), ..now }),
            receive: self.receive.map(|now| {
                let counts = now.counts.unwrap_or_default().since(&expected);
                v1::ReceiveStatistics { counts: Some(counts), ..now }
            }),
            ..self.combined(before, since)
        }
    }
}

impl v1::ReceiveCounts {
    /// What was counted since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            expected: since(self.expected, before.expected),
            hit: since(self.hit, before.hit),
            early: since(self.early, before.early),
            missed: since(self.missed, before.missed),
            spun_ns: since(self.spun_ns, before.spun_ns),
        }
    }
}

impl v1::PortStatistics {
    /// What was counted since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            frames: each_since(&self.frames, &before.frames),
            transmission_overrun: each_since(&self.transmission_overrun, &before.transmission_overrun),
            put_back: since(self.put_back, before.put_back),
            refused: combined(&self.refused, &before.refused, since),
            retried: since(self.retried, before.retried),
            ..self.clone()
        }
    }
}

impl v1::WorkerStatistics {
    /// What was counted since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            wake_ups: since(self.wake_ups, before.wake_ups),
            spin_ns: since(self.spin_ns, before.spin_ns),
            spin_budget_spent: since(self.spin_budget_spent, before.spin_budget_spent),
            bugs: since(self.bugs, before.bugs),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ports_counters_are_of_the_run() {
        let port = |frames: &[u64], put_back, hand_over_ns| v1::PortStatistics {
            frames: frames.to_vec(),
            put_back,
            hand_over_ns,
            ..v1::PortStatistics::default()
        };
        let run = port(&[5, 9], 3, 4_000).since(&port(&[2], 1, 3_000));
        assert_eq!((run.frames, run.put_back, run.hand_over_ns), (vec![3, 9], 2, 4_000));
    }

    #[test]
    fn reasons_without_news_are_left_out() {
        let named = |count| v1::AttachmentStatistics {
            dropped: BTreeMap::from([("missed".to_owned(), count), ("late".to_owned(), 5)]),
            sent: count,
            ..v1::AttachmentStatistics::default()
        };
        let run = named(7).since(&named(4));
        assert_eq!((run.dropped, run.sent), (BTreeMap::from([("missed".to_owned(), 3)]), 3));
        assert_eq!(named(3).since(&named(4)).sent, 3, "the counter began again at 0");
        assert_eq!(named(3).plus(&named(4)).dropped["late"], 10);
    }
}
