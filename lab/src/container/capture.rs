// SPDX-License-Identifier: Apache-2.0
//! What kernel capture costs a program in lead. In: the talker's records, the daemon's own figure. Out: `micro` entries.
//!
//! ```text
//!  sendmsg called ───────────────── returned           called → captured: within the call, in its soft interrupt
//!            captured ──(ring, epoll)── in the queue   captured → queued: counted by ktsnd
//! ```

use ktsn_measure::records::TalkRecord;
use ktsn_measure::results::{Document, Micro};
use ktsn_proto::v1::Histogram;

/// Spans of a run's calls, nanoseconds.
pub(super) fn calls(talked: &[TalkRecord]) -> Vec<u64> {
    talked.iter().filter_map(|t| u64::try_from(t.returned_at.since(t.called_at).get()).ok()).collect()
}

/// Adds the calls' spans, the way to the queue, and what a program must send earlier for both: the sums, greater than the
/// truth, as the frame is captured before the call returns.
pub(super) fn figures(document: &mut Document, mut calls: Vec<u64>, lag: &Histogram) {
    calls.sort_unstable();
    let at = |permille: usize| calls.get((calls.len() * permille / 1000).min(calls.len().saturating_sub(1)));
    let (Some(&p50), Some(&p90), Some(&p99)) = (at(500), at(900), at(990)) else { return };
    let samples = calls.len() as u64;
    let mut add = |name: &str, p50: u64, p90: Option<u64>, samples| {
        let p90 = p90.map(|p90| p90 as f64);
        document.micro.push(Micro { p90, ..Micro::figure(name, "ns", p50 as f64, samples) });
    };
    add("capture.sendmsg", p50, Some(p90), samples);
    add("capture.sendmsg.p99", p99, None, samples);
    add("capture.lag", lag.p50, Some(lag.p90), lag.count);
    add("capture.lag.p99", lag.p99, None, lag.count);
    add("capture.lead", p50 + lag.p50, Some(p90 + lag.p90), samples.min(lag.count));
    add("capture.lead.p99", p99 + lag.p99, None, samples.min(lag.count));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lead_is_the_sum_of_both_parts() {
        let mut document = Document::new("capture", Vec::new());
        let lag = Histogram { p50: 20, p90: 30, p99: 99, count: 100, ..Histogram::default() };
        figures(&mut document, (1..=100).collect(), &lag);
        let of = |name: &str| document.micro.iter().find(|m| m.name == name).map(|m| (m.p50, m.p90));
        assert_eq!(of("capture.sendmsg"), Some((51.0, Some(91.0))));
        assert_eq!(of("capture.lead"), Some((71.0, Some(121.0))));
        assert_eq!(of("capture.lead.p99"), Some((199.0, None)));
        figures(&mut document, Vec::new(), &lag);
        assert_eq!(document.micro.len(), 6);
    }
}
