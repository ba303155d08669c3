// SPDX-License-Identifier: Apache-2.0
//! Policing in front of one port (802.1Q-2022 8.6.5), and which stream a flow belongs to.
//!
//! In: a frame's stream, priority and lengths. Out: whether it goes on, with which priority; counters that others read.
//! Never: allocates in the worker, or counts what it does not decide.

use std::sync::Arc;

use ktsn_model::{DropReason, Priority};
use ktsn_resolve::{Flow, Resolved};
use ktsn_sched::policing::{
    FlowKey, FrameKey, Judged, Police, PolicingConfig, PolicingFault, StreamHandle, StreamIdentification,
};
use ktsn_time::Now;
use ktsn_wire::ipv4::PROTOCOL_UDP;

use crate::stats::StreamFilterStats;

/// The stream filters, gates and meters of one port. Made where allocating is allowed.
#[derive(Debug)]
pub struct Policing {
    police: Police,
    /// One for each filter.
    stats: Arc<[StreamFilterStats]>,
}

impl Policing {
    /// Gates are in force from their base time on, meters start with full buckets.
    ///
    /// # Errors
    /// The first [`PolicingFault`].
    pub fn new(config: &PolicingConfig) -> Result<Self, PolicingFault> {
        let stats = config.stream_filters.iter().map(|_| StreamFilterStats::default()).collect();
        Ok(Self { police: Police::new(config)?, stats })
    }

    /// Where each stream filter counts, in the filters' order.
    #[must_use]
    pub fn stats(&self) -> Arc<[StreamFilterStats]> {
        self.stats.clone()
    }

    /// The priority that a frame goes on with, or why it is dropped.
    pub(super) fn judge(
        &mut self,
        stream: Option<StreamHandle>,
        priority: Priority,
        sdu_octets: u32,
        wire_octets: u32,
        now: Now,
    ) -> Result<Priority, DropReason> {
        let Some(filter) = self.police.filter_of(stream, priority) else { return Ok(priority) };
        let judged = self.police.judge_by(filter, priority, sdu_octets, wire_octets, now);
        let seen = (self.stats.get(filter), self.police.counters(filter), self.police.tripped(filter));
        if let (Some(stats), Some(counters), Some(tripped)) = seen {
            stats.store(counters, tripped);
        }
        match judged {
            Judged::Pass { priority } => Ok(priority),
            Judged::Drop(reason) => Err(reason),
        }
    }
}

/// The stream that the datagrams of `flow` belong to, with the headers of `resolved`. Visits the whole table, so the answer is
/// kept for each destination.
pub(super) fn stream_of(
    streams: &StreamIdentification,
    flow: &Flow,
    resolved: &Resolved,
) -> Option<StreamHandle> {
    let (destination, vlan) = resolved.template.destination();
    streams.identify(&FrameKey {
        attachment: u32::from(flow.attachment.0),
        destination: destination.0,
        vlan,
        flow: Some(FlowKey {
            source: resolved.template.source(),
            destination: flow.destination,
            protocol: PROTOCOL_UDP,
            source_port: Some(flow.source_port),
            destination_port: Some(flow.destination_port),
        }),
    })
}
