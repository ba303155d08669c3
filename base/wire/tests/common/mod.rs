// SPDX-License-Identifier: Apache-2.0
//! What several test files need: the captured frames, and a checksum so plain that it can't share a mistake.
#![allow(dead_code, reason = "each test file uses a part of this")]

/// Captured frames by name (`testdata/capture.py` makes them).
pub(crate) const CAPTURES: &[(&str, &str)] = &[
    ("udp4", include_str!("../../testdata/udp4.hex")),
    ("udp4-options", include_str!("../../testdata/udp4-options.hex")),
    ("udp4-fragment-first", include_str!("../../testdata/udp4-fragment-first.hex")),
    ("udp4-fragment-last", include_str!("../../testdata/udp4-fragment-last.hex")),
    ("udp6", include_str!("../../testdata/udp6.hex")),
    ("udp6-hop-by-hop", include_str!("../../testdata/udp6-hop-by-hop.hex")),
    ("vlan-udp4", include_str!("../../testdata/vlan-udp4.hex")),
    ("vxlan4-udp4", include_str!("../../testdata/vxlan4-udp4.hex")),
    ("vxlan4-udp6", include_str!("../../testdata/vxlan4-udp6.hex")),
    ("vxlan6-udp4", include_str!("../../testdata/vxlan6-udp4.hex")),
    ("vxlan6-udp6", include_str!("../../testdata/vxlan6-udp6.hex")),
];

/// The octets of a captured frame.
pub(crate) fn capture(name: &str) -> Vec<u8> {
    let (_, text) = CAPTURES.iter().find(|(known, _)| *known == name).expect("a captured frame's name");
    text.split_whitespace().map(|octet| u8::from_str_radix(octet, 16).expect("hexadecimal")).collect()
}

/// The VXLAN port that a captured frame was sent to: 8472 over IPv4, 4789 over IPv6.
pub(crate) fn vxlan_port(name: &str) -> Option<u16> {
    match name {
        _ if name.starts_with("vxlan4") => Some(8472),
        _ if name.starts_with("vxlan6") => Some(4789),
        _ => None,
    }
}

/// RFC 1071, one 16-bit word after the other, carries folded at once; not complemented.
pub(crate) fn naive_sum(octets: &[u8]) -> u16 {
    let mut sum = 0_u32;
    for word in octets.chunks(2) {
        sum += u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0));
        if sum > 0xffff {
            sum -= 0xffff;
        }
    }
    sum as u16
}
