// SPDX-License-Identifier: Apache-2.0
extern crate std;
use std::vec::Vec;

use super::{Changed, Parsed, parse};

fn message(level: i32, kind: i32, data: &[u8]) -> Vec<u8> {
    let mut octets = Vec::new();
    octets.extend_from_slice(&(16 + data.len() as u64).to_le_bytes());
    octets.extend_from_slice(&level.to_le_bytes());
    octets.extend_from_slice(&kind.to_le_bytes());
    octets.extend_from_slice(data);
    octets.resize(octets.len().next_multiple_of(8), 0);
    octets
}

fn int(level: i32, kind: i32, value: i32) -> Vec<u8> {
    message(level, kind, &value.to_le_bytes())
}

fn txtime(at: u64) -> Vec<u8> {
    message(1, 61, &at.to_le_bytes())
}

fn read(messages: &[Vec<u8>]) -> Parsed {
    parse(&messages.concat(), false).expect("well-formed")
}

#[test]
fn the_last_transmit_time_wins() {
    assert_eq!(read(&[]), Parsed::default());
    assert_eq!(read(&[txtime(5)]).tx_time, Some(5));
    assert_eq!(read(&[txtime(5), txtime(0)]).tx_time, Some(0));
}

#[test]
fn what_a_frame_carries_is_read_wherever_it_stands() {
    let (gso, tos) = (message(17, 103, &[0xe8, 3]), int(0, 1, 0xb8));
    for messages in [[gso.clone(), txtime(5), tos.clone()], [tos, txtime(5), gso]] {
        let parsed = read(&messages);
        assert_eq!((parsed.tx_time, parsed.segment_octets, parsed.tos), (Some(5), Some(1000), Some(0xb8)));
        assert_eq!((parsed.priority, parsed.priority_v4), (None, Some(4))); // the kernel's rt_tos2priority
        assert!(!parsed.is_for_kernel(true) && !parsed.is_for_kernel(false));
    }
    let parsed =
        read(&[message(0, 1, &[0x10]), int(0, 2, 9), int(41, 52, -1), int(41, 67, 7), int(1, 37, 0x102)]);
    assert_eq!((parsed.tos, parsed.ttl), (Some(0x10), Some(9)));
    assert_eq!((parsed.hop_limit, parsed.traffic_class), (Some(None), Some(7)));
    assert_eq!((parsed.timestamping, parsed.priority_v4), (Some(0x102), Some(6)));
}

#[test]
fn the_last_priority_wins_on_each_path() {
    let both = read(&[int(1, 12, 5), int(0, 1, 0)]);
    assert_eq!((both.priority, both.priority_v4, both.is_privileged), (Some(5), Some(0), false));
    let both = read(&[int(0, 1, 0), int(1, 12, 5)]);
    assert_eq!((both.priority, both.priority_v4), (Some(5), Some(5)));
    // One that was overridden must still be allowed.
    let both = read(&[int(1, 12, 7), int(1, 12, 1)]);
    assert_eq!((both.priority, both.is_privileged), (Some(1), true));
    assert_eq!(read(&[int(1, 12, -1)]).priority, Some(15));
}

#[test]
fn what_only_the_kernel_serves_is_marked_for_its_path() {
    let of = |octets: Vec<u8>| {
        let parsed = read(&[octets]);
        (parsed.is_for_kernel(true), parsed.is_for_kernel(false))
    };
    assert_eq!(of(int(0, 2, 0)), (true, false)); // IP_TTL 0: EINVAL, and on the IPv6 path not looked at
    assert_eq!(of(int(0, 2, 256)), (true, false));
    assert_eq!(of(int(0, 1, -1)), (true, false));
    assert_eq!(of(message(0, 1, &[0, 0])), (true, false));
    assert_eq!(of(message(0, 8, &[0; 12])), (false, false)); // IP_PKTINFO
    assert_eq!(of(message(0, 8, &[0; 11])), (true, false));
    assert_eq!(of(message(41, 50, &[0; 20])), (true, false)); // IPV6_PKTINFO
    assert_eq!(of(message(41, 50, &[1; 20])), (true, true)); // with an address
    assert_eq!(of(message(41, 50, &[0; 24])), (true, true));
    assert!(of(int(41, 67, 256)).1);
    assert_eq!(of(int(1, 36, 1)), (true, true)); // SO_MARK
    assert_eq!(of(message(1, 12, &[0; 8])), (true, true));
    assert_eq!(of(message(1, 37, &[0; 2])), (true, true));
    assert_eq!(of(message(17, 103, &[0; 4])), (true, true));
    assert_eq!(of(int(77, 1, 1)), (true, true));
}

#[test]
fn the_last_address_holds_and_an_interface_stays_named() {
    let info =
        |interface: u32, source: [u8; 4]| message(0, 8, &[interface.to_le_bytes(), source, [9; 4]].concat());
    let of = |messages: &[Vec<u8>]| {
        let leaving = read(messages).leaving(true);
        (leaving.interface, leaving.source)
    };
    assert_eq!(of(&[info(3, [10, 0, 0, 1])]), (3, [10, 0, 0, 1]));
    assert_eq!(of(&[info(3, [10, 0, 0, 1]), info(0, [10, 0, 0, 2])]), (3, [10, 0, 0, 2]));
    assert_eq!(of(&[info(3, [10, 0, 0, 1]), info(4, [0; 4])]), (4, [0; 4]));
    assert!(read(&[info(3, [1; 4])]).leaving(false).is_any());
}

#[test]
fn a_wrong_length_is_the_kernels_to_refuse() {
    for data in [&[0u8; 7][..], &[0; 9], &[], &[0; 16]] {
        assert_eq!(parse(&message(1, 61, data), false), None);
    }
    for len in [0u64, 15, 25, u64::MAX, u64::MAX - 7, 1 << 32] {
        let mut octets = txtime(5);
        octets[..8].copy_from_slice(&len.to_le_bytes());
        assert_eq!(parse(&octets, false), None, "{len}");
    }
}

#[test]
fn less_than_a_header_is_nothing() {
    assert_eq!(parse(&txtime(5)[..15], false), Some(Parsed::default()));
    let trailing = [txtime(5), [9; 15].to_vec()].concat();
    assert_eq!(parse(&trailing, false).and_then(|parsed| parsed.tx_time), Some(5));
}

#[test]
fn padding_of_musl_is_ignored() {
    let mut octets = txtime(5);
    octets[4..8].copy_from_slice(&[0xAA; 4]);
    assert_eq!(parse(&octets, false), None);
    assert_eq!(parse(&octets, true).and_then(|parsed| parsed.tx_time), Some(5));
}

#[test]
fn stripping_keeps_everything_else() {
    let (first, second) = (message(17, 103, &[1, 0]), message(0, 8, &[7; 12]));
    let all = [first.clone(), txtime(5), second.clone(), txtime(6)].concat();
    let stripped = Changed::copy(&all, false, true, None).unwrap();
    assert_eq!(stripped.as_slice(), [first, second].concat());
    assert!(Changed::copy(&txtime(1), false, true, None).unwrap().as_slice().is_empty());
    assert!(Changed::copy(&message(0, 8, &[7; 1000]), false, true, None).is_some());
    assert!(Changed::copy(&message(0, 8, &[7; 1010]), false, true, None).is_none());
    assert!(
        Changed::copy(&[message(0, 8, &[7; 600]), message(0, 8, &[7; 600])].concat(), false, true, None)
            .is_none()
    );
}

#[test]
fn no_octets_can_make_it_panic() {
    // A small linear congruence: the same octets every time.
    let mut state = 1u64;
    for round in 0..200_000 {
        let len = round % 97;
        let octets: Vec<u8> = (0..len)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                if state >> 62 == 0 { (state >> 33) as u8 } else { (state >> 40) as u8 & 0x11 }
            })
            .collect();
        let _ = (parse(&octets, false), parse(&octets, true));
        let _ = Changed::copy(&octets, false, true, None);
    }
}
