// SPDX-License-Identifier: Apache-2.0
//! What a worker knows of a client.

use std::collections::BTreeMap;

/// A client as its worker knows it.
#[derive(Default)]
pub(super) struct Client {
    pub is_ended: bool,
    pub is_given_back: bool,
    /// The token of each stream that is registered.
    pub streams: BTreeMap<u32, u32>,
}
