// SPDX-License-Identifier: Apache-2.0
//! What an attachment's tables are made from.

use std::sync::Arc;

use ktsn_resolve::{AttachmentIndex, PortIndex};

use crate::config::{Attachment, Given};
use crate::policy::Restriction;

/// What an attachment's tables are made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachmentSpec {
    /// The attachment as it was configured.
    pub attachment: Arc<Attachment>,
    /// The attachment's index in the tables.
    pub index: AttachmentIndex,
    /// The pod's interface by the name that it has now.
    pub interface: String,
    /// The port that sends on it.
    pub interface_port: PortIndex,
    /// The node's uplink, in the daemon's namespace.
    pub uplink: String,
    /// The port that sends on it.
    pub uplink_port: PortIndex,
    /// The addresses that are given to it.
    pub addresses: Given,
    /// What network policies leave of uplink egress and the ingress fast path.
    pub restriction: Arc<Restriction>,
}

impl AttachmentSpec {
    /// The interface and its namespace, for the log.
    pub(super) fn place(&self) -> String {
        format!("{} in {}", self.interface, self.attachment.netns.display())
    }
}
