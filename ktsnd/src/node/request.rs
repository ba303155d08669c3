// SPDX-License-Identifier: Apache-2.0
//! What the control API asks of the node, and why a request fails.

use ktsn_port::OpenError;
use ktsn_proto::v1;
use ktsn_sched::policing::PolicingFault;
use tokio::sync::oneshot;

use crate::config::{Attachment, ConfigError, PeersTarget, Schedule, VxlanPeer};
use crate::limits::ATTACHMENTS_MAX;
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
    Invalid(#[from] ConfigError),
    /// Policing that no port can do.
    #[error("policing: {0}")]
    Policing(#[from] PolicingFault),
    /// No such attachment.
    #[error("name: {0:?}: no such attachment")]
    Unknown(String),
    /// There is no free index.
    #[error("{ATTACHMENTS_MAX} attachments are the most that one ktsnd serves")]
    Full,
    /// Something outside of ktsnd that is not as a field needs it.
    #[error("{field}: {why}")]
    Precondition {
        /// Path of the field.
        field: &'static str,
        /// What was found, and what was expected.
        why: String,
    },
    /// ktsnd drains.
    #[error("ktsnd is ending")]
    Ending,
    /// ktsnd has not the rights that it needs.
    #[error(
        "{field}: {error}; ktsnd needs CAP_NET_RAW, CAP_NET_ADMIN and, for other network namespaces, CAP_SYS_ADMIN (or root)"
    )]
    Rights {
        /// Path of the field.
        field: &'static str,
        /// What the kernel refused.
        error: OpenError,
    },
    /// The state file cannot be written.
    #[error("state file: {error}; {then}")]
    Unsaved {
        /// What the kernel refused.
        error: std::io::Error,
        /// What holds now.
        then: &'static str,
    },
    /// A worker cannot be started.
    #[error("worker of {uplink}: {error}")]
    NoWorker {
        /// Its uplink.
        uplink: String,
        /// What the kernel refused.
        error: std::io::Error,
    },
    /// The worker of this uplink takes no command any more.
    #[error("attachment.uplink: the worker of {0} has ended")]
    WorkerEnded(String),
    /// The worker of this uplink does not say how its gates are.
    #[error("the worker of {0} does not answer")]
    WorkerSilent(String),
}

impl NodeError {
    /// Something outside of ktsnd that is not as `field` needs it.
    pub(super) fn precondition(field: &'static str, why: &dyn std::fmt::Display) -> Self {
        Self::Precondition { field, why: why.to_string() }
    }

    /// A port that cannot be opened, with the rights that it takes where one is missing.
    pub(super) fn not_opened(field: &'static str, error: OpenError) -> Self {
        const EPERM: i32 = rustix::io::Errno::PERM.raw_os_error();
        match error {
            OpenError::NotPermitted { .. } | OpenError::Namespace { errno: EPERM, .. } => {
                Self::Rights { field, error }
            }
            _ => Self::precondition(field, &error),
        }
    }
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
