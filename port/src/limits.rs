// SPDX-License-Identifier: Apache-2.0
//! The crate's fixed sizes and how they relate.

/// Destination, source, EtherType: what every frame starts with (802.3 clause 3.1.1), in octets.
pub const ETHERNET_HEADER_OCTETS: usize = 14;
/// One 802.1Q tag, in octets.
pub const VLAN_TAG_OCTETS: usize = 4;
/// Most buffers that one port can have.
pub const STAGE_COUNT_MAX: u16 = 4096;
/// Buffers of a port unless the options say otherwise.
pub(crate) const STAGE_COUNT_DEFAULT: u16 = 256;
/// Largest buffer that AF_XDP allows: one page of the smallest page size.
pub const CHUNK_OCTETS_MAX: usize = 4096;
/// Smallest buffer that AF_XDP allows (`XDP_UMEM_MIN_CHUNK_SIZE`), enough for an MTU of 1500 and a tag.
pub(crate) const CHUNK_OCTETS_MIN: usize = 2048;
/// Longest interface name without its NUL (`IFNAMSIZ` − 1).
pub(crate) const IFNAME_OCTETS_MAX: usize = 15;

/// EtherType of an 802.1Q tag; only such a frame may use the tag's four octets beyond the MTU.
pub(crate) const ETHERTYPE_VLAN: [u8; 2] = [0x81, 0x00];

const _: () = assert!(CHUNK_OCTETS_MIN.is_power_of_two() && CHUNK_OCTETS_MAX.is_power_of_two());
const _: () = assert!(CHUNK_OCTETS_MIN >= 1500 + ETHERNET_HEADER_OCTETS + VLAN_TAG_OCTETS);
const _: () = assert!(STAGE_COUNT_DEFAULT.is_power_of_two() && STAGE_COUNT_MAX.is_power_of_two());
// The umem's addresses and both rings' indices stay far below 32 bits.
const _: () = assert!(STAGE_COUNT_MAX as usize * CHUNK_OCTETS_MAX <= 1 << 24);
