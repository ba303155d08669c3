// SPDX-License-Identifier: Apache-2.0
//! The node's attachments, and the steps by which their tables are made.
//!
//! In: attachments, snapshots, overlays, the rules of the node's packet filter. Out: resolve's tables, and events.
//!
//! ```text
//!  attach ──────────┐
//!                   ├─► attachment (interface, overlay, uplink, delivery) ─► filter ─► show ─► publish
//!  change, policy ──┘
//! ```

mod asking;
mod attachment;
mod beside;
mod delivery;
mod filter;
mod forwarding;
mod given;
mod namespaces;
mod neighbours;
mod pod;
pub(crate) mod state;
mod uplinks;

pub(super) use attachment::check_devices;
