// SPDX-License-Identifier: Apache-2.0
//! What the control API shows of the node.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ktsn_model::{BypassReason, DropReason};
use ktsn_proto::v1;
use ktsn_resolve::AttachmentIndex;
use ktsn_time::Offset;

use super::attach::{frames_of, frames_sent};
use super::schedule::name_of;
use super::switch::Backend;
use super::{Node, NodeError, OpenPort, ServedAttachment};
use crate::config::Mode;
use crate::messages::{histogram_message, listed};
use crate::stats::{AttachmentStats, PortRefusal};
use crate::supervise;
use crate::tenant::{ClientView, Receiving, RefusedBy};
use crate::worker::{monotonic_now, tai_now};

impl Node {
    pub(super) fn list(&self) -> v1::ListReply {
        let ports = self.ports.values().map(|p| {
            let is_uplink = p.netns.is_empty();
            let config = self.port_config(&p.device);
            let (mode, strategy) =
                if is_uplink { (config.mode.word(), config.selection.word()) } else { ("", "") };
            let schedule = self.schedule_of(&p.device).filter(|_| is_uplink);
            v1::Port {
                device: p.device.clone(),
                netns: p.netns.clone(),
                adapter: p.adapter.to_owned(),
                adapter_reason: p.backend.as_ref().map_or_else(|| p.reason.clone(), Backend::reason),
                link_speed: p.link_speed,
                up: p.backend.as_ref().map_or(p.up, Backend::is_up),
                mode: mode.to_owned(),
                strategy: strategy.to_owned(),
                schedule: schedule.map(|s| name_of(s).to_owned()).unwrap_or_default(),
                foreign_frames: foreign_frames(p),
                unsynchronised: if is_uplink { config.unsynchronised.word() } else { "" }.to_owned(),
            }
        });
        let (clients, receiving) = (self.directory.clients(), self.directory.receivers().list());
        let attachments = self.attached.iter().enumerate().filter_map(|(i, a)| {
            let attached = a.as_ref()?;
            let index = AttachmentIndex(i as u16);
            let clients = clients.iter().filter(|c| c.attachment == index);
            let clients = clients.map(|client| client_message(client, receiving.get(&client.key)));
            Some(v1::AttachmentState {
                name: attached.attachment.name.clone(),
                attachment: listed(&attached.attachment, attached.overlay.as_ref().map(|news| &*news.state))
                    .json(),
                clients: clients.collect(),
                overlay: super::peers::overlay_message(attached),
                rules: super::rules::messages(attached),
                policy: self.policy_message(&attached.attachment.name),
                rules_count: attached.rules.as_ref().map_or(0, |news| news.rules_count),
                withheld: self
                    .latest
                    .attachment(index)
                    .map(|tables| tables.withheld().iter().map(ToString::to_string).collect())
                    .unwrap_or_default(),
            })
        });
        v1::ListReply { ports: ports.collect(), attachments: attachments.collect() }
    }

    pub(super) fn statistics(&self, name: &str) -> Result<v1::StatisticsReply, NodeError> {
        self.directory.receivers().look();
        if !name.is_empty() && self.find(name).is_none() {
            return Err(NodeError::Unknown(name.to_owned()));
        }
        let wanted = |a: &&ServedAttachment| name.is_empty() || a.attachment.name == name;
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        Ok(v1::StatisticsReply {
            at_monotonic_ns: monotonic_now().as_nanos(),
            attachments: self
                .attached
                .iter()
                .flatten()
                .filter(wanted)
                .map(|a| self.attachment_statistics(a))
                .collect(),
            workers: self
                .workers
                .iter()
                .map(|(uplink, w)| v1::WorkerStatistics {
                    uplink: uplink.clone(),
                    wake_ups: get(&w.stats.wake_ups),
                    spin_ns: get(&w.stats.spin_ns),
                    spin_budget_spent: get(&w.stats.spin_budget_spent),
                    spin_margin_ns: get(&w.stats.spin_margin_ns),
                    clock_steps: get(&w.stats.clock_steps),
                    doorbells_muted: get(&w.stats.doorbells_muted),
                    regions_retired: get(&w.stats.regions_retired),
                    bugs: get(&w.stats.bugs),
                    reports: get(&w.stats.reports),
                    reports_dropped: get(&w.stats.reports_dropped),
                    notices_lost: get(&w.stats.notices_lost),
                    cpu_budget_spent: get(&w.stats.cpu_budget_spent),
                    expected_frames: get(&w.stats.expected_frames),
                    empty_wake_ups: get(&w.stats.empty_wake_ups),
                })
                .collect(),
            ports: self.ports.values().map(|port| self.port_statistics(port)).collect(),
            detached: name.is_empty().then(|| {
                let sums = self.detached.sums();
                self.kept_counters.add_to(&sums);
                let counts = Some(super::receive::counts_of(&sums));
                let receive = Some(v1::ReceiveStatistics { counts, ..v1::ReceiveStatistics::default() });
                v1::AttachmentStatistics { receive, ..statistics_of("", &sums) }
            }),
        })
    }

    fn port_statistics(&self, port: &OpenPort) -> v1::PortStatistics {
        let all = |counters: &[AtomicU64]| counters.iter().map(|c| c.load(Relaxed)).collect();
        v1::PortStatistics {
            device: port.device.clone(),
            netns: port.netns.clone(),
            frames: all(&port.stats.frames),
            transmission_overrun: all(&port.stats.transmission_overrun),
            put_back: port.stats.put_back.load(Relaxed),
            refused: words(&port.stats.refused, &|i| PortRefusal::ALL[i].word()),
            retried: port.stats.retried.load(Relaxed),
            hand_over_ns: port.stats.hand_over_ns.load(Relaxed),
            stream_filters: self.stream_filters(&port.policing),
        }
    }

    pub(super) fn health(&self) -> v1::HealthReply {
        let (clock_synchronised, tai_offset_seconds) = crate::sys::clock_state();
        let mut warnings = self.warnings.clone();
        if !clock_synchronised && self.needs_clock() {
            warnings.push(
                "the clock is not synchronised: frames leave on time by this node's clock only \
                 (run ptp4l + phc2sys or an NTP daemon)"
                    .to_owned(),
            );
        }
        for port in self.ports.values().filter(|p| p.netns.is_empty()) {
            let foreign = foreign_frames(port);
            if foreign > 0 && self.port_config(&port.device).mode == Mode::Dedicated {
                let device = &port.device;
                warnings.push(format!(
                    "port {device} is dedicated, but {foreign} frames of others left by it: they may stand in \
                     front of scheduled ones (tcpdump -i {device} shows which program sends them)"
                ));
            }
        }
        let threads: Vec<v1::ThreadState> = supervise::threads().into_iter().map(thread_message).collect();
        for stuck in threads.iter().filter(|thread| thread.is_stuck) {
            let (name, silent) = (&stuck.name, stuck.silent_ns / 1_000_000);
            let of = if stuck.device.is_empty() { String::new() } else { format!(" of {}", stuck.device) };
            warnings.push(format!("thread {name}{of} is stuck: it has not answered for {silent} ms"));
        }
        v1::HealthReply {
            serving: !self.stopping && !threads.iter().any(|thread| thread.is_stuck),
            clock_synchronised,
            tai_minus_monotonic_ns: Offset::between(tai_now(), monotonic_now()).span().get(),
            tai_offset_seconds,
            warnings,
            threads,
            clock: Some(self.clock_message()),
        }
    }
}

fn client_message(client: &ClientView, receiving: Option<&Receiving>) -> v1::Client {
    let streams = client.streams.values().map(|s| v1::Stream {
        cookie: s.cookie,
        local: s.local.to_string(),
        peer: s.peer.map(|p| p.to_string()).unwrap_or_default(),
    });
    let listeners = receiving.into_iter().flat_map(|receiving| &receiving.listeners);
    v1::Client {
        pid: client.pid,
        streams: streams.collect(),
        listeners: listeners.map(super::receive::listener_message).collect(),
        receive_granted_permille: receiving.map_or(0, |receiving| receiving.granted),
    }
}

fn thread_message(thread: supervise::ThreadView) -> v1::ThreadState {
    v1::ThreadState {
        name: thread.name.to_owned(),
        device: thread.device,
        silent_ns: thread.silent.get().unsigned_abs(),
        is_stuck: thread.is_stuck,
    }
}

/// Frames that left by the device and are not ours. A device that was made again counts from zero.
fn foreign_frames(port: &OpenPort) -> u64 {
    if !port.netns.is_empty() {
        return 0;
    }
    // The device first: a frame of ours that leaves between the two readings must not look like another's.
    let sent_by_device = frames_sent(&port.device);
    sent_by_device.saturating_sub(port.sent_before).saturating_sub(frames_of(&port.stats))
}

impl Node {
    fn attachment_statistics(&self, attached: &ServedAttachment) -> v1::AttachmentStatistics {
        v1::AttachmentStatistics {
            ingress: self.ingress_statistics(attached),
            deferral: self.deferral(attached),
            receive: self.receive_statistics(attached),
            ..statistics_of(&attached.attachment.name, &attached.stats)
        }
    }
}

impl Node {
    /// Whether anything goes by the time of day: sockets with CLOCK_TAI, captured frames (their clock is not known), gates.
    fn needs_clock(&self) -> bool {
        let is_on_tai =
            |of: &ServedAttachment| of.capture.is_some() || of.stats.tai_streams.load(Relaxed) > 0;
        let has_gates = self.config.policing.is_some()
            || !self.applied.is_empty()
            || self.config.ports.iter().any(|port| port.schedule.is_some());
        has_gates || self.attached.iter().flatten().any(is_on_tai)
    }

    pub(super) fn deferral(&self, attached: &ServedAttachment) -> Option<v1::Deferral> {
        let port = self.ports.get(&attached.interface_port.0)?;
        let (span, longest_hand_over_ns) = port.deferral.deferred(monotonic_now())?;
        Some(v1::Deferral { for_ns: span.get().unsigned_abs(), longest_hand_over_ns })
    }
}

/// Those that counted something, by word.
fn words(counters: &[AtomicU64], word: &dyn Fn(usize) -> &'static str) -> BTreeMap<String, u64> {
    let counted = counters.iter().enumerate().map(|(i, counter)| (word(i).to_owned(), counter.load(Relaxed)));
    counted.filter(|(_, n)| *n > 0).collect()
}

fn statistics_of(name: &str, stats: &AttachmentStats) -> v1::AttachmentStatistics {
    let get = |counter: &AtomicU64| counter.load(Relaxed);
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
