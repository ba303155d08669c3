// SPDX-License-Identifier: Apache-2.0
//! What network policies leave of an attachment's short cuts.
//!
//! In: what the control API was told of an attachment. Out: the attachment's tables, less what policies forbid. Frames that
//! leave by the pod's own interface meet the policies' engine and are left alone.

use ktsn_model::IpPrefix;
use ktsn_resolve::{AttachmentTables, TableError};

/// What network policies leave of an attachment's short cuts; by default everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restriction {
    /// Destinations of frames that leave by the uplink; every other one is dropped as `network_policy`. `None`: all.
    pub egress: Option<Vec<IpPrefix>>,
    /// Whether nothing takes the short way in.
    pub is_ingress_blocked: bool,
    /// Which policies, for the log and the status.
    pub reason: String,
}

impl Restriction {
    /// Whether it takes anything away.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.egress.is_some() || self.is_ingress_blocked
    }

    /// The same tables, less what the policies forbid.
    pub(crate) fn apply(&self, tables: AttachmentTables) -> Result<AttachmentTables, TableError> {
        let tables = tables.permitting(self.egress.as_deref())?;
        let delivery = tables.delivery().cloned().filter(|_| !self.is_ingress_blocked);
        Ok(tables.delivered(delivery))
    }
}
