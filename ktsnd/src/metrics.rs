// SPDX-License-Identifier: Apache-2.0
//! `metrics_listen`: ktsnd's counters for Prometheus, over HTTP.
//!
//! In: scrapes, and a [`Snapshot`] that the node makes of itself at most once a second. Out: OpenMetrics text with the names of
//! `k8s/internal/metrics/names.txt`. The node only names its objects and shares their counters; all of the reading and writing
//! is done by a thread of its own, which no worker and no control request ever waits for.

mod server;
mod snapshot;
mod table;
mod text;

pub use server::Server;
pub use snapshot::{AttachmentSnapshot, PortSnapshot, Snapshot};
pub use table::{By, Kind, Metric, PREFIX, Table, table};
pub use text::{render, served};
