// SPDX-License-Identifier: Apache-2.0
//! Expected arrivals in `ktsn status`: the sockets whose programs are awake for them, and the attachments' sums.

use ktsn_proto::v1;

use crate::output::{span, titled};

/// One row for each socket that expects arrivals, and one for each attachment that grants them or counted any; empty without both.
pub(super) fn text(list: &[v1::AttachmentState], statistics: &[v1::AttachmentStatistics]) -> String {
    let listeners = list.iter().flat_map(|state| {
        state.clients.iter().flat_map(move |client| {
            client.listeners.iter().map(move |listener| {
                (state.name.as_str(), client, listener, listener.counts.unwrap_or_default())
            })
        })
    });
    let sockets = titled(
        "Sockets that expect arrivals",
        listeners,
        &[
            ("attachment", |(name, ..)| (*name).to_owned()),
            ("pid", |(_, client, ..)| if client.pid == 0 { "-".to_owned() } else { client.pid.to_string() }),
            ("socket", |(_, _, listener, _)| listener.socket.clone()),
            ("cookie", |(_, _, listener, _)| match listener.cookie {
                0 => "-".to_owned(),
                cookie => cookie.to_string(),
            }),
            ("may spin", |(_, client, ..)| share(client.receive_granted_permille)),
            ("expected", |(.., counts)| counts.expected.to_string()),
            ("hit", |(.., counts)| counts.hit.to_string()),
            ("early", |(.., counts)| counts.early.to_string()),
            ("missed", |(.., counts)| counts.missed.to_string()),
            ("spun", |(.., counts)| span(counts.spun_ns)),
        ],
    );
    let sums = statistics.iter().filter_map(|of| {
        let receive = of.receive?;
        Some((of.name.as_str(), receive, receive.counts.unwrap_or_default()))
    });
    sockets
        + &titled(
            "Expected arrivals",
            sums,
            &[
                ("attachment", |(name, ..)| (*name).to_owned()),
                ("processes", |(_, receive, _)| receive.processes.to_string()),
                ("may spin", |(_, receive, _)| share(receive.granted_permille)),
                ("expected", |(.., counts)| counts.expected.to_string()),
                ("hit", |(.., counts)| counts.hit.to_string()),
                ("early", |(.., counts)| counts.early.to_string()),
                ("missed", |(.., counts)| counts.missed.to_string()),
                ("spun", |(.., counts)| span(counts.spun_ns)),
            ],
        )
}

/// A share of one CPU.
fn share(permille: u32) -> String {
    if permille == 0 { "-".to_owned() } else { format!("{}.{} %", permille / 10, permille % 10) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_and_sums_have_their_rows() {
        let counts = v1::ReceiveCounts { expected: 100, hit: 90, early: 7, missed: 3, spun_ns: 2_500_000 };
        let listener = v1::Listener { socket: "udp4:7000".to_owned(), cookie: 4711, counts: Some(counts) };
        let client = v1::Client {
            pid: 42,
            listeners: vec![listener],
            receive_granted_permille: 66,
            ..v1::Client::default()
        };
        let plain = v1::AttachmentState { name: "plain".to_owned(), ..v1::AttachmentState::default() };
        let state = v1::AttachmentState {
            name: "pod-a".to_owned(),
            clients: vec![client.clone()],
            ..v1::AttachmentState::default()
        };
        let none = v1::AttachmentStatistics { name: "plain".to_owned(), ..Default::default() };
        assert_eq!(text(std::slice::from_ref(&plain), std::slice::from_ref(&none)), "");
        let receive = v1::ReceiveStatistics { counts: Some(counts), processes: 1, granted_permille: 66 };
        let of = v1::AttachmentStatistics {
            name: "pod-a".to_owned(),
            receive: Some(receive),
            ..Default::default()
        };
        let shown = text(&[plain, state], &[none, of.clone()]);
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let rows: Vec<_> = shown.lines().filter(|line| line.contains("pod-a")).map(words).collect();
        let counted = ["100", "90", "7", "3", "2.50", "ms"];
        let socket = [&["pod-a", "42", "udp4:7000", "4711", "6.6", "%"][..], &counted].concat();
        let sum = [&["pod-a", "1", "6.6", "%"][..], &counted].concat();
        assert_eq!(rows, [socket, sum], "{shown}");
        assert!(!shown.contains("plain"), "{shown}");
        assert_eq!(serde_json::json!(client)["listeners"][0]["counts"]["missed"], 3);
        assert_eq!(serde_json::json!(of)["receive"]["counts"]["spun_ns"], 2_500_000);
    }
}
