// SPDX-License-Identifier: Apache-2.0
//! An attachment as the tables' task tracks it.
//!
//! In: what the node attaches. Out: what its tables are made from and the tables, and what was logged of it.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use ktsn_resolve::{AttachmentIndex, AttachmentTables, PortIndex, Side};

use super::news::Event;
use crate::config::{Attachment, Given};
use crate::log_limit::LogLimit;
use crate::policy::Restriction;

/// An attachment, and what the tables' task finds and makes of it.
#[derive(Clone, Debug)]
pub struct TrackedAttachment {
    /// The attachment as it was configured.
    pub(super) attachment: Arc<Attachment>,
    /// The attachment's index in the tables.
    pub(super) index: AttachmentIndex,
    /// The pod's interface by the name that it has now.
    pub(super) interface: String,
    /// The interface's number in the pod's namespace; 0 until it is found.
    pub(super) interface_index: u32,
    /// The port that sends on it.
    pub(super) interface_port: PortIndex,
    /// The node's uplink, in the daemon's namespace.
    pub(super) uplink: String,
    /// The port that sends on it.
    pub(super) uplink_port: PortIndex,
    /// The addresses that are given to it.
    pub(super) addresses: Given,
    /// What network policies leave of uplink egress and the ingress fast path.
    pub(super) restriction: Arc<Restriction>,
    /// The tables that are in force.
    pub(super) tables: Option<Arc<AttachmentTables>>,
    /// Neighbours that frames needed.
    pub(super) wanted: VecDeque<(Side, IpAddr)>,
    /// Why nothing of it is served, or its uplink is not there; and what was logged of that last.
    pub(super) fault: Option<String>,
    pub(super) warned: Option<String>,
    pub(super) log_limit: LogLimit,
    /// A warning named addresses that are not given.
    pub(super) has_warned_of_addresses: bool,
}

impl TrackedAttachment {
    /// An attachment of which nothing was looked at yet.
    pub(crate) fn new(
        index: AttachmentIndex,
        attachment: Arc<Attachment>,
        interface_port: PortIndex,
        (uplink, uplink_port): (String, PortIndex),
        restriction: Arc<Restriction>,
    ) -> Self {
        Self {
            index,
            interface: attachment.interface.clone(),
            interface_index: 0,
            interface_port,
            uplink,
            uplink_port,
            addresses: attachment.addresses.clone(),
            restriction,
            attachment,
            tables: None,
            wanted: VecDeque::new(),
            fault: None,
            warned: None,
            log_limit: LogLimit::default(),
            has_warned_of_addresses: false,
        }
    }

    /// The interface and its namespace, for the log.
    pub(super) fn place(&self) -> String {
        format!("{} in {}", self.interface, self.attachment.netns.display())
    }

    /// Logs what is wrong, where that is news. A pod can cause news without end: what comes too soon is logged at the next look, if
    /// it still holds.
    pub(super) fn tell(&mut self, report: &dyn Fn(Event)) {
        if self.fault == self.warned || self.fault.is_some() && !self.log_limit.allows() {
            return;
        }
        self.warned.clone_from(&self.fault);
        if let Some(text) = &self.fault {
            report(Event::Warning(text.clone()));
        }
    }
}
