// SPDX-License-Identifier: Apache-2.0
//! Frames as Linux made them (`testdata/capture.py`) against ours, octet by octet.
//!
//! What may differ, and only that:
//! * IPv4 identification (Linux draws it; ours is 0 with don't-fragment, else the caller's) and so the header checksum
//! * VXLAN source port (a hash of the inner flow in both, not the same one) and so the outer UDP checksum
//! * IPv6 flow label (Linux draws it from a secret hash; ours is 0)

use std::net::IpAddr;

use ktsn_resolve::{
    AttachmentIndex, AttachmentTables, Egress, Flow, Link, LinkTable, Marks, Neighbour, Overlay, Peer,
    PortIndex, Resolved, Route, Tables, Tunnel, Via, Vxlan, VxlanRouted, resolve,
};
use ktsn_wire::{Identifications, MacAddress, UdpChecksum, Vni, dissect};

const POD_PORT: PortIndex = PortIndex(3);
const UPLINK_PORT: PortIndex = PortIndex(7);

fn mac(tail: [u8; 2]) -> MacAddress {
    MacAddress([2, 0, 0, 0, tail[0], tail[1]])
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn route(prefix: &str, gateway: Option<&str>) -> Route {
    let via = gateway.map_or(Via::OnLink, |gateway| Via::Gateway(ip(gateway)));
    Route { prefix: prefix.parse().unwrap(), via, source: None }
}

fn neighbour(address: &str, tail: [u8; 2]) -> Neighbour {
    Neighbour { address: ip(address), mac: mac(tail) }
}

/// The topology of `capture.py`, with the VXLAN device of one family.
fn topology(is_v4: bool) -> Tables {
    let interface = LinkTable::new(Link {
        port: POD_PORT,
        if_index: 2,
        mac: mac([0x0d, 5]),
        mtu: 1450,
        addresses: vec![(ip("10.244.0.5"), 24), (ip("fd00:244::5"), 64), (ip("fe80::5"), 64)],
        routes: vec![
            route("0.0.0.0/0", Some("10.244.0.1")),
            route("10.244.0.0/24", None),
            route("::/0", Some("fd00:244::1")),
            route("fd00:244::/64", None),
        ],
        neighbours: vec![
            neighbour("10.244.0.1", [0xc0, 1]),
            neighbour("10.244.0.6", [0x0d, 6]),
            neighbour("fd00:244::1", [0xc0, 1]),
            neighbour("fe80::6", [0x0d, 6]),
        ],
    });
    let uplink = LinkTable::new(Link {
        port: UPLINK_PORT,
        if_index: 2,
        mac: mac([0, 1]),
        mtu: 1500,
        addresses: vec![(ip("192.168.77.1"), 24), (ip("2001:db8:77::1"), 64)],
        routes: vec![route("192.168.77.0/24", None), route("2001:db8:77::/64", None)],
        neighbours: vec![neighbour("192.168.77.2", [0, 2]), neighbour("2001:db8:77::2", [0, 2])],
    });
    let (local, vtep, prefix, octet) = if is_v4 {
        ("192.168.77.1", "192.168.77.2", "10.244.1.0/24", 0xf4)
    } else {
        ("2001:db8:77::1", "2001:db8:77::2", "fd00:244:1::/64", 0xf6)
    };
    let overlay = VxlanRouted::new(Vxlan {
        tunnel: Tunnel::new(Vni::new(1).unwrap(), 8472, ip(local)),
        device_mac: mac([octet, 1]),
        peers: vec![Peer { prefix: prefix.parse().unwrap(), vtep: ip(vtep), mac: mac([octet, 2]) }],
    });
    let tables = AttachmentTables::new(
        interface.unwrap(),
        uplink.unwrap().into(),
        Overlay::VxlanRouted(overlay.unwrap()),
        Some(vec!["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()]),
    );
    Tables::new(1, vec![Some(tables.unwrap())]).unwrap()
}

fn captured(name: &str) -> Vec<u8> {
    let path = format!("{}/testdata/{name}.hex", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    text.split_whitespace().map(|octet| u8::from_str_radix(octet, 16).unwrap()).collect()
}

/// Zeroes what may differ.
fn blank(frame: &mut [u8], ip_at: usize, tunnel: bool) {
    if frame[ip_at] >> 4 == 4 {
        frame[ip_at + 4..ip_at + 6].fill(0);
        frame[ip_at + 10..ip_at + 12].fill(0);
    } else {
        frame[ip_at + 1] &= 0xf0;
        frame[ip_at + 2..ip_at + 4].fill(0);
    }
    if tunnel {
        let udp_at = ip_at + if frame[ip_at] >> 4 == 4 { 20 } else { 40 };
        frame[udp_at..udp_at + 2].fill(0);
        frame[udp_at + 6..udp_at + 8].fill(0);
        blank(frame, udp_at + 8 + 8 + 14, false);
    }
}

fn same_as_kernel(name: &str, destination: &str, traffic_class: u8, hop_limit: u8) -> Resolved {
    let flow = Flow {
        is_connected: false,
        uid: 0,
        attachment: AttachmentIndex(0),
        bound: None,
        source_port: 5001,
        destination: ip(destination),
        destination_port: 6001,
        scope: 0,
        traffic_class,
        hop_limit,
        marks: Marks::default(),
    };
    let tables = topology(!name.ends_with('6'));
    let resolved = resolve(&tables, &flow).unwrap_or_else(|refusal| panic!("{name}: {refusal:?}"));
    let mut theirs = captured(name);
    let payload = format!("ktsn {name}");
    let mut ours = [0; 256];
    let numbers = Identifications { outer: 0x1234, inner: 0x5678 };
    let written = resolved.template.write_frame_identified(payload.as_bytes(), numbers, &mut ours);
    let octets = written.expect("it fits");
    let tunnel = resolved.egress == Egress::Uplink;
    let port = if tunnel { Some(8472) } else { None };
    let seen = dissect(&ours[..octets], port).unwrap();
    assert_eq!(seen.inner.checksum(), UdpChecksum::Right, "{name}");
    assert_eq!(seen.tunnel.is_some(), tunnel, "{name}");
    if let Some(tunnel) = &seen.tunnel {
        assert_eq!(tunnel.outer.checksum(), UdpChecksum::Right, "{name}");
    }
    blank(&mut ours[..octets], 14, tunnel);
    blank(&mut theirs, 14, tunnel);
    assert_eq!(ours[..octets], theirs[..], "{name}");
    resolved
}

#[test]
fn through_flannels_tunnel() {
    for (name, destination, class, hop_limit) in [
        ("flannel4", "10.244.1.7", 0, 0),
        ("flannel4-tos", "10.244.1.7", 0xb9, 9),
        ("flannel6", "fd00:244:1::7", 0, 0),
    ] {
        let resolved = same_as_kernel(name, destination, class, hop_limit);
        assert_eq!((resolved.port, resolved.egress), (UPLINK_PORT, Egress::Uplink));
    }
}

#[test]
fn out_of_the_pods_interface() {
    for (name, destination) in [
        ("pod4", "10.244.0.6"),
        ("gateway4", "203.0.113.9"),
        ("multicast4", "239.129.2.3"),
        ("broadcast4", "10.244.0.255"),
        ("limited4", "255.255.255.255"),
        ("link-local6", "fe80::6"),
        ("multicast6", "ff05::1:3"),
    ] {
        let resolved = same_as_kernel(name, destination, 0, 0);
        assert_eq!((resolved.port, resolved.egress), (POD_PORT, Egress::Interface));
        assert_eq!(resolved.payload_max, if name.ends_with('6') { 1450 - 48 } else { 1450 - 28 });
    }
}

#[test]
fn the_comparison_sees_a_wrong_octet() {
    let theirs = captured("flannel4");
    let blanked: Vec<u8> = {
        let mut copy = theirs.clone();
        blank(&mut copy, 14, true);
        copy
    };
    // Twelve octets may differ: two identifications, two header checksums, a port, a UDP checksum.
    let mut free = 0;
    for at in 0..theirs.len() {
        let mut wrong = theirs.clone();
        wrong[at] ^= 1;
        blank(&mut wrong, 14, true);
        free += usize::from(wrong == blanked);
    }
    assert_eq!(free, 12);
}
