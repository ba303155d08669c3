// SPDX-License-Identifier: Apache-2.0
//! The shape of the TOML document. Unknown fields are errors. Values are checked in `checked`.

pub(super) mod policing;

use ktsn_proto::attachment::AttachmentConfig;
use serde::Deserialize;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawConfig {
    #[serde(default)]
    pub daemon: RawDaemon,
    #[serde(default)]
    pub port: Vec<RawPort>,
    #[serde(default)]
    pub attachment: Vec<AttachmentConfig>,
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
    pub receive_spin_max: Option<f64>,
    pub metrics_listen: Option<String>,
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
