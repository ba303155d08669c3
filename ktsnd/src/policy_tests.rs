// SPDX-License-Identifier: Apache-2.0
//! Rules as the tools print them.

use super::named::cost;
use super::{Prefixes, Rule, hindrances, is_past_the_kernel, of_iptables, of_nft, past_the_kernel};
use ktsn_resolve::{AttachmentTables, Forwarding, Link, LinkTable, Overlay, PortIndex, Route, Via};
use ktsn_wire::MacAddress;

fn found(rules: &[Rule]) -> bool {
    let own = ["10.244.0.5".parse().unwrap(), "fd10:244::5".parse().unwrap()];
    !hindrances(rules, &own, &prefixes(&["10.244.1.0/24", "fd10:244:0:1::/64"])).is_empty()
}

fn prefixes(all: &[&str]) -> Prefixes {
    all.iter().map(|prefix| prefix.parse().unwrap()).collect()
}

#[test]
fn a_rule_makes_the_kernels_what_it_names_and_no_more() {
    let own = ["10.244.0.5".parse().unwrap()];
    let past = prefixes(&["10.244.1.0/24", "10.244.2.0/24", "10.244.2.128/25", "fd10::/64"]);
    assert_eq!(
        past,
        prefixes(&["fd10::/64", "10.244.2.0/24", "10.244.1.0/24"]),
        "one within another is nothing"
    );
    for (rule, named, is_arrival) in [
        ("-s 10.244.0.5/32 -j DROP", vec!["10.244.1.0/24", "10.244.2.0/24"], false),
        ("-s fd10::9/128 -j DROP", vec![], false), // the pod has no address of that family
        ("-s 10.244.0.0/24 -d 10.244.1.7/32 -j DROP", vec!["10.244.1.7/32"], false),
        ("-d 10.244.0.0/15 -j DROP", vec!["10.244.1.0/24", "10.244.2.0/24"], true),
        ("-s 10.244.2.0/23 -d 10.244.0.5/32 -j REJECT", vec!["10.244.2.0/24"], true),
        ("-s 10.244.1.9/32 -j DROP", vec!["10.244.1.9/32"], true),
        ("-d 10.244.1.9/32 -j DNAT --to-destination 10.1.1.1", vec!["10.244.1.9/32"], false),
        ("-s 10.244.1.9/32 -d 10.244.0.5/32 -j DNAT --to-destination 10.1.1.1", vec![], false),
        ("-s 10.244.0.5/32 -d 10.9.0.0/16 -j DROP", vec![], false),
    ] {
        let found = hindrances(&of_iptables(&format!("-A FORWARD {rule}")), &own, &past);
        let all: Prefixes = found.iter().flat_map(|one| one.destinations.clone()).collect();
        assert_eq!(all, prefixes(&named), "{rule}");
        assert_eq!(found.iter().any(|one| one.is_arrival), is_arrival, "{rule}");
    }
    // What two tools print of one rule is one; two rules are two.
    let rule = "-A FORWARD -s 10.244.0.5/32 -d 10.244.1.7/32 -j DROP\n";
    let twice = of_iptables(&format!("{rule}{rule}-A FORWARD -s 10.244.0.5/32 -d 10.244.1.8/32 -j DROP\n"));
    assert_eq!(hindrances(&twice, &own, &past).len(), 2);
}

/// Counters move with each packet: the rule is the same.
#[test]
fn what_a_rule_counted_makes_no_other_rule_of_it() {
    let counted = |packets: u32| {
        of_nft(&format!(
            r#"{{"nftables":[{{"rule":{{"family":"inet","table":"t","chain":"forward","handle":4,"expr":[
            {{"match":{{"op":"==","left":{{"payload":{{"protocol":"ip","field":"saddr"}}}},"right":"10.244.0.5"}}}},
            {{"counter":{{"packets":{packets},"bytes":7}}}},{{"drop":null}}]}}}}]}}"#
        ))
    };
    assert!(!counted(1).is_empty());
    assert_eq!(counted(1), counted(2));
}

/// What Flannel, kube-proxy and Docker write on every node is no rule about this pod.
#[test]
fn the_rules_of_an_ordinary_node_hinder_nothing() {
    let text = "*filter\n:INPUT ACCEPT [0:0]\n\
        -A FORWARD -m conntrack --ctstate INVALID -j DROP\n\
        -A FLANNEL-FWD -s 10.244.0.0/16 -m comment --comment \"flanneld forward\" -j ACCEPT\n\
        -A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP\n\
        -A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP\nCOMMIT\n*nat\n\
        -A KUBE-SERVICES -d 10.96.0.10/32 -p udp -m udp --dport 53 -j KUBE-SVC-TCOU7JCQXEZGVUNU\n\
        -A KUBE-SEP-IT2ZTR26TO4XFPTO -s 10.244.1.5/32 -j KUBE-MARK-MASQ\n\
        -A KUBE-SEP-IT2ZTR26TO4XFPTO -p udp -m udp -j DNAT --to-destination 10.244.1.5:53\n\
        -A FLANNEL-POSTRTG -s 10.244.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE --random-fully\nCOMMIT\n";
    let rules = of_iptables(text);
    assert!(!found(&rules), "{rules:?}");
    assert_eq!(rules.len(), 2, "{rules:?}"); // the loopback's and the service's, which name other addresses
}

#[test]
fn each_rule_about_the_pod_is_found() {
    for line in [
        "-A FORWARD -s 10.244.0.5/32 -j DROP",
        "-A FORWARD -d 10.244.0.0/24 -p udp -j REJECT --reject-with icmp-port-unreachable",
        "-A FORWARD -s 10.244.0.0/16 -d 10.244.1.7/32 -p udp --dport 7788 -j DROP",
        "-A FORWARD -s 10.244.1.0/24 -j DROP",
        "-A FORWARD -s fd10:244::/64 -j DROP",
        "-A KUBE-ROUTER-FORWARD -s 10.244.0.5/32 -m comment --comment \"to POD\" -j KUBE-POD-FW-ABCDEF",
        "-A KUBE-SERVICES -d 10.244.1.200/32 -p udp -m udp --dport 53 -j KUBE-SVC-TCOU7JCQXEZGVUNU",
        "-A PREROUTING -d 10.244.1.9/32 -j DNAT --to-destination 192.168.1.1",
    ] {
        assert!(found(&of_iptables(line)), "{line}");
    }
    for line in [
        "-A FORWARD -s 10.244.0.6/32 -j DROP",
        "-A FORWARD -s 10.244.0.5/32 -p tcp -j DROP",
        "-A FORWARD ! -s 10.244.0.5/32 -j DROP",
        "-A FORWARD -s 0.0.0.0/0 -j DROP",
        "-A FORWARD -s 10.244.0.5/32 -d 10.245.0.0/16 -j DROP",
        "-A FORWARD -s 10.244.0.5/32 -j ACCEPT",
        "-A PREROUTING -d 10.244.0.5/32 -j DNAT --to-destination 192.168.1.1",
    ] {
        assert!(!found(&of_iptables(line)), "{line}");
    }
}

#[test]
fn rules_of_nft_are_read_from_its_json() {
    let rule = |left: &str, op: &str, right: &str, end: &str| {
        let text = format!(
            r#"{{"nftables":[{{"metainfo":{{}}}},{{"rule":{{"family":"inet","table":"t","chain":"forward","handle":4,
            "expr":[{{"match":{{"op":"{op}","left":{left},"right":{right}}}}},{{"counter":null}},{{"{end}":null}}]}}}}]}}"#
        );
        of_nft(&text)
    };
    let (saddr, daddr) = (
        r#"{"payload":{"protocol":"ip","field":"saddr"}}"#,
        r#"{"payload":{"protocol":"ip","field":"daddr"}}"#,
    );
    assert!(found(&rule(saddr, "==", r#""10.244.0.5""#, "drop")));
    assert!(found(&rule(daddr, "==", r#"{"prefix":{"addr":"10.244.1.0","len":24}}"#, "reject")));
    assert!(found(&rule(daddr, "==", r#"{"set":["10.9.0.1","10.244.1.9"]}"#, "dnat")));
    assert!(!found(&rule(saddr, "==", r#""10.244.0.6""#, "drop")));
    assert!(!found(&rule(saddr, "!=", r#""10.244.0.5""#, "drop")));
    assert!(!found(&rule(saddr, "==", r#""10.244.0.5""#, "accept")));
    assert!(!found(&rule(saddr, "==", r#""@blocked""#, "drop")), "a named set cannot be looked into");
    let tcp = r#"{"payload":{"protocol":"tcp","field":"dport"}}"#;
    assert!(!found(&rule(tcp, "==", "80", "drop")));
    assert!(of_nft("").is_empty() && of_nft("{").is_empty());
}

/// A pod without an overlay, allowed to send to `allowed`, on a node with these routes out of its uplink.
fn without_overlay(allowed: &[&str], routes: &[&str]) -> AttachmentTables {
    let link = |routes: &[&str]| {
        let route = |prefix: &&str| Route { prefix: prefix.parse().unwrap(), via: Via::OnLink, source: None };
        LinkTable::new(Link {
            port: PortIndex(0),
            if_index: 1,
            mac: MacAddress([2, 0, 0, 0, 0, 1]),
            mtu: 1500,
            addresses: Vec::new(),
            routes: routes.iter().map(route).collect(),
            neighbours: Vec::new(),
        })
        .unwrap()
    };
    AttachmentTables::new(
        link(&[]),
        link(routes).into(),
        Overlay::None,
        Some(allowed.iter().map(|prefix| prefix.parse().unwrap()).collect()),
    )
    .unwrap()
}

#[test]
fn what_the_node_would_send_on_by_the_uplink_skips_its_rules_too() {
    let tables = without_overlay(&["10.244.0.0/16", "10.9.0.1/32"], &["0.0.0.0/0", "10.244.1.0/24"]);
    assert!(!is_past_the_kernel(&tables), "a node that does not forward for the pod");
    let node = Forwarding { own: vec!["10.244.0.1".parse().unwrap()], is_v4: true, is_v6: false };
    let tables = tables.forwarded(node).unwrap();
    assert!(is_past_the_kernel(&tables));
    assert_eq!(past_the_kernel(&tables), prefixes(&["10.244.1.0/24"]));
    let narrow = without_overlay(&["10.244.1.7/32"], &["10.244.1.0/24"]);
    assert_eq!(past_the_kernel(&narrow), prefixes(&["10.244.1.7/32"]));
}

/// A rule of two sets of so many addresses: the pod and others to many of the pod's destinations. The rule; what it hinders; what
/// finding it cost.
fn of_two_sets(addresses: u32) -> (Vec<Rule>, usize, u64) {
    let set = |first: [u8; 2], step: u32| {
        let address = |at: u32| {
            let [_, _, third, fourth] = (at * step).to_be_bytes();
            format!(r#""{}.{}.{third}.{fourth}""#, first[0], first[1])
        };
        (0..addresses).map(address).collect::<Vec<_>>().join(",")
    };
    let side = |field: &str, set: &str| {
        format!(
            r#"{{"match":{{"op":"==","left":{{"payload":{{"protocol":"ip","field":"{field}"}}}},"right":{{"set":[{set}]}}}}}}"#
        )
    };
    let text = format!(
        r#"{{"nftables":[{{"rule":{{"family":"inet","table":"t","chain":"forward","expr":[{},{},{{"drop":null}}]}}}}]}}"#,
        side("saddr", &set([10, 244], 1)),
        side("daddr", &set([10, 245], 3)),
    );
    let others: Prefixes = (0..=255u8).map(|third| format!("10.245.{third}.0/24").parse().unwrap()).collect();
    let own = ["10.244.0.5".parse().unwrap()];
    let read_and_held = || {
        let rules = of_nft(&text);
        let found = hindrances(&rules, &own, &others);
        (rules, found.iter().map(|hindrance| hindrance.destinations.len()).sum())
    };
    let ((rules, destinations), cost) = cost::of(read_and_held);
    (rules, destinations, cost)
}

/// Two sets of n addresses are no n × n rules: ten times as many addresses cost some ten times as much.
#[test]
fn a_rule_of_large_sets_costs_what_its_sets_hold() {
    let (few, many) = (of_two_sets(1_000), of_two_sets(10_000));
    assert_eq!((few.0.len(), few.1), (1, 1_000));
    assert_eq!((many.0.len(), many.1), (1, 10_000), "each destination once");
    assert!(many.2 < 20 * few.2, "{} comparisons for ten times {}", many.2, few.2);
    assert!(many.2 < 2 * 10_000 * 100, "{} comparisons for 20,000 addresses", many.2);
}

/// What two sets mean together is what their pairs mean.
#[test]
fn sets_hinder_what_their_pairs_hinder() {
    let own = ["10.244.0.5".parse().unwrap()];
    let past = prefixes(&["10.244.1.0/24", "10.244.2.0/24", "10.9.0.0/16"]);
    let rule = |sources: &str, destinations: &str| {
        let side = |field: &str, set: &str| {
            format!(
                r#"{{"match":{{"op":"==","left":{{"payload":{{"protocol":"ip","field":"{field}"}}}},"right":{{"set":[{set}]}}}}}}"#
            )
        };
        of_nft(&format!(
            r#"{{"nftables":[{{"rule":{{"expr":[{},{},{{"drop":null}}]}}}}]}}"#,
            side("saddr", sources),
            side("daddr", destinations),
        ))
    };
    let all = |rules: &[Rule]| -> (Prefixes, bool) {
        let found = hindrances(rules, &own, &past);
        let is_arrival = found.iter().any(|one| one.is_arrival);
        (found.into_iter().flat_map(|one| one.destinations).collect(), is_arrival)
    };
    let addresses =
        [r#""10.244.0.5""#, r#""10.244.1.7""#, r#""10.244.2.7""#, r#""10.8.0.1""#, r#""10.9.0.1""#];
    for sources in 1u8..32 {
        for destinations in 1u8..32 {
            let chosen = |mask: u8| (0..5).filter(move |at| mask & (1 << at) != 0).map(|at| addresses[at]);
            let set = |mask: u8| chosen(mask).collect::<Vec<_>>().join(",");
            let pairs: Vec<Rule> = chosen(sources)
                .flat_map(|source| chosen(destinations).flat_map(move |to| rule(source, to)))
                .collect();
            assert_eq!(
                all(&rule(&set(sources), &set(destinations))),
                all(&pairs),
                "{sources} {destinations}"
            );
        }
    }
}
