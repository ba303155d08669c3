// SPDX-License-Identifier: Apache-2.0
//! What attachments counted, for people and for programs.

use std::fmt::Write as _;

use ktsn_model::{BypassReason, DropReason};
use ktsn_proto::v1;

use super::{reasons, sum};
use crate::output::{or_dash, span, table};

pub(super) fn put(text: &mut String, attachments: &[v1::AttachmentStatistics]) {
    let _ = writeln!(text, "\nFrames");
    text.push_str(&table(
        attachments,
        &[
            ("attachment", |of| of.name.clone()),
            ("taken", |of| of.taken.to_string()),
            ("sent", |of| of.sent.to_string()),
            ("octets", |of| of.sent_octets.to_string()),
            ("late", |of| of.late.to_string()),
            ("overrun", |of| of.overrun.to_string()),
            ("waited", |of| of.waited.to_string()),
            ("dropped", |of| sum(&of.dropped).to_string()),
            ("bypassed", |of| sum(&of.bypassed).to_string()),
            ("ring full", |of| of.ring_full.to_string()),
            ("doorbells", |of| of.doorbells.to_string()),
        ],
    ));
    for of in attachments.iter().filter(|of| !of.clients_refused.is_empty()) {
        let reasons: Vec<_> =
            of.clients_refused.iter().map(|(why, count)| format!("{why} {count}")).collect();
        let _ = writeln!(text, "{}: clients refused: {}", or_dash(&of.name), reasons.join(", "));
    }
    let _ = writeln!(text, "\nTransmit error (handed to the port - TxTime)");
    let errors = attachments.iter().map(|of| (of, of.transmit_error.clone().unwrap_or_default()));
    text.push_str(&table(
        errors,
        &[
            ("attachment", |(of, _)| of.name.clone()),
            ("frames", |(_, error)| error.count.to_string()),
            ("p50", |(_, error)| error_span(error, error.p50)),
            ("p90", |(_, error)| error_span(error, error.p90)),
            ("p99", |(_, error)| error_span(error, error.p99)),
            ("max", |(_, error)| error_span(error, error.max)),
        ],
    ));
    for of in attachments {
        let drops = DropReason::ALL.iter().map(|reason| reason.word());
        let _ = writeln!(text, "\n{}: dropped: {}", of.name, reasons(&of.dropped, drops));
        let passes = BypassReason::ALL.iter().map(|reason| reason.word());
        let _ = writeln!(text, "{}: passed to the kernel: {}", of.name, reasons(&of.bypassed, passes));
        if of.kernel_sent > 0 || !of.kernel_dropped.is_empty() {
            let refused = reasons(&of.kernel_dropped, std::iter::empty());
            let _ = writeln!(
                text,
                "{}: of these at their time: sent {}, dropped: {refused}",
                of.name, of.kernel_sent
            );
        }
    }
}

fn error_span(error: &v1::Histogram, nanos: u64) -> String {
    if error.count == 0 { "-".to_owned() } else { span(nanos) }
}
