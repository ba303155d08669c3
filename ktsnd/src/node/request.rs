// SPDX-License-Identifier: Apache-2.0
//! What the control API asks of the node, and why a request fails.

use ktsn_proto::v1;
use tokio::sync::oneshot;

use crate::config::{Attachment, PeersTarget, Schedule, VxlanPeer};
use crate::metrics::Snapshot;
use crate::tables::Restriction;

/// Answers with the state of gates.
pub(crate) type States = Result<Vec<v1::ScheduleState>, NodeError>;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Another attachment has this name.
    #[error("attachment.name: {0:?} is attached with other contents; detach it first")]
    Exists(String),
    /// No such port.
    #[error("port: {device:?}: no such port; ktsnd has: {known}")]
    UnknownPort {
        /// What was asked for.
        device: String,
        /// What there is.
        known: String,
    },
    /// A value that cannot be.
    #[error("{0}")]
    Invalid(String),
    /// No such attachment.
    #[error("name: {0:?}: no such attachment")]
    Unknown(String),
    /// A bound is reached.
    #[error("{0}")]
    Full(String),
    /// Something outside is not as it must be.
    #[error("{0}")]
    Precondition(String),
    /// Our own fault.
    #[error("{0}")]
    Internal(String),
}

/// A request of the control API to the node.
#[derive(Debug)]
pub enum NodeRequest {
    /// Attach, or (true) only check; answers whether it was attached already.
    Attach(Box<Attachment>, bool, oneshot::Sender<Result<bool, NodeError>>),
    /// Detach by name.
    Detach(String, oneshot::Sender<Result<(), NodeError>>),
    /// Set overlay peers.
    SetPeers(PeersTarget, Vec<VxlanPeer>, oneshot::Sender<Result<(), NodeError>>),
    /// The overlay peers of an attachment.
    GetPeers(String, oneshot::Sender<Result<Vec<v1::PeerState>, NodeError>>),
    /// What network policies leave of attachments' uplink egress and ingress fast path, by name; answers the names of no attachment.
    SetPolicies(Vec<(String, Restriction)>, oneshot::Sender<Result<Vec<String>, NodeError>>),
    /// Everything there is.
    List(oneshot::Sender<v1::ListReply>),
    /// Counters, of one attachment or (empty) of all.
    Statistics(String, oneshot::Sender<Result<v1::StatisticsReply, NodeError>>),
    /// Set the gates of a port; `None`: as the configuration has it; true: only check.
    ApplySchedule(String, Option<Box<Schedule>>, bool, oneshot::Sender<States>),
    /// Gates of one port or (empty) of all.
    GetSchedule(String, oneshot::Sender<States>),
    /// Health.
    Health(oneshot::Sender<v1::HealthReply>),
    /// What a scrape shows.
    Metrics(oneshot::Sender<Box<Snapshot>>),
}
