// SPDX-License-Identifier: Apache-2.0
//! The node's grants of expected arrival: who may spin, and what is shown of it.
//!
//! In: the attachments' `receive`, the cap of `[daemon]`, the clients that asked. Out: leases, given when a client asks and renewed
//! once a second, and messages of the control API.

use std::sync::atomic::Ordering::Relaxed;

use ktsn_proto::v1;
use ktsn_resolve::AttachmentIndex;
use ktsn_ring::receive::{ListenerName, ListenerReading, ReceiveCount};

use super::{Node, ServedAttachment};
use crate::config::ReceiveMode;
use crate::stats::AttachmentStats;
use crate::worker::monotonic_now;

impl Node {
    /// Renews the grants, and reads what their processes count.
    pub(super) fn renew_grants(&self) {
        let does_grant = |index: AttachmentIndex| {
            let attached = self.attached.get(usize::from(index.0)).and_then(Option::as_ref);
            attached.is_some_and(|attached| attached.attachment.receive == ReceiveMode::Expect)
        };
        let cap = self.config.daemon.receive_spin_max_permille;
        self.directory.receivers().renew(monotonic_now(), cap, does_grant);
    }

    /// The grants and counts of an attachment with `receive = "expect"`; of another one where anything was counted.
    pub(super) fn receive_statistics(&self, attached: &ServedAttachment) -> Option<v1::ReceiveStatistics> {
        let counts = counts_of(&attached.stats);
        let grants = attached.attachment.receive == ReceiveMode::Expect;
        if !grants && counts == v1::ReceiveCounts::default() {
            return None;
        }
        let index = self.find(&attached.attachment.name);
        let granted = index.and_then(|index| self.directory.receivers().granted().remove(&index));
        let (processes, granted_permille) = granted.unwrap_or_default();
        Some(v1::ReceiveStatistics { counts: Some(counts), processes, granted_permille })
    }
}

/// The sums of an attachment.
pub(super) fn counts_of(stats: &AttachmentStats) -> v1::ReceiveCounts {
    let [expected, hit, early, missed, spun_ns] =
        std::array::from_fn(|number| stats.receive.get(number).map_or(0, |counter| counter.load(Relaxed)));
    v1::ReceiveCounts { expected, hit, early, missed, spun_ns }
}

/// A listener as it is listed.
pub(super) fn listener_message(listener: &ListenerReading) -> v1::Listener {
    let get = |which| listener.counts.get(which);
    let socket = match listener.name {
        ListenerName::Udp4(port) => format!("udp4:{port}"),
        ListenerName::Udp6(port) => format!("udp6:{port}"),
        ListenerName::Packet(interface) => format!("packet:{interface}"),
    };
    let counts = v1::ReceiveCounts {
        expected: get(ReceiveCount::Expected),
        hit: get(ReceiveCount::Hit),
        early: get(ReceiveCount::Early),
        missed: get(ReceiveCount::Missed),
        spun_ns: get(ReceiveCount::Spun),
    };
    v1::Listener { socket, cookie: listener.cookie, counts: Some(counts) }
}
