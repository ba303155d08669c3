// SPDX-License-Identifier: Apache-2.0
//! Where the experiment takes place, as the set-up of the cluster writes it down (JSON). In: a file. Out: a [`Site`].

use crate::error::LabError;
use serde::Deserialize;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// A cluster with its pods.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Site {
    /// Words before a command that run it on the receiving node.
    pub tap_enter: Vec<String>,
    /// The receiving node's uplink.
    pub tap_device: String,
    /// Run directory of the sending node's ktsnd, seen from here.
    pub daemon_run_dir: PathBuf,
    /// The process number of that ktsnd, seen from here.
    pub daemon_pid: u32,
    /// The paths, in the order of each round.
    pub ways: Vec<Way>,
}

/// A path: from a pod to a pod.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Way {
    /// The name of the path.
    pub path: WayName,
    /// The listener's address.
    pub to: IpAddr,
    /// UDP port of the overlay on the wire; 0: none.
    pub vxlan_port: u16,
    /// The sending pod.
    pub talker: End,
    /// The receiving pod.
    pub listener: End,
}

/// A pod: how a command gets into it, and where its files are.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct End {
    /// Words before a command that run it there.
    pub enter: Vec<String>,
    /// The program `ktsn` there.
    pub ktsn: PathBuf,
    /// A directory to write to, as the pod names it.
    pub inside: PathBuf,
    /// The pod's directory, seen from here.
    pub outside: PathBuf,
}

ktsn_model::words! {
    /// A path of this experiment.
    #[derive(Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum WayName {
        /// Flannel's path; the talker sleeps.
        Flannel = "flannel",
        /// Flannel's path; the talker spins.
        FlannelSpin = "flannel-spin",
        /// The interface that tsn-cni made; SO_TXTIME, ktsnd.
        TsnCni = "tsn-cni",
        /// Pods on their nodes' own network; the talker sleeps.
        HostNetwork = "host-network",
    }
}

impl WayName {
    /// Whether ktsnd sends its frames.
    #[must_use]
    pub const fn is_served(self) -> bool {
        matches!(self, Self::TsnCni)
    }

    /// The talker's mode.
    pub(super) const fn mode(self) -> &'static str {
        match self {
            Self::Flannel | Self::HostNetwork => "sleep",
            Self::FlannelSpin => "spin",
            Self::TsnCni => "txtime",
        }
    }

    /// The talker's SCHED_FIFO priority: under KTSN below the worker's on the same CPU, as in `ktsn bench container`.
    pub(super) const fn fifo(self) -> u8 {
        if self.is_served() { 40 } else { 50 }
    }
}

impl Site {
    /// # Errors
    /// The file cannot be read, or holds something else.
    pub fn load(path: &Path) -> Result<Self, LabError> {
        let text = std::fs::read_to_string(path).map_err(LabError::file(path))?;
        serde_json::from_str(&text)
            .map_err(|error| LabError::Contents { path: path.to_owned(), problem: error.to_string() })
    }
}
