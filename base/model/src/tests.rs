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
    assert_eq!(DropReason::from_number(19), None);
    assert_eq!(BypassReason::from_number(8), None);
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
        assert_eq!(word.parse().map(LatePolicy::word), Ok(word));
    }
    let unknown = "by_clock".parse::<LatePolicy>().unwrap_err();
    assert_eq!(unknown.to_string(), "expected by-clock, drop, send or deadline");
    for word in UnsynchronisedPolicy::WORDS {
        assert_eq!(word.parse().map(UnsynchronisedPolicy::word), Ok(word));
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

#[cfg(feature = "gates")]
mod gates {
    extern crate alloc;

    use alloc::string::ToString;
    use alloc::vec::Vec;

    use ktsn_time::{Nanos, Tai};

    use crate::{AdminPort, GateControlEntry, GateFault, GateOperation, GateStates, TrafficClass};

    fn entry(states: u8, interval: i64) -> GateControlEntry {
        let operation = GateOperation::SetGateStates;
        GateControlEntry { operation, states: GateStates::from_bits(states), interval: Nanos::new(interval) }
    }

    fn admin(intervals: &[i64], cycle: i64, extension: i64) -> AdminPort {
        AdminPort {
            gate_enabled: true,
            cycle_time: Nanos::new(cycle),
            cycle_time_extension: Nanos::new(extension),
            control_list: intervals.iter().map(|interval| entry(1, *interval)).collect(),
            ..AdminPort::default()
        }
    }

    fn leaves(faults: &[GateFault]) -> Vec<(&'static str, Option<usize>)> {
        faults.iter().map(|fault| (fault.leaf, fault.entry_index)).collect()
    }

    #[test]
    fn bit_7_is_class_7() {
        let states = GateStates::from_bits(0b1000_0001);
        let open = |class| states.is_open(TrafficClass::new(class).unwrap());
        assert!(open(7) && open(0) && !open(1) && !open(6));
        for operation in GateOperation::ALL {
            assert_eq!(operation.word().parse(), Ok(operation));
        }
        assert!("SetGateStates".parse::<GateOperation>().is_err());
    }

    #[test]
    fn sound_lists_have_no_fault() {
        assert_eq!(AdminPort::default().check(), Ok(()));
        assert_eq!(admin(&[], 0, 0).check(), Ok(()));
        assert_eq!(admin(&[50_000], 50_000, 0).check(), Ok(()));
        assert_eq!(admin(&[10_000_000_000], 10_000_000_000, 0).check(), Ok(()));
        assert_eq!(admin(&[1_000_000; 1024], 1_024_000_000, 0).check(), Ok(()));
        // A longer list is cut at the cycle's end, and the last entry of a shorter one holds until then (8.6.9.2).
        assert_eq!(admin(&[60_001], 50_000, 0).check(), Ok(()));
        assert_eq!(admin(&[50_000], 60_001, 10_000).check(), Ok(()));
    }

    #[test]
    fn every_fault_is_named() {
        let late = AdminPort { base_time: Tai::from_nanos(u64::MAX), ..admin(&[0, -5], 49_999, -1) };
        let list = "time-interval-value";
        assert_eq!(
            leaves(&late.faults()),
            [
                ("admin-base-time", None),
                ("admin-cycle-time-extension", None),
                ("admin-cycle-time", None),
                (list, Some(0)),
                (list, Some(1))
            ]
        );
        assert_eq!(leaves(&admin(&[100_000; 1025], 102_500_000, 0).faults()), [("admin-control-list", None)]);
        assert_eq!(leaves(&admin(&[i64::MAX; 9], 60_000, 0).faults()).len(), 9);
        let text = admin(&[0], 50_000, 0).check().unwrap_err().to_string();
        assert!(
            text.starts_with("admin-control-list[0].time-interval-value: 0 found, expected more"),
            "{text}"
        );
    }
}
