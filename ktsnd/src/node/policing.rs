// SPDX-License-Identifier: Apache-2.0
//! Policing of the configuration: made for each uplink that it holds for, and shown.

use std::sync::Arc;

use ktsn_proto::v1;
use ktsn_sched::policing::StreamIdentification;

use super::{Node, NodeError};
use crate::stats::StreamFilterStats;
use crate::worker::Policing;

impl Node {
    /// What stands in front of an uplink's queue. Each uplink has buckets, gates and counters of its own.
    pub(super) fn policing(&self, device: &str) -> Result<Option<Box<Policing>>, NodeError> {
        let Some(asked) = self.config.policing.as_ref().filter(|policing| policing.is_on(device)) else {
            return Ok(None);
        };
        let policing =
            Policing::new(&asked.config).map_err(|fault| NodeError::Invalid(format!("policing: {fault}")))?;
        Ok(Some(Box::new(policing)))
    }

    /// The stream identities by which an attachment's frames are distinguished.
    pub(super) fn streams_of(&self, attachment: &str) -> StreamIdentification {
        let asked = self.config.policing.as_ref();
        // The configuration was checked: there is no fault to tell.
        asked.and_then(|policing| policing.identification(attachment).ok()).unwrap_or_default()
    }

    /// The stream filters in front of a port.
    pub(super) fn stream_filters(&self, stats: &Arc<[StreamFilterStats]>) -> Vec<v1::StreamFilterStatistics> {
        let Some(asked) = &self.config.policing else { return Vec::new() };
        let filters = asked.filters.iter().zip(&asked.config.stream_filters).zip(stats.iter());
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
}
