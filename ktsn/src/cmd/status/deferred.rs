// SPDX-License-Identifier: Apache-2.0
//! Deferred attachments in `ktsn status`: pods whose frames leave by an ordinary thread, as hand-overs by their own interface take
//! too long.

use ktsn_proto::v1;

use crate::output::{span, titled};

/// One row for each attachment that is deferred, or was; empty when there is none.
pub(super) fn text(attachments: &[v1::AttachmentStatistics]) -> String {
    let ever = attachments.iter().filter(|of| of.deferral.is_some() || of.deferred + of.deferred_failed > 0);
    titled(
        "Deferred (frames leave by an ordinary thread, not on time)",
        ever,
        &[
            ("attachment", |of| of.name.clone()),
            ("for", |of| of.deferral.as_ref().map_or("not now".to_owned(), |now| span(now.for_ns))),
            ("longest hand-over", |of| {
                of.deferral.as_ref().map_or("-".to_owned(), |now| span(now.longest_hand_over_ns))
            }),
            ("frames", |of| of.deferred.to_string()),
            ("failed", |of| of.deferred_failed.to_string()),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attachments_that_are_or_were_deferred_have_a_row() {
        let plain = v1::AttachmentStatistics { name: "plain".to_owned(), ..Default::default() };
        assert_eq!(text(std::slice::from_ref(&plain)), "");
        let was = v1::AttachmentStatistics { name: "was".to_owned(), deferred: 4, ..Default::default() };
        let deferral = v1::Deferral { for_ns: 61_000_000_000, longest_hand_over_ns: 512_000 };
        let is = v1::AttachmentStatistics {
            name: "is".to_owned(),
            deferred: 7,
            deferred_failed: 1,
            deferral: Some(deferral),
            ..Default::default()
        };
        assert_eq!(serde_json::json!(is)["deferral"]["longest_hand_over_ns"], 512_000);
        let shown = text(&[plain, was, is]);
        let rows: Vec<Vec<&str>> =
            shown.lines().rev().take(2).map(|row| row.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["was", "not", "now", "-", "4", "0"], "{shown}");
        assert!(rows[0].starts_with(&["is"]) && rows[0].ends_with(&["7", "1"]), "{shown}");
        assert!(shown.contains("512.00 µs"), "{shown}");
    }
}
