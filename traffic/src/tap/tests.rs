// SPDX-License-Identifier: Apache-2.0
use super::*;
use ktsn_time::Tai;
use ktsn_wire::template::Ends;
use ktsn_wire::{DsField, HeaderTemplate, MacAddress, Network, Outer, TemplateRepr, Vni};
use proptest::prelude::*;
use std::net::Ipv4Addr;

const PORT: u16 = 7788;

fn network(host: u8) -> Network {
    let source = Ipv4Addr::new(10, 0, host, 1);
    let destination = Ipv4Addr::new(10, 0, host, 2);
    Network::V4 { source, destination, ttl: 64, ds: DsField::default(), dont_fragment: true }
}

fn macs() -> Ends<MacAddress> {
    Ends { source: MacAddress([2, 0, 0, 0, 0, 1]), destination: MacAddress([2, 0, 0, 0, 0, 2]) }
}

fn frame(payload: &[u8], port: u16, vxlan_port: Option<u16>) -> Vec<u8> {
    let outer = vxlan_port.map(|vxlan_port| Outer {
        ethernet: macs(),
        network: network(9),
        dscp_inherit: false,
        vxlan_port,
        vni: Vni::new(1).unwrap(),
        udp_checksum: false,
    });
    let udp = Ends { source: 40_000, destination: port };
    let repr =
        TemplateRepr { outer, ethernet: macs(), vlan: None, network: network(1), udp, udp_checksum: true };
    let template = HeaderTemplate::new(&repr).unwrap();
    let mut octets = vec![0; 2048];
    let length = template.write_frame(payload, &mut octets).unwrap();
    octets.truncate(length);
    octets
}

fn payload(sequence: u64, octets: usize) -> (Probe, Vec<u8>) {
    let probe = Probe { sequence, tx_time: Tai::from_nanos(77) };
    let mut payload = crate::payload::blank(octets).unwrap();
    probe.write(&mut payload).unwrap();
    (probe, payload)
}

#[test]
fn probes_are_found_plain_and_in_vxlan() {
    let (probe, payload) = payload(5, 64);
    let vxlan = Some(VXLAN_PORT);
    let found = |tunnelled| Frame::Probe { probe, tunnelled };
    assert_eq!(read_frame(&frame(&payload, PORT, None), PORT, vxlan), found(false));
    assert_eq!(read_frame(&frame(&payload, PORT, vxlan), PORT, vxlan), found(true));
    // Another VXLAN port is an ordinary datagram, and so is every datagram when no tunnel is expected.
    assert_eq!(read_frame(&frame(&payload, PORT, Some(4789)), PORT, vxlan), Frame::Other);
    assert_eq!(read_frame(&frame(&payload, PORT, vxlan), PORT, None), Frame::Other);
}

#[test]
fn other_ports_and_short_payloads_are_other_frames() {
    let (_, probe) = payload(5, 16);
    assert_eq!(read_frame(&frame(&probe, PORT + 1, None), PORT, Some(VXLAN_PORT)), Frame::Other);
    assert_eq!(read_frame(&frame(&probe[..15], PORT, None), PORT, Some(VXLAN_PORT)), Frame::Other);
    assert_eq!(read_frame(&[], PORT, Some(VXLAN_PORT)), Frame::Other);
}

#[test]
fn a_missing_device_is_named() {
    let interface = "ktsn-none0".to_owned();
    let options =
        TapOptions { interface, port: PORT, vxlan_port: None, count: 0, timeout: None, outgoing: false };
    let error = run(&options, || (), &|| true).unwrap_err();
    assert!(matches!(error, TapError::Interface { .. }));
    assert!(error.to_string().contains("ktsn-none0") && error.to_string().contains("ip link"), "{error}");
}

proptest! {
    #[test]
    fn whatever_is_sent_is_read_back(sequence: u64, octets in 16_usize..1400, tunnelled: bool) {
        let (probe, payload) = payload(sequence, octets);
        let frame = frame(&payload, PORT, tunnelled.then_some(VXLAN_PORT));
        prop_assert_eq!(read_frame(&frame, PORT, Some(VXLAN_PORT)), Frame::Probe { probe, tunnelled });
    }

    /// A damaged frame is never a probe of another port, and never a panic.
    #[test]
    fn damaged_frames_are_survived(cut in 0_usize..120, place in 0_usize..120, value: u8) {
        let mut frame = frame(&payload(1, 64).1, PORT, Some(VXLAN_PORT));
        frame[place] = value;
        frame.truncate(frame.len().saturating_sub(cut));
        if let Frame::Probe { tunnelled, .. } = read_frame(&frame, PORT, Some(VXLAN_PORT)) {
            prop_assert!(tunnelled && cut == 0);
        }
    }
}
