// SPDX-License-Identifier: Apache-2.0
//! Where a datagram leaves, with which headers, and how long its payload may be.
//!
//! In: [`Tables`] (made by the control thread from configuration and netlink, replaced as a whole) and a [`Flow`]
//! (attachment, bound address, ports, destination). Out: [`Resolved`] with the port and a header template, or a
//! [`Refusal`] with a reason; and, from the same rules, the table of destinations that a client decides by.
//!
//! The rules are numbered in `docs/design/resolve.md`; comments here name them. Pure: no I/O, no clock, no log.
//! Memory is allocated only by the constructors and by [`destinations`], which run in the control thread, never by
//! [`resolve`], which runs in the worker.
//!
//! ```text
//!              own? ─► allowed? ─► group? ─► peer? ─► node's route? ─► route
//! rule          1        2          3         4           4b            5
//! bypass   own_address  not_allowed                            (elsewhere: not_allowed)
//! leaves by                       interface  uplink    uplink        interface
//!                                     └── 4c: or, in a bridged overlay, uplink ──┘
//! ```
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod datagram;
mod delivery;
mod destinations;
mod error;
mod flow;
mod index;
pub mod limits;
mod link;
mod link_frame;
mod overlay;
mod path;
mod prefixes;
mod source;
mod table;

pub use datagram::{Resolved, next_replica, resolve, resolve_ahead, resolve_answered, resolve_replica};
pub use delivery::Delivery;
pub use destinations::{
    DestinationRule, DestinationTable, Verdict, captured_destinations, destination_table, destinations,
};
pub use error::TableError;
pub use flow::{Egress, Flow, InterfaceRoute, Marks, NextHop, Refusal, Replica, RouteAnswer, Side};
pub use link::{Link, LinkTable, Neighbour, PortIndex, Route, Via};
pub use link_frame::{
    LinkFlow, LinkResolved, LinkShape, link_frame_max, link_rules, resolve_link, resolve_link_replica,
};
pub use overlay::{
    Bridged, Member, MemberAt, OuterDf, OuterDs, OuterTtl, Overlay, Peer, Tunnel, Vxlan, VxlanBridged,
    VxlanRouted,
};
pub use table::{AskedFamilies, AttachmentIndex, AttachmentTables, Forwarding, Tables};
