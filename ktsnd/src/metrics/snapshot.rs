// SPDX-License-Identifier: Apache-2.0
//! What the node says of itself for one scrape.
//!
//! The control thread makes it, so it holds the counters themselves, shared with their workers, and no copy of them.

use std::sync::Arc;

use ktsn_proto::v1;

use crate::stats::{AttachmentStats, PortStats, WorkerStats};

/// The node at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// State of the daemon, its clock and its threads.
    pub health: v1::HealthReply,
    /// All attachments.
    pub attachments: Vec<AttachmentSnapshot>,
    /// Uplinks. Pods' own interfaces would come and go with them.
    pub ports: Vec<PortSnapshot>,
    /// Workers by their uplink.
    pub workers: Vec<(String, Arc<WorkerStats>)>,
}

/// One attachment.
#[derive(Clone, Debug, Default)]
pub struct AttachmentSnapshot {
    /// Its name.
    pub name: String,
    /// Its clients now.
    pub clients: usize,
    /// Its counters.
    pub stats: Arc<AttachmentStats>,
    /// Its ingress fast path.
    pub ingress: Option<v1::IngressStatistics>,
    /// Its expected arrivals.
    pub receive: Option<v1::ReceiveStatistics>,
    /// Its frames leave by a thread that is not real-time.
    pub deferral: Option<v1::Deferral>,
}

/// One uplink.
#[derive(Clone, Debug, Default)]
pub struct PortSnapshot {
    /// The device.
    pub device: String,
    /// Whether its link is up.
    pub up: bool,
    /// bit/s; 0 = unknown.
    pub link_speed: u64,
    /// Its counters.
    pub stats: Arc<PortStats>,
}
