// SPDX-License-Identifier: Apache-2.0
//! The ingress fast path in `ktsn status`: what came by it, and what was left to the kernel and why.

use ktsn_proto::v1;

use crate::output::{or_dash, titled};

/// One row for each attachment with `ingress = "short"`; empty when there is none.
pub(super) fn text(attachments: &[v1::AttachmentStatistics]) -> String {
    let short = attachments.iter().filter_map(|of| Some((of.name.as_str(), of.ingress.as_ref()?)));
    titled(
        "Ingress fast path",
        short,
        &[
            ("attachment", |(name, _)| (*name).to_owned()),
            ("taken", |(_, ingress)| ingress.taken.to_string()),
            ("octets", |(_, ingress)| ingress.taken_octets.to_string()),
            ("failed", |(_, ingress)| ingress.failed.to_string()),
            ("reattached", |(_, ingress)| ingress.reattached.to_string()),
            ("left to the kernel", |(_, ingress)| {
                let left: Vec<String> =
                    ingress.left.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
                or_dash(&left.join(", "))
            }),
            (
                "now",
                |(_, ingress)| {
                    if ingress.idle.is_empty() { "taking".to_owned() } else { ingress.idle.clone() }
                },
            ),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_attachments_with_the_ingress_fast_path_have_a_row() {
        let plain = v1::AttachmentStatistics { name: "plain".to_owned(), ..Default::default() };
        assert_eq!(text(std::slice::from_ref(&plain)), "");
        let ingress = v1::IngressStatistics {
            taken: 7,
            taken_octets: 700,
            left: [("not_udp".to_owned(), 3), ("fragment".to_owned(), 2)].into(),
            failed: 0,
            reattached: 1,
            idle: String::new(),
        };
        let short =
            v1::AttachmentStatistics { name: "short".to_owned(), ingress: Some(ingress), ..plain.clone() };
        let shown = text(&[plain, short.clone()]);
        let row = shown.lines().last().unwrap();
        let words: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(
            words,
            ["short", "7", "700", "0", "1", "fragment", "2,", "not_udp", "3", "taking"],
            "{shown}"
        );
        assert_eq!(serde_json::json!(short)["ingress"]["left"]["not_udp"], 3);
        let mut idle = short;
        if let Some(ingress) = &mut idle.ingress {
            ingress.idle = "the uplink is not there".to_owned();
        }
        assert!(text(&[idle]).contains("not_udp 3  the uplink is not there"));
    }
}
