// SPDX-License-Identifier: Apache-2.0
//! What the results of `clock` are held against. In: a document. Out: its comparisons, and what must not happen.

use super::path;
use crate::vm::protocol::Clock;
use ktsn_measure::results::{CheckOutcome, Comparison, Document, Question};

/// Greatest part of chrony's error.
const TO_CHRONY_MAX: f64 = 1.0 / 30.0;
/// The page's greatest error, ns: p50 and p99.
const PAGE_P50_MAX: f64 = 300.0;
const PAGE_P99_MAX: f64 = 5000.0;
/// Greatest time until a clock is back after a pause, ns.
const RECOVERY_MAX: f64 = 2e9;
/// Greatest share of a CPU, host and guest together.
const CPU_MAX: f64 = 0.005;

/// Adds the comparisons that the document has the rows for.
pub(super) fn compare(document: &mut Document) {
    let (vptp, chrony) = (path(Clock::Vptp), path(Clock::Chrony));
    let Some(own) = document.all_rounds(&vptp, 0, None).cloned() else { return };
    if document.all_rounds(&chrony, 0, None).is_some() {
        for (metric, bar) in [("clock_error_ns.p50", Some(TO_CHRONY_MAX)), ("clock_error_ns.p99", None)] {
            let (of, to) = (&*vptp, Some(&*chrony));
            document.compare(&Question { metric, payload_octets: 0, load: None, of, to, bar });
        }
    }
    let has_pause = document.parameters.get("pause_seconds").and_then(serde_json::Value::as_f64) > Some(0.0);
    let mut bars = vec![
        ("page_error_ns.p50", PAGE_P50_MAX),
        ("page_error_ns.p99", PAGE_P99_MAX),
        ("clock_cpu_ratio", CPU_MAX),
    ];
    if has_pause {
        bars.push(("clock_recovery_ns", RECOVERY_MAX));
    }
    for (metric, bar) in bars {
        document.comparisons.push(Comparison::held(metric, &vptp, None, own.metric(metric), bar));
    }
}

/// What must not happen and did: a clock that went back, or an error beyond its bound.
#[must_use]
pub fn violations(document: &Document) -> Vec<String> {
    let failed = document.checks.iter().filter(|check| check.outcome == CheckOutcome::Failed);
    failed.map(|check| format!("{}: {}", check.name, check.reason.as_deref().unwrap_or("–"))).collect()
}
