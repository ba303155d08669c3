// SPDX-License-Identifier: Apache-2.0
//! Why tables cannot be had.

use std::io;
use std::path::PathBuf;

use ktsn_resolve::TableError;

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
        /// The question to the kernel.
        what: &'static str,
        /// What went wrong.
        source: io::Error,
    },
    /// More than is looked at in a pod's namespace.
    #[error("netns {path}: {what}: {why}; expected a namespace that is small enough to be followed")]
    TooLarge {
        /// The path.
        path: PathBuf,
        /// What is too large.
        what: &'static str,
        /// The bound.
        why: String,
    },
    /// A pod's namespace is not followed now, for this reason.
    #[error("{0}")]
    NotFollowed(String),
    /// No device of this name, or none with an Ethernet address.
    #[error("{field}: {device:?}: no Ethernet device of this name in {place}")]
    Device {
        /// Which field named it.
        field: &'static str,
        /// The name.
        device: String,
        /// The namespace in which ktsnd looked for it.
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

/// What makes an error of a question to the kernel.
pub(super) fn netlink_error(what: &'static str) -> impl Fn(io::Error) -> TablesError {
    move |source| TablesError::Netlink { what, source }
}
