// SPDX-License-Identifier: Apache-2.0
//! What the kernel would encrypt is left to it.

use ktsn_model::BypassReason;
use ktsn_resolve::{AttachmentTables, Refusal, Via};

use super::super::TrackedAttachment;
use super::learn::{flannel, is_at, join, learning, to};
use super::place::{Place, Seen, ip};

const LEFT: Refusal = Refusal::Bypass(BypassReason::NotAllowed);
const ENDS: &str = "src 192.168.77.1/32 dst 192.168.77.2/32";
const ESP: &str = "tmpl src 192.168.77.1 dst 192.168.77.2 proto esp mode transport";

fn is_served(tables: &AttachmentTables) -> bool {
    is_at(tables, "192.168.77.2", "02:00:00:00:f4:01")
}

/// Every pod is a destination, so that nothing but the policy makes the difference.
fn tracked(place: &Place) -> TrackedAttachment {
    learning(place).changed(|a| a.destinations = vec!["10.244.0.0/16".parse().unwrap()])
}

#[test]
fn an_ipsec_policy_leaves_the_peer_to_the_kernel() {
    Place::run(async |place, mut seen: Seen| {
        let node = &place.node;
        flannel(place);
        join(node, 1, "192.168.77.2");
        seen.manager.add(tracked(place)).await.unwrap();
        seen.until("served", is_served).await;
        let policy = |verb: &str, rest: &str| ip(&format!("-n {node} xfrm policy {verb} {ENDS} {rest}"));

        // These concern something else.
        policy("add", &format!("proto udp dport 500 dir out priority 100 {ESP}"));
        policy("add", &format!("proto tcp dir out priority 100 {ESP}"));
        policy("add", &format!("dir in priority 100 {ESP}"));
        policy("add", &format!("proto udp dport 8472 dir out priority 100 {ESP}"));
        seen.until("left", |t| !is_served(t)).await;
        assert_eq!(to(&seen, "10.244.1.7").err(), Some(LEFT));
        let why = "an IPsec policy covers UDP from 192.168.77.1 to 192.168.77.2 port 8472";
        assert_eq!(seen.overlay().peers[0].left.as_deref(), Some(why));
        let told = seen.warnings.join("\n");
        assert!(told.contains("1 of 1 peers are left to the kernel") && told.contains(why), "{told}");
        assert!(told.contains("allow_policy_bypass = true"), "{told}");
        policy("delete", "proto udp dport 8472 dir out");
        seen.until("served again", is_served).await;

        // A stronger policy that lets it pass as it is goes before; a weaker one does not.
        ip(&format!("-n {node} xfrm policy add dst 192.168.77.0/24 dir out priority 200 {ESP}"));
        seen.until("left", |t| !is_served(t)).await;
        policy("add", "proto udp dport 8472 dir out priority 300");
        policy("add", "proto udp dir out priority 50");
        seen.until("let pass", is_served).await;
    });
}

#[test]
fn an_attachment_may_skip_policies_knowingly() {
    Place::run(async |place, mut seen: Seen| {
        let node = &place.node;
        flannel(place);
        join(node, 1, "192.168.77.2");
        ip(&format!("-n {node} xfrm policy add {ENDS} dir out {ESP}"));
        ip(&format!("-n {node} tuntap add mode tun wg0"));
        ip(&format!("-n {node} link set wg0 up"));
        ip(&format!("-n {node} route add 192.168.77.2/32 dev wg0"));
        seen.manager.add(tracked(place)).await.unwrap();
        assert_eq!(to_later(&mut seen, "10.244.1.7").await, Some(LEFT));
        seen.manager.add(tracked(place).changed(|a| a.allow_policy_bypass = true)).await.unwrap();
        let vtep = "192.168.77.2".parse().unwrap();
        seen.until("tunnel end", |t| t.uplink().neighbour(vtep).is_some()).await;
        assert!(to(&seen, "10.244.1.7").is_ok());
        assert_eq!(seen.overlay().peers[0].left, None);
    });
}

/// WireGuard, as far as this kernel has it: any device that is neither Ethernet nor loopback.
#[test]
fn a_route_by_a_tunnel_device_leaves_the_peer_to_the_kernel() {
    Place::run(async |place, mut seen: Seen| {
        let node = &place.node;
        flannel(place);
        join(node, 1, "192.168.77.2");
        join(node, 2, "192.168.77.3");
        seen.manager.add(tracked(place)).await.unwrap();
        seen.until("served", is_served).await;
        ip(&format!("-n {node} tuntap add mode tun wg0"));
        ip(&format!("-n {node} link set wg0 up"));
        ip(&format!("-n {node} route add 192.168.77.2/32 dev wg0"));
        seen.until("left", |t| !is_served(t)).await;
        assert_eq!(to(&seen, "10.244.1.7").err(), Some(LEFT));
        let left: Vec<_> = seen.overlay().peers.iter().map(|peer| peer.left.clone()).collect();
        let why = "the route to 192.168.77.2 leaves by wg0, a tunnel of its own".to_owned();
        assert!(left.contains(&Some(why)) && left.contains(&None), "{left:?}");
        ip(&format!("-n {node} link del wg0"));
        seen.until("served again", is_served).await;
    });
}

/// The refusal once the tables have been reported.
async fn to_later(seen: &mut Seen, destination: &str) -> Option<Refusal> {
    seen.until("attached", |_| true).await;
    to(seen, destination).err()
}

/// As wg-quick sets it up: what has no mark goes by a table of its own.
#[test]
fn a_rule_that_leads_to_a_tunnel_device_leaves_the_peer_to_the_kernel() {
    Place::run(async |place, mut seen: Seen| {
        let node = &place.node;
        flannel(place);
        join(node, 1, "192.168.77.2");
        seen.manager.add(tracked(place)).await.unwrap();
        seen.until("served", is_served).await;
        ip(&format!("-n {node} tuntap add mode tun wg0"));
        ip(&format!("-n {node} link set wg0 up"));
        ip(&format!("-n {node} route add default dev wg0 table 51820"));
        ip(&format!("-n {node} rule add not fwmark 0xca6c lookup 51820"));
        seen.until("left", |t| !is_served(t)).await;
        assert_eq!(to(&seen, "10.244.1.7").err(), Some(LEFT));
        ip(&format!("-n {node} rule del not fwmark 0xca6c lookup 51820"));
        seen.until("served again", is_served).await;
    });
}

#[test]
fn tunnel_ends_are_reached_as_the_nodes_rules_say() {
    Place::run(async |place, mut seen: Seen| {
        let node = &place.node;
        flannel(place);
        join(node, 1, "192.168.77.2");
        seen.manager.add(tracked(place)).await.unwrap();
        seen.until("served", is_served).await;
        let via =
            |tables: &AttachmentTables| tables.uplink().route("192.168.77.2".parse().unwrap()).map(|r| r.via);
        assert_eq!(via(seen.attachment().unwrap()), Some(Via::OnLink));
        let router = Some(Via::Gateway("192.168.77.9".parse().unwrap()));
        ip(&format!("-n {node} route add 192.168.77.2/32 via 192.168.77.9 table 100"));
        ip(&format!("-n {node} rule add ipproto udp dport 8472 lookup 100"));
        seen.until("by the router", |t| via(t) == router).await;
        // A change of another table than main is followed, too.
        ip(&format!("-n {node} route replace 192.168.77.2/32 via 192.168.77.8 table 100"));
        seen.until("by the other", |t| via(t) == Some(Via::Gateway("192.168.77.8".parse().unwrap()))).await;
        // The source port decides: no frame of the tunnel is certain.
        ip(&format!("-n {node} rule add ipproto udp sport 49152-57000 prio 5 prohibit"));
        seen.until("left", |t| !is_served(t)).await;
        assert_eq!(
            seen.overlay().peers[0].left.as_deref(),
            Some("only the kernel knows the route to 192.168.77.2")
        );
        ip(&format!("-n {node} rule del prio 5"));
        ip(&format!("-n {node} rule del ipproto udp dport 8472 lookup 100"));
        seen.until("on link again", |t| is_served(t) && via(t) == Some(Via::OnLink)).await;
    });
}
