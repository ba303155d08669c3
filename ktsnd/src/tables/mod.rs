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
//!  notification ─► dirty ─(1 ms; where changes go on, up to 20 ms: further ones join)─► dump ─► Snapshot ─► Tables ─ changed? ─► Event::Tables
//! ```
//! A notification is only a hint that something changed; content always comes from a dump. Linux does not announce
//! every change (IPv4 routes that go with their link, for example), and a lost notification costs nothing more.
//!
//! Three folders, each of which uses only those before it:
//!
//! - `kernel`: what is read from the kernel;
//! - `overlay`: what is known of overlays: learnt, configured, given by the control API;
//! - `assembly`: attachments, and the steps by which their tables are made.

mod assembly;
mod error;
pub(crate) mod fuzzing;
mod kernel;
mod manager;
mod news;
mod overlay;
mod tracked;

use crate::config::Attachment;
pub use crate::policy::{Hindrance, Restriction};
pub use error::TablesError;
pub(crate) use kernel::device::host_end;
pub(crate) use kernel::namespace::Identity;
pub(crate) use kernel::netlink::Netlink;
pub use kernel::snapshot::default_uplink;
pub use manager::Manager;
pub use news::{Added, AnsweredRoute, Event, OverlayNews, RulesNews};
pub use overlay::overlays::PeersOf;
pub use overlay::peers::{PeerState, Source};
pub use overlay::state::OverlayState;
pub use tracked::TrackedAttachment;

/// Whether the devices that an attachment names are in the daemon's network namespace: `uplink`, and that of its overlay.
///
/// # Errors
/// `Device`, `Netlink`.
pub(crate) fn check_devices(attachment: &Attachment, uplink: &str) -> Result<(), TablesError> {
    assembly::check_devices(attachment, uplink, &kernel::snapshot::host_now()?)
}

#[cfg(test)]
mod tests;
