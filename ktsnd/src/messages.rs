// SPDX-License-Identifier: Apache-2.0
//! Messages of the control API ↔ the daemon's own values.
//!
//! In: messages from the API, or the node. Out: checked values (`translate`), or messages. Nothing here changes the node.

pub(crate) mod health;
pub(crate) mod listing;
pub(crate) mod schedule;
pub(crate) mod statistics;
mod translate;

pub use translate::{gate_schedule, peers, policies};
pub(crate) use translate::{histogram_message, queue_max_sdu_messages, restriction};
