// SPDX-License-Identifier: Apache-2.0
//! The shape of `[policing]`: lists and leaves of ieee802-dot1cb-stream-identification, ieee802-dot1q-stream-filters-gates and
//! ieee802-dot1q-psfp. Unknown fields are errors. Values are checked in `policing`.

use serde::Deserialize;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(in crate::config) struct RawPolicing {
    pub ports: Option<Vec<String>>,
    #[serde(default)]
    pub stream_identity: Vec<RawIdentity>,
    #[serde(default, rename = "stream-filter-instance-table")]
    pub filters: Vec<RawFilter>,
    #[serde(default, rename = "stream-gate-instance-table")]
    pub gates: Vec<RawGate>,
    #[serde(default, rename = "flow-meter-instance-table")]
    pub meters: Vec<RawMeter>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(in crate::config) struct RawIdentity {
    pub handle: Option<u64>,
    pub attachment: Option<String>,
    pub null_stream_identification: Option<RawNull>,
    pub ip_stream_identification: Option<RawIp>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(in crate::config) struct RawNull {
    pub destination_mac: Option<String>,
    pub vlan: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(in crate::config) struct RawIp {
    pub ip_source: Option<String>,
    pub ip_destination: Option<String>,
    pub next_protocol: Option<RawProtocol>,
    pub source_port: Option<u64>,
    pub destination_port: Option<u64>,
}

/// `"udp"`, `"tcp"` or a number.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(in crate::config) enum RawProtocol {
    Number(u64),
    Word(String),
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(in crate::config) struct RawFilter {
    #[serde(rename = "stream-filter-instance-id")]
    pub id: Option<u64>,
    pub stream_handle: Option<u64>,
    pub priority_spec: Option<u64>,
    pub max_sdu_size: Option<u64>,
    #[serde(rename = "stream-blocked-due-to-oversize-frame-enabled")]
    pub blocked: Option<bool>,
    pub stream_gate_ref: Option<u64>,
    pub flow_meter_ref: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(in crate::config) struct RawGate {
    #[serde(rename = "stream-gate-instance-id")]
    pub id: Option<u64>,
    pub gate_enabled: Option<toml::Value>,
    pub admin_gate_states: Option<String>,
    pub admin_ipv: Option<u64>,
    pub admin_base_time: Option<toml::Value>,
    pub admin_cycle_time: Option<toml::Value>,
    pub admin_cycle_time_extension: Option<toml::Value>,
    pub admin_control_list: Option<Vec<RawGateEntry>>,
    #[serde(rename = "gate-closed-due-to-invalid-rx-enabled")]
    pub closed_due_to_invalid_rx: Option<bool>,
    #[serde(rename = "gate-closed-due-to-octets-exceeded-enabled")]
    pub closed_due_to_octets_exceeded: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(in crate::config) struct RawGateEntry {
    pub gate_state_value: Option<String>,
    pub ipv_spec: Option<u64>,
    pub time_interval_value: Option<toml::Value>,
    pub interval_octet_max: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(in crate::config) struct RawMeter {
    #[serde(rename = "flow-meter-instance-id")]
    pub id: Option<u64>,
    pub committed_information_rate: Option<u64>,
    pub committed_burst_size: Option<u64>,
    pub excess_information_rate: Option<u64>,
    pub excess_burst_size: Option<u64>,
    pub coupling_flag: Option<bool>,
    pub drop_on_yellow: Option<bool>,
    pub mark_all_frames_red_enabled: Option<bool>,
}
