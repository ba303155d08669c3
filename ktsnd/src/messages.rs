// SPDX-License-Identifier: Apache-2.0
//! Messages of the control API ↔ the daemon's own values.
//!
//! In: messages from the API, or values of the node. Out: checked values, or messages. Pure: nothing here asks the node.

mod listed;
mod translate;

pub(crate) use listed::{listed, peer_config};
pub use translate::{gate_schedule, peers, policies};
pub(crate) use translate::{histogram_message, queue_max_sdu_messages};
