// SPDX-License-Identifier: Apache-2.0
//! Peers learnt from the kernel's tables of a VXLAN device, and kept current.

use std::net::IpAddr;

use ktsn_model::DropReason;
use ktsn_resolve::{Egress, Flow, Marks, Overlay, Refusal, Resolved, resolve};

use super::super::{OverlayState, PeersOf, Source, TrackedAttachment};
use super::place::{INDEX, Place, Seen, bridge, bridge_batch, ip, ip_batch};
use crate::config::VxlanPeer;

const DROPPED: Refusal = Refusal::Drop(DropReason::NoNeighbour, None);

pub(super) fn flannel(place: &Place) {
    let node = &place.node;
    ip(&format!("-n {node} link set flannel.1 address 02:00:00:00:f4:a1 up"));
    ip(&format!("-n {node} addr add 10.244.0.0/32 dev flannel.1"));
}

/// What flanneld does for a new node, in its order.
pub(super) fn join(node: &str, number: u8, vtep: &str) {
    let mac = format!("02:00:00:00:f4:{number:02x}");
    ip(&format!("-n {node} neigh replace 10.244.{number}.0 lladdr {mac} dev flannel.1 nud permanent"));
    bridge(&format!("-n {node} fdb replace {mac} dev flannel.1 dst {vtep} self permanent"));
    ip(&format!("-n {node} route replace 10.244.{number}.0/24 via 10.244.{number}.0 dev flannel.1 onlink"));
}

/// No peers and no destinations by configuration.
pub(super) fn learning(place: &Place) -> TrackedAttachment {
    place.tracked().changed(|a| a.destinations.clear()).with_vxlan(|vxlan| {
        vxlan.is_learnt = true;
        vxlan.peers.clear();
        (vxlan.vni, vxlan.port, vxlan.local) = (None, None, None);
    })
}

pub(super) fn to(seen: &Seen, destination: &str) -> Result<Resolved, Refusal> {
    let flow = Flow {
        is_connected: false,
        uid: 0,
        attachment: INDEX,
        bound: None,
        source_port: 5001,
        destination: destination.parse().unwrap(),
        destination_port: 6001,
        scope: 0,
        traffic_class: 0,
        hop_limit: 0,
        marks: Marks::default(),
    };
    resolve(seen.latest.as_ref().unwrap(), &flow)
}

/// The end of the only peer, as the overlay's state has it.
fn end(overlay: &OverlayState) -> Result<(String, String), String> {
    let [peer] = &overlay.peers[..] else { panic!("{overlay:?}") };
    peer.end.clone().map(|(vtep, mac)| (vtep.to_string(), mac.to_string()))
}

fn vtep_of(tables: &ktsn_resolve::AttachmentTables, prefix: &str) -> Option<(String, String)> {
    let Overlay::VxlanRouted(vxlan) = tables.overlay() else { return None };
    let peer = vxlan.peers().find(|peer| peer.prefix.to_string() == prefix)?;
    Some((peer.vtep.to_string(), peer.mac.to_string()))
}

pub(super) fn is_at(tables: &ktsn_resolve::AttachmentTables, vtep: &str, mac: &str) -> bool {
    vtep_of(tables, "10.244.1.0/24") == Some((vtep.to_owned(), mac.to_owned()))
}

#[test]
fn flannels_peers_are_learnt_and_followed() {
    Place::run(async |place, mut seen: Seen| {
        let node = &place.node;
        flannel(place);
        join(node, 1, "192.168.77.2");
        seen.manager.add(learning(place)).await.unwrap();
        let vtep: IpAddr = "192.168.77.2".parse().unwrap();
        seen.until("tunnel end", |t| t.uplink().neighbour(vtep).is_some()).await;
        assert_eq!(to(&seen, "10.244.1.7").unwrap().egress, Egress::Uplink);
        let overlay = seen.overlay();
        assert_eq!(
            (overlay.vni, overlay.port, overlay.local.to_string().as_str()),
            (1, 8472, "192.168.77.1")
        );
        assert_eq!(overlay.device_mac.to_string(), "02:00:00:00:f4:a1");
        assert_eq!((overlay.peers[0].source, overlay.fault.as_ref()), (Source::Learnt, None));

        // It moves to another node, gets another MAC address, is joined by a second one, and leaves.
        bridge(&format!(
            "-n {node} fdb replace 02:00:00:00:f4:01 dev flannel.1 dst 192.168.77.9 self permanent"
        ));
        bridge(&format!(
            "-n {node} fdb replace 02:00:00:00:f4:01 dev flannel.1 dst 192.168.77.3 self permanent"
        ));
        seen.until("moved", |t| is_at(t, "192.168.77.3", "02:00:00:00:f4:01")).await;
        bridge(&format!(
            "-n {node} fdb replace 02:00:00:00:f4:81 dev flannel.1 dst 192.168.77.3 self permanent"
        ));
        ip(&format!(
            "-n {node} neigh replace 10.244.1.0 lladdr 02:00:00:00:f4:81 dev flannel.1 nud permanent"
        ));
        seen.until("new MAC", |t| is_at(t, "192.168.77.3", "02:00:00:00:f4:81")).await;
        join(node, 2, "192.168.77.2");
        seen.until("joined", |t| vtep_of(t, "10.244.2.0/24").is_some()).await;
        ip(&format!("-n {node} route del 10.244.1.0/24"));
        seen.until("left", |t| vtep_of(t, "10.244.1.0/24").is_none()).await;
        assert!(matches!(to(&seen, "10.244.1.7"), Err(Refusal::Bypass(_))), "no destination any more");
        assert!(to(&seen, "10.244.2.7").is_ok());
    });
}

#[test]
fn a_missing_tunnel_end_is_named_and_its_frames_dropped() {
    Place::run(async |place, mut seen: Seen| {
        let node = &place.node;
        flannel(place);
        join(node, 1, "192.168.77.2");
        seen.manager.add(learning(place)).await.unwrap();
        seen.until("learnt", |t| is_at(t, "192.168.77.2", "02:00:00:00:f4:01")).await;
        let gone = |t: &ktsn_resolve::AttachmentTables| is_at(t, "0.0.0.0", "00:00:00:00:00:00");
        let back = |t: &ktsn_resolve::AttachmentTables| is_at(t, "192.168.77.2", "02:00:00:00:f4:01");

        bridge(&format!("-n {node} fdb del 02:00:00:00:f4:01 dev flannel.1 dst 192.168.77.2 self"));
        seen.until("no forwarding entry", gone).await;
        assert_eq!(to(&seen, "10.244.1.7").err(), Some(DROPPED));
        assert_eq!(end(seen.overlay()), Err("no forwarding entry for 02:00:00:00:f4:01".to_owned()));
        join(node, 1, "192.168.77.2");
        seen.until("back", back).await;

        ip(&format!("-n {node} neigh del 10.244.1.0 dev flannel.1"));
        seen.until("no neighbour", gone).await;
        assert_eq!(end(seen.overlay()), Err("no neighbour entry for 10.244.1.0".to_owned()));
        join(node, 1, "192.168.77.2");
        seen.until("back", back).await;

        let entry = "fdb replace 02:00:00:00:f4:01 dev flannel.1 dst 192.168.77.2 vni 9 self permanent";
        bridge(&format!("-n {node} {entry}"));
        seen.until("another VNI", gone).await;
        assert_eq!(end(seen.overlay()), Err("its forwarding entry names VNI 9".to_owned()));
        join(node, 1, "192.168.77.2");
        bridge(&format!("-n {node} fdb del 02:00:00:00:f4:01 dev flannel.1 dst 192.168.77.2 vni 9 self"));
        join(node, 1, "192.168.77.2");
        seen.until("back", back).await;
    });
}

/// flanneld makes its device again when it wants another one: until a prefix is announced again, its frames are
/// dropped, and never leave by another way.
#[test]
fn a_device_made_anew_is_learnt_anew() {
    Place::run(async |place, mut seen: Seen| {
        let node = &place.node;
        flannel(place);
        join(node, 1, "192.168.77.2");
        join(node, 2, "192.168.77.3");
        seen.manager.add(learning(place)).await.unwrap();
        seen.until("learnt", |t| is_at(t, "192.168.77.2", "02:00:00:00:f4:01")).await;
        ip(&format!("-n {node} link del flannel.1"));
        seen.until("gone", |t| is_at(t, "0.0.0.0", "00:00:00:00:00:00")).await;
        assert_eq!(to(&seen, "10.244.1.7").err(), Some(DROPPED));
        assert_eq!(seen.overlay().fault.as_deref(), Some("flannel.1: no such device"));
        ip(&format!(
            "-n {node} link add flannel.1 address 02:00:00:00:f4:aa type vxlan id 5 local 192.168.77.1 dstport 4789 \
             nolearning dev up0"
        ));
        ip(&format!("-n {node} link set flannel.1 up"));
        join(node, 1, "192.168.77.2");
        seen.until("back", |t| is_at(t, "192.168.77.2", "02:00:00:00:f4:01")).await;
        let overlay = seen.overlay();
        assert_eq!((overlay.vni, overlay.port), (5, 4789));
        assert_eq!(overlay.device_mac.to_string(), "02:00:00:00:f4:aa");
        // The second one is not reported yet.
        assert_eq!(to(&seen, "10.244.2.7").err(), Some(DROPPED));
        join(node, 2, "192.168.77.3");
        seen.until("all back", |t| vtep_of(t, "10.244.2.0/24").is_some_and(|end| end.0 == "192.168.77.3"))
            .await;
        // Down is as good as gone.
        ip(&format!("-n {node} link set flannel.1 down"));
        seen.until("down", |t| is_at(t, "0.0.0.0", "00:00:00:00:00:00")).await;
    });
}

#[test]
fn a_device_that_is_not_there_yet_is_waited_for() {
    Place::run(async |place, mut seen: Seen| {
        let node = &place.node;
        ip(&format!("-n {node} link del flannel.1"));
        seen.manager.add(learning(place)).await.unwrap();
        assert_eq!(seen.overlay().fault.as_deref(), Some("flannel.1: no such device"));
        assert!(matches!(to(&seen, "10.244.1.7"), Err(Refusal::Bypass(_))));
        ip(&format!(
            "-n {node} link add flannel.1 type vxlan id 1 local 192.168.77.1 dstport 8472 nolearning dev up0"
        ));
        flannel(place);
        join(node, 1, "192.168.77.2");
        seen.until("learnt", |t| is_at(t, "192.168.77.2", "02:00:00:00:f4:01")).await;
        assert_eq!(seen.overlay().fault, None);
    });
}

#[test]
fn what_the_device_cannot_be_is_told() {
    Place::run(async |place, mut seen: Seen| {
        let node = &place.node;
        flannel(place);
        join(node, 1, "192.168.77.2");
        let tracked = learning(place).with_vxlan(|vxlan| vxlan.vni = Some(7));
        seen.manager.add(tracked).await.unwrap();
        let fault = "overlay.vxlan.vni: 7: flannel.1 has 1; leave the field out, or correct it";
        assert_eq!(seen.overlay().fault.as_deref(), Some(fault));
        assert_eq!(to(&seen, "10.244.1.7").err(), Some(DROPPED));
        assert!(seen.warnings.iter().any(|text| text.contains(fault)), "{:?}", seen.warnings);

        ip(&format!("-n {node} link add vx0 type vxlan external dstport 4790"));
        ip(&format!("-n {node} link set vx0 up"));
        let tracked = learning(place).with_vxlan(|vxlan| vxlan.device = "vx0".to_owned());
        seen.manager.add(tracked).await.unwrap();
        let fault = seen.overlay().fault.clone().unwrap();
        assert!(fault.contains("vx0: it has no VNI of its own"), "{fault}");

        // No VXLAN device at all.
        let tracked = learning(place).with_vxlan(|vxlan| vxlan.device = "pod0".to_owned());
        seen.manager.add(tracked).await.unwrap();
        assert_eq!(seen.overlay().fault.as_deref(), Some("pod0: down, or no VXLAN device"));
    });
}

#[test]
fn an_ipv6_underlay_and_stations_on_the_tunnel_itself() {
    Place::run(async |place, mut seen: Seen| {
        let node = &place.node;
        ip(&format!("-n {node} addr add fd77::1/64 dev up0 nodad"));
        ip(&format!("-n {} addr add fd77::2/64 dev up0 nodad", place.far));
        ip(&format!("-n {node} link add vx6 type vxlan id 6 local fd77::1 dstport 4789 dev up0"));
        ip(&format!("-n {node} addr add 10.245.0.1/24 dev vx6"));
        ip(&format!("-n {node} link set vx6 up"));
        ip(&format!("-n {node} neigh replace 10.245.0.2 lladdr 02:00:00:00:f4:62 dev vx6 nud permanent"));
        bridge(&format!("-n {node} fdb append 02:00:00:00:f4:62 dev vx6 dst fd77::2 self permanent"));
        let tracked = learning(place).with_vxlan(|vxlan| vxlan.device = "vx6".to_owned());
        seen.manager.add(tracked).await.unwrap();
        let vtep: IpAddr = "fd77::2".parse().unwrap();
        seen.until("tunnel end", |t| t.uplink().neighbour(vtep).is_some()).await;
        let resolved = to(&seen, "10.245.0.2").unwrap();
        assert_eq!((resolved.egress, resolved.payload_max), (Egress::Uplink, 1500 - 70 - 28));
        assert_eq!(seen.overlay().local.to_string(), "fd77::1");
    });
}

fn peer(prefix: &str, vtep: &str, mac: &str) -> VxlanPeer {
    VxlanPeer { prefix: prefix.parse().unwrap(), vtep: vtep.parse().unwrap(), mac: mac.parse().unwrap() }
}

/// Configuration before control API before the kernel; whoever comes last changes nothing of that.
#[test]
fn the_more_explicit_peer_wins_and_conflicts_are_told() {
    Place::run(async |place, mut seen: Seen| {
        let node = &place.node;
        flannel(place);
        join(node, 1, "192.168.77.2");
        seen.manager.add(learning(place)).await.unwrap();
        let by_vni = vec![peer("10.244.1.0/24", "192.168.77.4", "02:00:00:00:f4:04")];
        seen.manager.set_peers(PeersOf::Vni(1), by_vni.clone()).await;
        let overlay = seen.overlay().clone();
        assert_eq!(end(&overlay), Ok(("192.168.77.4".to_owned(), "02:00:00:00:f4:04".to_owned())));
        let conflict = "10.244.1.0/24 is claimed by 192.168.77.4 with 02:00:00:00:f4:04 (control-api) and by 192.168.77.2 \
                        with 02:00:00:00:f4:01 (learnt); the first holds";
        assert_eq!(overlay.conflicts, [conflict]);
        assert!(seen.warnings.iter().any(|text| text.contains(conflict)), "{:?}", seen.warnings);
        assert_eq!(seen.overlay.as_ref().unwrap().1, 1);

        // The attachment's own list stands before its VNI's, the configuration before both.
        let own = vec![peer("10.244.1.0/24", "192.168.77.5", "02:00:00:00:f4:05")];
        seen.manager.set_peers(PeersOf::Attachment(INDEX), own).await;
        assert_eq!(end(seen.overlay()).unwrap().0, "192.168.77.5");
        assert_eq!(seen.overlay().conflicts.len(), 2);
        let configured = peer("10.244.1.0/24", "192.168.77.6", "02:00:00:00:f4:06");
        let tracked = learning(place).with_vxlan(|vxlan| vxlan.peers.push(configured));
        seen.manager.add(tracked).await.unwrap();
        assert_eq!(end(seen.overlay()).unwrap().0, "192.168.77.6");
        assert_eq!(seen.overlay().peers[0].source, Source::Configuration);

        // The list of another VNI concerns no attachment here; an empty list removes peers.
        seen.manager.add(learning(place)).await.unwrap();
        seen.manager.set_peers(PeersOf::Vni(1), Vec::new()).await;
        seen.manager.set_peers(PeersOf::Vni(2), by_vni).await;
        assert_eq!(end(seen.overlay()).unwrap().0, "192.168.77.2");
        assert!(seen.overlay().conflicts.is_empty());
    });
}

#[test]
fn two_nodes_with_one_mac_address_or_the_pods_own_network_are_told() {
    Place::run(async |place, mut seen: Seen| {
        flannel(place);
        seen.manager.add(learning(place)).await.unwrap();
        let list = vec![
            peer("10.244.1.0/24", "192.168.77.2", "02:00:00:00:f4:02"),
            peer("10.244.2.0/24", "192.168.77.3", "02:00:00:00:f4:02"),
            peer("10.244.0.0/24", "192.168.77.4", "02:00:00:00:f4:04"),
            peer("10.244.0.0/16", "192.168.77.4", "02:00:00:00:f4:04"),
            peer("10.9.0.0/16", "fd77::2", "02:00:00:00:f4:09"),
        ];
        seen.manager.set_peers(PeersOf::Vni(1), list).await;
        let overlay = seen.overlay();
        let conflicts = overlay.conflicts.join("\n");
        for part in [
            "02:00:00:00:f4:02 is at 192.168.77.2 and at 192.168.77.3; both are served, each for its own prefixes",
            "10.244.0.0/24 of 192.168.77.4 with 02:00:00:00:f4:04 (control-api) is this pod's 10.244.0.5/24 as well",
            "10.9.0.0/16: fd77::2 with 02:00:00:00:f4:09 (control-api) is of another family than 192.168.77.1",
        ] {
            assert!(conflicts.contains(part), "{part}: {conflicts}");
        }
        let served: Vec<String> = overlay.peers.iter().map(|peer| peer.prefix.to_string()).collect();
        assert_eq!(served, ["10.244.1.0/24", "10.244.2.0/24", "10.244.0.0/16"]);
        assert_eq!(overlay.conflicts.len(), 3);
    });
}

#[test]
fn two_gateways_with_one_mac_address_are_told() {
    Place::run(async |place, mut seen: Seen| {
        let node = &place.node;
        flannel(place);
        join(node, 1, "192.168.77.2");
        ip(&format!(
            "-n {node} neigh replace 10.244.2.0 lladdr 02:00:00:00:f4:01 dev flannel.1 nud permanent"
        ));
        ip(&format!("-n {node} route add 10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink"));
        // The same node by IPv6 is no other one.
        ip(&format!(
            "-n {node} neigh add fd00:244:1::1 lladdr 02:00:00:00:f4:01 dev flannel.1 nud permanent"
        ));
        ip(&format!("-n {node} -6 route add fd00:244:1::/64 via fd00:244:1::1 dev flannel.1 onlink"));
        seen.manager.add(learning(place)).await.unwrap();
        assert_eq!(seen.overlay().peers.len(), 3);
        let conflicts = &seen.overlay().conflicts;
        assert_eq!(
            conflicts[..],
            [
                "gateways 10.244.1.0 and 10.244.2.0 have the same 02:00:00:00:f4:01, which the kernel has at 192.168.77.2 only"
            ]
        );
    });
}

/// A thousand nodes, and a tenth of them moving: seen as a few changes, soon after the last command.
#[test]
fn a_thousand_peers_are_learnt_at_once() {
    Place::run(async |place, mut seen: Seen| {
        let node = place.node.clone();
        flannel(place);
        seen.manager.add(learning(place)).await.unwrap();
        let each = |line: &dyn Fn(u32, u32) -> String| -> String {
            (0..1000).map(|i| line(i / 250, i % 250) + "\n").collect()
        };
        let mac = |a: u32, b: u32| format!("02:00:00:01:{a:02x}:{b:02x}");
        let neighbours = each(&|a, b| {
            format!("neigh add 10.{a}.{b}.0 lladdr {} dev flannel.1 nud permanent", mac(a + 1, b))
        });
        let entries = each(&|a, b| {
            format!("fdb add {} dev flannel.1 dst 10.128.{a}.{b} self permanent", mac(a + 1, b))
        });
        let routes = each(&|a, b| format!("route add 10.{a}.{b}.0/24 via 10.{a}.{b}.0 dev flannel.1 onlink"));
        let (first, second, third) = (node.clone(), node.clone(), node.clone());
        tokio::task::spawn_blocking(move || ip_batch(&first, &neighbours)).await.unwrap();
        tokio::task::spawn_blocking(move || bridge_batch(&second, &entries)).await.unwrap();
        tokio::task::spawn_blocking(move || ip_batch(&third, &routes)).await.unwrap();
        let reachable = |tables: &ktsn_resolve::AttachmentTables| {
            let Overlay::VxlanRouted(vxlan) = tables.overlay() else { return 0 };
            vxlan.peers().filter(|peer| peer.is_reachable()).count()
        };
        seen.until("all", |t| reachable(t) == 1000).await;
        let moves: String = (0..100)
            .map(|b| format!("fdb replace {} dev flannel.1 dst 10.129.0.{b} self permanent\n", mac(1, b)))
            .collect();
        tokio::task::spawn_blocking(move || bridge_batch(&node, &moves)).await.unwrap();
        seen.until("moved", |t| {
            (0..100).all(|b| {
                vtep_of(t, &format!("10.0.{b}.0/24")).is_some_and(|end| end.0 == format!("10.129.0.{b}"))
            })
        })
        .await;
    });
}
