// SPDX-License-Identifier: Apache-2.0
//! What a ktsnd that ends dropped, for who started it.
//!
//! In: its counters. Out: one line for each reason, with what to do. Nothing where all left.

use std::collections::BTreeMap;

use ktsn_model::DropReason;
use ktsn_proto::v1::StatisticsReply;

/// Frames by reason, of all attachments and those that went.
pub(super) fn sums(statistics: &StatisticsReply) -> BTreeMap<&str, u64> {
    let mut sums = BTreeMap::new();
    let all = statistics.attachments.iter().chain(&statistics.detached);
    for (reason, count) in all.flat_map(|attachment| &attachment.dropped) {
        *sums.entry(reason.as_str()).or_default() += count;
    }
    sums.retain(|_, count| *count > 0);
    sums
}

/// Frames that were taken over.
pub(super) fn taken(statistics: &StatisticsReply) -> u64 {
    statistics.attachments.iter().map(|of| of.taken).sum()
}

/// Whether each frame that was taken over has left or was dropped.
pub(super) fn is_settled(statistics: &StatisticsReply) -> bool {
    let is_settled =
        |of: &ktsn_proto::v1::AttachmentStatistics| of.taken <= of.sent + of.dropped.values().sum::<u64>();
    statistics.attachments.iter().all(is_settled)
}

/// The lines, without who says them.
pub(super) fn lines(statistics: &StatisticsReply) -> Vec<String> {
    let line = |(word, count): (&str, u64)| {
        let known = DropReason::ALL.iter().find(|reason| reason.word() == word);
        let what = known.map_or("a reason of a newer ktsnd", |reason| remedy(*reason));
        format!("{count} {} dropped as {word}: {what}", if count == 1 { "frame" } else { "frames" })
    };
    sums(statistics).into_iter().map(line).collect()
}

/// Why, and what to do.
const fn remedy(reason: DropReason) -> &'static str {
    match reason {
        DropReason::Missed => {
            "they were handed over after their time, or ktsnd was woken too late; send them earlier (300 µs or more \
             ahead), and look at this machine with `ktsn doctor`"
        }
        DropReason::InvalidTime => {
            "their transmit time is none on the socket's clock; take the time from the clock that SO_TXTIME names"
        }
        DropReason::BeyondHorizon => {
            "their transmit time lies too far ahead (10 s); send them later, or give --with-daemon IFACE,horizon=TIME"
        }
        DropReason::TooLong => "they are longer than the way allows; send fewer octets in one datagram",
        DropReason::QueueFull => "more waited at once than ktsnd has room for; send less far ahead",
        DropReason::NoRoute => "no route leads to their destination; look at `ip route get ADDRESS`",
        DropReason::NoNeighbour => {
            "the MAC address of the next hop was not known in time; send the first ones to an address 20 ms ahead, or \
             see `ip neigh` whether it answers at all"
        }
        DropReason::Policed => {
            "their priority (SO_PRIORITY) is none that the attachment may use, or policing refused them; look at `ktsn status`"
        }
        DropReason::GateNeverFits => {
            "no window of the schedule is long enough for them; widen one or send less at once"
        }
        DropReason::Unsynchronised => "the clock is not synchronised; see `ktsn doctor`",
        DropReason::DaemonAbsent => {
            "they were sent before the program was attached, or while it was not; see KTSN_LOG=debug"
        }
        DropReason::Detached => "the interface went away while they waited",
        DropReason::LinkDown => "the interface has no link; see `ip link`",
        DropReason::PortError => "the device did not take them; see `ip -s link` and ktsnd's log",
        DropReason::PeerCorrupt => {
            "the program overwrote memory that it shares with ktsnd; look for a wild pointer in it"
        }
        DropReason::Bug => "a fault of ktsnd; please report it with its log",
        DropReason::NetworkPolicy => {
            "a network policy that came after the attachment may forbid them; `ktsn status` names it: change it, or set \
             allow_policy_bypass and attach again"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ktsn_proto::v1::AttachmentStatistics;

    fn of(taken: u64, sent: u64, dropped: &[(&str, u64)]) -> AttachmentStatistics {
        let dropped = dropped.iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect();
        AttachmentStatistics { taken, sent, dropped, ..AttachmentStatistics::default() }
    }

    #[test]
    fn each_reason_has_its_line() {
        let mut statistics =
            StatisticsReply { attachments: vec![of(9, 9, &[("missed", 0)])], ..StatisticsReply::default() };
        assert!(lines(&statistics).is_empty() && is_settled(&statistics));
        statistics.attachments.push(of(9, 2, &[("missed", 1), ("no_neighbour", 5)]));
        assert!(!is_settled(&statistics), "one still waits");
        statistics.detached = Some(of(0, 0, &[("missed", 1), ("later", 1)]));
        let lines = lines(&statistics);
        assert!(lines[0].starts_with("1 frame dropped as later: a reason of a newer"), "{lines:?}");
        assert!(lines[1].starts_with("2 frames dropped as missed: they were handed over"), "{lines:?}");
        assert!(lines[2].contains("5 frames dropped as no_neighbour: the MAC address"), "{lines:?}");
        assert_eq!(lines.len(), 3);
    }
}
