// SPDX-License-Identifier: Apache-2.0
//! resolve's tables, filled from netlink and kept current.
//!
//! In: attachments added and removed ([`Manager`]), the kernel's notifications. Out: [`Event::Tables`] with a new
//! generation after each change that matters, at most 50 ms after it; [`Event::NamespaceGone`] when a pod went away.
//! The kernel stays layer 3's control plane: nothing here changes a route or an address; a missing neighbour is
//! resolved by asking the kernel to do it.
//!
//! A namespace is held by one netlink socket each, and only as long as its path leads to it: a look every 250 ms and
//! inotify on its directory notice a removal, and the socket is closed at once (an open socket keeps a namespace and
//! its devices alive).
//!
//! ```text
//!  notification ─► dirty ─(20 ms, further ones join)─► dump ─► Snapshot ─► Tables ─ changed? ─► Event::Tables
//! ```
//! A notification is only a hint that something changed; content always comes from a dump. Linux does not announce
//! every change (IPv4 routes that go with their link, for example), and a lost notification costs nothing more.

mod build;
mod delivery;
pub(crate) mod fuzzing;
mod given;
mod host_end;
mod learn;
mod manager;
mod namespace;
mod netlink;
mod overlay;
mod peers;
mod router;
mod segment;
mod snapshot;
mod state;
#[allow(unsafe_code)]
mod sys;
mod underlay;
mod uplinks;
mod vxlan_device;
mod watch;
mod xfrm;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use ktsn_resolve::{AttachmentIndex, PortIndex, TableError, Tables};

pub(crate) use host_end::host_end;
pub use manager::{Manager, PeersOf};
pub(crate) use namespace::Entered;
pub(crate) use netlink::Netlink;
pub use overlay::OverlayState;
pub use peers::{PeerState, Source};
pub(crate) use sys::readiness;

use crate::config::{Attachment, Given};
pub use crate::policy::{Hindrance, Restriction};

/// What an attachment's tables are made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachmentSpec {
    /// The attachment as it was configured.
    pub attachment: Arc<Attachment>,
    /// Its place in the tables.
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
    /// What network policies allow of its direct paths.
    pub restriction: Arc<Restriction>,
}

impl AttachmentSpec {
    /// Which interface, for who reads the log.
    fn place(&self) -> String {
        format!("{} in {}", self.interface, self.attachment.netns.display())
    }
}

/// What is known once an attachment was added.
#[derive(Clone, Debug)]
pub struct Added {
    /// Tables that contain it.
    pub tables: Arc<Tables>,
    /// SO_NETNS_COOKIE of its namespace.
    pub netns_cookie: u64,
    /// Number of the pod's interface in its namespace.
    pub interface_index: u32,
    /// Largest IP packet of the pod's interface, octets.
    pub mtu: u32,
    /// Its overlay, when it has one.
    pub overlay: Option<OverlayNews>,
    /// The addresses that are given to it: of an attachment that names none, those that its interface had.
    pub addresses: Given,
}

/// An attachment's overlay as it is in force.
#[derive(Clone, Debug)]
pub struct OverlayNews {
    /// Which attachment.
    pub index: AttachmentIndex,
    /// Its overlay.
    pub state: Arc<OverlayState>,
    /// Conflicts among its peers that have appeared so far.
    pub conflicts_count: u64,
    /// Grows with each change: who has a higher one knows better.
    pub revision: u64,
}

/// The rules of the node's packet filter that are about an attachment's datagrams.
#[derive(Clone, Debug)]
pub struct RulesNews {
    /// Which attachment.
    pub index: AttachmentIndex,
    /// The rules, and the destinations that are the kernel's for them.
    pub hindrances: Arc<Vec<Hindrance>>,
    /// Rules that have appeared so far.
    pub rules_count: u64,
    /// Grows with each change: who has a higher one knows better.
    pub revision: u64,
}

/// What happens by itself.
#[derive(Clone, Debug)]
pub enum Event {
    /// New tables, generation one higher than before.
    Tables(Arc<Tables>),
    /// An attachment's namespace or its interface is gone. Nothing of it is held any more; it does not come back.
    NamespaceGone(AttachmentIndex),
    /// An attachment's overlay is another one now.
    Overlay(OverlayNews),
    /// Other rules of the node's packet filter are about an attachment now.
    Rules(RulesNews),
    /// All rules of the node's packet filter have been read, and the tables of all attachments hold to them.
    RulesRead,
    /// Something that an operator should know.
    Warning(String),
}

/// Why tables cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum TablesError {
    /// The path is no network namespace that we can enter.
    #[error("netns {path}: {source}; expected the path of a network namespace, for example /run/netns/NAME")]
    Namespace {
        /// The path.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// The kernel does not talk to us.
    #[error("netlink {what}: {source}")]
    Netlink {
        /// What was being asked.
        what: &'static str,
        /// What went wrong.
        source: io::Error,
    },
    /// No device of this name, or none with an Ethernet address.
    #[error("{field}: {device:?}: no Ethernet device of this name in {place}")]
    Device {
        /// Which field named it.
        field: &'static str,
        /// The name.
        device: String,
        /// Where it was looked for.
        place: String,
    },
    /// The interface has an attachment already.
    #[error(
        "interface: {device:?} in {place} has an attachment already; expected one attachment for each interface"
    )]
    Attached {
        /// The interface.
        device: String,
        /// Its namespace.
        place: String,
    },
    /// More than the tables hold.
    #[error(transparent)]
    Table(#[from] TableError),
    /// No VXLAN network identifier.
    #[error("overlay.vxlan.vni: {0}: expected 0 to 16777215")]
    Vni(u32),
    /// The kernel would encrypt what would leave by the uplink.
    #[error(
        "overlay.vxlan: {0}; KTSN would skip the encryption: allow_policy_bypass = true on the attachment does so knowingly"
    )]
    Encrypted(String),
    /// No default route to take the uplink from.
    #[error("no default route; name the uplink")]
    NoDefaultRoute,
    /// The task that keeps the tables ended.
    #[error("the tables' task has ended")]
    Ended,
}

/// The device of the default route (IPv4 first, lowest metric).
///
/// # Errors
/// `NoDefaultRoute`, `Netlink`.
#[allow(clippy::unused_async)] // asked from the control task; one short dump
pub async fn default_uplink() -> Result<String, TablesError> {
    host_now()?.default_device().ok_or(TablesError::NoDefaultRoute)
}

/// Whether the devices that an attachment names are in the daemon's network namespace: `uplink`, and that of its overlay.
///
/// # Errors
/// `Device`, `Netlink`.
pub(crate) fn check_devices(attachment: &Attachment, uplink: &str) -> Result<(), TablesError> {
    build::check_devices(attachment, uplink, &host_now()?)
}

/// The daemon's network namespace as it is now.
fn host_now() -> Result<snapshot::Snapshot, TablesError> {
    let mut netlink =
        netlink::Netlink::open().map_err(|source| TablesError::Netlink { what: "socket", source })?;
    snapshot::Snapshot::take(&mut netlink)
}

#[cfg(test)]
mod tests;
