// SPDX-License-Identifier: Apache-2.0
//! `Repr::parse(emit(x)) == x` for every header, and what each header refuses.

use ktsn_wire::*;
use proptest::prelude::*;

fn vlan() -> impl Strategy<Value = VlanRepr> {
    (any::<u16>(), any::<u16>()).prop_map(|(tci, ether_type)| VlanRepr {
        tci: Tci::from_bits(tci),
        ether_type: EtherType(ether_type),
    })
}

fn ipv4() -> impl Strategy<Value = Ipv4Repr> {
    let addresses = (any::<[u8; 4]>(), any::<[u8; 4]>(), any::<u8>(), any::<u8>(), any::<u8>());
    let fragment = (any::<u16>(), any::<bool>(), any::<bool>(), 0_u16..0x2000);
    let options = prop::collection::vec(any::<[u8; 4]>(), 0..=10);
    (addresses, fragment, options, 0_u16..3000).prop_map(
        |((source, destination, protocol, ttl, ds), (id, df, mf, offset), options, payload_octets)| {
            Ipv4Repr {
                source: source.into(),
                destination: destination.into(),
                protocol,
                ttl,
                ds: DsField(ds),
                identification: id,
                dont_fragment: df,
                more_fragments: mf,
                fragment_offset: offset,
                options: Ipv4Options::new(&options.concat()).expect("a multiple of four up to forty"),
                payload_octets,
            }
        },
    )
}

fn ipv6() -> impl Strategy<Value = Ipv6Repr> {
    let fields = (any::<u8>(), any::<u8>(), any::<u8>(), 0_u32..=0xf_ffff, 0_u16..3000);
    (any::<[u8; 16]>(), any::<[u8; 16]>(), fields).prop_map(
        |(source, destination, (next_header, hop_limit, ds, flow_label, payload_octets))| Ipv6Repr {
            source: source.into(),
            destination: destination.into(),
            next_header,
            hop_limit,
            ds: DsField(ds),
            flow_label,
            payload_octets,
        },
    )
}

proptest! {
    #[test]
    fn ethernet_repr(destination: [u8; 6], source: [u8; 6], ether_type: u16) {
        let repr = EthernetRepr {
            destination: MacAddress(destination),
            source: MacAddress(source),
            ether_type: EtherType(ether_type),
        };
        let mut out = [0xaa; 20];
        prop_assert_eq!(repr.emit(&mut out), Ok(14));
        prop_assert_eq!(EthernetRepr::parse(&out), Ok(repr));
        prop_assert_eq!(&out[14..], &[0xaa; 6]);
    }

    #[test]
    fn vlan_repr(repr in vlan()) {
        let mut out = [0; 4];
        prop_assert_eq!(repr.emit(&mut out), Ok(4));
        prop_assert_eq!(VlanRepr::parse(&out), Ok(repr));
    }

    #[test]
    fn ipv4_repr(repr in ipv4()) {
        let mut out = vec![0xaa; 60 + 3000];
        let header_octets = repr.emit(&mut out).expect("fits");
        prop_assert_eq!(header_octets, repr.header_octets());
        prop_assert_eq!(Ipv4Repr::parse(&out), Ok(repr));
        let packet = Ipv4Packet::new(&out).expect("parsed before");
        prop_assert_eq!(packet.payload().len(), usize::from(repr.payload_octets));
        // [RFC 1071 1] Any one wrong bit shows.
        for index in 0..header_octets * 8 {
            out[index / 8] ^= 0x80 >> (index % 8);
            prop_assert_ne!(Ipv4Repr::parse(&out), Ok(repr));
            out[index / 8] ^= 0x80 >> (index % 8);
        }
    }

    #[test]
    fn ipv6_repr(repr in ipv6()) {
        let mut out = vec![0xaa; 40 + 3000];
        prop_assert_eq!(repr.emit(&mut out), Ok(40));
        prop_assert_eq!(Ipv6Repr::parse(&out), Ok(repr));
    }

    #[test]
    fn udp_repr(source_port: u16, destination_port: u16, payload_octets in 0_u16..3000, checksum: u16) {
        let repr = UdpRepr { source_port, destination_port, payload_octets, checksum };
        let mut out = vec![0xaa; 8 + 3000];
        prop_assert_eq!(repr.emit(&mut out), Ok(8));
        prop_assert_eq!(UdpRepr::parse(&out), Ok(repr));
    }

    #[test]
    fn udp_checksum_is_right_until_an_octet_changes(
        v4: [[u8; 4]; 2],
        v6: [[u8; 16]; 2],
        payload in prop::collection::vec(any::<u8>(), 1..300),
        index: prop::sample::Index,
        flip in 1_u8..=255,
    ) {
        for (source, destination) in [(v4[0].into(), v4[1].into()), (v6[0].into(), v6[1].into())] {
            let repr = UdpRepr { source_port: 1, destination_port: 2, payload_octets: 0, checksum: 0 };
            let repr = repr.with_checksum(source, destination, &payload).expect("short");
            let mut octets = vec![0; 8];
            repr.emit(&mut octets).expect("fits");
            octets.extend_from_slice(&payload);
            let right = UdpDatagram::new(&octets).expect("whole").verify(source, destination);
            prop_assert_eq!(right, UdpChecksum::Right);
            let index = 8 + index.index(payload.len());
            octets[index] ^= flip;
            let wrong = UdpDatagram::new(&octets).expect("whole").verify(source, destination);
            prop_assert_eq!(wrong, UdpChecksum::Wrong);
        }
    }

    #[test]
    fn vxlan_repr(vni in 0_u32..=0xff_ffff) {
        let repr = VxlanRepr { vni: Vni::new(vni).expect("24 bits") };
        let mut out = [0xaa; 8];
        prop_assert_eq!(repr.emit(&mut out), Ok(8));
        prop_assert_eq!(VxlanRepr::parse(&out), Ok(repr));
    }

    #[test]
    fn mac_addresses_read_what_they_print(octets: [u8; 6]) {
        let address = MacAddress(octets);
        prop_assert_eq!(address.to_string().parse(), Ok(address));
        prop_assert_eq!(address.to_string().to_uppercase().replace(':', "-").parse(), Ok(address));
    }

    /// Every reader takes any octets without a panic; what it accepts, it writes and reads again as the same.
    #[test]
    fn any_octets(octets in prop::collection::vec(any::<u8>(), 0..120), version in 0_u8..3, port: Option<u16>) {
        let mut octets = octets;
        if let (Some(first), 1..) = (octets.first_mut(), version) {
            *first = if version == 1 { 0x40 | *first & 0xf } else { 0x60 | *first & 0xf };
        }
        let mut out = [0; 128];
        if let Ok(packet) = Ipv4Packet::new(&octets) {
            prop_assert_eq!(packet.repr().emit(&mut out), Ok(20 + packet.options().len()));
        }
        if let Ok(packet) = Ipv6Packet::new(&octets) {
            prop_assert_eq!(packet.repr().emit(&mut out), Ok(40));
            prop_assert_eq!(&out[..40], &octets[..40]);
            if let Ok((_, rest)) = packet.upper_layer() {
                prop_assert!(rest.len() <= packet.payload().len());
            }
        }
        if let Ok(repr) = UdpRepr::parse(&octets) {
            prop_assert_eq!(repr.emit(&mut out), Ok(8));
            prop_assert_eq!(&out[..8], &octets[..8]);
        }
        let _ = (VlanRepr::parse(&octets), VxlanRepr::parse(&octets), dissect(&octets, port));
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
fn writers_refuse_what_the_fields_cannot_say() {
    let ipv4 = Ipv4Repr {
        source: [192, 0, 2, 1].into(),
        destination: [192, 0, 2, 2].into(),
        protocol: 17,
        ttl: 64,
        ds: DsField(0),
        identification: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        options: Ipv4Options::NONE,
        payload_octets: 65_515,
    };
    let mut out = [0; 60];
    assert_eq!(ipv4.emit(&mut out), Ok(20));
    let longer = Ipv4Repr { payload_octets: 65_516, ..ipv4 };
    assert_eq!(longer.emit(&mut out), Err(WireError::TooLong { header: Header::Ipv4, octets: 65_536 }));
    let offset = Ipv4Repr { fragment_offset: 0x2000, ..ipv4 };
    assert_eq!(
        offset.emit(&mut out),
        Err(WireError::Invalid { header: Header::Ipv4, field: "fragment offset" })
    );
    let no_room = WireError::NoRoom { header: Header::Ipv4, need_octets: 20, have_octets: 19 };
    assert_eq!(ipv4.emit(&mut out[..19]), Err(no_room));
    assert!(Ipv4Options::new(&[1; 3]).is_err());
    assert!(Ipv4Options::new(&[1; 44]).is_err());

    let udp = UdpRepr { source_port: 1, destination_port: 2, payload_octets: 65_528, checksum: 0 };
    assert_eq!(udp.emit(&mut out), Err(WireError::TooLong { header: Header::Udp, octets: 65_536 }));
    let mixed = udp.with_checksum([192, 0, 2, 1].into(), [0_u8; 16].into(), b"x");
    assert_eq!(mixed, Err(WireError::Invalid { header: Header::Udp, field: "pair of address families" }));
}

/// [RFC 6040 4.1] DSCP and ECN of a tunnel's outer header.
#[test]
fn tunnels_copy_ecn_congestion_too() {
    let outer = DsField::new(10, Ecn::Ce);
    let ecn = |inner| outer.encapsulating(DsField::new(46, inner));
    assert_eq!(ecn(Ecn::NotEct), DsField::new(10, Ecn::NotEct));
    assert_eq!(ecn(Ecn::Ect0), DsField::new(10, Ecn::Ect0));
    assert_eq!(ecn(Ecn::Ect1), DsField::new(10, Ecn::Ect1));
    assert_eq!(ecn(Ecn::Ce), DsField::new(10, Ecn::Ce));
    assert_eq!(DsField::new(46, Ecn::Ect1).0, 0xb9);
}
