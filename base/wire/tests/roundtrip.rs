// SPDX-License-Identifier: Apache-2.0
//! A view reads what the header's function wrote, for every header; and what each view refuses.

use ktsn_wire::*;
use proptest::prelude::*;

proptest! {
    #[test]
    fn ethernet_header(destination: [u8; 6], source: [u8; 6], ether_type: u16) {
        let (destination, source) = (MacAddress(destination), MacAddress(source));
        let out = ethernet::header(destination, source, EtherType(ether_type));
        let frame = EthernetFrame::new(&out).expect("a header");
        prop_assert_eq!((frame.destination(), frame.source()), (destination, source));
        prop_assert_eq!((frame.ether_type(), frame.payload().len()), (EtherType(ether_type), 0));
    }

    #[test]
    fn vlan_header(tci: u16, ether_type: u16) {
        let out = vlan::header(Tci::from_bits(tci), EtherType(ether_type));
        let tag = VlanTag::new(&out).expect("a tag");
        prop_assert_eq!((tag.tci(), tag.ether_type()), (Tci::from_bits(tci), EtherType(ether_type)));
    }

    #[test]
    fn ipv4_header(addresses: [[u8; 4]; 2], ttl: u8, ds: u8, dont_fragment: bool, octets in 20_u16..3000) {
        let [source, destination] = addresses.map(core::net::Ipv4Addr::from);
        let mut out = ipv4::udp_header(source, destination, ttl, DsField(ds), dont_fragment).to_vec();
        out[ipv4::field::TOTAL_LENGTH].copy_from_slice(&octets.to_be_bytes());
        let mut sum = Checksum::new();
        sum.add(&out);
        out[ipv4::field::CHECKSUM].copy_from_slice(&sum.finish().to_be_bytes());
        prop_assert_eq!(out[6] & 0x40 != 0, dont_fragment);
        // [RFC 1071 1] Any one wrong bit shows.
        for index in 0..160 {
            out[index / 8] ^= 0x80 >> (index % 8);
            let whole = [&out[..], &[0; 65_535]].concat();
            prop_assert!(!Ipv4Packet::new(&whole).is_ok_and(|packet| packet.is_checksum_right()), "{}", index);
            out[index / 8] ^= 0x80 >> (index % 8);
        }
        out.resize(usize::from(octets), 0xaa);
        let packet = Ipv4Packet::new(&out).expect("whole");
        prop_assert!(packet.is_checksum_right() && !packet.is_fragment() && packet.options().is_empty());
        prop_assert_eq!((packet.source(), packet.destination()), (source, destination));
        prop_assert_eq!((packet.ttl(), packet.ds(), packet.protocol()), (ttl, DsField(ds), 17));
        prop_assert_eq!((packet.total_length(), packet.payload().len()), (octets, usize::from(octets) - 20));
    }

    #[test]
    fn ipv6_header(addresses: [[u8; 16]; 2], hop_limit: u8, ds: u8, flow_label in 0_u32..=0xf_ffff) {
        let [source, destination] = addresses.map(core::net::Ipv6Addr::from);
        let out = ipv6::udp_header(source, destination, hop_limit, DsField(ds), flow_label).expect("20 bits");
        let packet = Ipv6Packet::new(&out).expect("whole");
        prop_assert_eq!((packet.source(), packet.destination()), (source, destination));
        prop_assert_eq!((packet.hop_limit(), packet.ds(), packet.flow_label()), (hop_limit, DsField(ds), flow_label));
        prop_assert_eq!((packet.next_header(), packet.payload().len()), (17, 0));
    }

    #[test]
    fn udp_header(source_port: u16, destination_port: u16, octets in 8_u16..3000) {
        let mut out = udp::header(source_port, destination_port).to_vec();
        out[udp::field::LENGTH].copy_from_slice(&octets.to_be_bytes());
        out.resize(usize::from(octets), 0xaa);
        let datagram = UdpDatagram::new(&out).expect("whole");
        prop_assert_eq!((datagram.source_port(), datagram.destination_port()), (source_port, destination_port));
        prop_assert_eq!((datagram.length(), datagram.checksum()), (octets, 0));
    }

    #[test]
    fn vxlan_header(vni in 0_u32..=0xff_ffff) {
        let vni = Vni::new(vni).expect("24 bits");
        let out = vxlan::header(vni);
        prop_assert_eq!(VxlanPacket::new(&out).expect("a header").vni(), vni);
    }

    /// A datagram with its right checksum is `Wrong` once an octet changes.
    #[test]
    fn udp_checksum_is_right_until_an_octet_changes(
        v4: [[u8; 4]; 2],
        v6: [[u8; 16]; 2],
        payload in prop::collection::vec(any::<u8>(), 1..300),
        index: prop::sample::Index,
        flip in 1_u8..=255,
    ) {
        use core::net::IpAddr;
        let octets = 8 + payload.len() as u16;
        let v4 = v4.map(core::net::Ipv4Addr::from);
        let v6 = v6.map(core::net::Ipv6Addr::from);
        let sums = [
            (Checksum::pseudo_v4(v4[0], v4[1], 17, octets), v4.map(IpAddr::from)),
            (Checksum::pseudo_v6(v6[0], v6[1], 17, octets.into()), v6.map(IpAddr::from)),
        ];
        for (mut sum, [source, destination]) in sums {
            let mut octets = [&udp::header(1, 2)[..], &payload].concat();
            octets[4..6].copy_from_slice(&(8 + payload.len() as u16).to_be_bytes());
            sum.add(&octets);
            let checksum = if sum.finish() == 0 { 0xffff } else { sum.finish() };
            octets[6..8].copy_from_slice(&checksum.to_be_bytes());
            let right = UdpDatagram::new(&octets).expect("whole").verify(source, destination);
            prop_assert_eq!(right, UdpChecksum::Right);
            let index = 8 + index.index(payload.len());
            octets[index] ^= flip;
            let wrong = UdpDatagram::new(&octets).expect("whole").verify(source, destination);
            prop_assert_eq!(wrong, UdpChecksum::Wrong);
        }
    }

    #[test]
    fn mac_addresses_read_what_they_print(octets: [u8; 6]) {
        let address = MacAddress(octets);
        prop_assert_eq!(address.to_string().parse(), Ok(address));
        prop_assert_eq!(address.to_string().to_uppercase().replace(':', "-").parse(), Ok(address));
    }

    /// Every reader takes any octets without a panic; an upper layer lies within its packet.
    #[test]
    fn any_octets(octets in prop::collection::vec(any::<u8>(), 0..120), version in 0_u8..3, port: Option<u16>) {
        let mut octets = octets;
        if let (Some(first), 1..) = (octets.first_mut(), version) {
            *first = if version == 1 { 0x40 | *first & 0xf } else { 0x60 | *first & 0xf };
        }
        if let Ok(packet) = Ipv4Packet::new(&octets) {
            let header_octets = usize::from(packet.total_length()) - packet.payload().len();
            prop_assert_eq!(header_octets, 20 + packet.options().len());
        }
        if let Ok((_, rest)) = Ipv6Packet::new(&octets).and_then(|packet| packet.upper_layer()) {
            prop_assert!(rest.len() <= octets.len() - 40);
        }
        if let Ok(datagram) = UdpDatagram::new(&octets) {
            prop_assert_eq!(datagram.payload().len() + 8, usize::from(datagram.length()));
        }
        let _ = (VlanTag::new(&octets).is_ok(), VxlanPacket::new(&octets).is_ok(), dissect(&octets, port).is_ok());
    }
}

#[test]
fn mac_addresses_refuse_other_text() {
    for text in [
        "",
        "02",
        "02:00:00:00:00",
        "02:00:00:00:00:01:02",
        "2:0:0:0:0:1",
        "+2:00:00:00:00:01",
        "02:00-00:00:00:01",
        "0g:00:00:00:00:01",
        "020000000001",
        "é:00:00:00:00:01",
    ] {
        assert!(text.parse::<MacAddress>().is_err(), "{text:?}");
    }
}

#[test]
fn mac_address_kinds() {
    let kinds = |text: &str| {
        let address: MacAddress = text.parse().expect("an address");
        (address.is_multicast(), address.is_broadcast())
    };
    assert_eq!(kinds("02:00:00:00:00:01"), (false, false));
    assert_eq!(kinds("01:1b:19:00:00:00"), (true, false));
    assert_eq!(kinds("ff:ff:ff:ff:ff:ff"), (true, true));
}

/// [802.1Q 9.6] PCP, DEI and VID in this order.
#[test]
fn tag_control_information() {
    let tci = Tci { pcp: Pcp::new(6).expect("in range"), dei: true, vid: Vid::new(100).expect("in range") };
    assert_eq!(tci.to_bits(), 0b1101_0000_0110_0100);
    assert_eq!(Tci::from_bits(tci.to_bits()), tci);
    assert_eq!((Pcp::new(8), Vid::new(4096)), (None, None));
    assert!(Vid::new(4095).is_some_and(Vid::is_reserved));
    assert!(Vni::new(0x100_0000).is_none());
}

#[test]
fn a_flow_label_has_twenty_bits() {
    let header = |flow_label| ipv6::udp_header([0; 16].into(), [0; 16].into(), 64, DsField(0), flow_label);
    assert!(header(0xf_ffff).is_ok());
    assert_eq!(header(0x10_0000), Err(WireError::Invalid { header: Header::Ipv6, field: "flow label" }));
}

/// [RFC 3168 9.1.1] DSCP and ECN of a tunnel's outer header.
#[test]
fn tunnels_copy_ecn_but_congestion() {
    for (inner, expected) in [(0, 0), (1, 1), (2, 2), (3, 2)] {
        let outer = DsField(10 << 2 | 0b11).encapsulating(DsField(46 << 2 | inner));
        assert_eq!(outer, DsField(10 << 2 | expected));
    }
}
