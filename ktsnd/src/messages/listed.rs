// SPDX-License-Identifier: Apache-2.0
//! An attachment as the control API lists it: its configuration with every default filled in.
//!
//! In: the checked attachment, and its overlay as it is in force. Out: the configuration. What only a device knows, and the device
//! is away, is left out.

use ktsn_model::TrafficClass;
use ktsn_proto::attachment::{
    AttachmentConfig, OuterConfig, OverlayConfig, PeerConfig, TakeConfig, VxlanConfig,
};
use ktsn_resolve::{Bridged, Member, MemberAt, OuterDs, OuterTtl};
use ktsn_time::Nanos;

use crate::config::{Attachment, Overlay, SegmentFrom, Vxlan, VxlanPeer, prefixes_of};
use crate::tables::OverlayState;

/// Most prefixes of peers that stand for an attachment's destinations in a listing.
const LISTED_MAX: usize = 64;

/// The attachment with every default filled in; `state` says what its overlay's device knows.
pub(crate) fn listed(attachment: &Attachment, state: Option<&OverlayState>) -> AttachmentConfig {
    let span = |span: Nanos| {
        let span = std::time::Duration::from_nanos(span.get().unsigned_abs());
        Some(humantime::format_duration(span).to_string())
    };
    AttachmentConfig {
        name: Some(attachment.name.clone()),
        netns: Some(attachment.netns.display().to_string()),
        interface: Some(attachment.interface.clone()),
        uplink: attachment.uplink.clone(),
        overlay: Some(overlay(&attachment.overlay, state)),
        addresses: attachment.addresses.config(),
        destinations: Some(destinations(attachment, state)),
        ethernet: Some(attachment.ethernet.word().to_owned()),
        classes: Some(
            (0..TrafficClass::COUNT as u8).filter(|class| attachment.classes & (1 << class) != 0).collect(),
        ),
        late: Some(attachment.late.word().to_owned()),
        overrun_limit: span(attachment.overrun_limit),
        horizon: span(attachment.horizon),
        allow_tai: Some(attachment.clients.allow_tai),
        allow_policy_bypass: Some(attachment.allow_policy_bypass),
        take: Some(match attachment.clients.take_from {
            None => TakeConfig::Word("txtime".to_owned()),
            Some(0) => TakeConfig::Word("all".to_owned()),
            Some(least) => TakeConfig::From { priority_min: u64::from(least) },
        }),
        vlan: attachment.tag.map(|tag| u32::from(tag.vid.get())).filter(|vid| *vid != 0),
        pcp: attachment.tag.map(|tag| u32::from(tag.pcp.get())),
        ingress: Some(attachment.ingress.word().to_owned()),
        egress: Some(attachment.egress.word().to_owned()),
        vhost_socket: attachment.egress.keys().0,
        vhost_queues: attachment.egress.keys().1,
        receive: Some(attachment.receive.word().to_owned()),
        receive_period: attachment.clients.receive_period.and_then(span),
        capture: Some(attachment.capture.word().to_owned()),
        capture_priority: Some(u32::from(attachment.capture_priority)),
        slots: Some(attachment.clients.slots),
        clients_max: Some(attachment.clients.clients_max),
        octets_max: Some(attachment.clients.octets_max),
        memory_max: Some(attachment.clients.memory_max),
    }
}

fn destinations(attachment: &Attachment, state: Option<&OverlayState>) -> Vec<String> {
    let macs = attachment.destination_macs.iter().map(ToString::to_string);
    let allowed = attachment.allowed().unwrap_or_else(|| {
        let learnt = state.into_iter().flat_map(|state| &state.peers).map(|peer| peer.prefix);
        let configured = attachment.overlay.bridged().into_iter().flat_map(prefixes_of);
        learnt.chain(configured).take(LISTED_MAX).collect()
    });
    allowed.iter().map(ToString::to_string).chain(macs).collect()
}

fn overlay(overlay: &Overlay, state: Option<&OverlayState>) -> OverlayConfig {
    let vxlan = match overlay {
        Overlay::None => return OverlayConfig::None,
        Overlay::Routed(vxlan) => routed(vxlan, state),
        Overlay::Bridged(segment) => bridged(segment),
        Overlay::BridgedFrom(from) => bridged_from(from, state),
    };
    OverlayConfig::Vxlan(Box::new(vxlan))
}

fn local(state: Option<&OverlayState>) -> Option<String> {
    state.filter(|state| !state.local.is_unspecified()).map(|state| state.local.to_string())
}

/// The configuration of a peer in routed mode.
pub(crate) fn peer_config(peer: &VxlanPeer) -> PeerConfig {
    PeerConfig {
        prefix: Some(peer.prefix.to_string()),
        vtep: Some(peer.vtep.to_string()),
        mac: Some(peer.mac.to_string()),
    }
}

fn routed(vxlan: &Vxlan, state: Option<&OverlayState>) -> VxlanConfig {
    VxlanConfig {
        mode: Some("routed".to_owned()),
        vni: vxlan.vni.or(state.map(|state| state.vni)).filter(|vni| *vni != 0),
        port: vxlan.port.or(state.map(|state| state.port)).filter(|port| *port != 0),
        local: vxlan.local.map(|local| local.to_string()).or_else(|| local(state)),
        device: Some(vxlan.device.clone()),
        learn_from: vxlan.is_learnt.then(|| vxlan.device.clone()),
        peers: Some(vxlan.peers.iter().map(peer_config).collect()),
        ..VxlanConfig::default()
    }
}

fn bridged(segment: &Bridged) -> VxlanConfig {
    let tunnel = &segment.tunnel;
    let inherit = || OuterConfig::Word("inherit".to_owned());
    let peer = |member: &Member| {
        let (prefix, mac) = match member.at {
            MemberAt::Prefix(prefix) => (Some(prefix.to_string()), None),
            MemberAt::Mac(mac) => (None, Some(mac.to_string())),
        };
        PeerConfig { prefix, vtep: Some(member.vtep.to_string()), mac }
    };
    VxlanConfig {
        mode: Some("bridged".to_owned()),
        vni: Some(tunnel.vni.get()),
        port: Some(tunnel.port),
        local: Some(tunnel.local.to_string()),
        peers: Some(segment.members.iter().map(peer).collect()),
        flood: Some(segment.flood.iter().map(ToString::to_string).collect()),
        flood_interface: Some(segment.flood_interface),
        ttl: Some(match tunnel.ttl {
            OuterTtl::Fixed(ttl) => OuterConfig::Number(u64::from(ttl)),
            OuterTtl::Inherit => inherit(),
        }),
        tos: Some(match tunnel.ds {
            OuterDs::Fixed(ds) => OuterConfig::Number(u64::from(ds.0)),
            OuterDs::Inherit => inherit(),
        }),
        df: Some(tunnel.df.word().to_owned()),
        udp_checksum: Some(tunnel.udp_checksum),
        ..VxlanConfig::default()
    }
}

fn bridged_from(from: &SegmentFrom, state: Option<&OverlayState>) -> VxlanConfig {
    VxlanConfig {
        mode: Some("bridged".to_owned()),
        vni: state.map(|state| state.vni).filter(|vni| *vni != 0),
        port: state.map(|state| state.port).filter(|port| *port != 0),
        local: local(state),
        learn_from: Some(from.device.clone()),
        flood_interface: Some(from.flood_interface),
        ..VxlanConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use ktsn_proto::attachment::VxlanConfig;
    use serde_json::Value;
    use std::collections::BTreeSet;

    const BRIDGED: &str = r#"
[[attachment]]
name = "a"
netns = "/run/netns/a"
interface = "eth0"
uplink = "up0"
addresses = ["10.9.0.2", "fd00::/64"]
destinations = ["10.9.0.0/24", "02:00:00:00:00:09"]
ethernet = "listed"
classes = [2, 5]
late = "send"
overrun_limit = "10us"
horizon = "3s"
allow_tai = false
allow_policy_bypass = true
take = { priority_min = 3 }
vlan = 7
pcp = 4
ingress = "short"
egress = "vhost-user"
vhost_socket = "/run/vhost/"
vhost_queues = 3
receive = "expect"
receive_period = "1ms 500us"
capture = "kernel"
capture_priority = 6
slots = 64
clients_max = 5
octets_max = 1000000
memory_max = 2000000
overlay = { vxlan = { mode = "bridged", vni = 42, port = 4789, local = "192.0.2.1", ttl = 9, tos = "inherit", df = "set",
  udp_checksum = false, flood_interface = true, flood = ["192.0.2.2"], peers = [ { mac = "02:00:00:00:00:03", vtep = "192.0.2.3" } ] } }
"#;
    const ROUTED: &str = r#"
[[attachment]]
name = "a"
netns = "/run/netns/a"
interface = "eth0"
overlay = { vxlan = { mode = "routed", vni = 7, port = 8472, local = "192.0.2.1", device = "vx7", learn_from = "vx7",
  peers = [ { prefix = "10.1.0.0/16", vtep = "192.0.2.2", mac = "02:00:00:00:00:02" } ] } }
"#;

    /// Both forms of the first attachment of a TOML file: as it was written, and as it is listed.
    fn forms(toml: &str) -> (Value, Value) {
        let attachment = Config::parse(toml).unwrap().attachments.remove(0);
        let value = |config: &AttachmentConfig| serde_json::to_value(config).unwrap();
        (value(&attachment.raw), value(&listed(&attachment, None)))
    }

    fn keys(value: &Value) -> BTreeSet<&str> {
        value.as_object().unwrap().keys().map(String::as_str).collect()
    }

    /// A new key must be checked and listed: this test has every key in its examples, and each comes back as it was written.
    #[test]
    fn every_key_goes_through_the_check_to_the_listing() {
        let (written, listed) = forms(BRIDGED);
        assert_eq!(keys(&written), AttachmentConfig::KEYS.iter().copied().collect());
        assert_eq!(listed, written);
        let (routed, listed) = forms(ROUTED);
        assert_eq!(listed["overlay"], routed["overlay"]);
        let (bridged, routed) = (&written["overlay"]["vxlan"], &routed["overlay"]["vxlan"]);
        let both: BTreeSet<&str> = keys(bridged).union(&keys(routed)).copied().collect();
        assert_eq!(both, VxlanConfig::KEYS.iter().copied().collect());
    }

    /// A listing can be attached again, with the same meaning.
    #[test]
    fn every_default_is_filled_in_and_reads_back() {
        let toml = "[[attachment]]\nname = \"a\"\nnetns = \"a\"\ninterface = \"eth0\"\n";
        let attachment = Config::parse(toml).unwrap().attachments.remove(0);
        let config = listed(&attachment, None);
        let optional =
            ["uplink", "addresses", "vlan", "pcp", "vhost_socket", "vhost_queues", "receive_period"];
        let value = serde_json::to_value(&config).unwrap();
        let missing = AttachmentConfig::KEYS.iter().filter(|key| value.get(key).is_none());
        assert!(missing.eq(optional.iter()), "{value}");
        assert_eq!((&value["horizon"], &value["overrun_limit"]), (&"10s".into(), &"1ms".into()));
        assert_eq!((&value["take"], &value["overlay"]), (&"txtime".into(), &"none".into()));
        let again =
            Attachment::check("attachment", AttachmentConfig::parse("a", &config.json()).unwrap()).unwrap();
        assert_eq!(listed(&again, None), config);
    }
}
