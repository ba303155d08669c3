// SPDX-License-Identifier: Apache-2.0
//! The packet-socket frame parser against a naive one, and its decision case by case.

use proptest::prelude::*;

use super::{HEAD_OCTETS, IpSource, LinkFault, LinkHead, LinkRules};

const OWN: [u8; 6] = [2, 0, 0, 0, 0, 5];
const PEER: [u8; 6] = [2, 0, 0, 0, 0, 9];

extern crate std;
use std::vec::Vec;

fn frame(destination: [u8; 6], rest: &[u8]) -> Vec<u8> {
    [&destination[..], &OWN, rest].concat()
}

fn rules() -> LinkRules {
    LinkRules { source: OWN, vlan: None, is_ip_listed: false, is_mac_listed: false, is_source_judged: false }
}

/// 10.0.0.1 and fd00::1.
fn is_own_ip(address: [u8; 16]) -> bool {
    let v4 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 1];
    let v6 = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    address == v4 || address == v6
}

fn judge(rules: &LinkRules, frame: &[u8]) -> Result<(), LinkFault> {
    let names = |mac| mac == PEER;
    let allows = |address: [u8; 16]| address[12..] == [10, 0, 0, 2];
    LinkHead::parse(frame).expect("a header").judge(rules, is_own_ip, names, allows)
}

/// Octet by octet, with none of the parser's helpers.
fn naive(frame: &[u8]) -> Option<LinkHead> {
    if frame.len() < 14 {
        return None;
    }
    let (mut at, mut tag) = (12, None);
    if frame[12] == 0x81 && frame[13] == 0 {
        if frame.len() < 18 {
            return None;
        }
        tag = Some(u16::from(frame[14]) * 256 + u16::from(frame[15]));
        at = 16;
    }
    let ether_type = u16::from(frame[at]) * 256 + u16::from(frame[at + 1]);
    let packet = &frame[at + 2..];
    let mut ip_destination = None;
    if ether_type == 0x0800 && packet.len() >= 20 && packet[0] & 0xf0 == 0x40 {
        let mut mapped = [0; 16];
        mapped[10] = 255;
        mapped[11] = 255;
        mapped[12..].copy_from_slice(&packet[16..20]);
        ip_destination = Some(mapped);
    }
    if ether_type == 0x86dd && packet.len() >= 40 && packet[0] & 0xf0 == 0x60 {
        let mut address = [0; 16];
        address.copy_from_slice(&packet[24..40]);
        ip_destination = Some(address);
    }
    let (mut destination, mut source) = ([0; 6], [0; 6]);
    destination.copy_from_slice(&frame[..6]);
    source.copy_from_slice(&frame[6..12]);
    let ip_source = naive_source(ether_type, packet);
    let ip_target = naive_target(ether_type, packet);
    Some(LinkHead { destination, source, tag, ether_type, ip_destination, ip_target, ip_source })
}

fn naive_target(ether_type: u16, packet: &[u8]) -> Option<[u8; 16]> {
    if ether_type < 1536 {
        let is_snap = packet.len() >= 8 && packet[..6] == [0xaa, 0xaa, 3, 0, 0, 0];
        let inner = is_snap.then(|| u16::from(packet[6]) * 256 + u16::from(packet[7]))?;
        return if inner < 1536 { None } else { naive_target(inner, &packet[8..]) };
    }
    let (at, version) = match ether_type {
        0x0800 => (16..20, 4),
        0x86dd => (24..40, 6),
        0x0806 if packet.get(..6)? == [0, 1, 8, 0, 6, 4] => (24..28, packet[0] / 16),
        _ => return None,
    };
    let target = packet.get(at)?;
    if packet[0] / 16 != version {
        return None;
    }
    let mut address = [0; 16];
    (address[10], address[11]) = (255, 255);
    address[16 - target.len()..].copy_from_slice(target);
    Some(address)
}

fn naive_source(ether_type: u16, packet: &[u8]) -> IpSource {
    let is_snap = ether_type < 1536 && packet.len() >= 6 && packet[..6] == [0xaa, 0xaa, 3, 0, 0, 0];
    if is_snap && packet.len() < 8 {
        return IpSource::None;
    }
    if is_snap {
        let inner = u16::from(packet[6]) * 256 + u16::from(packet[7]);
        // SNAP in SNAP is nothing.
        return if inner < 1536 { IpSource::None } else { naive_source(inner, &packet[8..]) };
    }
    let v4 = |at: usize| {
        let mut mapped = [0; 16];
        (mapped[10], mapped[11]) = (255, 255);
        mapped[12..].copy_from_slice(&packet[at..at + 4]);
        IpSource::Address(mapped)
    };
    match ether_type {
        0x0800 if packet.len() < 20 || packet[0] / 16 != 4 => IpSource::Unreadable,
        0x0800 if packet[12..16] == [0; 4] && packet[16..20] == [255; 4] => IpSource::Unspecified,
        0x0800 => v4(12),
        0x0806 if packet.len() < 18 || packet[..6] != [0, 1, 8, 0, 6, 4] => IpSource::Unreadable,
        0x0806 if packet[14..18] == [0; 4] => IpSource::Unspecified,
        0x0806 => v4(14),
        0x86dd if packet.len() < 24 || packet[0] / 16 != 6 => IpSource::Unreadable,
        0x86dd => {
            let (source, to) = (&packet[8..24], packet.get(24..40));
            if source[..10] == [0; 10] && source[10..12] == [255; 2] {
                return IpSource::Unreadable;
            }
            if source == [0; 16] && to.is_some_and(|to| to[..2] == [0xff, 2]) {
                return IpSource::Unspecified;
            }
            let mut address = [0; 16];
            address.copy_from_slice(source);
            IpSource::Address(address)
        }
        _ => IpSource::None,
    }
}

fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let ether_type = prop_oneof![
        Just(0x0800u16),
        Just(0x0806),
        Just(0x86dd),
        Just(0x8100),
        Just(0x88a8),
        Just(0x22f0),
        Just(0x8892),
        Just(60),
        any::<u16>()
    ];
    let first = prop_oneof![Just(0x45u8), Just(0x60), any::<u8>()];
    (
        any::<[u8; 12]>(),
        ether_type.clone(),
        any::<bool>(),
        any::<u16>(),
        ether_type,
        first,
        0usize..60,
        any::<u8>(),
    )
        .prop_map(|(macs, outer, tagged, tci, inner, first, octets, fill)| {
            let mut frame = macs.to_vec();
            if tagged {
                frame.extend([0x81, 0]);
                frame.extend(tci.to_be_bytes());
                frame.extend(inner.to_be_bytes());
            } else {
                frame.extend(outer.to_be_bytes());
            }
            frame.extend((0..octets).map(|at| if at == 0 { first } else { fill.wrapping_add(at as u8) }));
            frame
        })
}

proptest! {
    #[test]
    fn the_head_says_what_a_naive_reader_finds(frame in any_frame(), cut in 0usize..90) {
        let frame = &frame[..cut.min(frame.len())];
        prop_assert_eq!(LinkHead::parse(frame), naive(frame));
        // What lies behind the head changes nothing.
        prop_assert_eq!(LinkHead::parse(&frame[..frame.len().min(HEAD_OCTETS)]), naive(frame));
    }

    #[test]
    fn any_octets_are_read_or_refused(frame in proptest::collection::vec(any::<u8>(), 0..100)) {
        prop_assert_eq!(LinkHead::parse(&frame), naive(&frame));
    }

    /// Whatever else it says: no foreign source, no reserved group that is not listed.
    #[test]
    fn nothing_foreign_leaves(frame in any_frame(), vlan in proptest::option::of(1u16..4095), is_ip_listed: bool, is_mac_listed: bool) {
        let Some(head) = LinkHead::parse(&frame) else { return Ok(()) };
        let rules = LinkRules { source: OWN, vlan, is_ip_listed, is_mac_listed, is_source_judged: true };
        let verdict = head.judge(&rules, is_own_ip, |_| false, |_| true);
        if let (IpSource::Address(address), Ok(())) = (head.ip_source, verdict) {
            prop_assert!(is_own_ip(address));
        }
        prop_assert!(verdict.is_err() || head.ip_source != IpSource::Unreadable);
        prop_assert!(head.source == OWN || verdict == Err(LinkFault::Source));
        prop_assert!(!(head.is_reserved() && verdict.is_ok()));
    }
}

#[test]
fn the_source_is_the_interfaces() {
    let mut frame = frame(PEER, &[0x22, 0xf0, 1, 2]);
    assert_eq!(judge(&rules(), &frame), Ok(()));
    frame[11] ^= 1;
    assert_eq!(judge(&rules(), &frame), Err(LinkFault::Source));
}

#[test]
fn reserved_groups_must_be_named_802_1q_8_6_3() {
    let reserved = [[1, 0x80, 0xc2, 0, 0, 0], [1, 0x80, 0xc2, 0, 0, 0x0e], [1, 0x1b, 0x19, 0, 0, 0]];
    for destination in reserved {
        let frame = frame(destination, &[0x88, 0xf7, 0, 0]);
        assert_eq!(judge(&rules(), &frame), Err(LinkFault::Reserved));
        let head = LinkHead::parse(&frame).unwrap();
        let listed = LinkRules { is_mac_listed: true, ..rules() };
        assert_eq!(head.judge(&rules(), is_own_ip, |mac| mac == destination, |_| false), Ok(()));
        assert_eq!(head.judge(&listed, is_own_ip, |mac| mac == destination, |_| false), Ok(()));
        assert_eq!(head.judge(&listed, is_own_ip, |_| false, |_| true), Err(LinkFault::Reserved));
    }
    assert_eq!(judge(&rules(), &frame([1, 0x80, 0xc2, 0, 0, 0x10], &[0x88, 0xf7])), Ok(()));
    assert_eq!(judge(&rules(), &frame([1, 0x1b, 0x19, 0, 0, 1], &[0x88, 0xf7])), Ok(()));
}

#[test]
fn tags_are_the_attachments_802_1q_9_6() {
    let tagged = |tci: u16, inner: u16| {
        let ([a, b], [c, d]) = (tci.to_be_bytes(), inner.to_be_bytes());
        frame(PEER, &[0x81, 0, a, b, c, d, 0, 0])
    };
    let own = LinkRules { vlan: Some(7), ..rules() };
    assert_eq!(judge(&rules(), &tagged(0xc007, 0x22f0)), Ok(()));
    assert_eq!(judge(&own, &tagged(0xc007, 0x22f0)), Ok(()));
    assert_eq!(judge(&own, &tagged(0xc000, 0x22f0)), Ok(()));
    assert_eq!(judge(&own, &tagged(0xc008, 0x22f0)), Err(LinkFault::Tag));
    assert_eq!(judge(&own, &frame(PEER, &[0x22, 0xf0])), Ok(()));
    assert_eq!(judge(&rules(), &tagged(0x0fff, 0x22f0)), Err(LinkFault::Tag));
    // A second tag would hide what is sent, and to whom.
    assert_eq!(judge(&rules(), &tagged(7, 0x8100)), Err(LinkFault::Tag));
    assert_eq!(judge(&rules(), &tagged(7, 0x88a8)), Err(LinkFault::Tag));
    assert_eq!(judge(&rules(), &frame(PEER, &[0x88, 0xa8, 0, 7, 0x22, 0xf0])), Err(LinkFault::Tag));
    assert_eq!(LinkHead::parse(&tagged(0xc007, 0x22f0)).unwrap().priority(), Some(6));
}

/// IP and ARP by prefixes, other EtherTypes by MAC addresses: neither list opens or closes the other kind.
#[test]
fn each_kind_has_its_list() {
    let other = [2, 0, 0, 0, 0, 8];
    let v4 = |last: u8| [&[0x45][..], &[0; 15], &[10, 0, 0, last]].concat();
    let arp = |last: u8| [&[0, 1, 8, 0, 6, 4, 0, 1][..], &[0; 16], &[10, 0, 0, last]].concat();
    let kinds = [(0x0800, v4 as fn(u8) -> Vec<u8>), (0x0806, arp)];
    let (ok, refused) = (Ok(()), Err(LinkFault::Destination));
    for (is_ip_listed, is_mac_listed) in [(false, false), (false, true), (true, false), (true, true)] {
        let rules = LinkRules { is_ip_listed, is_mac_listed, ..rules() };
        let by_ip = if is_ip_listed { refused } else { ok };
        let by_mac = if is_mac_listed { refused } else { ok };
        for tag in [&[][..], &[0x81, 0, 0, 7]] {
            for mac in [PEER, other] {
                for (ether_type, packet) in kinds {
                    for snap in [&[][..], &[0, 60, 0xaa, 0xaa, 3, 0, 0, 0]] {
                        let of = |packet: &[u8]| {
                            let kind: [u8; 2] = u16::to_be_bytes(ether_type);
                            judge(&rules, &frame(mac, &[tag, snap, &kind, packet].concat()))
                        };
                        let packets = (packet(2), packet(3));
                        assert_eq!(
                            (of(&packets.0), of(&packets.1)),
                            (ok, by_ip),
                            "{rules:?} {ether_type:x} {mac:x?}"
                        );
                        // What is cut, or cannot be one, has no target.
                        assert_eq!(of(&packets.0[..packets.0.len() - 1]), by_ip);
                        let mut wrong = packets.0.clone();
                        wrong[0] ^= 0x20;
                        assert_eq!(of(&wrong), by_ip);
                    }
                }
            }
            assert_eq!(judge(&rules, &frame(PEER, &[tag, &[0x22, 0xf0]].concat())), ok);
            assert_eq!(judge(&rules, &frame(other, &[tag, &[0x22, 0xf0]].concat())), by_mac);
        }
    }
}

/// Where sources are judged, a frame says its own IP address or none: plain, tagged, in the older encapsulation.
#[test]
fn sources_are_the_attachments() {
    let judged = LinkRules { is_source_judged: true, ..rules() };
    let v4 = |last: u8, to: [u8; 4]| {
        let mut packet = [0x45; 1].to_vec();
        packet.extend([0; 11]);
        packet.extend([10, 0, 0, last]);
        packet.extend(to);
        packet
    };
    let peer = [10, 0, 0, 2];
    let v6 = |source: [u8; 16], group: u8| {
        let mut packet = [0x60, 0, 0, 0, 0, 0, 17, 64].to_vec();
        packet.extend(source);
        packet.extend([0xff, group]);
        packet.extend([0; 14]);
        packet
    };
    let arp = |sender: [u8; 4]| [&[0, 1, 8, 0, 6, 4, 0, 1][..], &OWN, &sender, &[0; 10]].concat();
    let mut fd = [0; 16];
    (fd[0], fd[15]) = (0xfd, 1);
    let mut mapped = [0; 16];
    (mapped[10], mapped[11], mapped[12], mapped[15]) = (255, 255, 10, 1);
    let mut unspecified = v4(0, [255; 4]);
    unspecified[12] = 0;
    let mut from_none = unspecified.clone();
    from_none[16..].copy_from_slice(&peer);
    let (ok, refused) = (Ok(()), Err(LinkFault::Address));
    let cases: Vec<(u16, Vec<u8>, Result<(), LinkFault>)> = [
        (0x0800, v4(1, peer), ok),
        (0x0800, v4(9, peer), refused),
        (0x0800, unspecified, ok),
        (0x0800, from_none, refused),
        (0x0800, v4(1, peer)[..19].to_vec(), refused),
        (0x0800, v6(fd, 2), refused),
        (0x86dd, v6(fd, 2), ok),
        (0x86dd, v6([0xfd; 16], 2), refused),
        (0x86dd, v6([0; 16], 2), ok),
        (0x86dd, v6([0; 16], 5), refused),
        (0x86dd, v6(mapped, 2), refused),
        (0x0806, arp([10, 0, 0, 1]), ok),
        (0x0806, arp([10, 0, 0, 9]), refused),
        (0x0806, arp([0; 4]), ok),
        (0x0806, [0, 6].to_vec(), refused),
        (0x22f0, v4(9, peer), ok),
    ]
    .into();
    for (ether_type, packet, verdict) in cases {
        let kind = ether_type.to_be_bytes();
        let length = [0, 60, 0xaa, 0xaa, 3, 0, 0, 0];
        for before in [&[][..], &[0x81, 0, 0, 7], &length, &[0x81, 0, 0, 7, 0, 60, 0xaa, 0xaa, 3, 0, 0, 0]] {
            let whole = frame(PEER, &[before, &kind, &packet].concat());
            assert_eq!(judge(&judged, &whole), verdict, "{before:x?} {ether_type:x} {packet:x?}");
            assert_eq!(judge(&rules(), &whole), ok, "where they are not judged");
        }
        // A second tag would hide it.
        for outer in [0x8100u16, 0x88a8] {
            let [a, b] = outer.to_be_bytes();
            let whole = frame(PEER, &[&[a, b, 0, 7, 0x81, 0, 0, 8][..], &kind, &packet].concat());
            assert_eq!(judge(&judged, &whole), Err(LinkFault::Tag));
        }
    }
}
