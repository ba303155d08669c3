// SPDX-License-Identifier: Apache-2.0
//! The shape of the TOML document. Unknown fields are errors. Values are checked in `checked`.

pub(super) mod policing;

use serde::{Deserialize, Serialize};

use super::addresses::RawAddresses;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawConfig {
    #[serde(default)]
    pub daemon: RawDaemon,
    #[serde(default)]
    pub port: Vec<RawPort>,
    #[serde(default)]
    pub attachment: Vec<RawAttachment>,
    #[serde(default)]
    pub schedule: Vec<toml::Table>,
    pub policing: Option<policing::RawPolicing>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawDaemon {
    pub run_dir: Option<String>,
    pub cache_dir: Option<String>,
    pub mlock: Option<bool>,
    pub clock_source: Option<String>,
    pub clock_error_max: Option<String>,
    pub memory_max: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPort {
    pub device: Option<String>,
    pub netns: Option<String>,
    pub adapter: Option<String>,
    pub devargs: Option<String>,
    pub mode: Option<String>,
    pub link_speed: Option<u64>,
    pub priority_map: Option<Vec<u8>>,
    pub schedule: Option<String>,
    pub strategy: Option<String>,
    #[serde(default)]
    pub class: Vec<RawClass>,
    pub spin_margin: Option<String>,
    pub spin_duty_max: Option<f64>,
    pub cpu: Option<u32>,
    pub priority: Option<u32>,
    pub unsynchronised: Option<String>,
}

/// `[[port.class]]`; the leaves of 802.1Q's YANG modules keep their names.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawClass {
    pub traffic_class: Option<u64>,
    pub order: Option<String>,
    pub queue_max_sdu: Option<u64>,
    pub idle_slope: Option<u64>,
}

/// An attachment as it is written; also the form it has in the state file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)] // the fields are documented once, in docs/interfaces.md
pub struct RawAttachment {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uplink: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlay: Option<RawOverlay>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub addresses: Option<RawAddresses>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destinations: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ethernet: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classes: Option<Vec<u8>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub late: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overrun_limit: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub horizon: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_tai: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_policy_bypass: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub take: Option<RawTake>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcp: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capture: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capture_priority: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clients_max: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub octets_max: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_max: Option<u64>,
}

/// `"txtime"`, `"all"` or `{ priority_min = N }`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged)]
#[allow(missing_docs)]
pub enum RawTake {
    Word(String),
    From { priority_min: u64 },
}

/// `"none"` or `{ vxlan = { … } }`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum RawOverlay {
    None,
    Vxlan(Box<RawVxlan>),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct RawVxlan {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vni: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learn_from: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<RawVxlanPeer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flood: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flood_interface: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<RawOuter>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tos: Option<RawOuter>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub df: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub udp_checksum: Option<bool>,
}

/// A number or `"inherit"`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged)]
#[allow(missing_docs)]
pub enum RawOuter {
    Number(u64),
    Word(String),
}

impl std::fmt::Display for RawOuter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Word(word) => word.fmt(f),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct RawVxlanPeer {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vtep: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
}
