// SPDX-License-Identifier: Apache-2.0
//! The frames that a ktsnd of `ktsn run --with-daemon` did not send: dropped ones, and those that the kernel sent.
//!
//! In: its counters. Out: one line for each reason, with what to do. Nothing where ktsnd sent all frames.

use ktsn_model::{BypassReason, DropReason};
use ktsn_proto::v1::{AttachmentStatistics, StatisticsReply};

/// With fewer timed frames there is no warning while the program runs: the first frames may come before it is attached.
const PASSED_MIN: u64 = 10;

/// The sums over all attachments and those that went.
fn sums(statistics: &StatisticsReply) -> AttachmentStatistics {
    let all = statistics.attachments.iter().chain(&statistics.detached);
    all.fold(AttachmentStatistics::default(), |sums, of| sums.plus(of))
}

/// The warning that a program needs while it runs: so many of its timed frames went to the kernel and ktsnd took none. `None`
/// below [`PASSED_MIN`].
pub(super) fn warning(statistics: &StatisticsReply) -> Option<String> {
    let mut timed = sums(statistics).bypassed;
    timed.remove(BypassReason::NoTxtime.word());
    let count: u64 = timed.values().sum();
    if count < PASSED_MIN || taken(statistics) > 0 {
        return None;
    }
    let reasons: Vec<String> = timed.keys().map(|word| passed_as(word)).collect();
    Some(format!(
        "all {count} timed frames so far went to the kernel, without a transmit time there: {}",
        reasons.join("; ")
    ))
}

/// A reason with what to do.
fn passed_as(word: &str) -> String {
    let known = BypassReason::ALL.iter().find(|reason| reason.word() == word);
    format!("{word}: {}", known.map_or("a reason of a newer ktsnd", |reason| advice(*reason)))
}

/// Frames that were taken over.
pub(super) fn taken(statistics: &StatisticsReply) -> u64 {
    statistics.attachments.iter().map(|of| of.taken).sum()
}

/// Whether each frame that was taken over has left, was dropped, or was left to the kernel.
pub(super) fn is_settled(statistics: &StatisticsReply) -> bool {
    let is_settled =
        |of: &AttachmentStatistics| of.taken <= of.sent + of.passed + of.dropped.values().sum::<u64>();
    statistics.attachments.iter().all(is_settled)
}

/// The lines, without who says them.
pub(super) fn lines(statistics: &StatisticsReply) -> Vec<String> {
    let line = |(word, count): (&String, &u64)| {
        let known = DropReason::ALL.iter().find(|reason| reason.word() == word);
        let what = known.map_or("a reason of a newer ktsnd", |reason| remedy(*reason));
        format!("{count} {} dropped as {word}: {what}", frames(*count))
    };
    let passed_line = |(word, count): (&String, &u64)| {
        format!("{count} {} passed to the kernel as {}", frames(*count), passed_as(word))
    };
    let refused_line = |(word, count): (&String, &u64)| {
        format!(
            "{count} {} passed to the kernel and not sent at their time, as {word}; see ktsnd's log",
            frames(*count)
        )
    };
    let sums = sums(statistics);
    let passed = sums.bypassed.iter().map(passed_line);
    let refused = sums.kernel_dropped.iter().map(refused_line);
    sums.dropped.iter().map(line).chain(passed).chain(refused).chain(ring_full(sums.ring_full)).collect()
}

/// The line for a program that was to expect arrivals and never did; `None` where it did.
pub(super) fn unexpected(statistics: &StatisticsReply) -> Option<String> {
    let all = statistics.attachments.iter().chain(&statistics.detached);
    let mut counts = all.filter_map(|of| of.receive.as_ref()?.counts);
    let grants = statistics.attachments.iter().any(|of| of.receive.is_some());
    if counts.any(|counts| counts.expected > 0) {
        return None;
    }
    Some(if grants {
        "--receive expect: no arrival was expected: it serves blocking receives and waits on UDP and packet sockets, of frames \
         that come with a period of 50 µs to 10 s"
            .to_owned()
    } else {
        "--receive expect: ktsnd grants nothing, as its attachment has receive=kernel; leave that key away"
            .to_owned()
    })
}

/// What to do about sends that failed for want of a slot.
fn ring_full(count: u64) -> Option<String> {
    let sends = if count == 1 { "send" } else { "sends" };
    (count > 0).then(|| {
        format!(
            "{count} {sends} failed with EAGAIN as ring_full: their socket had no slot left; send less far ahead, or give \
             --with-daemon IFACE,slots=4096,octets_max=67108864"
        )
    })
}

fn frames(count: u64) -> &'static str {
    if count == 1 { "frame" } else { "frames" }
}

/// Why, and what to do.
const fn remedy(reason: DropReason) -> &'static str {
    match reason {
        DropReason::Missed => {
            "the program sent them after their transmit time; send them earlier (300 µs or more ahead)"
        }
        DropReason::Overrun => {
            "ktsnd was woken too late for them, had more to send than it could, or their gate was closed until their deadline; \
             look at this machine with `ktsn doctor`"
        }
        DropReason::Waited => {
            "the ring was full, and the program waited for a slot until their transmit time had passed; send them less far \
             ahead, or give --with-daemon IFACE,slots=4096,octets_max=67108864"
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

/// Why the kernel sent them, and what to do.
const fn advice(reason: BypassReason) -> &'static str {
    match reason {
        BypassReason::NoTxtime => {
            "they had no transmit time (SCM_TXTIME); give --with-daemon IFACE,take=all to have them sent, too"
        }
        BypassReason::NotAttached => {
            "the socket's network namespace has no attachment; name the interface that it sends by"
        }
        BypassReason::NotAllowed => {
            "their destination, or the source that they name, is not the attachment's; name the destination: --with-daemon \
             IFACE,destination=PREFIX or destination=MAC (repeatable)"
        }
        BypassReason::OwnAddress => "they stay on this host",
        BypassReason::OverMtu => {
            "they are longer than one frame on the way; send fewer octets in one datagram"
        }
        BypassReason::UnsupportedOption => {
            "the socket, or the call, has an option that frames of ktsnd do not carry; docs/guide/programs.md lists them"
        }
        BypassReason::RoutingRules => {
            "only the kernel knows their way, by a rule, several next hops, an encapsulation or a packet filter in their network \
             namespace; look at ip rule, ip route, nft list ruleset and iptables-save there"
        }
        BypassReason::UnsupportedFamily => {
            "kernel capture serves only UDP; preload libktsn, which also sends frames of packet sockets"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ktsn_proto::v1::{ReceiveCounts, ReceiveStatistics};

    fn of(taken: u64, sent: u64, dropped: &[(&str, u64)]) -> AttachmentStatistics {
        let dropped = dropped.iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect();
        AttachmentStatistics { taken, sent, dropped, ..AttachmentStatistics::default() }
    }

    #[test]
    fn what_the_kernel_sent_has_its_lines_and_a_warning_where_ktsnd_sent_nothing() {
        let passed = |taken, not_allowed, no_txtime| {
            let bypassed = [("not_allowed", not_allowed), ("no_txtime", no_txtime)];
            let bypassed = bypassed.into_iter().map(|(word, count)| (word.to_owned(), count)).collect();
            let of = AttachmentStatistics { bypassed, ..of(taken, taken, &[]) };
            StatisticsReply { attachments: vec![of], ..StatisticsReply::default() }
        };
        let said = lines(&passed(0, 1, 2));
        assert!(said[0].starts_with("2 frames passed to the kernel as no_txtime: they had"), "{said:?}");
        assert!(said[1].starts_with("1 frame passed to the kernel as not_allowed: their dest"), "{said:?}");
        assert_eq!(said.len(), 2);
        let warned = warning(&passed(0, 10, 500)).unwrap();
        assert!(warned.contains("all 10 timed frames") && warned.contains("not_allowed"), "{warned}");
        assert!(!warned.contains("no_txtime"), "{warned}");
        // Too few, frames without a time, and a program of which some frames are served.
        for quiet in [passed(0, 9, 0), passed(0, 0, 500), passed(1, 500, 0)] {
            assert_eq!(warning(&quiet), None);
        }
    }

    #[test]
    fn a_program_that_never_expected_has_its_line() {
        let with = |receive| StatisticsReply {
            attachments: vec![AttachmentStatistics { receive, ..of(0, 0, &[]) }],
            ..StatisticsReply::default()
        };
        let receive = |expected| {
            let counts = Some(ReceiveCounts { expected, ..ReceiveCounts::default() });
            Some(ReceiveStatistics { counts, ..ReceiveStatistics::default() })
        };
        assert!(unexpected(&with(None)).unwrap().contains("receive=kernel"));
        assert!(unexpected(&with(receive(0))).unwrap().contains("no arrival was expected"));
        assert_eq!(unexpected(&with(receive(1))), None);
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
        assert!(lines[1].starts_with("2 frames dropped as missed: the program sent them after"), "{lines:?}");
        assert!(lines[2].contains("5 frames dropped as no_neighbour: the MAC address"), "{lines:?}");
        assert_eq!(lines.len(), 3);
    }
}
