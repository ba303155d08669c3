// SPDX-License-Identifier: Apache-2.0
//! What is handed to DPDK, without DPDK.

use super::*;

#[test]
fn devargs_that_name_no_device_are_refused() {
    for devargs in ["", ",iface=eth1", "net_null0, size=64", "net_null0\0", &"x".repeat(64)] {
        let error = Words::of(devargs).err();
        assert_eq!(error, Some(OpenError::Devargs { devargs: devargs.to_owned() }), "{devargs:?}");
    }
    let words = Words::of("net_af_packet0,iface=eth1,qdisc_bypass=1").unwrap();
    assert_eq!(words.name.as_c_str(), c"net_af_packet0");
    assert_eq!(words.devargs.as_c_str(), c"net_af_packet0,iface=eth1,qdisc_bypass=1");
}

#[test]
fn a_virtual_device_needs_no_huge_pages_and_touches_no_bus() {
    let words = |devargs| arguments(&Words::of(devargs).unwrap());
    let has = |words: &[String], word: &str| words.iter().any(|one| one == word);
    let virtual_ones = words("net_null0");
    assert!(has(&virtual_ones, "--no-pci") && has(&virtual_ones, "--no-huge"), "{virtual_ones:?}");
    let on_pci = words("0000:03:00.0,tx_pp=500");
    assert!(!has(&on_pci, "--no-pci") && !has(&on_pci, "--no-huge"), "{on_pci:?}");
    assert!(has(&on_pci, "0000:03:00.0,tx_pp=500"), "only this one is touched: {on_pci:?}");
    // In either case nothing is shared; DPDK takes `--in-memory` only where there are huge pages.
    assert!(has(&virtual_ones, "--no-shconf") && has(&on_pci, "--in-memory"));
    for words in [virtual_ones, on_pci] {
        assert!(has(&words, "--no-telemetry"));
    }
}

/// The dynamic field of a launch time, as far as it shows without a card that has it: registered once, one flag that is no other's,
/// an aligned place, and a frame that carries it is taken by a driver that does not look at it.
#[test]
fn a_launch_time_has_a_field_and_a_flag_of_its_own() {
    let options = Options { stage_count: 4, ..Options::default() };
    let mut port = Dpdk::open(None, "net_null7", &options).unwrap();
    assert!(!port.capabilities().launch_time, "net_null says it cannot");
    let field = sys::LaunchField::register().unwrap();
    assert_eq!(
        format!("{field:?}"),
        format!("{:?}", sys::LaunchField::register().unwrap()),
        "the same again"
    );
    assert!(field.is_of_its_own(), "{field:?}");
    let stage = port.stage_copy(&[7; 60]).unwrap();
    assert_eq!(port.commit_at(stage, 5), Err(SendError::Os { errno: libc::EOPNOTSUPP }));
    port.launch = Some(field);
    let stage = port.stage_copy(&[7; 60]).unwrap();
    assert_eq!(port.commit_at(stage, 5), Ok(()));
    assert_eq!((port.counters().committed_count, port.counters().failed_count), (1, 1));
    assert_eq!(port.occupancy().free, 4);
}
