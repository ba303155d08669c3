// SPDX-License-Identifier: Apache-2.0
//! Which targets are left when the program cannot be given everything (root; the program is at no device).

use std::net::Ipv4Addr;
use std::sync::Arc;

use ktsn_resolve::{AttachmentTables, Link, LinkTable, Overlay, PortIndex};
use ktsn_wire::{MacAddress, Vni};

use super::*;

/// The tables of one attachment whose pod has these addresses, in a network with so many tunnel ends.
fn tables(addresses: &[[u8; 4]], ends: u32) -> Tables {
    let link = || {
        LinkTable::new(Link {
            port: PortIndex(0),
            if_index: 0,
            mac: MacAddress([2, 0, 0, 0, 0, 1]),
            mtu: 1500,
            addresses: Vec::new(),
            routes: Vec::new(),
            neighbours: Vec::new(),
        })
        .unwrap()
    };
    let delivery = ktsn_resolve::Delivery {
        vni: Vni::new(1).unwrap(),
        port: 8472,
        local: [192, 168, 50, 1].into(),
        station: MacAddress([2, 0, 0, 0, 0, 2]),
        gateway: None,
        host_end: 1,
        packet_octets_max: 1500,
        addresses: addresses.iter().map(|address| (*address).into()).collect(),
        ends: (0..ends).map(|number| Ipv4Addr::from(0x0a00_0000 + number).into()).collect(),
        own: Arc::from([]),
    };
    let tables =
        AttachmentTables::new(link(), link().into(), Overlay::None, None).unwrap().delivered(Some(delivery));
    Tables::new(1, vec![Some(tables)]).unwrap()
}

#[test]
fn an_error_leaves_no_target_that_is_not_wanted() {
    let index = AttachmentIndex(0);
    let mut uplink = Uplink::load().expect("root may load programs");
    // The loopback device stands for the pod's.
    uplink.program.set_device(0, Some(1)).unwrap();
    uplink.bound.insert(0, 1);
    let members = [Member { index, name: "pod", netns: PathBuf::new() }];
    let before = tables(&[[10, 244, 0, 5], [10, 244, 0, 6]], 3);
    uplink.set_members(&members, &before).unwrap();
    let now = tables(&[[10, 244, 0, 6]], 20_000);
    let error = uplink.set_members(&members, &now).unwrap_err();
    assert!(matches!(error, BpfError::TooMany { what: "tunnel ends", .. }), "{error}");
    let wanted = || targets(index, now.attachment(index).unwrap());
    assert_eq!(uplink.program.keep_targets(wanted()).unwrap(), 0, "10.244.0.5 is gone");
    assert_eq!(uplink.program.keep_targets([]).unwrap(), 1, "10.244.0.6 stays");
}
