// SPDX-License-Identifier: Apache-2.0
extern crate std;
use std::vec::Vec;

use super::{Address, Destination, parse};

fn v4(address: [u8; 4], port: u16) -> Vec<u8> {
    [&2u16.to_ne_bytes()[..], &port.to_be_bytes(), &address, &[0; 8]].concat()
}

fn v6(address: &str, port: u16, scope: u32) -> Vec<u8> {
    let address: std::net::Ipv6Addr = address.parse().unwrap();
    [&10u16.to_ne_bytes()[..], &port.to_be_bytes(), &[0; 4], &address.octets(), &scope.to_ne_bytes()].concat()
}

fn to(name: &[u8], is_v6: bool) -> Address {
    match parse(name, is_v6, false) {
        Destination::To(address) => address,
        other => panic!("{other:?}"),
    }
}

#[test]
fn ipv4_on_both_kinds_of_socket() {
    let mut name = v4([10, 1, 2, 3], 9000);
    let mapped = *b"\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\x01\x02\x03";
    assert_eq!(to(&name, false), Address { address: mapped, scope: 0, port: 9000 });
    assert_eq!(to(&name, true), to(&name, false));
    name.resize(128, 0xee);
    assert_eq!(to(&name, false).address, mapped);
    assert_eq!(to(&v6("::ffff:10.1.2.3", 9000, 7), true), Address { address: mapped, scope: 0, port: 9000 });
    assert!(to(&name, true).is_v4() && !to(&name, true).is_multicast());
    assert!(to(&v4([239, 0, 0, 1], 1), false).is_multicast());
    assert!(to(&v4([255; 4], 1), false).is_broadcast());
}

#[test]
fn ipv6_scope_only_where_it_means_something() {
    assert_eq!(to(&v6("fd00::1", 9000, 7), true).scope, 0);
    assert_eq!(to(&v6("fe80::1", 9000, 7), true).scope, 7);
    assert_eq!(to(&v6("ff02::1", 9000, 7), true).scope, 7);
    assert_eq!(to(&v6("fe80::1", 9000, 7)[..24], true).scope, 0);
    assert!(to(&v6("ff02::1", 9000, 7), true).is_multicast());
}

#[test]
fn the_kernel_answers_what_makes_no_sense() {
    assert_eq!(parse(&[], false, false), Destination::Peer);
    let cases: [(&[u8], bool, bool); 11] = [
        (&v4([10, 0, 0, 1], 0), false, false),
        (&v4([0; 4], 1), false, false),
        (&v4([10, 0, 0, 1], 1)[..15], false, false),
        (&v4([10, 0, 0, 1], 1)[..1], false, false),
        (&v4([10, 0, 0, 1], 1), true, true),
        (&v6("fd00::1", 1, 0), false, false),
        (&v6("::ffff:10.0.0.1", 1, 0), false, false),
        (&v6("::ffff:10.0.0.1", 1, 0), true, true),
        (&v6("::", 1, 0), true, false),
        (&v6("fd00::1", 1, 0)[..23], true, false),
        (&[0; 128], true, false),
    ];
    for (name, is_v6, only) in cases {
        assert_eq!(parse(name, is_v6, only), Destination::Kernel, "{name:?}");
    }
}
