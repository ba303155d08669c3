// SPDX-License-Identifier: Apache-2.0
//! The shape of the TOML document. Unknown fields are errors. Values are checked in `checked`.

pub(super) mod policing;

use serde::{Deserialize, Serialize};

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
    pub mlock: Option<bool>,
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
    pub name: Option<String>,
    pub netns: Option<String>,
    pub interface: Option<String>,
    pub uplink: Option<String>,
    pub overlay: Option<RawOverlay>,
    pub destinations: Option<Vec<String>>,
    pub classes: Option<Vec<u8>>,
    pub late: Option<String>,
    pub overrun_limit: Option<String>,
    pub horizon: Option<String>,
    pub allow_tai: Option<bool>,
    pub allow_policy_bypass: Option<bool>,
    pub take: Option<RawTake>,
    pub vlan: Option<u32>,
    pub pcp: Option<u32>,
    pub ingress: Option<String>,
    pub capture: Option<String>,
    pub capture_priority: Option<u32>,
    pub slots: Option<u32>,
    pub clients_max: Option<u32>,
    pub octets_max: Option<u64>,
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
    pub mode: Option<String>,
    pub vni: Option<u32>,
    pub port: Option<u16>,
    pub local: Option<String>,
    pub device: Option<String>,
    pub learn_from: Option<String>,
    #[serde(default)]
    pub peers: Vec<RawVxlanPeer>,
    pub flood: Option<Vec<String>>,
    pub flood_interface: Option<bool>,
    pub ttl: Option<RawOuter>,
    pub tos: Option<RawOuter>,
    pub df: Option<String>,
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
    pub prefix: Option<String>,
    pub vtep: Option<String>,
    pub mac: Option<String>,
}
