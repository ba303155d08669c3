// SPDX-License-Identifier: Apache-2.0
//! The counters of the node, for the control API and for one scrape. A scrape gets the counters themselves, shared with their workers,
//! and no copy of a distribution.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ktsn_bpf::Tallied;
use ktsn_model::{BypassReason, DropReason};
use ktsn_proto::v1;
use tracing::warn;

use super::{health, histogram_message};
use crate::clients::{RefusedBy, ServedAttachment};
use crate::config::ReceiveMode;
use crate::ingress::Uplink;
use crate::metrics::{AttachmentSnapshot, PortSnapshot, Snapshot};
use crate::node::ports::OpenPort;
use crate::node::watch::NO_WAY_IN;
use crate::node::{Node, NodeError};
use crate::stats::{AttachmentStats, PortRefusal, StreamFilterStats, WorkerStats};
use crate::worker::monotonic_now;

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Relaxed)
}

pub(super) fn all(counters: &[AtomicU64]) -> Vec<u64> {
    counters.iter().map(get).collect()
}

/// The counters of one attachment, or (empty) of all.
pub(crate) fn statistics(node: &Node, name: &str) -> Result<v1::StatisticsReply, NodeError> {
    node.directory.receivers().look();
    if !name.is_empty() && node.served.find(name).is_none() {
        return Err(NodeError::Unknown(name.to_owned()));
    }
    let wanted = |a: &&ServedAttachment| name.is_empty() || a.name() == name;
    Ok(v1::StatisticsReply {
        at_monotonic_ns: monotonic_now().as_nanos(),
        attachments: node.served.iter().filter(wanted).map(|a| attachment(node, a)).collect(),
        workers: node.workers.stats().map(|(uplink, stats)| worker(uplink, stats)).collect(),
        ports: node.ports.iter().map(|(_, open)| port(node, open)).collect(),
        detached: name.is_empty().then(|| {
            let sums = node.served.sums_of_detached();
            let counts = Some(receive_counts(&sums));
            let receive = Some(v1::ReceiveStatistics { counts, ..v1::ReceiveStatistics::default() });
            v1::AttachmentStatistics { receive, ..statistics_of("", &sums) }
        }),
    })
}

/// What one scrape shows.
pub(crate) fn snapshot(node: &Node) -> Snapshot {
    node.directory.receivers().look();
    let clients = node.directory.clients_by_attachment();
    let attachment = |served: &ServedAttachment| AttachmentSnapshot {
        name: served.name().to_owned(),
        clients: clients.get(&served.index).copied().unwrap_or_default(),
        stats: served.stats.clone(),
        ingress: ingress(node, served),
        receive: receive(node, served),
        deferral: deferral(node, served),
    };
    let port = |port: &OpenPort| PortSnapshot {
        device: port.device.clone(),
        up: port.is_up(),
        link_speed: port.link_speed,
        stats: port.stats.clone(),
    };
    Snapshot {
        health: health::reply(&node.watch.board),
        attachments: node.served.iter().map(attachment).collect(),
        ports: node.ports.uplinks().map(port).collect(),
        workers: node.workers.stats().map(|(uplink, stats)| (uplink.clone(), stats.clone())).collect(),
    }
}

fn worker(uplink: &str, stats: &Arc<WorkerStats>) -> v1::WorkerStatistics {
    v1::WorkerStatistics {
        uplink: uplink.to_owned(),
        wake_ups: get(&stats.wake_ups),
        spin_ns: get(&stats.spin_ns),
        spin_budget_spent: get(&stats.spin_budget_spent),
        spin_margin_ns: get(&stats.spin_margin_ns),
        clock_steps: get(&stats.clock_steps),
        doorbells_muted: get(&stats.doorbells_muted),
        regions_retired: get(&stats.regions_retired),
        bugs: get(&stats.bugs),
        reports: get(&stats.reports),
        reports_dropped: get(&stats.reports_dropped),
        notices_lost: get(&stats.notices_lost),
        cpu_budget_spent: get(&stats.cpu_budget_spent),
        expected_frames: get(&stats.expected_frames),
        empty_wake_ups: get(&stats.empty_wake_ups),
    }
}

fn port(node: &Node, port: &OpenPort) -> v1::PortStatistics {
    v1::PortStatistics {
        device: port.device.clone(),
        netns: port.netns.clone(),
        frames: all(&port.stats.frames),
        transmission_overrun: all(&port.stats.transmission_overrun),
        put_back: get(&port.stats.put_back),
        refused: words(&port.stats.refused, &|i| PortRefusal::ALL[i].word()),
        retried: get(&port.stats.retried),
        hand_over_ns: get(&port.stats.hand_over_ns),
        stream_filters: stream_filters(node, &port.policing),
    }
}

/// The stream filters in front of a port.
fn stream_filters(node: &Node, stats: &[StreamFilterStats]) -> Vec<v1::StreamFilterStatistics> {
    let Some(asked) = &node.intent.config().policing else { return Vec::new() };
    let filters = asked.filters.iter().zip(&asked.config.stream_filters).zip(stats);
    let shown = filters.map(|((name, filter), stats)| {
        let (seen, tripped) = (stats.counters(), stats.tripped());
        v1::StreamFilterStatistics {
            stream_filter_instance_id: name.id,
            stream_handle: filter.stream.map(|handle| handle.0),
            priority_spec: filter.priority.map(|priority| u32::from(priority.get())),
            stream_gate_ref: name.stream_gate_ref,
            flow_meter_ref: name.flow_meter_ref,
            matching_frames_count: seen.matching_frames,
            passing_frames_count: seen.passing_frames,
            not_passing_frames_count: seen.not_passing_frames,
            passing_sdu_count: seen.passing_sdu,
            not_passing_sdu_count: seen.not_passing_sdu,
            red_frames_count: seen.red_frames,
            stream_blocked_due_to_oversize_frame: tripped.blocked_due_to_oversize_frame,
            gate_closed_due_to_invalid_rx: tripped.closed_due_to_invalid_rx,
            gate_closed_due_to_octets_exceeded: tripped.closed_due_to_octets_exceeded,
            mark_all_frames_red: tripped.all_frames_red,
        }
    });
    shown.collect()
}

fn attachment(node: &Node, served: &ServedAttachment) -> v1::AttachmentStatistics {
    v1::AttachmentStatistics {
        ingress: ingress(node, served),
        deferral: deferral(node, served),
        receive: receive(node, served),
        ..statistics_of(served.name(), &served.stats)
    }
}

fn deferral(node: &Node, served: &ServedAttachment) -> Option<v1::Deferral> {
    let (span, longest_hand_over_ns) = node.ports.get(served.interface_port)?.deferred()?;
    Some(v1::Deferral { for_ns: span.get().unsigned_abs(), longest_hand_over_ns })
}

/// The grants and counts of an attachment with `receive = "expect"`; of another one where anything was counted.
fn receive(node: &Node, served: &ServedAttachment) -> Option<v1::ReceiveStatistics> {
    let counts = receive_counts(&served.stats);
    let grants = served.attachment.receive == ReceiveMode::Expect;
    if !grants && counts == v1::ReceiveCounts::default() {
        return None;
    }
    let granted = node.directory.receivers().granted().remove(&served.index);
    let (processes, granted_permille) = granted.unwrap_or_default();
    Some(v1::ReceiveStatistics { counts: Some(counts), processes, granted_permille })
}

/// The sums of an attachment.
fn receive_counts(stats: &AttachmentStats) -> v1::ReceiveCounts {
    let [expected, hit, early, missed, spun_ns] =
        std::array::from_fn(|number| stats.receive.get(number).map_or(0, |counter| counter.load(Relaxed)));
    v1::ReceiveCounts { expected, hit, early, missed, spun_ns }
}

/// The counters of the ingress fast path for an attachment; `None` if the attachment does not ask for it.
fn ingress(node: &Node, served: &ServedAttachment) -> Option<v1::IngressStatistics> {
    let program = node.watch.ingress_program(&served.uplink).filter(|_| served.attachment.is_short())?;
    let tallies = program
        .tallies(served.index)
        .inspect_err(|error| warn!(%error, "counters of the ingress fast path"))
        .ok()?;
    let of = |tallied: Tallied| tallies[tallied as usize];
    let is_reason = |tallied: &Tallied| {
        !matches!(tallied, Tallied::Taken | Tallied::Octets | Tallied::Failed) && of(*tallied) > 0
    };
    let left = Tallied::ALL.into_iter().filter(is_reason);
    Some(v1::IngressStatistics {
        taken: of(Tallied::Taken),
        taken_octets: of(Tallied::Octets),
        left: left.map(|tallied| (tallied.word().to_owned(), of(tallied))).collect(),
        failed: of(Tallied::Failed),
        reattached: served.stats.ingress_reattached.load(Relaxed),
        idle: why_idle(node, served, program).to_owned(),
    })
}

/// Why the ingress fast path takes no frame for the attachment now; empty: it takes frames.
fn why_idle(node: &Node, served: &ServedAttachment, program: &Uplink) -> &'static str {
    let rules = node.served.rules_of(served.index);
    let mut hindrances = rules.into_iter().flat_map(|rules| rules.hindrances.iter());
    let is_blocked = node.intent.restriction_of(served.name()).is_ingress_blocked;
    if node.watch.closed.of(served.name()).is_some() {
        "the rules of the node's packet filter are not known yet"
    } else if is_blocked {
        "a network policy may forbid what arrives"
    } else if hindrances.any(|hindrance| hindrance.is_arrival) {
        "a rule of the node's packet filter drops what arrives"
    } else if node.latest.attachment(served.index).is_none_or(|tables| tables.delivery().is_none()) {
        NO_WAY_IN
    } else if !program.is_taking(served.index) {
        "the uplink or the pod's device is not there"
    } else {
        ""
    }
}

/// Those that counted something, by word.
fn words(counters: &[AtomicU64], word: &dyn Fn(usize) -> &'static str) -> BTreeMap<String, u64> {
    let counted = counters.iter().enumerate().map(|(i, counter)| (word(i).to_owned(), get(counter)));
    counted.filter(|(_, n)| *n > 0).collect()
}

fn statistics_of(name: &str, stats: &AttachmentStats) -> v1::AttachmentStatistics {
    v1::AttachmentStatistics {
        name: name.to_owned(),
        taken: get(&stats.taken),
        sent: get(&stats.sent),
        copies: get(&stats.copies),
        copies_lost: get(&stats.copies_lost),
        sent_octets: get(&stats.sent_octets),
        deferred: get(&stats.deferred),
        deferred_failed: get(&stats.deferred_failed),
        deferral: None,
        late: get(&stats.late),
        overrun: get(&stats.overrun),
        waited: get(&stats.waited),
        ring_full: get(&stats.ring_full),
        dropped: words(&stats.dropped, &|i| DropReason::ALL[i].word()),
        kernel_sent: get(&stats.kernel_sent),
        passed: get(&stats.passed),
        kernel_dropped: words(&stats.kernel_dropped, &|i| DropReason::ALL[i].word()),
        bypassed: words(&stats.bypassed, &|i| BypassReason::ALL[i].word()),
        capture_lag: Some(histogram_message(&stats.capture_lag)),
        capture_reattached: get(&stats.capture_reattached),
        ingress: None,
        receive: None,
        doorbells: get(&stats.doorbells),
        clients_refused: words(&stats.clients_refused, &|i| RefusedBy::ALL[i].word()),
        transmit_error: Some(histogram_message(&stats.transmit_error)),
    }
}
