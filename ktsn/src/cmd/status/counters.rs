// SPDX-License-Identifier: Apache-2.0
//! What attachments counted, for people and for programs.

use std::fmt::Write as _;

use ktsn_model::{BypassReason, DropReason};
use ktsn_proto::v1;
use serde_json::{Value, json};

use super::{deferred, ingress, or_dash, put_table, reasons, sum};
use crate::output::span;

pub(super) fn put(text: &mut String, attachments: &[v1::AttachmentStatistics]) {
    let _ = writeln!(text, "\nFrames");
    let rows: Vec<Vec<String>> = attachments
        .iter()
        .map(|of| {
            [
                of.taken,
                of.sent,
                of.sent_octets,
                of.late,
                of.overrun,
                of.waited,
                sum(&of.dropped),
                sum(&of.bypassed),
                of.ring_full,
                of.doorbells,
            ]
            .iter()
            .map(u64::to_string)
            .fold(vec![of.name.clone()], |mut row, cell| {
                row.push(cell);
                row
            })
        })
        .collect();
    let head = [
        "attachment",
        "taken",
        "sent",
        "octets",
        "late",
        "overrun",
        "waited",
        "dropped",
        "bypassed",
        "ring full",
        "doorbells",
    ];
    put_table(text, &head, &rows);
    for of in attachments.iter().filter(|of| !of.clients_refused.is_empty()) {
        let mut reasons: Vec<_> =
            of.clients_refused.iter().map(|(why, count)| format!("{why} {count}")).collect();
        reasons.sort();
        let _ = writeln!(text, "{}: clients refused: {}", or_dash(&of.name), reasons.join(", "));
    }
    let _ = writeln!(text, "\nTransmit error (handed to the port - TxTime)");
    let rows: Vec<Vec<String>> = attachments
        .iter()
        .map(|of| {
            let error = of.transmit_error.clone().unwrap_or_default();
            let shown = |nanos| if error.count == 0 { "-".to_owned() } else { span(nanos) };
            let mut row = vec![of.name.clone(), error.count.to_string()];
            row.extend([error.p50, error.p90, error.p99, error.max].map(shown));
            row
        })
        .collect();
    put_table(text, &["attachment", "frames", "p50", "p90", "p99", "max"], &rows);
    for of in attachments {
        let drops = DropReason::ALL.iter().map(|reason| reason.word());
        let _ = writeln!(text, "\n{}: dropped: {}", of.name, reasons(&of.dropped, drops));
        let passes = BypassReason::ALL.iter().map(|reason| reason.word());
        let _ = writeln!(text, "{}: passed to the kernel: {}", of.name, reasons(&of.bypassed, passes));
    }
}

pub(super) fn json_of(of: &v1::AttachmentStatistics) -> Value {
    let error = of.transmit_error.clone().unwrap_or_default();
    json!({
        "name": of.name, "taken": of.taken, "sent": of.sent, "sent_octets": of.sent_octets,
        "copies": of.copies, "copies_lost": of.copies_lost,
        "late": of.late, "overrun": of.overrun, "waited": of.waited, "ring_full": of.ring_full, "dropped": of.dropped, "bypassed": of.bypassed,
        "deferred": of.deferred, "deferred_failed": of.deferred_failed, "deferral": deferred::json_of(of),
        "doorbells": of.doorbells, "clients_refused": of.clients_refused, "ingress": ingress::json_of(of),
        "transmit_error_ns": {
            "count": error.count, "p50": error.p50, "p90": error.p90, "p99": error.p99,
            "p99_9": error.p99_9, "max": error.max,
        },
    })
}
