// SPDX-License-Identifier: Apache-2.0
//! Stream identification, 802.1CB-2017 6.4 and 6.7.

use ktsn_model::IpPrefix;
use ktsn_sched::policing::{
    FlowKey, FrameKey, StreamHandle, StreamIdentification, StreamIdentity, StreamMatch,
};
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

fn entry(matches: StreamMatch, stream: u32) -> StreamIdentity {
    StreamIdentity { matches, stream: StreamHandle(stream) }
}

fn any_flow() -> StreamMatch {
    StreamMatch::Ip {
        attachment: None,
        source: None,
        destination: None,
        protocol: None,
        source_port: None,
        destination_port: None,
    }
}

fn frame(vlan: Option<u16>, flow: Option<FlowKey>) -> FrameKey {
    FrameKey { attachment: 3, destination: MAC, vlan, flow }
}

fn udp() -> FlowKey {
    FlowKey {
        source: Ipv4Addr::new(10, 0, 0, 1).into(),
        destination: Ipv4Addr::new(10, 0, 1, 1).into(),
        protocol: 17,
        source_port: Some(40_000),
        destination_port: Some(5_000),
    }
}

#[test]
fn clause_6_4_destination_and_vlan_untagged_is_not_any() {
    let table = StreamIdentification::new(&[
        entry(StreamMatch::MacVlan { destination: MAC, vlan: Some(5) }, 1),
        entry(StreamMatch::MacVlan { destination: MAC, vlan: None }, 2),
    ])
    .unwrap();
    assert_eq!(table.identify(&frame(Some(5), None)), Some(StreamHandle(1)));
    assert_eq!(table.identify(&frame(None, Some(udp()))), Some(StreamHandle(2)));
    assert_eq!(table.identify(&frame(Some(6), None)), None);
}

/// An attachment as a whole: frames that are no IP packets are no way around its meter.
#[test]
fn every_frame_of_an_attachment() {
    let table = StreamIdentification::new(&[
        entry(StreamMatch::All { attachment: Some(4) }, 1),
        entry(StreamMatch::All { attachment: Some(3) }, 2),
    ])
    .unwrap();
    for key in [frame(None, None), frame(Some(5), None), frame(None, Some(udp()))] {
        assert_eq!(table.identify(&key), Some(StreamHandle(2)));
    }
    let any = StreamIdentification::new(&[entry(StreamMatch::All { attachment: None }, 9)]).unwrap();
    assert_eq!(any.identify(&frame(None, None)), Some(StreamHandle(9)));
}

#[test]
fn the_first_entry_that_matches_counts() {
    let of_attachment = |wanted| match any_flow() {
        StreamMatch::Ip { source, destination, protocol, source_port, destination_port, .. } => {
            StreamMatch::Ip {
                attachment: Some(wanted),
                source,
                destination,
                protocol,
                source_port,
                destination_port,
            }
        }
        other @ (StreamMatch::MacVlan { .. } | StreamMatch::All { .. }) => other,
    };
    let table = StreamIdentification::new(&[
        entry(of_attachment(4), 1),
        entry(any_flow(), 2),
        entry(of_attachment(3), 3),
    ])
    .unwrap();
    assert_eq!(table.identify(&frame(None, Some(udp()))), Some(StreamHandle(2)));
    assert_eq!(table.identify(&frame(None, None)), None);
}

#[test]
fn faults_name_their_place() {
    let same = [entry(any_flow(), 1), entry(any_flow(), 2)];
    let fault = StreamIdentification::new(&same).unwrap_err();
    assert_eq!((fault.list, fault.index, fault.value), ("stream-identity", 1, 0));
    let vlan = StreamMatch::MacVlan { destination: MAC, vlan: Some(4095) };
    let fault = StreamIdentification::new(&[entry(any_flow(), 1), entry(vlan, 2)]).unwrap_err();
    assert_eq!((fault.index, fault.leaf, fault.value), (1, "vlan", 4095));
    let full: Vec<_> = (0..257)
        .map(|n: u16| entry(StreamMatch::MacVlan { destination: MAC, vlan: Some(n + 1) }, n.into()))
        .collect();
    assert!(StreamIdentification::new(&full[..256]).is_ok());
    assert_eq!(StreamIdentification::new(&full).unwrap_err().value, 257);
}

/// Few values, so that everything matches now and then.
fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        (0u8..2, 0u8..3).prop_map(|(net, host)| Ipv4Addr::new(10, 0, net, host).into()),
        (0u16..3).prop_map(|host| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host).into()),
    ]
}

fn prefix() -> impl Strategy<Value = Option<IpPrefix>> {
    let prefix = (address(), 0u8..33).prop_map(|(address, bits)| IpPrefix::covering(address, bits).unwrap());
    prop::option::of(prefix)
}

fn port() -> impl Strategy<Value = Option<u16>> {
    prop::option::of(0u16..3)
}

fn stream_match() -> impl Strategy<Value = StreamMatch> {
    let ip = (prop::option::of(0u32..2), prefix(), prefix(), prop::option::of(16u8..18), port(), port())
        .prop_map(|(attachment, source, destination, protocol, source_port, destination_port)| {
            StreamMatch::Ip { attachment, source, destination, protocol, source_port, destination_port }
        });
    let mac = (0u8..2, prop::option::of(1u16..3))
        .prop_map(|(last, vlan)| StreamMatch::MacVlan { destination: [2, 0, 0, 0, 0, last], vlan });
    let all = prop::option::of(0u32..2).prop_map(|attachment| StreamMatch::All { attachment });
    prop_oneof![6 => ip, 2 => mac, 1 => all]
}

/// Address bits as text, compared as far as the prefix goes.
fn lies_in(prefix: Option<IpPrefix>, address: IpAddr) -> bool {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(a) => format!("4{:032b}", a.to_bits()),
        IpAddr::V6(a) => format!("6{:0128b}", a.to_bits()),
    };
    prefix.is_none_or(|p| {
        let length = usize::from(p.bits()) + 1;
        bits(p.address())[..length] == bits(address)[..length]
    })
}

proptest! {
    #![proptest_config(crate::cases(70))]

    #[test]
    fn agrees_with_asking_each_entry(
        matches in prop::collection::vec(stream_match(), 0..12),
        frames in prop::collection::vec(
            ((0u32..2, 0u8..2, prop::option::of(1u16..3)),
             prop::option::of((address(), address(), 16u8..18, port(), port()))), 1..20),
    ) {
        let mut distinct = Vec::new();
        for m in matches {
            if !distinct.contains(&m) {
                distinct.push(m);
            }
        }
        let entries: Vec<_> = distinct.iter().zip(0..).map(|(&m, n)| entry(m, n)).collect();
        let table = StreamIdentification::new(&entries).unwrap();
        for ((attachment, last, vlan), flow) in frames {
            let flow = flow.map(|(source, destination, protocol, source_port, destination_port)| {
                FlowKey { source, destination, protocol, source_port, destination_port }
            });
            let frame = FrameKey { attachment, destination: [2, 0, 0, 0, 0, last], vlan, flow };
            let mut expected = None;
            for e in entries.iter().rev() {
                let matches = match (e.matches, flow) {
                    (StreamMatch::MacVlan { destination, vlan: wanted }, _) => {
                        destination[5] == last && wanted == vlan
                    }
                    (StreamMatch::All { attachment: t }, _) => t.is_none() || t == Some(attachment),
                    (StreamMatch::Ip { .. }, None) => false,
                    (StreamMatch::Ip { attachment: t, source, destination, protocol, source_port, destination_port }, Some(f)) => {
                        (t.is_none() || t == Some(attachment))
                            && (protocol.is_none() || protocol == Some(f.protocol))
                            && (source_port.is_none() || source_port == f.source_port)
                            && (destination_port.is_none() || destination_port == f.destination_port)
                            && lies_in(source, f.source)
                            && lies_in(destination, f.destination)
                    }
                };
                if matches {
                    expected = Some(e.stream);
                }
            }
            prop_assert_eq!(table.identify(&frame), expected);
        }
    }
}
