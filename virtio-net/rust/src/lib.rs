// SPDX-License-Identifier: BSD-2-Clause
//! A virtio network device behind a Unix socket (vhost-user), as a front end in a process of Linux: no huge pages, no kernel
//! module, no DPDK on this side.
//!
//! ```text
//!  this process                                   backend (OVS-DPDK, testpmd, …)
//!  Link ── queue pair 0 ── receive ring  ◄──┐
//!     │                 └─ transmit ring ──►├── one memfd, mapped by both
//!     └─── queue pair 1 …                   │
//!     └─── connection: the crate vhost ◄────┴─► requests and answers
//! ```
//! In: frames (destination MAC first, no FCS). Out: the same octets in the backend's rings; copies of what the backend puts
//! there. The rings are those of the C driver in this folder: each field that the backend writes is read once and checked.
//!
//! What a link must never do: trust the backend, block in [`Link::send`] or [`Link::receive`], wait for an answer without an
//! end, or use memory of one connection for the next: a backend that hangs up keeps its mapping.
//!
//! A link ends when the backend hangs up or breaks a rule. The caller drops it and waits for the next one: [`Server::accept`]
//! or [`connect`].

mod error;
mod front;
mod link;
mod socket;
#[allow(unsafe_code)]
mod sys;

pub use error::{Fault, OpenError, PATH_OCTETS_MAX, QUEUES_MAX, SLOTS_MAX, SendError};
pub use link::{Link, Options, Watch};
pub use socket::{Server, connect};

/// Shortest frame: an Ethernet header.
pub const FRAME_OCTETS_MIN: usize = *sys::FRAME_OCTETS.start();
/// Longest frame: 1,500 octets of payload, a header, and one 802.1Q tag.
pub const FRAME_OCTETS_MAX: usize = *sys::FRAME_OCTETS.end();
/// Frames that one call of [`Link::receive`] passes on at most.
pub const BATCH: usize = sys::BATCH;
