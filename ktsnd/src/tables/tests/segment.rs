// SPDX-License-Identifier: Apache-2.0
//! A bridged overlay learnt from a VXLAN device and the bridge that it is a port of.

use ktsn_model::DropReason;
use ktsn_resolve::{AttachmentTables, Egress, MemberAt, Overlay, Refusal};

use super::super::TrackedAttachment;
use super::learn::to;
use super::place::{Place, Seen, bridge, ip};
use crate::config::SegmentFrom;

const STATION: &str = "02:00:00:00:07:09";

/// The pod's veth and a VXLAN device as ports of one bridge.
fn device(place: &Place) {
    let node = &place.node;
    ip(&format!(
        "-n {node} link add vx7 type vxlan id 7 local 192.168.77.1 dstport 4789 nolearning dev up0 ttl 9"
    ));
    ip(&format!("-n {node} link set vx7 master br7 up"));
    bridge(&format!("-n {node} fdb append 00:00:00:00:00:00 dev vx7 dst 192.168.77.2 self"));
    bridge(&format!("-n {node} fdb append 00:00:00:00:00:00 dev vx7 dst 192.168.77.3 self"));
    bridge(&format!("-n {node} fdb replace {STATION} dev vx7 dst 192.168.77.2 self"));
}

fn tracked(place: &Place) -> TrackedAttachment {
    let from = SegmentFrom { device: "vx7".to_owned(), flood_interface: false };
    place.tracked().changed(|a| {
        a.overlay = crate::config::Overlay::BridgedFrom(from);
        a.destinations = vec!["10.244.0.0/24".parse().unwrap()];
    })
}

/// Where a station is, as text.
fn at(tables: &AttachmentTables, mac: &str) -> Option<String> {
    let Overlay::VxlanBridged(segment) = tables.overlay() else { return None };
    let found = segment.members().find(|member| member.at == MemberAt::Mac(mac.parse().unwrap()));
    found.map(|member| member.vtep.to_string())
}

fn flood(tables: &AttachmentTables) -> Vec<String> {
    let Overlay::VxlanBridged(segment) = tables.overlay() else { return Vec::new() };
    segment.flood().iter().map(ToString::to_string).collect()
}

/// The pod's bridge with the device as its port; the pod knows a station behind it.
fn segment(place: &Place) {
    let node = &place.node;
    ip(&format!("-n {node} link add br7 type bridge"));
    ip(&format!("-n {node} link set br7 up"));
    ip(&format!("-n {node} link set pod0 master br7"));
    device(place);
    ip(&format!("-n {} neigh add 10.244.0.9 lladdr {STATION} dev eth0 nud permanent", place.pod));
}

#[test]
fn stations_and_the_flood_list_are_learnt_and_followed() {
    Place::run(async |place, mut seen: Seen| {
        let node = &place.node;
        segment(place);
        bridge(&format!("-n {node} fdb add 02:00:00:00:07:0a dev pod0 master static"));
        seen.manager.add(tracked(place)).await.unwrap();
        seen.until("learnt", |t| at(t, STATION).as_deref() == Some("192.168.77.2")).await;
        let tables = seen.attachment().unwrap();
        assert_eq!(at(tables, "02:00:00:00:07:0a").as_deref(), Some("192.168.77.1"), "it is here");
        assert_eq!(flood(tables), ["192.168.77.2", "192.168.77.3"]);
        let overlay = seen.overlay();
        assert_eq!((overlay.vni, overlay.port, overlay.fault.as_ref()), (7, 4789, None));
        let vtep = "192.168.77.2".parse().unwrap();
        seen.until("tunnel end", |t| t.uplink().neighbour(vtep).is_some()).await;
        assert_eq!(to(&seen, "10.244.0.9").unwrap().egress, Egress::Uplink);

        // It moves to another node, then onto this one; a tunnel end joins and one leaves.
        bridge(&format!("-n {node} fdb replace {STATION} dev vx7 dst 192.168.77.3 self"));
        seen.until("moved", |t| at(t, STATION).as_deref() == Some("192.168.77.3")).await;
        bridge(&format!("-n {node} fdb add {STATION} dev pod0 master static"));
        seen.until("here", |t| at(t, STATION).as_deref() == Some("192.168.77.1")).await;
        let conflict = format!("{STATION} is on this node and at 192.168.77.3; the one here holds");
        assert_eq!(seen.overlay().conflicts, [conflict]);
        bridge(&format!("-n {node} fdb del {STATION} dev pod0 master"));
        bridge(&format!("-n {node} fdb append 00:00:00:00:00:00 dev vx7 dst 192.168.77.4 self"));
        bridge(&format!("-n {node} fdb del 00:00:00:00:00:00 dev vx7 dst 192.168.77.2 self"));
        seen.until("flood list", |t| flood(t) == ["192.168.77.3", "192.168.77.4"]).await;
        bridge(&format!("-n {node} fdb append 00:00:00:00:00:00 dev vx7 dst 239.1.1.1 via up0 self"));
        bridge(&format!("-n {node} fdb del {STATION} dev vx7 dst 192.168.77.3 self"));
        seen.until("aged out", |t| at(t, STATION).is_none()).await;
        assert_eq!(flood(seen.attachment().unwrap()), ["192.168.77.3", "192.168.77.4"], "no group");
    });
}

#[test]
fn while_the_device_is_away_nothing_leaves() {
    Place::run(async |place, mut seen: Seen| {
        let node = &place.node;
        segment(place);
        seen.manager.add(tracked(place)).await.unwrap();
        let vtep = "192.168.77.2".parse().unwrap();
        seen.until("tunnel end", |t| t.uplink().neighbour(vtep).is_some()).await;
        assert!(to(&seen, "10.244.0.9").is_ok());
        ip(&format!("-n {node} link del vx7"));
        seen.until("away", |t| t.uplink().if_index() == 0).await;
        assert_eq!(to(&seen, "10.244.0.9").err(), Some(Refusal::Drop(DropReason::NoRoute, None)));
        assert_eq!(seen.overlay().fault.as_deref(), Some("vx7: no such device"));
        device(place);
        seen.until("back", |t| t.uplink().neighbour(vtep).is_some() && at(t, STATION).is_some()).await;
        assert!(to(&seen, "10.244.0.9").is_ok());
    });
}
