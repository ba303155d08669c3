// SPDX-License-Identifier: Apache-2.0
//! Policing in `ktsn status`: one row for each stream filter, and what stands in its way.

use ktsn_proto::v1;

use crate::output::{or_dash, titled};

/// The stream filters of all ports; empty when nothing is policed.
pub(super) fn text(ports: &[v1::PortStatistics]) -> String {
    let filters = ports.iter().flat_map(|port| port.stream_filters.iter().map(move |filter| (port, filter)));
    titled(
        "Policing",
        filters,
        &[
            ("port", |(port, _)| port.device.clone()),
            ("filter", |(_, filter)| filter.stream_filter_instance_id.to_string()),
            ("stream", |(_, filter)| number(filter.stream_handle, "any")),
            ("priority", |(_, filter)| number(filter.priority_spec, "any")),
            ("gate", |(_, filter)| number(filter.stream_gate_ref, "-")),
            ("meter", |(_, filter)| number(filter.flow_meter_ref, "-")),
            ("matching", |(_, filter)| filter.matching_frames_count.to_string()),
            ("too long", |(_, filter)| filter.not_passing_sdu_count.to_string()),
            ("gate closed", |(_, filter)| filter.not_passing_frames_count.to_string()),
            ("red", |(_, filter)| filter.red_frames_count.to_string()),
            ("stopped by", |(_, filter)| or_dash(&tripped(filter).join(" "))),
        ],
    )
}

fn number(value: Option<u32>, absent: &str) -> String {
    value.map_or_else(|| absent.to_owned(), |value| value.to_string())
}

/// The leaves that are true.
fn tripped(filter: &v1::StreamFilterStatistics) -> Vec<&'static str> {
    let leaves = [
        ("stream-blocked-due-to-oversize-frame", filter.stream_blocked_due_to_oversize_frame),
        ("gate-closed-due-to-invalid-rx", filter.gate_closed_due_to_invalid_rx),
        ("gate-closed-due-to-octets-exceeded", filter.gate_closed_due_to_octets_exceeded),
        ("mark-all-frames-red", filter.mark_all_frames_red),
    ];
    leaves.into_iter().filter(|(_, is_set)| *is_set).map(|(leaf, _)| leaf).collect()
}
