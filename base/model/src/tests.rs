// SPDX-License-Identifier: Apache-2.0
use super::*;
use core::net::IpAddr;
use proptest::prelude::*;
extern crate std;
use std::string::ToString;

#[test]
fn reason_numbers_are_stable_and_dense() {
    for (i, reason) in DropReason::ALL.iter().enumerate() {
        assert_eq!(usize::from(reason.number()), i);
        assert_eq!(DropReason::from_number(reason.number()), Some(*reason));
    }
    for (i, reason) in BypassReason::ALL.iter().enumerate() {
        assert_eq!(usize::from(reason.number()), i);
        assert_eq!(BypassReason::from_number(reason.number()), Some(*reason));
    }
    assert_eq!(DropReason::from_number(16), None);
    assert_eq!(BypassReason::from_number(7), None);
}

#[test]
fn the_default_priority_map_is_the_identity_capped_at_7() {
    let map = PriorityMap::default();
    for priority in 0..40 {
        assert_eq!(u32::from(map.class(Priority::capped(priority)).get()), priority.min(7));
    }
    let mut classes = [0; 16];
    classes[3] = 8;
    assert_eq!(PriorityMap::new(classes), Err(OutOfRange { what: "traffic class", value: 8, largest: 7 }));
}

#[test]
fn policies_are_spelled_as_documented() {
    for word in LatePolicy::WORDS {
        assert_eq!(LatePolicy::from_word(word).map(LatePolicy::word), Some(*word));
    }
    assert_eq!(LatePolicy::from_word("by_clock"), None);
    for word in UnsynchronisedPolicy::WORDS {
        assert_eq!(UnsynchronisedPolicy::from_word(word).map(UnsynchronisedPolicy::word), Some(*word));
    }
}

#[test]
fn prefix_errors_name_the_fault() {
    assert_eq!("10.244.1.7/24".parse::<IpPrefix>(), Err(PrefixError::HostBits));
    assert_eq!("10.244.1.0/33".parse::<IpPrefix>(), Err(PrefixError::Bits));
    assert_eq!("ten/8".parse::<IpPrefix>(), Err(PrefixError::Address));
    assert_eq!("10.0.0.1".parse::<IpPrefix>().map(|p| p.bits()), Ok(32));
    assert_eq!("::/0".parse::<IpPrefix>().map(|p| p.contains("::1".parse().unwrap())), Ok(true));
}

proptest! {
    #[test]
    fn contains_agrees_with_bit_by_bit(net in any::<IpAddr>(), other in any::<IpAddr>(), bits in 0u8..=128) {
        let width = if net.is_ipv4() { 32 } else { 128 };
        let Ok(prefix) = IpPrefix::covering(net, bits) else {
            prop_assert!(bits > width);
            return Ok(());
        };
        prop_assert!(prefix.contains(net));
        prop_assert_eq!(prefix.to_string().parse::<IpPrefix>(), Ok(prefix));
        let as_bits = |a: IpAddr| match a {
            IpAddr::V4(a) => (u128::from(a.to_bits()) << 96, true),
            IpAddr::V6(a) => (a.to_bits(), false),
        };
        let ((a, a4), (b, b4)) = (as_bits(net), as_bits(other));
        let same = a4 == b4 && (0..bits).all(|i| (a >> (127 - i)) & 1 == (b >> (127 - i)) & 1);
        prop_assert_eq!(prefix.contains(other), same);
        let (mapped, mapped_bits) = prefix.mapped();
        let mapped = IpPrefix::new(IpAddr::V6(mapped), mapped_bits).unwrap();
        let as_v6 = |a: IpAddr| match a { IpAddr::V4(a) => IpAddr::V6(a.to_ipv6_mapped()), v6 => v6 };
        if a4 == b4 {
            prop_assert_eq!(mapped.contains(as_v6(other)), same);
        }
    }
}
