// SPDX-License-Identifier: Apache-2.0
//! A table says what `ip -j` says.

use std::net::IpAddr;
use std::os::fd::AsFd;

use ktsn_model::{DropReason, IpPrefix};
use ktsn_resolve::{Egress, Flow, LinkTable, Marks, NextHop, Refusal, Side, Via, resolve};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;

use super::super::TrackedAttachment;
use super::super::{TablesError, default_uplink};
use super::place::{INDEX, Place, Seen, ip, ip_batch, ip_json, path_of};
use crate::sys;

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Routes of the main table as the table of `device` has them, sorted by their text.
fn routes_by_ip(namespace: &str, device: &str) -> Vec<String> {
    let (mut routes, mut prefixes) = (Vec::new(), Vec::new());
    for (family, all) in [("-4", "0.0.0.0/0"), ("-6", "::/0")] {
        for route in list(&ip_json(&format!("-n {namespace} {family} -j route show table main"))) {
            let prefix = text(route, "dst").unwrap();
            let prefix: IpPrefix = if prefix == "default" { all } else { prefix }.parse().unwrap();
            let via = match (text(route, "dev"), text(route, "gateway")) {
                (Some(dev), Some(gateway)) if dev == device => Via::Gateway(gateway.parse().unwrap()),
                (Some(dev), None) if dev == device && text(route, "type").is_none() => Via::OnLink,
                _ => Via::Elsewhere,
            };
            // Of equal prefixes the kernel shows the preferred one first, as it uses it.
            if prefixes.contains(&prefix) {
                continue;
            }
            prefixes.push(prefix);
            let source: Option<IpAddr> = text(route, "prefsrc").map(|source| source.parse().unwrap());
            routes.push(format!("{prefix} {via:?} {source:?}"));
        }
    }
    routes.sort();
    routes
}

pub(super) fn same_as_ip(table: &LinkTable, namespace: &str, device: &str) {
    let mut routes: Vec<_> =
        table.routes().map(|route| format!("{} {:?} {:?}", route.prefix, route.via, route.source)).collect();
    routes.sort();
    assert_eq!(routes, routes_by_ip(namespace, device), "routes of {device}");

    let link = ip_json(&format!("-n {namespace} -j addr show dev {device}"));
    let link = &link[0];
    assert_eq!(u64::from(table.mtu()), link["mtu"].as_u64().unwrap());
    assert_eq!(u64::from(table.if_index()), link["ifindex"].as_u64().unwrap());
    assert_eq!(table.mac().to_string(), text(link, "address").unwrap());
    let usable = list(&link["addr_info"]).filter(|info| info.get("tentative").is_none());
    let addresses: Vec<(IpAddr, u8)> = usable
        .map(|info| {
            (text(info, "local").unwrap().parse().unwrap(), info["prefixlen"].as_u64().unwrap() as u8)
        })
        .collect();
    assert_eq!(table.addresses(), addresses, "addresses of {device}");

    let known = ip_json(&format!("-n {namespace} -j neigh show dev {device} nud all"));
    let usable = list(&known).filter(|entry| {
        let state = entry["state"][0].as_str().unwrap();
        let is_group = text(entry, "dst").is_some_and(|to| to.parse::<IpAddr>().unwrap().is_multicast());
        !is_group
            && text(entry, "lladdr").is_some_and(|mac| mac != "00:00:00:00:00:00")
            && state != "FAILED"
            && state != "NONE"
    });
    let mut neighbours: Vec<String> = usable
        .map(|entry| format!("{} {}", text(entry, "dst").unwrap(), text(entry, "lladdr").unwrap()))
        .collect();
    let mut ours: Vec<String> =
        table.neighbours().iter().map(|n| format!("{} {}", n.address, n.mac)).collect();
    neighbours.sort();
    ours.sort();
    assert_eq!(ours, neighbours, "neighbours of {device}");
}

fn prepare(place: &Place) {
    let pod = &place.pod;
    ip_batch(
        pod,
        "link add net1 type veth peer name net2\nlink set net1 up\nlink set net2 up\naddr add 172.30.0.1/24 dev net1\n\
         addr add 10.244.0.9/24 dev eth0\naddr add 10.244.9.1/32 dev eth0\n\
         route add 10.9.0.0/16 dev net1\nroute add 10.8.0.0/16 via 10.244.0.2\n\
         route add 10.7.0.0/16 via 10.244.0.2 src 10.244.0.9\nroute add unreachable 10.6.0.0/16\n\
         route add 10.5.0.0/16 via 10.244.0.3 metric 50\nroute add fd00:99::/64 via fd00:244::1\n\
         neigh add 10.244.0.2 lladdr 02:00:00:00:00:02 dev eth0 nud permanent\n\
         neigh add 10.244.0.3 lladdr 02:00:00:00:00:03 dev eth0 nud stale\n\
         neigh add 10.244.0.4 lladdr 02:00:00:00:00:04 dev eth0 nud failed\n\
         neigh add fd00:244::1 lladdr 02:00:00:00:00:06 dev eth0 nud reachable\n",
    );
}

#[test]
fn tables_say_what_ip_says() {
    Place::run(async |place, mut seen: Seen| {
        prepare(place);
        let added = seen.manager.add(place.tracked()).await.unwrap();
        assert_eq!(added.mtu, 1450);
        // The gateway is being resolved meanwhile: wait for it, so that both sides see a settled state.
        let gateway: IpAddr = "10.244.0.1".parse().unwrap();
        let vtep: IpAddr = "192.168.77.2".parse().unwrap();
        seen.until("gateways", |t| {
            t.interface().neighbour(gateway).is_some() && t.uplink().neighbour(vtep).is_some()
        })
        .await;
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        while seen.next(std::time::Duration::ZERO).await.is_some() {}
        let tables = seen.attachment().unwrap();
        same_as_ip(tables.interface(), &place.pod, "eth0");
        same_as_ip(tables.uplink(), &place.node, "up0");
        assert!(tables.own().contains(&"172.30.0.1".parse().unwrap()));
    });
}

#[test]
fn of_equal_prefixes_the_lowest_metric_counts() {
    Place::run(async |place, seen: Seen| {
        for (gateway, metric) in [("10.244.0.7", 300), ("10.244.0.8", 20), ("10.244.0.9", 100)] {
            ip(&format!("-n {} route add 10.5.0.0/16 via {gateway} metric {metric}", place.pod));
        }
        let added = seen.manager.add(place.tracked()).await.unwrap();
        let tables = added.tables.attachment(INDEX).unwrap();
        let route = tables.interface().route("10.5.0.1".parse().unwrap()).unwrap();
        assert_eq!(route.via, Via::Gateway("10.244.0.8".parse().unwrap()));
    });
}

#[test]
fn a_datagram_for_a_peer_finds_its_way_once_its_neighbour_is_known() {
    Place::run(async |place, mut seen: Seen| {
        seen.manager.add(place.tracked()).await.unwrap();
        let flow = Flow {
            is_connected: false,
            uid: 0,
            attachment: INDEX,
            bound: None,
            source_port: 5001,
            destination: "10.244.1.7".parse().unwrap(),
            destination_port: 6001,
            scope: 0,
            traffic_class: 0,
            hop_limit: 0,
            marks: Marks::default(),
        };
        // Nobody pinged: the kernel is made to resolve the tunnel end, and does.
        let vtep: IpAddr = "192.168.77.2".parse().unwrap();
        seen.until("tunnel end", |t| t.uplink().neighbour(vtep).is_some()).await;
        let resolved = resolve(seen.latest.as_ref().unwrap(), &flow).unwrap();
        assert_eq!((resolved.egress, resolved.payload_max), (Egress::Uplink, 1450 - 28));

        // A pod on the same node: asked for, then known.
        ip(&format!("-n {} addr add 10.244.0.6/24 dev pod0", place.node));
        let local = Flow { destination: "10.244.0.6".parse().unwrap(), ..flow };
        let refused = resolve(seen.latest.as_ref().unwrap(), &local).err().unwrap();
        let next_hop = NextHop { side: Side::Interface, address: local.destination };
        assert_eq!(refused, Refusal::Drop(DropReason::NoNeighbour, Some(next_hop)));
        seen.manager.ensure_neighbour(INDEX, next_hop);
        seen.until("neighbour", |t| t.interface().neighbour(local.destination).is_some()).await;
        let resolved = resolve(seen.latest.as_ref().unwrap(), &local).unwrap();
        assert_eq!(resolved.egress, Egress::Interface);
    });
}

#[test]
fn the_cookie_is_the_one_that_sockets_of_the_pod_show() {
    Place::run(async |place, seen: Seen| {
        let added = seen.manager.add(place.tracked()).await.unwrap();
        let path = path_of(&place.pod);
        let inside = std::thread::spawn(move || {
            let file = std::fs::File::open(path).unwrap();
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            std::net::UdpSocket::bind("0.0.0.0:0").unwrap()
        });
        let socket = inside.join().unwrap();
        assert_eq!(sys::netns_cookie(socket.as_fd()).unwrap(), added.netns_cookie);
        let ours = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
        assert_ne!(sys::netns_cookie(ours.as_fd()).unwrap(), added.netns_cookie);
    });
}

#[test]
fn the_uplink_is_the_default_routes_device() {
    Place::run(async |place, _: Seen| {
        assert_eq!(default_uplink().await.unwrap(), "up0");
        ip(&format!("-n {} route del default", place.node));
        assert!(matches!(default_uplink().await, Err(TablesError::NoDefaultRoute)));
    });
}

#[test]
fn what_is_not_there_is_named() {
    Place::run(async |place, mut seen: Seen| {
        let refused = async |change: fn(TrackedAttachment) -> TrackedAttachment| {
            seen.manager.add(change(place.tracked())).await.expect_err("it is not there").to_string()
        };
        let error = refused(|tracked| tracked.changed(|a| a.netns = path_of("ktsn-no-such"))).await;
        assert!(error.contains("ktsn-no-such") && error.contains("No such file"), "{error}");
        let error = refused(|tracked| tracked.changed(|a| a.netns = "/etc/hostname".into())).await;
        assert!(error.contains("/etc/hostname") && error.contains("network namespace"), "{error}");
        let error = refused(|tracked| TrackedAttachment { interface: "eth7".to_owned(), ..tracked }).await;
        assert!(error.starts_with("interface: \"eth7\""), "{error}");
        let error = refused(|tracked| TrackedAttachment { interface: "lo".to_owned(), ..tracked }).await;
        assert!(error.starts_with("interface: \"lo\""), "{error}");
        let error = refused(|tracked| TrackedAttachment { uplink: "up7".to_owned(), ..tracked }).await;
        assert!(error.starts_with("uplink: \"up7\""), "{error}");
        let error =
            refused(|tracked| tracked.with_vxlan(|vxlan| vxlan.device = "flannel.7".to_owned())).await;
        assert!(error.starts_with("overlay.vxlan.device: \"flannel.7\""), "{error}");
        // None of it left anything behind: the pod's namespace goes when its name goes.
        ip(&format!("netns del {}", place.pod));
        super::gone::veth_goes(place).await;
        assert!(seen.next(std::time::Duration::ZERO).await.is_none());
    });
}
