// SPDX-License-Identifier: Apache-2.0
//! What changes in the kernel is in the tables soon.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use ktsn_model::IpPrefix;
use ktsn_resolve::{AttachmentIndex, AttachmentTables, PortIndex, Tables, Via};

use super::super::{Event, TrackedAttachment};
use super::place::{INDEX, PATIENCE, Place, Seen, ip, ip_batch};

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn via(tables: &AttachmentTables, to: &str) -> Option<Via> {
    tables.interface().route(address(to)).map(|route| route.via)
}

#[test]
fn each_change_is_seen() {
    Place::run(async |place, mut seen: Seen| {
        seen.manager.add(place.tracked()).await.unwrap();
        type Wanted = fn(&AttachmentTables) -> bool;
        let changes: [(&str, Wanted); 12] = [
            ("route add 10.8.0.0/16 via 10.244.0.2", |t| {
                via(t, "10.8.0.1") == Some(Via::Gateway(address("10.244.0.2")))
            }),
            ("route replace 10.8.0.0/16 via 10.244.0.3", |t| {
                via(t, "10.8.0.1") == Some(Via::Gateway(address("10.244.0.3")))
            }),
            ("route del 10.8.0.0/16", |t| via(t, "10.8.0.1") == Some(Via::Gateway(address("10.244.0.1")))),
            ("addr add 10.244.0.77/24 dev eth0", |t| t.interface().has_address(address("10.244.0.77"))),
            ("addr del 10.244.0.77/24 dev eth0", |t| !t.interface().has_address(address("10.244.0.77"))),
            ("addr add 10.99.0.1/32 dev lo", |t| t.own().contains(&address("10.99.0.1"))),
            ("neigh add 10.244.0.50 lladdr 02:00:00:00:00:50 dev eth0 nud permanent", |t| {
                t.interface().neighbour(address("10.244.0.50")).is_some()
            }),
            ("neigh replace 10.244.0.50 lladdr 02:00:00:00:00:51 dev eth0 nud permanent", |t| {
                t.interface().neighbour(address("10.244.0.50")).is_some_and(|mac| mac.0[5] == 0x51)
            }),
            ("neigh del 10.244.0.50 dev eth0", |t| t.interface().neighbour(address("10.244.0.50")).is_none()),
            ("link set eth0 mtu 1400", |t| t.interface().mtu() == 1400),
            ("link set eth0 address 02:00:00:00:00:55", |t| t.interface().mac().0[5] == 0x55),
            // No notification tells of the IPv4 routes that go with their link.
            ("link set eth0 down", |t| t.interface().routes_count() == 0),
        ];
        for (change, wanted) in changes {
            ip(&format!("-n {} {change}", place.pod));
            seen.until(change, wanted).await;
        }
    });
}

/// A container runtime makes an interface and attaches it at once. The namespace is held for another one already.
#[test]
fn an_interface_can_be_attached_the_moment_that_it_is_there() {
    Place::run(async |place, mut seen: Seen| {
        seen.manager.add(place.tracked()).await.unwrap();
        for number in 3..8 {
            let interface = format!("net{number}");
            ip_batch(
                &place.pod,
                &format!(
                    "link add {interface} type veth peer name far{number}\naddr add 10.9.{number}.1/24 dev {interface}\nlink set {interface} up\n"
                ),
            );
            let index = AttachmentIndex(number);
            let tracked =
                TrackedAttachment { index, interface, interface_port: PortIndex(number), ..place.tracked() };
            let added = seen.manager.add(tracked).await.unwrap();
            let tables = added.tables.attachment(index).unwrap();
            assert!(tables.interface().has_address(format!("10.9.{number}.1").parse().unwrap()));
        }
        // What was read for one that is refused is not lost on the others.
        let gateway = Via::Gateway(address("10.244.0.2"));
        ip(&format!("-n {} route add 10.8.0.0/16 via 10.244.0.2", place.pod));
        let tracked =
            TrackedAttachment { index: AttachmentIndex(9), interface: "none".to_owned(), ..place.tracked() };
        seen.manager.add(tracked).await.unwrap_err();
        seen.until("route", |t| via(t, "10.8.0.1") == Some(gateway)).await;
    });
}

#[test]
fn the_nodes_changes_are_seen_too() {
    Place::run(async |place, mut seen: Seen| {
        let node = &place.node;
        seen.manager.add(place.tracked()).await.unwrap();
        let vtep = address("192.168.77.2");
        ip(&format!("-n {node} route add 192.168.77.2/32 via 192.168.77.9"));
        let gateway = Via::Gateway(address("192.168.77.9"));
        seen.until("route", |t| t.uplink().route(vtep).is_some_and(|route| route.via == gateway)).await;

        // The uplink goes and comes back under its name: nothing leaves by it meanwhile, then again.
        ip(&format!("-n {node} link del up0"));
        seen.until("uplink gone", |t| t.uplink().routes_count() == 0 && t.uplink().if_index() == 0).await;
        ip(&format!("-n {node} link add up0 type veth peer name up0 netns {}", place.far));
        ip(&format!("-n {node} addr add 192.168.77.1/24 dev up0"));
        ip(&format!("-n {node} link set up0 up"));
        seen.until("uplink back", |t| t.uplink().routes_count() > 0 && t.uplink().if_index() > 0).await;
    });
}

fn routes(verb: &str, count: u32) -> String {
    (0..count)
        .map(|i| format!("route {verb} 10.{}.{}.0/24 via 10.244.0.2\n", 100 + i / 256, i % 256))
        .collect()
}

#[test]
fn a_thousand_routes_in_one_burst_make_few_generations() {
    Place::run(async |place, mut seen: Seen| {
        seen.manager.add(place.tracked()).await.unwrap();
        seen.until("attached", |t| t.interface().routes_count() > 0).await;
        let (before, generation) = (
            seen.attachment().unwrap().interface().routes_count(),
            seen.latest.as_ref().unwrap().generation(),
        );
        let (pod, batch) = (place.pod.clone(), routes("add", 1000));
        let began = Instant::now();
        let batch = tokio::task::spawn_blocking(move || ip_batch(&pod, &batch));
        seen.until("routes", |t| t.interface().routes_count() == before + 1000).await;
        batch.await.unwrap();
        let (generations, took) = (seen.latest.as_ref().unwrap().generation() - generation, began.elapsed());
        // One a pause of 20 ms at most, and some for neighbours.
        assert!(u128::from(generations) <= took.as_millis() / 20 + 4, "{generations} in {took:?}");
        super::content::same_as_ip(seen.attachment().unwrap().interface(), &place.pod, "eth0");
        ip(&format!("-n {} route flush root 10.96.0.0/11", place.pod));
        seen.until("flushed", |t| t.interface().routes_count() == before).await;
    });
}

#[test]
fn lost_notifications_lose_nothing() {
    Place::run(async |place, mut seen: Seen| {
        seen.manager.add(place.tracked()).await.unwrap();
        seen.until("attached", |t| t.interface().routes_count() > 0).await;
        let before = seen.attachment().unwrap().interface().routes_count();
        // The task cannot read meanwhile, and no socket buffer holds so many: the kernel says ENOBUFS.
        ip_batch(&place.pod, &(routes("add", 6000) + &routes("del", 2000)));
        seen.until("routes", |t| t.interface().routes_count() == before + 4000).await;
        let first: IpPrefix = "10.107.208.0/24".parse().unwrap();
        assert!(seen.attachment().unwrap().interface().routes().any(|route| route.prefix == first));
    });
}

#[test]
fn a_stale_neighbour_is_probed() {
    Place::run(async |place, mut seen: Seen| {
        seen.manager.add(place.tracked()).await.unwrap();
        let vtep = address("192.168.77.2");
        seen.until("tunnel end", |t| t.uplink().neighbour(vtep).is_some()).await;
        let right = seen.attachment().unwrap().uplink().neighbour(vtep);
        // A wrong and unconfirmed entry, as after a failover: only a probe can correct it.
        let wrong = "neigh replace 192.168.77.2 lladdr 02:00:00:00:00:66 dev up0 nud stale";
        ip(&format!("-n {} {wrong}", place.node));
        seen.until("wrong", |t| t.uplink().neighbour(vtep) != right).await;
        let state = || ip(&format!("-n {} neigh show 192.168.77.2 dev up0", place.node));
        let began = Instant::now();
        while state().contains("STALE") {
            assert!(began.elapsed() < PATIENCE, "{}", state());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
}

#[test]
fn another_attachment_does_not_disturb() {
    Place::run(async |place, mut seen: Seen| {
        seen.manager.add(place.tracked()).await.unwrap();
        let other = Place::new();
        let mut tracked = other.tracked();
        tracked.index.0 = 0;
        let added = seen.manager.add(tracked.clone()).await.unwrap();
        assert!(added.tables.attachments().iter().map(Option::is_some).eq([true, false, true]));
        seen.manager.remove(tracked.index).await;
        ip(&format!("-n {} route add 10.8.0.0/16 via 10.244.0.2", place.pod));
        seen.until("route", |t| via(t, "10.8.0.1") == Some(Via::Gateway(address("10.244.0.2")))).await;
        assert!(seen.latest.as_ref().unwrap().attachment(tracked.index).is_none());
        while let Some(event) = seen.next(Duration::from_millis(50)).await {
            assert!(matches!(event, Event::Tables(_)), "{event:?}");
        }
    });
}

/// Two interfaces of one namespace: each attachment yields what the namespace's routes give the other, and has it back
/// when that one is removed. One interface has one attachment.
#[test]
fn attachments_of_one_namespace_follow_its_routes() {
    Place::run(async |place, mut seen: Seen| {
        let (node, pod) = (&place.node, &place.pod);
        ip(&format!("-n {node} link add pod1 type veth peer name net1 netns {pod}"));
        ip(&format!("-n {node} link set pod1 up"));
        ip(&format!("-n {pod} addr add 10.250.0.5/24 dev net1"));
        ip(&format!("-n {pod} link set net1 up"));
        ip(&format!("-n {pod} route add 10.244.1.0/25 via 10.250.0.1"));
        seen.manager.add(place.tracked()).await.unwrap();
        let net1 = TrackedAttachment {
            index: AttachmentIndex(0),
            interface: "net1".to_owned(),
            interface_port: PortIndex(3),
            ..place.tracked().changed(|a| a.destinations = vec!["10.0.0.0/8".parse().unwrap()])
        };
        let (mine, its) = (address("10.244.1.200"), address("10.244.1.5"));
        let takes = |tables: &Tables, index: AttachmentIndex, to: IpAddr| {
            let rules = ktsn_resolve::destinations(tables, index);
            let hit = rules.iter().find(|rule| rule.prefix.contains(to));
            hit.is_some_and(|rule| matches!(rule.verdict, ktsn_resolve::Verdict::Take { .. }))
        };
        let first = seen.manager.add(net1.clone()).await.unwrap().tables;
        for (index, to, expected) in
            [(INDEX, mine, true), (INDEX, its, false), (net1.index, mine, false), (net1.index, its, true)]
        {
            assert_eq!(takes(&first, index, to), expected, "{index:?} {to}");
        }
        let again = TrackedAttachment { index: AttachmentIndex(7), ..net1.clone() };
        let refused = seen.manager.add(again).await.unwrap_err().to_string();
        assert!(refused.contains("interface: \"net1\"") && refused.contains("one attachment"), "{refused}");
        seen.manager.remove(net1.index).await;
        while !seen.latest.as_ref().is_some_and(|tables| takes(tables, INDEX, its)) {
            seen.next(PATIENCE).await.expect("news of the tables");
        }
    });
}
