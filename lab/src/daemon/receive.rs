// SPDX-License-Identifier: Apache-2.0
//! What a ktsnd counted of the arrivals that its programs expected. In: a daemon. Out: counts, and the figures of a run.

use super::{ATTACHMENT, Daemon};
use crate::error::LabError;
use ktsn_measure::results::Series;
use ktsn_proto::v1;

/// Expected arrivals of the attachment, of all its programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveCounters(v1::ReceiveCounts);

impl Daemon {
    /// The expected arrivals that the daemon has counted until now.
    ///
    /// # Errors
    /// It does not answer.
    pub fn receive_counters(&self) -> Result<ReceiveCounters, LabError> {
        let request = v1::StatisticsRequest { attachment: ATTACHMENT.to_owned() };
        let reply = self.ask(|mut client| async move { client.statistics(request).await })?;
        let attachment = reply.attachments.into_iter().find(|attachment| attachment.name == ATTACHMENT);
        let counts = attachment.and_then(|attachment| attachment.receive?.counts);
        Ok(ReceiveCounters(counts.unwrap_or_default()))
    }
}

impl ReceiveCounters {
    /// What was counted after `before` was read. A daemon that starts again goes on from the sums in its state file.
    pub(crate) fn since(self, before: Self) -> Self {
        let (Self(now), Self(then)) = (self, before);
        Self(v1::ReceiveCounts {
            expected: now.expected.saturating_sub(then.expected),
            hit: now.hit.saturating_sub(then.hit),
            early: now.early.saturating_sub(then.early),
            missed: now.missed.saturating_sub(then.missed),
            spun_ns: now.spun_ns.saturating_sub(then.spun_ns),
        })
    }

    /// Writes the figures of a run of `elapsed` seconds into `series`.
    pub(crate) fn fill_in(self, series: &mut Series, elapsed: f64) {
        let Self(counts) = self;
        series.arrivals_expected = Some(counts.expected);
        series.arrivals_hit = Some(counts.hit);
        series.arrivals_early = Some(counts.early);
        series.arrivals_missed = Some(counts.missed);
        series.spun_ratio = Some(counts.spun_ns as f64 / 1e9 / elapsed);
    }
}
