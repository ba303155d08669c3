// SPDX-License-Identifier: Apache-2.0
//! What the results of an experiment on two hosts say about them. In: a document. Out: the member `hosts` of its parameters, and a sentence.

use crate::results::Document;
use ktsn_time::Nanos;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The member of a document's parameters.
pub const PARAMETER: &str = "hosts";

/// The two hosts, and how far their clocks may differ.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TwoHosts {
    /// The other host, as it was named.
    pub remote: String,
    /// The largest difference of both clocks, at the beginning or at the end.
    pub clock_bound_ns: i64,
    /// What was asked for.
    pub clock_within_ns: i64,
    /// What held the clock of the first host.
    pub clock_here: Value,
    /// What held the other one.
    pub clock_there: Value,
    /// The device of the first host that leads to the other one.
    pub uplink: String,
    /// The device of the other host.
    pub remote_uplink: String,
    /// The other host, as `environment` is of the first one.
    pub environment_there: Value,
}

impl TwoHosts {
    /// Those of a document; `None`: it is of one machine.
    #[must_use]
    pub fn of(document: &Document) -> Option<Self> {
        serde_json::from_value(document.parameters.get(PARAMETER)?.clone()).ok()
    }

    /// How far a latency can be trusted.
    #[must_use]
    pub fn sentence(&self) -> String {
        format!(
            "two hosts, this one and {}, clocks within {} (asked for: {}): a latency from one to the other is wrong by as much at most, a \
             round trip is by one clock",
            self.remote,
            Nanos::new(self.clock_bound_ns),
            Nanos::new(self.clock_within_ns)
        )
    }
}
