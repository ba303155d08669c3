// SPDX-License-Identifier: Apache-2.0
//! What kernels, switches and ktsnd say that they dropped. In: what `ip`, `tc`, `/proc/net/snmp`, `ovs-vsctl` and `ktsn status` print.
//! Out: frames by place and reason. Pure; what is not understood counts nothing, so a lost frame stays without a reason.

use serde_json::Value;
use std::collections::BTreeMap;

/// Frames by place and reason.
pub(super) type Reasons = BTreeMap<String, u64>;

/// Letters of a name that is shown.
const NAME_LETTERS_MAX: usize = 100;
/// Reasons that an account shows.
const SHOWN_MAX: usize = 20;
/// Disciplines that only hold others, and show the sum of what those count.
const HOLDERS: [&str; 2] = ["mq", "mqprio"];
/// Reasons of `/proc/net/snmp` for which a UDP datagram is lost.
const UDP_REASONS: [&str; 3] = ["RcvbufErrors", "InCsumErrors", "MemErrors"];

fn put(reasons: &mut Reasons, name: &str, count: Option<u64>) {
    if let Some(count) = count.filter(|&count| count > 0) {
        let sum = reasons.entry(shown(name)).or_insert(0);
        *sum = sum.saturating_add(count);
    }
}

/// A name of a guest or of another machine, as it may be shown.
fn shown(name: &str) -> String {
    name.chars().filter(|character| !character.is_control()).take(NAME_LETTERS_MAX).collect()
}

/// Adds counts of other frames.
pub(super) fn add(sum: &mut Reasons, reasons: Reasons) {
    for (name, count) in reasons {
        put(sum, &name, Some(count));
    }
}

/// All frames.
pub(super) fn total(reasons: &Reasons) -> u64 {
    reasons.values().fold(0, |sum, count| sum.saturating_add(*count))
}

/// Adds what the devices of `ip -s -j link show` have dropped.
pub(super) fn put_links(reasons: &mut Reasons, place: &str, text: &str) {
    let links: Vec<Value> = serde_json::from_str(text).unwrap_or_default();
    for link in &links {
        let device = link["ifname"].as_str().unwrap_or("?");
        for direction in ["rx", "tx"] {
            for kind in ["dropped", "errors", "missed_errors"] {
                let name = format!("{place}, {device}: {direction} {kind}");
                put(reasons, &name, link["stats64"][direction][kind].as_u64());
            }
        }
    }
}

/// Octets that the first device of `ip -s -j link show` has received.
pub(super) fn received_octets(text: &str) -> Option<u64> {
    let links: Vec<Value> = serde_json::from_str(text).ok()?;
    links.first()?["stats64"]["rx"]["bytes"].as_u64()
}

/// Adds what a port of a virtual switch has dropped: a map as `ovs-vsctl` writes it.
pub(super) fn put_switch(reasons: &mut Reasons, place: &str, text: &str) {
    for entry in text.trim().trim_matches(['{', '}']).split(',') {
        let Some((key, value)) = entry.trim().split_once('=') else { continue };
        // The sums stand beside their parts, which begin with `ovs_`.
        if !key.starts_with("ovs_") && (key.ends_with("dropped") || key.ends_with("errors")) {
            put(reasons, &format!("{place}: {key}"), value.trim().parse().ok());
        }
    }
}

/// What one end of the experiment counted: the file that the script's `counters` wrote.
pub(super) fn of_end(place: &str, text: &str) -> Reasons {
    let mut reasons = Reasons::new();
    let mut lines = text.lines();
    // The JSON of `ip` and `tc` is one line each, where their version prints it so; else it ends where the next begins.
    let mut json = || -> String {
        let mut whole = String::new();
        for line in lines.by_ref() {
            whole.push_str(line);
            if serde_json::from_str::<Value>(&whole).is_ok() {
                break;
            }
        }
        whole
    };
    let (links, disciplines) = (json(), json());
    put_links(&mut reasons, place, &links);
    let disciplines: Vec<Value> = serde_json::from_str(&disciplines).unwrap_or_default();
    for discipline in &disciplines {
        let kind = discipline["kind"].as_str().unwrap_or("?");
        if !HOLDERS.contains(&kind) {
            put(&mut reasons, &format!("{place}, {kind}"), discipline["drops"].as_u64());
        }
    }
    let mut udp = text.lines().filter_map(|line| line.strip_prefix("Udp: "));
    if let (Some(names), Some(values)) = (udp.next(), udp.next()) {
        for (name, value) in names.split(' ').zip(values.split(' ')) {
            if UDP_REASONS.contains(&name) {
                put(&mut reasons, &format!("{place}, UDP {name}"), value.parse().ok());
            }
        }
    }
    reasons
}

/// What the attachments and ports of `ktsn status --json` have dropped.
pub(super) fn of_daemon(text: &str) -> Reasons {
    let status: Value = serde_json::from_str(text).unwrap_or_default();
    let attachments = status["statistics"]["attachments"].as_array().cloned().unwrap_or_default();
    let mut reasons = Reasons::new();
    for attachment in &attachments {
        for (reason, count) in attachment["dropped"].as_object().into_iter().flatten() {
            put(&mut reasons, &format!("publisher, ktsnd: {reason}"), count.as_u64());
        }
    }
    for port in status["statistics"]["ports"].as_array().into_iter().flatten() {
        for (reason, count) in port["refused"].as_object().into_iter().flatten() {
            put(&mut reasons, &format!("publisher, ktsnd's port: {reason}"), count.as_u64());
        }
    }
    reasons
}

/// What was counted between two readings.
pub(super) fn since(after: &Reasons, before: &Reasons) -> Reasons {
    let counted = after
        .iter()
        .map(|(name, &count)| (name.clone(), count.saturating_sub(before.get(name).copied().unwrap_or(0))));
    counted.filter(|(_, count)| *count > 0).collect()
}

/// The words of an account: `3 publisher, etf; 1 …`, or `none`.
pub(super) fn words(reasons: &Reasons) -> String {
    let first = reasons.iter().take(SHOWN_MAX);
    let mut words: Vec<String> = first.map(|(name, count)| format!("{count} {name}")).collect();
    if let Some(more) = reasons.len().checked_sub(SHOWN_MAX).filter(|&more| more > 0) {
        words.push(format!("{more} more reasons"));
    }
    if words.is_empty() { "none".to_owned() } else { words.join("; ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counters_of_an_end_are_read() {
        let text = concat!(
            r#"[{"ifname":"eth0","stats64":{"rx":{"dropped":0,"errors":0},"tx":{"dropped":3,"errors":0}}}]"#,
            "\n\n",
            r#"[{"kind":"mqprio","drops":7},{"kind":"etf","drops":7},{"kind":"pfifo_fast","drops":0}]"#,
            "\n\nIp: A\nIp: 1\nUdp: InDatagrams NoPorts InErrors RcvbufErrors\nUdp: 100 1 5 5\n",
        );
        let reasons = of_end("publisher", text);
        assert_eq!(
            words(&reasons),
            "5 publisher, UDP RcvbufErrors; 7 publisher, etf; 3 publisher, eth0: tx dropped"
        );
        assert_eq!(words(&since(&reasons, &reasons)), "none");
        assert!(of_end("publisher", "damaged").is_empty());
    }

    #[test]
    fn names_of_a_guest_forge_no_line_and_counts_do_not_overflow() {
        let mut sum = Reasons::new();
        let odd = format!("eth\x1b]0;x\x07\nresults: /etc{}", "x".repeat(900));
        add(&mut sum, [(odd.clone(), u64::MAX), ("b".to_owned(), 9)].into());
        add(&mut sum, [(odd, u64::MAX)].into());
        assert_eq!(total(&sum), u64::MAX);
        let words = words(&sum);
        assert!(words.len() < 200 && !words.contains(['\n', '\x1b', '\x07']), "{words}");
        let many = (0..50).map(|number| (format!("reason {number}"), 1)).collect();
        assert!(super::words(&many).ends_with("; 30 more reasons"));
    }

    #[test]
    fn a_switch_counts_a_dropped_frame_once() {
        let text = "{ovs_tx_failure_drops=4, ovs_tx_mtu_exceeded_drops=0, rx_dropped=0, rx_errors=0, rx_packets=9, tx_dropped=4}\n";
        let mut reasons = Reasons::new();
        put_switch(&mut reasons, "switch, guest", text);
        assert_eq!(words(&reasons), "4 switch, guest: tx_dropped");
    }

    #[test]
    fn the_daemon_s_reasons_are_read() {
        let text = r#"{"statistics":{"attachments":[{"name":"publisher","dropped":{"overrun":3,"late":0}}],"ports":[{"refused":{"lost":2}}]}}"#;
        assert_eq!(words(&of_daemon(text)), "2 publisher, ktsnd's port: lost; 3 publisher, ktsnd: overrun");
        assert!(of_daemon("").is_empty());
    }
}
