// SPDX-License-Identifier: Apache-2.0
//! Addresses that are given, and what the ingress fast path may deliver to.

use std::net::IpAddr;

use ktsn_resolve::{AttachmentTables, Delivery};

use super::super::TrackedAttachment;
use super::place::{Place, Seen, bridge, ip, path_of};
use crate::config::{Given, IngressMode, Overlay};

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn given(texts: &[&str]) -> Given {
    Given::These(texts.iter().map(|text| text.parse().unwrap()).collect())
}

fn has(tables: &AttachmentTables, text: &str) -> bool {
    tables.interface().has_address(address(text))
}

#[test]
fn what_the_interface_had_is_given_and_nothing_else() {
    Place::run(async |place, mut seen: Seen| {
        let tracked = TrackedAttachment { addresses: Given::AtAttachment, ..place.tracked() };
        let added = seen.manager.add(tracked.clone()).await.unwrap();
        let Given::These(found) = &added.addresses else { panic!("{:?}", added.addresses) };
        for own in ["10.244.0.5/32", "fd00:244::5/128"] {
            assert!(found.contains(&own.parse().unwrap()), "{found:?}");
        }
        let pod = &place.pod;
        ip(&format!("-n {pod} addr add 10.244.0.77/32 dev eth0"));
        let later = address("10.244.0.77");
        seen.until("withheld", |t| t.withheld() == [later]).await;
        let tables = seen.attachment().unwrap();
        assert!(has(tables, "10.244.0.5") && !has(tables, "10.244.0.77"));
        assert!(tables.own().contains(&later), "the namespace's own it is");
        assert!(tables.is_source_judged());
        let said = |seen: &Seen| seen.warnings.iter().filter(|text| text.contains("not given")).count();
        assert_eq!(said(&seen), 1);
        // Taken off and put there again: no address is given by that, and nothing is said twice.
        ip(&format!("-n {pod} addr del 10.244.0.5/24 dev eth0"));
        seen.until("gone", |t| !has(t, "10.244.0.5")).await;
        ip(&format!("-n {pod} addr add 10.244.0.5/32 dev eth0"));
        seen.until("there again", |t| has(t, "10.244.0.5") && t.withheld() == [later]).await;
        assert_eq!(said(&seen), 1);
        // The list that was found is a list like others.
        seen.manager.add(TrackedAttachment { addresses: added.addresses, ..tracked }).await.unwrap();
        seen.until("as before", |t| has(t, "10.244.0.5") && t.withheld() == [later]).await;
    });
}

#[test]
fn the_daemons_own_namespace_is_believed() {
    Place::run(async |place, mut seen: Seen| {
        let tracked = TrackedAttachment {
            addresses: Given::AtAttachment,
            interface: "up0".to_owned(),
            ..place.tracked().changed(|a| (a.netns, a.overlay) = (path_of(&place.node), Overlay::None))
        };
        let added = seen.manager.add(tracked).await.unwrap();
        assert_eq!(added.addresses, Given::Interface);
        ip(&format!("-n {} addr add 192.168.77.9/24 dev up0", place.node));
        seen.until("followed", |t| has(t, "192.168.77.9") && !t.is_source_judged()).await;
    });
}

#[test]
fn a_list_counts_as_far_as_the_interface_has_it() {
    Place::run(async |place, mut seen: Seen| {
        let addresses = given(&["10.244.0.5", "10.244.0.16/28"]);
        seen.manager.add(TrackedAttachment { addresses, ..place.tracked() }).await.unwrap();
        // The kernel looks for another owner of a link-local address before it can be used.
        let is_link_local = |own: &IpAddr| matches!(own, IpAddr::V6(own) if own.is_unicast_link_local());
        let has_link_local =
            |t: &AttachmentTables| t.interface().addresses().iter().any(|(own, _)| is_link_local(own));
        seen.until("there", |t| has(t, "10.244.0.5") && has_link_local(t)).await;
        let tables = seen.attachment().unwrap();
        assert!(!has(tables, "10.244.0.16") && !has(tables, "fd00:244::5"));
        assert!(tables.withheld().contains(&address("fd00:244::5")), "{:?}", tables.withheld());
        ip(&format!("-n {} addr add 10.244.0.17/24 dev eth0", place.pod));
        seen.until("within the prefix", |t| has(t, "10.244.0.17")).await;
    });
}

fn delivery(seen: &Seen) -> &Delivery {
    seen.attachment().unwrap().delivery().expect("a way in")
}

/// Even where the interface is believed, the node's own routes decide for whom it is.
#[test]
fn the_ingress_fast_path_goes_where_the_node_would_deliver() {
    Place::run(async |place, mut seen: Seen| {
        let (node, pod) = (&place.node, &place.pod);
        ip(&format!("-n {node} addr add 10.244.0.0/32 dev flannel.1"));
        ip(&format!("-n {node} link set flannel.1 up"));
        bridge(&format!("-n {node} fdb add 02:00:00:00:f4:03 dev flannel.1 dst 192.168.77.3"));
        let tracked = place.tracked().changed(|a| a.ingress = IngressMode::Short);
        let added = seen.manager.add(tracked).await.unwrap();
        assert_eq!(added.addresses, Given::Interface);
        let five = address("10.244.0.5");
        seen.until("delivered", |t| t.delivery().is_some_and(|known| known.addresses == [five])).await;
        // No route of the node leads to its IPv6 address.
        assert_eq!(delivery(&seen).ends, [address("192.168.77.2"), address("192.168.77.3")]);
        for own in ["192.168.77.1", "10.244.0.1", "10.244.0.0"] {
            assert!(delivery(&seen).own.contains(&address(own)), "{:?}", delivery(&seen).own);
        }
        assert!(!delivery(&seen).own.contains(&address("127.0.0.1")));
        // The node's own, another network's, and one that is the pod's.
        for other in ["10.244.0.1/32", "10.244.0.0/32", "10.244.1.9/32", "192.168.77.9/32", "10.244.0.9/32"] {
            ip(&format!("-n {pod} addr add {other} dev eth0"));
        }
        let both = [five, address("10.244.0.9")];
        seen.until("the last one", |t| t.delivery().is_some_and(|known| known.addresses == both)).await;
        // Where the node sends it elsewhere from now on, it is not delivered here.
        ip(&format!("-n {node} route add 10.244.0.9/32 via 192.168.77.2"));
        seen.until("elsewhere", |t| t.delivery().is_some_and(|known| known.addresses == [five])).await;
        ip(&format!("-n {node} route add 10.244.1.9/32 dev pod0"));
        let routed = [five, address("10.244.1.9")];
        seen.until("routed", |t| t.delivery().is_some_and(|known| known.addresses == routed)).await;
        bridge(&format!("-n {node} fdb del 02:00:00:00:f4:03 dev flannel.1 dst 192.168.77.3"));
        seen.until("forgotten", |t| t.delivery().is_some_and(|known| known.ends.len() == 1)).await;
    });
}

/// Behind a bridge several pods have addresses of one prefix: the node tells them apart by their MAC addresses.
#[test]
fn a_bridge_knows_its_stations() {
    Place::run(async |place, mut seen: Seen| {
        let (node, pod) = (&place.node, &place.pod);
        for command in [
            "link add cni0 type bridge",
            "addr del 10.244.0.1/24 dev pod0",
            "link set pod0 master cni0",
            "addr add 10.244.0.1/24 dev cni0",
            "link set cni0 up",
            "link set flannel.1 up",
        ] {
            ip(&format!("-n {node} {command}"));
        }
        seen.manager.add(place.tracked().changed(|a| a.ingress = IngressMode::Short)).await.unwrap();
        let (five, other) = (address("10.244.0.5"), address("10.244.0.9"));
        seen.until("delivered", |t| t.delivery().is_some_and(|known| known.addresses == [five])).await;
        let neighbour =
            |mac: &str| format!("-n {node} neigh replace 10.244.0.9 lladdr {mac} dev cni0 nud permanent");
        ip(&neighbour("02:00:00:00:00:99"));
        ip(&format!("-n {pod} addr add 10.244.0.9/32 dev eth0"));
        seen.until("another station's", |t| has(t, "10.244.0.9")).await;
        assert_eq!(delivery(&seen).addresses, [five]);
        let own = seen.attachment().unwrap().interface().mac();
        ip(&neighbour(&own.to_string()));
        seen.until("its own", |t| t.delivery().is_some_and(|known| known.addresses == [five, other])).await;
    });
}
