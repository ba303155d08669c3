// SPDX-License-Identifier: Apache-2.0
extern crate std;
use std::vec::Vec;

use super::{Control, Stripped, parse};

fn message(level: i32, kind: i32, data: &[u8]) -> Vec<u8> {
    let mut octets = Vec::new();
    octets.extend_from_slice(&(16 + data.len() as u64).to_le_bytes());
    octets.extend_from_slice(&level.to_le_bytes());
    octets.extend_from_slice(&kind.to_le_bytes());
    octets.extend_from_slice(data);
    octets.resize(octets.len().next_multiple_of(8), 0);
    octets
}

fn txtime(at: u64) -> Vec<u8> {
    message(1, 61, &at.to_le_bytes())
}

#[test]
fn the_last_transmit_time_wins() {
    assert_eq!(parse(&[], false), Control::Untimed);
    assert_eq!(parse(&txtime(5), false), Control::At(5));
    assert_eq!(parse(&[txtime(5), txtime(0)].concat(), false), Control::At(0));
}

#[test]
fn other_messages_go_to_the_kernel_wherever_they_stand() {
    let other = message(17, 103, &[1, 0]);
    assert_eq!(parse(&other, false), Control::Untimed);
    assert_eq!(parse(&[other.clone(), txtime(5)].concat(), false), Control::AtWithOthers);
    assert_eq!(parse(&[txtime(5), other].concat(), false), Control::AtWithOthers);
}

#[test]
fn a_wrong_length_is_the_kernels_to_refuse() {
    for data in [&[0u8; 7][..], &[0; 9], &[], &[0; 16]] {
        assert_eq!(parse(&message(1, 61, data), false), Control::Malformed);
    }
    for len in [0u64, 15, 25, u64::MAX, u64::MAX - 7, 1 << 32] {
        let mut octets = txtime(5);
        octets[..8].copy_from_slice(&len.to_le_bytes());
        assert_eq!(parse(&octets, false), Control::Malformed, "{len}");
    }
}

#[test]
fn less_than_a_header_is_nothing() {
    assert_eq!(parse(&txtime(5)[..15], false), Control::Untimed);
    let trailing = [txtime(5), [9; 15].to_vec()].concat();
    assert_eq!(parse(&trailing, false), Control::At(5));
}

#[test]
fn padding_of_musl_is_ignored() {
    let mut octets = txtime(5);
    octets[4..8].copy_from_slice(&[0xAA; 4]);
    assert_eq!(parse(&octets, false), Control::Malformed);
    assert_eq!(parse(&octets, true), Control::At(5));
}

#[test]
fn stripping_keeps_everything_else() {
    let (first, second) = (message(17, 103, &[1, 0]), message(0, 8, &[7; 12]));
    let all = [first.clone(), txtime(5), second.clone(), txtime(6)].concat();
    let stripped = Stripped::of(&all, false).unwrap();
    assert_eq!(stripped.as_slice(), [first, second].concat());
    assert!(Stripped::of(&txtime(1), false).unwrap().as_slice().is_empty());
    assert!(Stripped::of(&message(0, 8, &[7; 1000]), false).is_some());
    assert!(Stripped::of(&message(0, 8, &[7; 1010]), false).is_none());
    assert!(Stripped::of(&[message(0, 8, &[7; 600]), message(0, 8, &[7; 600])].concat(), false).is_none());
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
        let _ = Stripped::of(&octets, false);
    }
}
