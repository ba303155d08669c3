// SPDX-License-Identifier: Apache-2.0
//! Rules and routes of a pod's namespace that only the kernel can answer for: the kernel is asked about what they decide on.

use ktsn_model::{BypassReason, IpPrefix};
use ktsn_resolve::{AskedFamilies, Flow, Marks, Refusal, RouteAnswer};

use super::super::Event;
use super::learn::to;
use super::place::{INDEX, PATIENCE, Place, Seen, ip};

const ASKED: Option<Refusal> = Some(Refusal::Unanswered);
const OWN: Option<Refusal> = Some(Refusal::Bypass(BypassReason::OwnAddress));

async fn added(place: &Place, seen: &Seen) {
    let all = vec!["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()];
    seen.manager.add(place.tracked().changed(|a| a.destinations = all)).await.unwrap();
}

fn is_v4_asked(asked: AskedFamilies) -> bool {
    asked.is_v4 && !asked.is_v6
}

#[test]
fn a_rule_that_can_match_makes_its_family_the_kernels_until_it_goes() {
    Place::run(async |place, mut seen: Seen| {
        added(place, &seen).await;
        let pod = &place.pod;
        for rule in [
            "from 10.244.0.5 lookup 100",
            "to 10.99.0.0/16 lookup 100",
            "tos 0x10 lookup 100",
            "uidrange 1000-1000 lookup 100",
            "ipproto udp dport 5000 lookup 100",
            "not fwmark 0xca6c lookup 100",
            "iif lo lookup 100",
            "oif eth0 lookup 100",
            "from all prohibit",
        ] {
            ip(&format!("-n {pod} rule add {rule}"));
            seen.until(rule, |t| is_v4_asked(t.asked())).await;
            assert_eq!(to(&seen, "10.99.0.1").err(), ASKED, "{rule}");
            assert_ne!(to(&seen, "fd00:99::1").err(), ASKED, "{rule}");
            ip(&format!("-n {pod} rule del {rule}"));
            seen.until("plain again", |t| t.asked() == AskedFamilies::default()).await;
        }
        // None of these can match a datagram of the pod without a mark.
        for rule in ["fwmark 0x200/0xf00 lookup 2004", "iif eth0 lookup 100", "ipproto tcp lookup 100"] {
            ip(&format!("-n {pod} rule add {rule}"));
        }
        ip(&format!("-n {pod} -6 rule add from fd00:244::5 lookup 100"));
        seen.until("IPv6", |t| t.asked().is_v6).await;
        assert!(!seen.attachment().unwrap().asked().is_v4);
        assert_eq!(to(&seen, "fd00:99::1").err(), ASKED);
        assert_ne!(to(&seen, "10.99.0.1").err(), ASKED);
    });
}

#[test]
fn routes_without_a_sole_answer_are_the_kernels_alone() {
    Place::run(async |place, mut seen: Seen| {
        added(place, &seen).await;
        let pod = &place.pod;
        let routes = [
            "10.50.0.0/16 tos 0x10 via 10.244.0.2",
            "10.51.0.0/16 nexthop via 10.244.0.2 nexthop via 10.244.0.3",
            "10.52.0.0/16 via 10.244.0.2 mtu 1300",
            "throw 10.53.0.0/16",
            "fd00:50::/64 nexthop via fd00:244::1 nexthop via fd00:244::2",
            "fd00:51::/64 via fd00:244::1 hoplimit 9",
        ];
        for route in routes {
            ip(&format!("-n {pod} route add {route}"));
        }
        ip(&format!("-n {pod} nexthop add id 7 via 10.244.0.2 dev eth0"));
        ip(&format!("-n {pod} nexthop add id 8 via 10.244.0.3 dev eth0"));
        ip(&format!("-n {pod} nexthop add id 9 group 7/8"));
        ip(&format!("-n {pod} route add 10.55.0.0/16 nhid 9"));
        ip(&format!("-n {pod} route add 10.56.0.0/16 nhid 7"));
        ip(&format!("-n {pod} route append default via 10.244.0.9"));
        // The last change of all.
        ip(&format!("-n {pod} route add local 10.57.0.0/16 dev lo"));
        let local: IpPrefix = "10.57.0.0/16".parse().unwrap();
        seen.until("local", |t| t.local().any(|prefix| prefix == local)).await;
        assert_eq!(to(&seen, "10.57.1.1").err(), OWN);
        for address in [
            "10.50.1.1",
            "10.51.1.1",
            "10.52.1.1",
            "10.53.1.1",
            "fd00:50::1",
            "fd00:51::1",
            "10.55.1.1",
            "11.0.0.1",
        ] {
            assert_eq!(to(&seen, address).err(), ASKED, "{address}");
        }
        for address in ["10.56.1.1", "10.244.0.77"] {
            assert_ne!(to(&seen, address).err(), ASKED, "{address}");
        }
    });
}

/// The kernel's answer about a flow, with its revision.
async fn answer(seen: &mut Seen, flow: &Flow) -> (u64, RouteAnswer) {
    seen.manager.ask_route(7, *flow);
    loop {
        if let Event::Route(7, answered) = seen.next(PATIENCE).await.expect("an answer") {
            assert_eq!(answered.flow, *flow);
            return (answered.revision, answered.answer);
        }
    }
}

#[test]
fn an_answer_holds_until_any_table_or_rule_changes() {
    Place::run(async |place, mut seen: Seen| {
        added(place, &seen).await;
        let pod = &place.pod;
        ip(&format!("-n {pod} route add 10.99.0.0/16 via 10.244.0.2 dev eth0 table 100"));
        ip(&format!("-n {pod} rule add from 10.244.0.5 lookup 100"));
        seen.until("asked", |t| t.asked().is_v4).await;
        let flow = Flow {
            is_connected: false,
            uid: 0,
            attachment: INDEX,
            bound: Some("10.244.0.5".parse().unwrap()),
            source_port: 5001,
            destination: "10.99.0.1".parse().unwrap(),
            destination_port: 6001,
            scope: 0,
            traffic_class: 0,
            hop_limit: 0,
            marks: Marks::default(),
        };
        let by = |answer| match answer {
            RouteAnswer::Interface(route) => route.gateway.map(|gateway| gateway.to_string()),
            RouteAnswer::Elsewhere => Some("elsewhere".to_owned()),
        };
        let changes = [
            ("route change 10.99.0.0/16 via 10.244.0.3 dev eth0 table 100", "10.244.0.3"),
            ("route change blackhole 10.99.0.0/16 table 100", "elsewhere"),
            ("route replace 10.99.0.0/16 via 10.244.0.2 dev eth0 table 100", "10.244.0.2"),
            ("rule add prio 1 ipproto udp dport 6001 lookup 101", "10.244.0.2"),
            ("route add 10.99.0.0/24 via 10.244.0.4 dev eth0 table 101", "10.244.0.4"),
            ("nexthop add id 3 via 10.244.0.6 dev eth0", "10.244.0.4"),
            ("route replace 10.99.0.0/24 nhid 3 table 101", "10.244.0.6"),
            ("nexthop replace id 3 via 10.244.0.7 dev eth0", "10.244.0.7"),
            ("rule del prio 1", "10.244.0.2"),
            ("route replace 10.99.0.0/16 via 10.244.0.2 dev eth0 mtu 1300 table 100", "10.244.0.2"),
            // Its don't-fragment is not that of other datagrams.
            ("route replace 10.99.0.0/16 via 10.244.0.2 dev eth0 mtu lock 1300 table 100", "elsewhere"),
        ];
        let (mut revision, before) = answer(&mut seen, &flow).await;
        assert_eq!(by(before).as_deref(), Some("10.244.0.2"));
        for (change, expected) in changes {
            ip(&format!("-n {pod} {change}"));
            seen.until(change, |t| t.answers_revision() > revision).await;
            let (of, now) = answer(&mut seen, &flow).await;
            assert_eq!(by(now).as_deref(), Some(expected), "{change}");
            assert!(of >= seen.attachment().unwrap().answers_revision(), "{change}");
            revision = of;
        }
    });
}
