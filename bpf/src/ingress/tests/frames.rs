// SPDX-License-Identifier: Apache-2.0
//! Frames to try: most are right most of the time, then octets are changed and ends cut off.

use std::net::{IpAddr, Ipv4Addr};

use ktsn_wire::Checksum;
use proptest::prelude::*;

use crate::test_run::Ipv4Fields;

use super::reference::{DEVICE, GATEWAY, LOCAL_V4, LOCAL_V6, POD, PORT, TARGETS, UPLINK};

/// A frame, and what the kernel would know beside it.
#[derive(Clone, Debug)]
pub(super) struct Given {
    pub(super) frame: Vec<u8>,
    pub(super) segment_octets: u32,
}

/// One packet's fields.
#[derive(Clone, Copy, Debug)]
struct Packet {
    source: IpAddr,
    destination: IpAddr,
    ds: u8,
    hop_limit: u8,
    protocol: u8,
    option_words: usize,
    fragment: u16,
    port: u16,
    length_error: i32,
    header_sum_error: u16,
    udp_sum: Sum,
}

/// Of a UDP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sum {
    Right,
    Absent,
    Wrong,
}

#[derive(Clone, Debug)]
struct Fields {
    outer: Packet,
    inner: Packet,
    to: [u8; 6],
    station: [u8; 6],
    sender: [u8; 6],
    vni: u32,
    flags: u32,
    reserved: u8,
    is_tagged: bool,
    payload: usize,
    inner_trailer: usize,
    trailer: usize,
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// EtherType, and the packet with this payload.
fn packet(fields: &Packet, payload: &[u8]) -> ([u8; 2], Vec<u8>) {
    let length = (8 + payload.len()) as u16;
    let mut udp = vec![0x12, 0x34];
    udp.extend(fields.port.to_be_bytes());
    udp.extend((i32::from(length) + fields.length_error).max(0).to_be_bytes()[2..].iter());
    udp.extend([0, 0]);
    udp.extend(payload);
    let mut sum = Checksum::new();
    for address in [fields.source, fields.destination] {
        sum.add(&octets(address));
    }
    let said = u16::from_be_bytes([udp[4], udp[5]]);
    sum.add(&said.to_be_bytes());
    sum.add(&[0, 17]);
    sum.add(&udp);
    let right = match sum.finish() {
        0 => 0xffff,
        sum => sum,
    };
    let sum: u16 = match fields.udp_sum {
        Sum::Right => right,
        Sum::Absent => 0,
        Sum::Wrong => right ^ 0x0101,
    };
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    let mut ip = Vec::new();
    if fields.source.is_ipv4() {
        ip = Ipv4Fields {
            words: 5 + fields.option_words,
            ds: fields.ds,
            payload_octets: length,
            fragment: fields.fragment,
            hop_limit: fields.hop_limit,
            protocol: fields.protocol,
            source: &octets(fields.source),
            destination: &octets(fields.destination),
            checksum_error: fields.header_sum_error,
        }
        .octets();
        ip.extend(udp);
        ([8, 0], ip)
    } else {
        ip.extend([0x60 | fields.ds >> 4, fields.ds << 4, 0, 0]);
        ip.extend(length.to_be_bytes());
        ip.extend([fields.protocol, fields.hop_limit]);
        ip.extend(octets(fields.source));
        ip.extend(octets(fields.destination));
        ip.extend(udp);
        ([0x86, 0xdd], ip)
    }
}

fn frame(fields: &Fields) -> Vec<u8> {
    let payload: Vec<u8> = (0..fields.payload).map(|octet| octet as u8).collect();
    let (ether_type, inner) = packet(&fields.inner, &payload);
    let mut tunnelled = fields.flags.to_be_bytes().to_vec();
    tunnelled.extend((fields.vni << 8 | u32::from(fields.reserved)).to_be_bytes());
    tunnelled.extend(fields.station);
    tunnelled.extend(fields.sender);
    if fields.is_tagged {
        tunnelled.extend([0x81, 0, 0, 5]);
    }
    tunnelled.extend(ether_type);
    tunnelled.extend(inner);
    tunnelled.resize(tunnelled.len() + fields.inner_trailer, 0);
    let (ether_type, outer) = packet(&fields.outer, &tunnelled);
    let mut frame = fields.to.to_vec();
    frame.extend([2, 0, 0, 0, 0, 7]);
    frame.extend(ether_type);
    frame.extend(outer);
    frame.resize(frame.len() + fields.trailer, 0);
    frame
}

fn usual(payload: usize) -> Fields {
    let packet = |source: [u8; 4], destination, port| Packet {
        source: Ipv4Addr::from(source).into(),
        destination,
        ds: 0,
        hop_limit: 64,
        protocol: 17,
        option_words: 0,
        fragment: 0,
        port,
        length_error: 0,
        header_sum_error: 0,
        udp_sum: Sum::Right,
    };
    Fields {
        outer: Packet { udp_sum: Sum::Absent, ..packet([192, 0, 2, 2], LOCAL_V4, PORT) },
        inner: packet([10, 1, 1, 5], Ipv4Addr::new(10, 1, 0, 9).into(), 5000),
        to: UPLINK,
        station: DEVICE,
        sender: [2, 0, 0, 0, 1, 1],
        vni: 1,
        flags: 0x0800_0000,
        reserved: 0,
        is_tagged: false,
        payload,
        inner_trailer: 0,
        trailer: 0,
    }
}

fn whole(fields: &Fields) -> Given {
    Given { frame: frame(fields), segment_octets: 0 }
}

/// A frame for slot 0, IPv4 in IPv4, without outer checksum.
pub(super) fn plain(payload: usize) -> Given {
    whole(&usual(payload))
}

pub(super) fn with_hop_limit(hop_limit: u8) -> Given {
    let mut fields = usual(64);
    fields.inner.hop_limit = hop_limit;
    whole(&fields)
}

pub(super) fn with_congestion() -> Given {
    let mut fields = usual(64);
    fields.outer.ds = 3;
    whole(&fields)
}

/// From another tunnel end.
pub(super) fn from_end(source: [u8; 4]) -> Given {
    let mut fields = usual(64);
    fields.outer.source = Ipv4Addr::from(source).into();
    whole(&fields)
}

pub(super) fn with_source(source: [u8; 4]) -> Given {
    let mut fields = usual(64);
    fields.inner.source = Ipv4Addr::from(source).into();
    whole(&fields)
}

fn mostly<T: Clone + std::fmt::Debug + 'static>(
    usual: T,
    other: impl Strategy<Value = T> + 'static,
) -> impl Strategy<Value = T> {
    prop_oneof![24 => Just(usual), 1 => other]
}

fn any_of(texts: &'static [&'static str]) -> impl Strategy<Value = IpAddr> {
    prop::sample::select(texts).prop_map(|text| text.parse().unwrap())
}

/// A packet from one of `sources` to one of `destinations`.
fn packets(
    ways: impl Strategy<Value = (IpAddr, IpAddr)>,
    ports: impl Strategy<Value = u16>,
) -> impl Strategy<Value = Packet> {
    let header = (
        prop_oneof![8 => Just(0_u8), 1 => 0..=3_u8, 1 => any::<u8>()],
        mostly(64, 0..3_u8),
        mostly(17, 0..70_u8),
        mostly(0, 0..4_usize),
        mostly(0, any::<u16>()),
    );
    let lengths = (mostly(0, -9..9), mostly(0, any::<u16>()));
    let sums = prop_oneof![4 => Just(Sum::Right), 3 => Just(Sum::Absent), 1 => Just(Sum::Wrong)];
    (ways, ports, header, lengths, sums).prop_map(
        |((source, destination), port, header, lengths, udp_sum)| {
            let (ds, hop_limit, protocol, option_words, fragment) = header;
            let (length_error, header_sum_error) = lengths;
            Packet {
                source,
                destination,
                ds,
                hop_limit,
                protocol,
                option_words,
                fragment,
                port,
                length_error,
                header_sum_error,
                udp_sum,
            }
        },
    )
}

fn outer() -> impl Strategy<Value = Packet> {
    let v4 = (
        prop_oneof![
            20 => any_of(&["192.0.2.2"]), 2 => any_of(&["192.0.2.3", "192.0.2.4", "192.0.2.200"]),
            1 => any_of(&["127.0.0.1", "0.1.2.3", "224.0.0.1", "192.0.2.1"])
        ],
        prop_oneof![12 => Just(LOCAL_V4), 1 => any_of(&["192.0.2.9"])],
    );
    let v6 = (
        prop_oneof![
            20 => any_of(&["2001:db8::2"]), 1 => any_of(&["2001:db8::3", "2001:db8::200"]),
            1 => any_of(&["::1", "::", "ff02::1", "::ffff:10.1.0.9", "2001:db8::1"])
        ],
        prop_oneof![12 => Just(LOCAL_V6), 1 => any_of(&["2001:db8::9", "::ffff:192.0.2.1"])],
    );
    packets(prop_oneof![2 => v4, 1 => v6], mostly(PORT, any::<u16>()))
}

fn inner() -> impl Strategy<Value = Packet> {
    let v4 = (
        prop_oneof![20 => any_of(&["10.1.1.5"]), 1 => any_of(&["127.0.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255", "10.1.0.9", "10.1.1.200", "192.0.2.1"])],
        prop_oneof![
            6 => any_of(&["10.1.0.9"]), 3 => any_of(&["10.1.0.10"]),
            1 => any_of(&["10.1.0.11", "10.1.0.12", "224.0.0.1", "255.255.255.255"])
        ],
    );
    let v6 = (
        prop_oneof![20 => any_of(&["fd00:1::5"]), 2 => any_of(&["fe80::5"]), 1 => any_of(&["::1", "::", "ff02::1", "::ffff:10.1.1.5", "fd00::c8", "2001:db8::1"])],
        prop_oneof![
            4 => any_of(&["fd00::9"]), 2 => any_of(&["fd00::a"]), 4 => any_of(&["fe80::9"]),
            1 => any_of(&["fd00::c", "ff02::1", "::ffff:10.1.0.9"])
        ],
    );
    packets(prop_oneof![v4, v6], any::<u16>())
}

/// The packet to this address, from one of its family.
fn toward(packet: Packet, destination: IpAddr, sources: [&str; 2]) -> Packet {
    let is_fitting = packet.source.is_ipv4() == destination.is_ipv4();
    let other = sources[usize::from(destination.is_ipv6())].parse().unwrap();
    Packet { source: if is_fitting { packet.source } else { other }, destination, ..packet }
}

pub(super) fn given() -> impl Strategy<Value = Given> {
    let macs = (
        mostly(UPLINK, Just([2, 0, 0, 0, 0, 9])),
        prop_oneof![12 => Just(None), 1 => Just(Some([0xff; 6])), 1 => any::<[u8; 6]>().prop_map(Some)],
        mostly(
            [2, 0, 0, 0, 1, 1],
            prop::sample::select(&[DEVICE, POD, GATEWAY, [0; 6], [3, 0, 0, 0, 0, 0]][..]),
        ),
    );
    let tunnel = (
        prop_oneof![8 => Just(1_u32), 6 => Just(7_u32), 1 => Just(0x00ff_ffff), 1 => Just(2_u32)],
        mostly(0x0800_0000, any::<u32>()),
        mostly(0, any::<u8>()),
        mostly(false, Just(true)),
    );
    let payload = prop_oneof![5 => 0..200_usize, 1 => 1_380..1_440_usize, 1 => 200..2_600_usize];
    let ends = (mostly(0, 1..20_usize), mostly(0, 1..20_usize), mostly(0, 1..120_usize));
    let changes =
        prop_oneof![8 => Just(vec![]), 1 => prop::collection::vec((0..140_usize, any::<u8>()), 1..4)];
    let beside = (payload, ends, changes, mostly(0, 1..1_500_u32));
    // Three of four are for one of the targets, as far as addresses say.
    let meant = prop::option::weighted(0.75, prop::sample::select(&TARGETS[..]));
    (outer(), inner(), macs, tunnel, (meant, beside)).prop_map(
        |(outer, inner, macs, tunnel, (meant, beside))| {
            let (payload, (inner_trailer, trailer, cut), changes, segment_octets) = beside;
            let (vni, flags, reserved, is_tagged) = tunnel;
            let (outer, inner, vni) = match meant {
                Some((target, _)) => (
                    toward(outer, target.local, ["192.0.2.2", "2001:db8::2"]),
                    toward(inner, target.destination, ["10.1.1.5", "fd00:1::5"]),
                    target.vni,
                ),
                None => (outer, inner, vni),
            };
            // A segment of its own has the pods as stations.
            let station = macs.1.unwrap_or(if vni == 1 { DEVICE } else { POD });
            let (to, sender) = (macs.0, macs.2);
            let mut frame = frame(&Fields {
                outer,
                inner,
                to,
                station,
                sender,
                vni,
                flags,
                reserved,
                is_tagged,
                payload,
                inner_trailer,
                trailer,
            });
            for (at, value) in changes {
                if let Some(octet) = frame.get_mut(at) {
                    *octet = value;
                }
            }
            frame.truncate(frame.len().saturating_sub(cut).max(14));
            Given { frame, segment_octets }
        },
    )
}
