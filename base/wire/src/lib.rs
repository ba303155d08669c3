// SPDX-License-Identifier: Apache-2.0
//! Headers as they are on the wire: Ethernet, 802.1Q tag, IPv4, IPv6, UDP, VXLAN.
//!
//! In: octets of any sender, and plain structs of header fields. Out: checked views that borrow those
//! octets, plain structs read from them, and headers written into a buffer of the caller's.
//! Each header has one file of one shape: named field ranges, a view whose constructor checks everything that its
//! accessors rely on, and a `…Repr` with `parse` and `emit`. [`frame`] walks a whole frame down to its innermost UDP
//! payload; [`template`] writes whole frames fast, [`tunnel`] a tunnel's headers around others' frames.
//!
//! This crate must never panic on any input, allocate, do I/O, read a clock or log. What it cannot accept is a
//! [`WireError`].
#![no_std]
#![forbid(unsafe_code)]

pub mod checksum;
pub mod ds;
pub mod error;
pub mod ethernet;
pub mod frame;
pub mod ipv4;
pub mod ipv6;
mod octets;
pub mod template;
pub mod tunnel;
pub mod udp;
pub mod vlan;
pub mod vxlan;

pub use checksum::Checksum;
pub use ds::DsField;
pub use error::{Header, WireError};
pub use ethernet::{EtherType, EthernetFrame, MacAddress};
pub use frame::{Dissected, Layers, Tunnel, dissect, wire_octets};
pub use ipv4::Ipv4Packet;
pub use ipv6::Ipv6Packet;
pub use template::{HeaderTemplate, Identifications, Network, Outer, TemplateRepr};
pub use tunnel::{InnerMarks, TunnelTemplate};
pub use udp::{UdpChecksum, UdpDatagram};
pub use vlan::{Pcp, Tci, Vid, VlanTag};
pub use vxlan::{Vni, VxlanPacket};
