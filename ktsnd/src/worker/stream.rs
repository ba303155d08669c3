// SPDX-License-Identifier: Apache-2.0
//! What is known of a registered socket.

use std::net::SocketAddr;

use ktsn_resolve::AttachmentIndex;

/// What a packet socket's payloads are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// Whole frames (`SOCK_RAW`).
    Frames,
    /// What follows an Ethernet header (`SOCK_DGRAM`).
    Payloads,
}

/// What the registrar read from a passed socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamInfo {
    /// The client's token for this registration.
    pub token: u32,
    /// SO_COOKIE.
    pub cookie: u64,
    /// The attachment it belongs to.
    pub attachment: AttachmentIndex,
    /// Local address; unspecified when not bound to one.
    pub local: SocketAddr,
    /// Peer, when connected.
    pub peer: Option<SocketAddr>,
    /// What its payloads are when it is a packet socket.
    pub link: Option<LinkKind>,
    /// Its transmit times are deadlines (SOF_TXTIME_DEADLINE_MODE).
    pub is_deadline: bool,
    /// The answer for the stream's word.
    pub status: ktsn_ring::StreamStatus,
}
