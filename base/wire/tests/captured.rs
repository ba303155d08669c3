// SPDX-License-Identifier: Apache-2.0
//! Frames that a Linux kernel sent: read, checked field by field, written again.

mod common;

use common::{CAPTURES, capture, vxlan_port};
use ktsn_wire::template::Ends;
use ktsn_wire::*;

fn mac(text: &str) -> MacAddress {
    text.parse().expect("a MAC address")
}

fn address(text: &str) -> core::net::IpAddr {
    text.parse().expect("an IP address")
}

/// Asserts one stack of headers.
fn assert_layers(layers: &Layers<'_>, macs: [&str; 2], addresses: [&str; 2], ports: [u16; 2]) {
    assert_eq!([layers.source_mac, layers.destination_mac], macs.map(mac));
    assert_eq!([layers.source, layers.destination], addresses.map(address));
    assert_eq!([layers.datagram.source_port(), layers.datagram.destination_port()], ports);
    assert_eq!(layers.hop_limit, 64);
    assert_eq!(layers.checksum(), UdpChecksum::Right);
}

const UPLINK: [&str; 2] = ["02:00:00:00:00:01", "02:00:00:00:00:02"];
const UPLINK4: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
const UPLINK6: [&str; 2] = ["2001:db8::1", "2001:db8::2"];

#[test]
fn plain_frames() {
    let cases = [
        ("udp4", UPLINK4, [5001, 6001]),
        ("udp4-options", UPLINK4, [5001, 6001]),
        ("udp6", UPLINK6, [5002, 6002]),
        ("udp6-hop-by-hop", UPLINK6, [5002, 6002]),
    ];
    for (name, addresses, ports) in cases {
        let frame = capture(name);
        let dissected = dissect(&frame, Some(8472)).expect(name);
        assert!(dissected.tunnel.is_none(), "{name}");
        assert_eq!(dissected.inner.vlan, None, "{name}");
        assert_layers(&dissected.inner, UPLINK, addresses, ports);
        assert_eq!(dissected.payload(), format!("ktsn {name}").as_bytes());
    }
}

#[test]
fn a_tagged_frame() {
    let frame = capture("vlan-udp4");
    let dissected = dissect(&frame, None).expect("a UDP datagram");
    assert_layers(&dissected.inner, UPLINK, UPLINK4, [5001, 6001]);
    let tci = dissected.inner.vlan.expect("a tag");
    assert_eq!((tci.pcp.get(), tci.dei, tci.vid.get()), (6, false, 100));
    assert_eq!(dissected.payload(), b"ktsn udp4");
}

#[test]
fn tunnelled_frames() {
    let cases = [
        ("vxlan4-udp4", UPLINK4, 42, "2a", ["10.42.0.1", "10.42.0.2"], [5003, 6003]),
        ("vxlan4-udp6", UPLINK4, 42, "2a", ["fd00:42::1", "fd00:42::2"], [5004, 6004]),
        ("vxlan6-udp4", UPLINK6, 43, "2b", ["10.43.0.1", "10.43.0.2"], [5005, 6005]),
        ("vxlan6-udp6", UPLINK6, 43, "2b", ["fd00:43::1", "fd00:43::2"], [5006, 6006]),
    ];
    for (name, outer, vni, mac_octet, inner, ports) in cases {
        let frame = capture(name);
        let port = vxlan_port(name).expect("a VXLAN capture");
        let dissected = dissect(&frame, Some(port)).expect(name);
        let tunnel = dissected.tunnel.expect("a tunnel");
        assert_eq!(tunnel.vni.get(), vni, "{name}");
        let source_port = tunnel.outer.datagram.source_port();
        assert_layers(&tunnel.outer, UPLINK, outer, [source_port, port]);
        let macs = [1, 2].map(|last| format!("02:00:00:00:{mac_octet}:0{last}"));
        assert_layers(&dissected.inner, [&macs[0], &macs[1]], inner, ports);
        assert_eq!(dissected.payload(), format!("ktsn {name}").as_bytes());

        // Without the port it is a datagram like any other.
        let plain = dissect(&frame, None).expect(name);
        assert!(plain.tunnel.is_none());
        assert_eq!(plain.inner.datagram.destination_port(), port);
    }
}

#[test]
fn fragments_are_recognised() {
    for (name, more, offset) in [("udp4-fragment-first", true, 0), ("udp4-fragment-last", false, 69)] {
        let frame = capture(name);
        let packet = Ipv4Packet::new(&frame[14..]).expect(name);
        assert!(packet.is_fragment());
        assert_eq!((packet.more_fragments(), packet.fragment_offset()), (more, offset), "{name}");
        let error = dissect(&frame, None).expect_err(name);
        assert_eq!(error, WireError::Fragment { header: Header::Ipv4 });
    }
}

/// A record route option that the sender's kernel filled in, and its padding.
#[test]
fn options_are_shown() {
    let frame = capture("udp4-options");
    let packet = Ipv4Packet::new(&frame[14..]).expect("an IPv4 packet");
    assert_eq!(packet.options(), [7, 11, 8, 192, 0, 2, 1, 0, 0, 0, 0, 1]);
}

/// A template made from a kernel's VXLAN frame writes that frame, but for what the kernel draws at random:
/// identifications and the outer source port, and so the checksums over them (verified by reading).
#[test]
fn templates_write_what_the_kernel_wrote() {
    for name in ["udp4", "udp6", "vlan-udp4", "vxlan4-udp4", "vxlan4-udp6", "vxlan6-udp4", "vxlan6-udp6"] {
        let frame = capture(name);
        let dissected = dissect(&frame, vxlan_port(name)).expect(name);
        let repr = template_repr(&dissected, &frame);
        let template = HeaderTemplate::new(&repr).expect(name);
        let mut out = [0; 256];
        let frame_octets = template.write_frame(dissected.payload(), &mut out).expect(name);
        let written = &out[..frame_octets];
        let again = dissect(written, vxlan_port(name)).expect(name);
        assert_eq!(again.inner.checksum(), UdpChecksum::Right, "{name}");
        assert_eq!(again.tunnel.map_or(UdpChecksum::Right, |t| t.outer.checksum()), UdpChecksum::Right);
        assert_eq!(again.inner.datagram.checksum(), dissected.inner.datagram.checksum(), "{name}");
        assert_eq!(without_random(written, name), without_random(&frame, name), "{name}");
    }
}

fn template_repr(dissected: &Dissected<'_>, frame: &[u8]) -> TemplateRepr {
    // An IPv6 and a UDP header before the payload, if it is IPv6.
    let inner_at = (frame.len() - dissected.payload().len()).saturating_sub(48);
    TemplateRepr {
        outer: dissected.tunnel.map(|tunnel| Outer {
            ethernet: ends(&tunnel.outer),
            network: network(&tunnel.outer, false, 0),
            dscp_inherit: false,
            vxlan_port: tunnel.outer.datagram.destination_port(),
            vni: tunnel.vni,
            udp_checksum: true,
        }),
        ethernet: ends(&dissected.inner),
        vlan: dissected.inner.vlan,
        network: network(&dissected.inner, true, flow_label(&frame[inner_at..])),
        udp: Ends {
            source: dissected.inner.datagram.source_port(),
            destination: dissected.inner.datagram.destination_port(),
        },
        udp_checksum: true,
    }
}

/// The flow label of an IPv6 packet; anything else is not asked for one.
fn flow_label(network: &[u8]) -> u32 {
    Ipv6Packet::new(network).map_or(0, |packet| packet.flow_label())
}

fn ends(layers: &Layers<'_>) -> Ends<MacAddress> {
    Ends { source: layers.source_mac, destination: layers.destination_mac }
}

fn network(layers: &Layers<'_>, dont_fragment: bool, flow_label: u32) -> Network {
    use core::net::IpAddr::{V4, V6};
    let (ttl, hop_limit, ds) = (layers.hop_limit, layers.hop_limit, layers.ds);
    match (layers.source, layers.destination) {
        (V4(source), V4(destination)) => Network::V4 { source, destination, ttl, ds, dont_fragment },
        (V6(source), V6(destination)) => Network::V6 { source, destination, hop_limit, ds, flow_label },
        mixed => panic!("{mixed:?}"),
    }
}

/// The frame with identifications, IPv4 checksums, outer source port and outer UDP checksum cleared.
fn without_random(frame: &[u8], name: &str) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let mut clear_ip = |at: usize| {
        if frame[at] >> 4 == 4 {
            frame[at + 4..at + 6].fill(0);
            frame[at + 10..at + 12].fill(0);
            at + 20
        } else {
            at + 40
        }
    };
    if vxlan_port(name).is_none() {
        clear_ip(if name.starts_with("vlan") { 18 } else { 14 });
        return frame;
    }
    let udp_at = clear_ip(14);
    clear_ip(udp_at + 8 + 8 + 14);
    frame[udp_at..udp_at + 2].fill(0);
    frame[udp_at + 6..udp_at + 8].fill(0);
    frame
}

/// Cut anywhere, or with any one octet changed, a frame is read or refused, never a panic.
#[test]
fn damaged_captures_never_panic() {
    for (name, _) in CAPTURES {
        let frame = capture(name);
        let port = vxlan_port(name);
        let headers_octets = frame.len().min(160);
        for end in 0..headers_octets {
            let whole = dissect(&frame, port).map(|d| d.payload().len());
            let cut = dissect(&frame[..end], port).map(|d| d.payload().len());
            assert!(cut.is_err() || end == frame.len() || cut == whole, "{name} cut at {end}");
        }
        for index in 0..headers_octets {
            let mut frame = frame.clone();
            for value in 0..=255 {
                frame[index] = value;
                if let Ok(dissected) = dissect(&frame, port) {
                    assert!(dissected.payload().len() <= frame.len() - 42);
                }
            }
        }
    }
}
