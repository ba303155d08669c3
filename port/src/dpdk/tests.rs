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
