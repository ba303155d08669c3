// SPDX-License-Identifier: Apache-2.0
//! What `dissect` refuses and why, and how long frames are on the wire.

mod common;

use common::capture;
use ktsn_wire::*;

/// [802.3 3.2.8, 4.4.2] 64 octets at least, then preamble, delimiter and gap.
#[test]
fn octets_on_the_wire() {
    assert_eq!(wire_octets(0), 84);
    assert_eq!(wire_octets(60), 84);
    assert_eq!(wire_octets(61), 85);
    assert_eq!(wire_octets(1514), 1538);
    assert_eq!(wire_octets(1518), 1542); // tagged
    assert_eq!(wire_octets(usize::MAX), u32::MAX);
}

/// The captured frame `name` with octets replaced from `at` on, refused as `expected`.
#[track_caller]
fn refused(name: &str, at: usize, octets: &[u8], expected: WireError) {
    let mut frame = capture(name);
    frame[at..at + octets.len()].copy_from_slice(octets);
    assert_eq!(dissect(&frame, common::vxlan_port(name)).expect_err(name), expected);
}

#[test]
fn every_refusal_has_its_reason() {
    let other = |header, protocol| WireError::OtherProtocol { header, protocol };
    let invalid = |header, field| WireError::Invalid { header, field };
    let truncated =
        |header, need_octets, have_octets| WireError::Truncated { header, need_octets, have_octets };
    refused("udp4", 12, &[0x08, 0x06], other(Header::Ethernet, 0x0806)); // ARP
    refused("udp4", 12, &[0x00, 0x26], other(Header::Ethernet, 0x0026)); // LLC length
    refused("vlan-udp4", 16, &[0x81, 0x00], other(Header::Vlan, 0x8100)); // second tag
    refused("udp4", 14, &[0x65], invalid(Header::Ipv4, "version"));
    refused("udp4", 14, &[0x44], invalid(Header::Ipv4, "header length"));
    refused("udp4", 16, &[0, 19], invalid(Header::Ipv4, "total length"));
    refused("udp4", 16, &[0, 38], truncated(Header::Ipv4, 38, 37));
    refused("udp4", 22, &[63], WireError::Checksum { header: Header::Ipv4 });
    refused("udp4", 38, &[0, 7], invalid(Header::Udp, "length"));
    refused("udp4", 38, &[0, 18], truncated(Header::Udp, 18, 17));
    refused("udp6", 14, &[0x50], invalid(Header::Ipv6, "version"));
    refused("udp6", 18, &[0, 18], truncated(Header::Ipv6, 58, 57));
    refused("udp6", 20, &[58], other(Header::Ipv6, 58)); // ICMPv6
    refused("udp6-hop-by-hop", 55, &[9], truncated(Header::Ipv6Extension, 80, 36));
    refused("udp6-hop-by-hop", 54, &[51], other(Header::Ipv6, 51)); // authentication
    refused("vxlan4-udp4", 42, &[0x00], invalid(Header::Vxlan, "flags"));
    refused("vxlan4-udp4", 62, &[0x08, 0x06], other(Header::Ethernet, 0x0806)); // an ARP inside
}

/// ICMP with its own right header checksum is distinguished from damage.
#[test]
fn other_protocols_are_not_damage() {
    let mut frame = capture("udp4");
    frame[23] = 1;
    frame[24..26].fill(0);
    let checksum = !common::naive_sum(&frame[14..34]);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    let error = dissect(&frame, None).expect_err("ICMP");
    assert_eq!(error, WireError::OtherProtocol { header: Header::Ipv4, protocol: 1 });
}

/// Ethernet padding after the packet does not reach the payload.
#[test]
fn padding_is_cut_off() {
    for name in ["udp4", "udp6"] {
        let mut frame = capture(name);
        frame.extend_from_slice(&[0xee; 9]);
        let dissected = dissect(&frame, None).expect(name);
        assert_eq!(dissected.payload(), format!("ktsn {name}").as_bytes());
        assert_eq!(dissected.inner.checksum(), UdpChecksum::Right);
    }
}

/// An IPv6 packet with `headers` (type, octets) before its UDP datagram.
fn with_extensions(headers: &[(u8, [u8; 8])]) -> Vec<u8> {
    let plain = capture("udp6");
    let mut frame = plain[..54].to_vec();
    let payload_octets = (plain.len() - 54 + headers.len() * 8) as u16;
    frame[18..20].copy_from_slice(&payload_octets.to_be_bytes());
    frame[20] = headers.first().map_or(17, |(kind, _)| *kind);
    for (index, (_, octets)) in headers.iter().enumerate() {
        let mut octets = *octets;
        octets[0] = headers.get(index + 1).map_or(17, |(kind, _)| *kind);
        frame.extend_from_slice(&octets);
    }
    frame.extend_from_slice(&plain[54..]);
    frame
}

/// [RFC 8200 4] Extension headers on the way to UDP, up to a bound.
#[test]
fn extension_headers_are_walked_so_far() {
    let none = [0; 8];
    let walk =
        |headers: &[(u8, [u8; 8])]| dissect(&with_extensions(headers), None).map(|d| d.payload().to_vec());
    for count in 0..=8 {
        assert_eq!(walk(&vec![(60, none); count]).as_deref(), Ok(&b"ktsn udp6"[..]), "{count}");
    }
    let too_many = WireError::Invalid { header: Header::Ipv6Extension, field: "count of extension headers" };
    assert_eq!(walk(&[(60, none); 9]), Err(too_many));
    assert!(walk(&[(0, none), (43, none), (60, none)]).is_ok());

    // [RFC 6946] An atomic fragment is a whole packet; its identification and reserved bits don't count.
    assert!(walk(&[(44, [0, 0, 0, 0b110, 1, 2, 3, 4])]).is_ok());
    let fragment = Err(WireError::Fragment { header: Header::Ipv6 });
    assert_eq!(walk(&[(44, [0, 0, 0, 1, 1, 2, 3, 4])]), fragment);
    assert_eq!(walk(&[(44, [0, 0, 0, 8, 1, 2, 3, 4])]), fragment);
}

/// An all-zero frame after the addresses, and no frame at all.
#[test]
fn empty_input() {
    let truncated = WireError::Truncated { header: Header::Ethernet, need_octets: 14, have_octets: 0 };
    assert_eq!(dissect(&[], None).expect_err("empty"), truncated);
    assert_eq!(truncated.to_string(), "ethernet: 0 octets where 14 are needed");
    let zero = WireError::OtherProtocol { header: Header::Ethernet, protocol: 0 };
    assert_eq!(dissect(&[0; 64], None).expect_err("zeros"), zero);
}
