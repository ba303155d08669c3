// SPDX-License-Identifier: Apache-2.0
//! The checksum against RFC 1071 and a naive sum, whole and in pieces.

mod common;

use common::naive_sum;
use ktsn_wire::Checksum;
use proptest::prelude::*;

#[test]
fn nothing_sums_to_zero() {
    assert_eq!(Checksum::new().folded(), 0);
    assert_eq!(Checksum::new().finish(), 0xffff);
}

/// [RFC 1071 3]
#[test]
fn the_rfcs_example() {
    let mut checksum = Checksum::new();
    checksum.add(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
    assert_eq!(checksum.folded(), 0xddf2);
}

/// All ones everywhere is the most carries there can be, over more than one block.
#[test]
fn carries_survive_large_input() {
    for octets_count in [65_535, 65_536, 65_537, 200_001] {
        let octets = vec![0xff; octets_count];
        let mut checksum = Checksum::new();
        checksum.add(&octets);
        assert_eq!(checksum.folded(), naive_sum(&octets), "{octets_count} octets");
    }
}

proptest! {
    #[test]
    fn equals_the_naive_sum(octets in prop::collection::vec(any::<u8>(), 0..2000)) {
        let mut checksum = Checksum::new();
        checksum.add(&octets);
        prop_assert_eq!(checksum.folded(), naive_sum(&octets));
    }

    /// Pieces of any length, odd ones and empty ones included, give the sum of the whole.
    #[test]
    fn pieces_equal_the_whole(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..12)) {
        let mut checksum = Checksum::new();
        for piece in &pieces {
            checksum.add(piece);
        }
        prop_assert_eq!(checksum.folded(), naive_sum(&pieces.concat()));
    }

    #[test]
    fn a_field_is_two_octets(before in prop::collection::vec(any::<u8>(), 0..9), field: u16) {
        let (mut by_field, mut by_octets) = (Checksum::new(), Checksum::new());
        by_field.add(&before);
        by_field.add_u16(field);
        by_octets.add(&before);
        by_octets.add(&field.to_be_bytes());
        prop_assert_eq!(by_field.folded(), by_octets.folded());
    }

    /// [RFC 768, RFC 8200 8.1] The pseudo headers, written out.
    #[test]
    fn pseudo_headers(source4: [u8; 4], destination4: [u8; 4], source6: [u8; 16], destination6: [u8; 16], length: u16) {
        let [high, low] = length.to_be_bytes();
        let v4 = [&source4[..], &destination4, &[0, 17, high, low]].concat();
        let v6 = [&source6[..], &destination6, &[0, 0, high, low, 0, 0, 0, 17]].concat();
        let sum = Checksum::pseudo_v4(source4.into(), destination4.into(), 17, length);
        prop_assert_eq!(sum.folded(), naive_sum(&v4));
        let sum = Checksum::pseudo_v6(source6.into(), destination6.into(), 17, u32::from(length));
        prop_assert_eq!(sum.folded(), naive_sum(&v6));
    }
}
