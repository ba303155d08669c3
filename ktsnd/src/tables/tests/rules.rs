// SPDX-License-Identifier: Apache-2.0
//! Rules of the node's packet filter: what they name is left to the kernel, peers that are learnt later too.

use ktsn_model::BypassReason;
use ktsn_resolve::Refusal;

use super::learn::{flannel, is_at, join, learning, to};
use super::place::{Place, Seen, ip};

const LEFT: Refusal = Refusal::Bypass(BypassReason::NotAllowed);

fn iptables(node: &str, arguments: &str) {
    ip(&format!("netns exec {node} iptables {arguments}"));
}

#[test]
fn a_rule_counts_for_peers_that_are_learnt_later() {
    Place::run(async |place, mut seen: Seen| {
        let node = &place.node;
        flannel(place);
        join(node, 1, "192.168.77.2");
        iptables(node, "-A FORWARD -d 10.244.2.0/24 -p udp --dport 9 -j DROP");
        let all = vec!["10.244.0.0/16".parse().unwrap()];
        seen.manager.add(learning(place).changed(|a| a.destinations = all)).await.unwrap();
        seen.until("served", |t| is_at(t, "192.168.77.2", "02:00:00:00:f4:01")).await;
        assert_ne!(to(&seen, "10.244.1.7").err(), Some(LEFT));
        join(node, 2, "192.168.77.3");
        seen.until("left", |t| t.left().next().is_some()).await;
        let left: Vec<String> = seen.attachment().unwrap().left().map(|prefix| prefix.to_string()).collect();
        assert_eq!((left, to(&seen, "10.244.2.7").err()), (vec!["10.244.2.0/24".to_owned()], Some(LEFT)));
        assert_ne!(to(&seen, "10.244.1.7").err(), Some(LEFT));
        iptables(node, "-F FORWARD");
        seen.until("taken again", |t| t.left().next().is_none()).await;
        assert_ne!(to(&seen, "10.244.2.7").err(), Some(LEFT));
    });
}
