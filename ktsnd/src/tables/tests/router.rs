// SPDX-License-Identifier: Apache-2.0
//! Rule 4b: frames leave as the node's own routing would send them, as long as it would.

use std::net::IpAddr;

use ktsn_resolve::{
    AttachmentTables, Egress, Flow, Marks, PortIndex, Refusal, Tables, destinations, resolve,
};

use super::super::TrackedAttachment;
use super::place::{INDEX, Place, Seen, ip};
use crate::config::Overlay;

const FAR_POD: &str = "10.244.1.7";

/// The pod on a node without an overlay, whose pods' prefixes are routed from node to node.
fn tracked(place: &Place) -> TrackedAttachment {
    place.tracked().changed(|a| {
        a.overlay = Overlay::None;
        a.destinations = vec!["10.244.1.0/24".parse().unwrap(), "192.168.0.0/16".parse().unwrap()];
    })
}

fn flow(to: &str) -> Flow {
    Flow {
        is_connected: false,
        uid: 0,
        attachment: INDEX,
        bound: None,
        source_port: 5001,
        destination: to.parse::<IpAddr>().unwrap(),
        destination_port: 6001,
        scope: 0,
        traffic_class: 0,
        hop_limit: 0,
        marks: Marks::default(),
    }
}

fn egress(tables: &AttachmentTables, to: &str) -> Result<Egress, Refusal> {
    let all =
        Tables::new(1, vec![None; usize::from(INDEX.0)].into_iter().chain([Some(tables.clone())]).collect());
    resolve(&all.unwrap(), &flow(to)).map(|resolved| resolved.egress)
}

#[test]
fn the_nodes_own_routes_are_followed_while_it_forwards() {
    Place::run(async |place, mut seen: Seen| {
        let node = &place.node;
        let forwarding = |on: u8| ip(&format!("netns exec {node} sysctl -qw net.ipv4.ip_forward={on}"));
        forwarding(1);
        ip(&format!("-n {node} neigh replace 192.168.77.2 lladdr 02:00:00:00:00:77 dev up0 nud permanent"));
        ip(&format!(
            "-n {} neigh replace 10.244.0.1 lladdr 02:00:00:00:00:01 dev eth0 nud permanent",
            place.pod
        ));
        seen.manager.add(tracked(place)).await.expect("added");
        let leaves = |to: &'static str, by| move |tables: &AttachmentTables| egress(tables, to) == Ok(by);
        // Only the default route leads there: the node may do anything with it.
        seen.until("the default route", leaves(FAR_POD, Egress::Interface)).await;
        ip(&format!("-n {node} route add 10.244.1.0/24 via 192.168.77.2"));
        seen.until("the node's route", leaves(FAR_POD, Egress::Uplink)).await;
        let tables = seen.attachment().unwrap();
        let next = [
            ("192.168.77.2", Egress::Uplink),      // on the uplink's network
            ("192.168.77.1", Egress::Interface),   // the node itself
            ("192.168.77.255", Egress::Interface), // directed broadcast
            ("192.168.78.9", Egress::Interface),   // by the default route
        ];
        for (to, by) in next {
            assert_eq!(egress(tables, to), Ok(by), "{to}");
        }
        let all = seen.latest.clone().unwrap();
        let resolved = resolve(&all, &flow(FAR_POD)).unwrap();
        assert_eq!(resolved.port, PortIndex(0));
        let mut frame = [0; 64];
        resolved.template.write_frame(b"x", &mut frame).unwrap();
        assert_eq!(
            (&frame[..6], frame[22]),
            (&[2, 0, 0, 0, 0, 0x77][..], 63),
            "the next hop's MAC address, TTL - 1"
        );
        assert!(destinations(&all, INDEX).len() > 2);
        forwarding(0);
        seen.until("no forwarding", leaves(FAR_POD, Egress::Interface)).await;
        forwarding(1);
        seen.until("forwarding again", leaves(FAR_POD, Egress::Uplink)).await;
        ip(&format!("-n {node} route del 10.244.1.0/24"));
        seen.until("no route", leaves(FAR_POD, Egress::Interface)).await;
    });
}
