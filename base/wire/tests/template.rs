// SPDX-License-Identifier: Apache-2.0
//! The fast path against a slow one: headers one by one, lengths and checksums summed word by word over the whole frame.

mod common;

use common::naive_sum;
use ktsn_wire::template::{Ends, HEADER_OCTETS_MAX};
use ktsn_wire::vxlan::SOURCE_PORT_MIN;
use ktsn_wire::*;
use proptest::prelude::*;

/// A frame the slow way; `tunnel_ports` are those of the outer datagram.
fn slow(
    repr: &TemplateRepr,
    identifications: Identifications,
    tunnel_ports: Option<Ends<u16>>,
    payload: &[u8],
) -> Vec<u8> {
    let Identifications { outer: outermost, inner: number } = identifications;
    let (has_checksum, udp) = (repr.udp_checksum, repr.udp);
    let inner = slow_stack(repr.ethernet, repr.vlan, &repr.network, udp, number, has_checksum, payload);
    let (Some(outer), Some(ports)) = (&repr.outer, tunnel_ports) else { return inner };
    let tunnelled = [&vxlan::header(outer.vni)[..], &inner].concat();
    let dscp = if outer.dscp_inherit { repr.network.ds().0 } else { outer.network.ds().0 } >> 2;
    let ecn = [0, 1, 2, 2][usize::from(repr.network.ds().0 & 3)];
    let network = outer.network.with_ds(DsField(dscp << 2 | ecn));
    slow_stack(outer.ethernet, None, &network, ports, outermost, outer.udp_checksum, &tunnelled)
}

fn slow_stack(
    ethernet: Ends<MacAddress>,
    vlan: Option<Tci>,
    network: &Network,
    ports: Ends<u16>,
    identification: u16,
    udp_checksum: bool,
    payload: &[u8],
) -> Vec<u8> {
    let udp_octets = 8 + u16::try_from(payload.len()).expect("short");
    let (pseudo, ip, network_type) = slow_network(network, udp_octets, identification);
    let mut udp = [&udp::header(ports.source, ports.destination)[..], payload].concat();
    udp[4..6].copy_from_slice(&udp_octets.to_be_bytes());
    if udp_checksum {
        let checksum = match !naive_sum(&[&pseudo[..], &udp].concat()) {
            0 => 0xffff,
            checksum => checksum,
        };
        udp[6..8].copy_from_slice(&checksum.to_be_bytes());
    }
    let ether_type = if vlan.is_some() { EtherType::VLAN } else { network_type };
    let link = ethernet::header(ethernet.destination, ethernet.source, ether_type);
    let tag = vlan.map(|tci| vlan::header(tci, network_type));
    [&link[..], tag.as_ref().map_or(&[], |tag| &tag[..]), &ip, &udp].concat()
}

/// Pseudo header, IP header and EtherType.
fn slow_network(network: &Network, udp_octets: u16, identification: u16) -> (Vec<u8>, Vec<u8>, EtherType) {
    let [high, low] = udp_octets.to_be_bytes();
    match *network {
        Network::V4 { source, destination, ttl, ds, dont_fragment } => {
            let mut header = ipv4::udp_header(source, destination, ttl, ds, dont_fragment).to_vec();
            header[2..4].copy_from_slice(&(20 + udp_octets).to_be_bytes());
            header[4..6].copy_from_slice(&identification.to_be_bytes());
            let checksum = !naive_sum(&header);
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
            let pseudo = [&source.octets()[..], &destination.octets(), &[0, 17, high, low]].concat();
            (pseudo, header, EtherType::IPV4)
        }
        Network::V6 { source, destination, hop_limit, ds, flow_label } => {
            let header = ipv6::udp_header(source, destination, hop_limit, ds, flow_label);
            let mut header = header.expect("20 bits").to_vec();
            header[4..6].copy_from_slice(&udp_octets.to_be_bytes());
            let tail = [0, 0, high, low, 0, 0, 0, 17];
            let pseudo = [&source.octets()[..], &destination.octets(), &tail].concat();
            (pseudo, header, EtherType::IPV6)
        }
    }
}

fn network() -> impl Strategy<Value = Network> {
    let v4 = (any::<[[u8; 4]; 2]>(), any::<u8>(), any::<u8>(), any::<bool>()).prop_map(
        |([source, destination], ttl, ds, dont_fragment)| Network::V4 {
            source: source.into(),
            destination: destination.into(),
            ttl,
            ds: DsField(ds),
            dont_fragment,
        },
    );
    let v6 = (any::<[u8; 16]>(), any::<[u8; 16]>(), any::<u8>(), any::<u8>(), 0_u32..=0xf_ffff).prop_map(
        |(source, destination, hop_limit, ds, flow_label)| Network::V6 {
            source: source.into(),
            destination: destination.into(),
            hop_limit,
            ds: DsField(ds),
            flow_label,
        },
    );
    prop_oneof![v4, v6]
}

fn macs() -> impl Strategy<Value = Ends<MacAddress>> {
    any::<[[u8; 6]; 2]>().prop_map(|[source, destination]| Ends {
        source: MacAddress(source),
        destination: MacAddress(destination),
    })
}

fn outer() -> impl Strategy<Value = Outer> {
    (macs(), network(), any::<bool>(), any::<u16>(), 0_u32..=0xff_ffff, any::<bool>()).prop_map(
        |(ethernet, network, dscp_inherit, vxlan_port, vni, udp_checksum)| Outer {
            ethernet,
            network,
            dscp_inherit,
            vxlan_port,
            vni: Vni::new(vni).expect("24 bits"),
            udp_checksum,
        },
    )
}

fn template_repr() -> impl Strategy<Value = TemplateRepr> {
    let vlan = prop::option::of((0_u8..8, any::<bool>(), 0_u16..0xfff)).prop_map(|tag| {
        tag.map(|(pcp, dei, vid)| Tci {
            pcp: Pcp::new(pcp).expect("0-7"),
            dei,
            vid: Vid::new(vid).expect("12 bits"),
        })
    });
    (prop::option::of(outer()), macs(), vlan, network(), any::<[u16; 2]>(), any::<bool>()).prop_map(
        |(outer, ethernet, vlan, network, [source, destination], udp_checksum)| TemplateRepr {
            outer,
            ethernet,
            vlan,
            network,
            udp: Ends { source, destination },
            udp_checksum,
        },
    )
}

/// The outer ports that the template chose.
fn tunnel_ports(repr: &TemplateRepr, frame: &[u8]) -> Option<Ends<u16>> {
    let outer = repr.outer?;
    let udp_at = 14 + if matches!(outer.network, Network::V4 { .. }) { 20 } else { 40 };
    let source = u16::from_be_bytes([frame[udp_at], frame[udp_at + 1]]);
    Some(Ends { source, destination: outer.vxlan_port })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn fast_equals_slow(
        repr in template_repr(),
        outer: u16,
        inner: u16,
        payload in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        let identification = Identifications { outer, inner };
        let template = HeaderTemplate::new(&repr).expect("valid");
        let mut out = vec![0xaa; HEADER_OCTETS_MAX + payload.len() + 3];
        let frame_octets = template.write_frame_identified(&payload, identification, &mut out).expect("room");
        prop_assert_eq!(frame_octets, template.frame_octets(payload.len()));
        let ports = tunnel_ports(&repr, &out);
        prop_assert!(ports.is_none_or(|ports| ports.source >= SOURCE_PORT_MIN));
        prop_assert_eq!(&out[..frame_octets], slow(&repr, identification, ports, &payload));
        prop_assert!(out[frame_octets..].iter().all(|octet| *octet == 0xaa));
    }

    /// Checksums at their edges: payloads that drive the sum to all ones and around it.
    #[test]
    fn checksum_edges(repr in template_repr(), filler in prop::sample::select(vec![0_u8, 0xff]), step in 0_u32..4) {
        let repr = TemplateRepr { udp_checksum: true, ..repr };
        let template = HeaderTemplate::new(&repr).expect("valid");
        let mut out = vec![0; HEADER_OCTETS_MAX + 64];
        let mut payload = vec![filler; 18];
        payload[16..].fill(0);
        // The last word brings the datagram's sum to 0xffff - step, so its checksum to `step`.
        template.write_frame(&payload, &mut out).expect("room");
        let at = template.header_octets() - 2;
        let checksum = u32::from(u16::from_be_bytes([out[at], out[at + 1]]));
        let word = ((checksum + 0xffff - step) % 0xffff) as u16;
        payload[16..].copy_from_slice(&word.to_be_bytes());
        let frame_octets = template.write_frame(&payload, &mut out).expect("room");
        prop_assert_eq!(&out[..frame_octets], slow(&repr, Identifications::default(), tunnel_ports(&repr, &out), &payload));
        let checksum = u32::from(u16::from_be_bytes([out[at], out[at + 1]]));
        prop_assert_eq!(checksum, if step == 0 { 0xffff } else { step });
    }

    /// What a receiver reads is what went in.
    #[test]
    fn dissect_reads_it_back(repr in template_repr(), payload in prop::collection::vec(any::<u8>(), 0..100)) {
        let template = HeaderTemplate::new(&repr).expect("valid");
        let mut out = vec![0; HEADER_OCTETS_MAX + payload.len()];
        let frame_octets = template.write_frame(&payload, &mut out).expect("room");
        let dissected = dissect(&out[..frame_octets], repr.outer.map(|outer| outer.vxlan_port));
        // A plain frame to any port; a tunnelled one whose outer port says so.
        let dissected = dissected.expect("a UDP datagram");
        prop_assert_eq!(dissected.payload(), &payload[..]);
        prop_assert_eq!((dissected.inner.source, dissected.inner.destination), repr.network.addresses());
        prop_assert_eq!(dissected.inner.vlan, repr.vlan);
        let expected = if repr.udp_checksum { UdpChecksum::Right } else { UdpChecksum::Absent };
        prop_assert_eq!(dissected.inner.checksum(), expected);
        prop_assert_eq!(dissected.tunnel.map(|tunnel| tunnel.vni), repr.outer.map(|outer| outer.vni));
        if let (Some(tunnel), Some(outer)) = (dissected.tunnel, repr.outer) {
            let expected = if outer.udp_checksum { UdpChecksum::Right } else { UdpChecksum::Absent };
            prop_assert_eq!(tunnel.outer.checksum(), expected);
        }
    }
}

fn example(outer: bool) -> TemplateRepr {
    let network = |last| Network::V4 {
        source: [10, 0, last, 1].into(),
        destination: [10, 0, last, 2].into(),
        ttl: 64,
        ds: DsField(0),
        dont_fragment: last != 0,
    };
    let macs = Ends { source: MacAddress([2, 0, 0, 0, 0, 1]), destination: MacAddress([2, 0, 0, 0, 0, 2]) };
    let outer = outer.then(|| Outer {
        ethernet: macs,
        network: network(0),
        dscp_inherit: false,
        vxlan_port: 8472,
        vni: Vni::new(1).expect("24 bits"),
        udp_checksum: true,
    });
    let udp = Ends { source: 1000, destination: 2000 };
    TemplateRepr { outer, ethernet: macs, vlan: None, network: network(1), udp, udp_checksum: true }
}

#[test]
fn the_longest_payload_and_one_more() {
    for (repr, longest) in [(example(false), 65_507), (example(true), 65_507 - 50)] {
        let template = HeaderTemplate::new(&repr).expect("valid");
        assert_eq!(template.payload_octets_max(), longest);
        let mut out = vec![0; 70_000];
        let payload = vec![0xa5; longest + 1];
        let frame_octets = template.write_frame(&payload[..longest], &mut out).expect("fits");
        assert_eq!(
            out[..frame_octets],
            slow(&repr, Identifications::default(), tunnel_ports(&repr, &out), &payload[..longest])
        );
        let too_long = WireError::TooLong { header: Header::Udp, octets: longest + 1 };
        assert_eq!(template.write_frame(&payload, &mut out), Err(too_long));
    }
}

#[test]
fn no_room_leaves_the_buffer_alone() {
    let template = HeaderTemplate::new(&example(true)).expect("valid");
    let mut out = vec![0xaa; template.frame_octets(10) - 1];
    let no_room = WireError::NoRoom { header: Header::Ethernet, need_octets: 102, have_octets: 101 };
    assert_eq!(template.write_frame(&[1; 10], &mut out), Err(no_room));
    assert!(out.iter().all(|octet| *octet == 0xaa));
}

#[test]
fn sizes() {
    let (plain, tunnelled) = (example(false), example(true));
    let (plain, tunnelled) =
        (HeaderTemplate::new(&plain).expect("valid"), HeaderTemplate::new(&tunnelled).expect("valid"));
    assert_eq!((plain.header_octets(), tunnelled.header_octets()), (42, 92));
    assert_eq!((plain.wire_octets(16), tunnelled.wire_octets(64)), (84, 92 + 64 + 24));
    // The service data unit has neither padding nor tag.
    assert_eq!((plain.sdu_octets(16), tunnelled.sdu_octets(64)), (16 + 28, 92 + 64 - 14));
    let pair = |net| u64::from_ne_bytes([10, 0, net, 1, 10, 0, net, 2]);
    assert_eq!((plain.address_pair(), plain.outer_address_pair()), (Some(pair(1)), None));
    let pairs = (tunnelled.address_pair(), tunnelled.outer_address_pair());
    assert_eq!(pairs, (Some(pair(1)), Some(pair(0))));
    assert_eq!(HEADER_OCTETS_MAX, 136);
}

/// [802.1CB-2017 6.4, 6.7] What a stream is known by: the outermost MAC header, the packet's own source.
#[test]
fn what_a_stream_is_known_by() {
    let of = |repr: &TemplateRepr| {
        let template = HeaderTemplate::new(repr).expect("valid");
        (template.destination(), template.source())
    };
    for is_tunnelled in [false, true] {
        let repr = example(is_tunnelled);
        let outermost = repr.outer.map_or(repr.ethernet, |outer| outer.ethernet).destination;
        assert_eq!(of(&repr), ((outermost, None), repr.network.addresses().0));
    }
    let tagged = |vid: u16| {
        let tci = Tci { vid: Vid::new(vid).expect("VID"), ..Tci::default() };
        of(&TemplateRepr { vlan: Some(tci), ..example(false) })
    };
    assert_eq!(tagged(5).0.1, Some(5));
    assert_eq!(tagged(0).0.1, None, "priority-tagged");
    assert_eq!(tagged(5).1, example(false).network.addresses().0);
}

/// [RFC 7348 5] One flow keeps one source port; many flows use many.
#[test]
fn flows_spread_over_source_ports() {
    let ports: std::collections::HashSet<u16> = (0..1000)
        .map(|source| {
            let repr = TemplateRepr { udp: Ends { source, destination: 2000 }, ..example(true) };
            let template = HeaderTemplate::new(&repr).expect("valid");
            let mut frames = [[0; 200]; 2];
            for (frame, payload) in frames.iter_mut().zip([&b"one"[..], b"another"]) {
                template.write_frame(payload, frame).expect("room");
            }
            let [one, another] = frames.map(|frame| tunnel_ports(&repr, &frame).expect("a tunnel").source);
            assert_eq!(one, another);
            one
        })
        .collect();
    assert!(ports.len() > 900, "{}", ports.len());
}

/// [802.1Q table 9-2] 4095 is never sent; a flow label has 20 bits.
#[test]
fn templates_refuse_reserved_values() {
    let vlan = Some(Tci { vid: Vid::new(0xfff).expect("12 bits"), ..Tci::default() });
    let error = HeaderTemplate::new(&TemplateRepr { vlan, ..example(false) }).expect_err("reserved");
    assert_eq!(error, WireError::Invalid { header: Header::Vlan, field: "VLAN identifier" });
    let network = Network::V6 {
        source: [1; 16].into(),
        destination: [2; 16].into(),
        hop_limit: 64,
        ds: DsField(0),
        flow_label: 0x10_0000,
    };
    let error = HeaderTemplate::new(&TemplateRepr { network, ..example(false) }).expect_err("21 bits");
    assert_eq!(error, WireError::Invalid { header: Header::Ipv6, field: "flow label" });
}
