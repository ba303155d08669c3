// SPDX-License-Identifier: Apache-2.0
//! What is known of the node's overlays: from the kernel, the configuration and the control API.
//!
//! In: snapshots of the node, attachments' configuration, lists of peers. Out: peers and segments as they are in force,
//! with conflicts and faults to show.

pub(crate) mod learn;
pub(crate) mod overlays;
pub(crate) mod peers;
pub(crate) mod state;
pub(crate) mod underlay;
