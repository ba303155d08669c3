// SPDX-License-Identifier: Apache-2.0
//! How large tables may grow. Larger ones are refused by the constructors.

/// Attachments of one node.
pub const ATTACHMENTS_MAX: usize = 1024;
/// Addresses of one link, and of one namespace.
pub const ADDRESSES_MAX: usize = 1024;
/// Routes of one link.
pub const ROUTES_MAX: usize = 8192;
/// Neighbours of one link.
pub const NEIGHBOURS_MAX: usize = 8192;
/// Peers of one overlay.
pub const PEERS_MAX: usize = 4096;
/// Tunnel ends that get a copy of a segment's group frames: a datagram is no more frames on the wire than this and one.
pub const FLOOD_MAX: usize = 256;
/// Allowed prefixes of one attachment; the peers' prefixes are the default, so as many fit.
pub const ALLOWED_MAX: usize = PEERS_MAX;
/// MAC addresses that one attachment's list may name: a part of the client's table.
pub const NAMED_MAX: usize = 16;
/// Addresses of one attachment that its clients get as sources: a part of the client's table. Packet sockets'
/// frames from further ones are left to the kernel.
pub const SOURCES_MAX: usize = 16;
/// Entries of a client's destination table (ring ABI).
pub const DESTINATION_RULES_MAX: usize = 64;

/// Headers that VXLAN over IPv4 puts between the uplink's MTU and the inner packet: 20 + 8 + 8 + 14.
pub const VXLAN_OVER_IPV4_OCTETS: u32 = 50;
/// Headers that VXLAN over IPv6 puts between the uplink's MTU and the inner packet: 40 + 8 + 8 + 14.
pub const VXLAN_OVER_IPV6_OCTETS: u32 = 70;

const _: () = assert!(ATTACHMENTS_MAX <= u16::MAX as usize);
const _: () = assert!(ALLOWED_MAX >= PEERS_MAX);
const _: () = assert!(NAMED_MAX + SOURCES_MAX < DESTINATION_RULES_MAX);
