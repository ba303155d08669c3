// SPDX-License-Identifier: Apache-2.0
//! What the control API lists: ports, attachments, their clients, overlays, rules and policies.

use ktsn_proto::v1;
use ktsn_ring::receive::{ListenerName, ListenerReading, ReceiveCount};

use crate::clients::{ClientView, Receiving, ServedAttachment};
use crate::config::{Attachment, AttachmentConfig, OverlayConfig};
use crate::node::ports::OpenPort;
use crate::node::{Node, NodeError};
use crate::policy::Hindrance;
use crate::tables::{OverlayNews, OverlayState, PeerState, Restriction};

/// Rules, destinations of each, prefixes of a policy, and conflicts of an overlay that a listing shows.
const SHOWN: usize = 16;

/// All ports and attachments.
pub(crate) fn list(node: &Node) -> v1::ListReply {
    let ports = node.ports.iter().map(|(_, open)| port(node, open));
    let (clients, receiving) = (node.directory.clients(), node.directory.receivers().list());
    let attachments = node.served.iter().map(|served| {
        let clients = clients.iter().filter(|c| c.attachment == served.index);
        let clients = clients.map(|client| client_message(client, receiving.get(&client.key)));
        attachment(node, served, clients.collect())
    });
    v1::ListReply { ports: ports.collect(), attachments: attachments.collect() }
}

fn port(node: &Node, p: &OpenPort) -> v1::Port {
    let config = Some(node.intent.port(&p.device)).filter(|_| p.is_uplink());
    let word = |word: Option<&str>| word.unwrap_or_default().to_owned();
    let schedule = node.intent.schedule_of(&p.device).filter(|_| p.is_uplink());
    v1::Port {
        device: p.device.clone(),
        netns: p.netns.clone(),
        adapter: p.adapter.to_owned(),
        adapter_reason: p.why(),
        link_speed: p.link_speed,
        up: p.is_up(),
        mode: word(config.as_ref().map(|config| config.mode.word())),
        strategy: word(config.as_ref().map(|config| config.selection.word())),
        schedule: word(schedule.map(super::schedule::name_of)),
        foreign_frames: p.foreign_frames(),
        unsynchronised: word(config.as_ref().map(|config| config.unsynchronised.word())),
    }
}

fn attachment(node: &Node, served: &ServedAttachment, clients: Vec<v1::Client>) -> v1::AttachmentState {
    let (name, tables) = (served.name(), node.latest.attachment(served.index));
    let (news, rules) = (node.served.overlay_of(served.index), node.served.rules_of(served.index));
    let hindrances = rules.into_iter().flat_map(|rules| rules.hindrances.iter());
    // What closes the attachment, or what network policies leave of it; none: everything is left.
    let restriction = node.watch.closed.of(name).or_else(|| node.intent.restriction(name));
    v1::AttachmentState {
        name: name.to_owned(),
        attachment: listed(&served.attachment, news.map(|news| &*news.state)).json(),
        clients,
        overlay: news.map(overlay),
        rules: hindrances.take(SHOWN).map(rule).collect(),
        policy: restriction.map(|restriction| policy(name, restriction)),
        rules_count: rules.map_or(0, |rules| rules.rules_count),
        withheld: tables
            .map(|tables| tables.withheld().iter().map(ToString::to_string).collect())
            .unwrap_or_default(),
    }
}

/// The attachment's configuration with every default filled in, and with what its overlay's device knows.
fn listed(attachment: &Attachment, state: Option<&OverlayState>) -> AttachmentConfig {
    let mut config = attachment.config();
    let Some(state) = state else { return config };
    config.destinations = Some(attachment.listed_destinations(state.peers.iter().map(|peer| peer.prefix)));
    if let Some(OverlayConfig::Vxlan(vxlan)) = &mut config.overlay {
        vxlan.vni = vxlan.vni.or(Some(state.vni)).filter(|vni| *vni != 0);
        vxlan.port = vxlan.port.or(Some(state.port)).filter(|port| *port != 0);
        let local = Some(state.local).filter(|local| !local.is_unspecified());
        vxlan.local = vxlan.local.take().or_else(|| Some(local?.to_string()));
    }
    config
}

fn client_message(client: &ClientView, receiving: Option<&Receiving>) -> v1::Client {
    let streams = client.streams.values().map(|s| v1::Stream {
        cookie: s.cookie,
        local: s.local.to_string(),
        peer: s.peer.map(|p| p.to_string()).unwrap_or_default(),
    });
    let listeners = receiving.into_iter().flat_map(|receiving| &receiving.listeners);
    v1::Client {
        pid: client.pid,
        streams: streams.collect(),
        listeners: listeners.map(listener).collect(),
        receive_granted_permille: receiving.map_or(0, |receiving| receiving.granted),
    }
}

fn listener(listener: &ListenerReading) -> v1::Listener {
    let get = |which| listener.counts.get(which);
    let socket = match listener.name {
        ListenerName::Udp4(port) => format!("udp4:{port}"),
        ListenerName::Udp6(port) => format!("udp6:{port}"),
        ListenerName::Packet(interface) => format!("packet:{interface}"),
    };
    let counts = v1::ReceiveCounts {
        expected: get(ReceiveCount::Expected),
        hit: get(ReceiveCount::Hit),
        early: get(ReceiveCount::Early),
        missed: get(ReceiveCount::Missed),
        spun_ns: get(ReceiveCount::Spun),
    };
    v1::Listener { socket, cookie: listener.cookie, counts: Some(counts) }
}

fn rule(hindrance: &Hindrance) -> v1::RuleState {
    let all = &hindrance.destinations;
    v1::RuleState {
        rule: hindrance.rule.clone(),
        destinations: all.iter().take(SHOWN).map(ToString::to_string).collect(),
        destinations_count: u32::try_from(all.len()).unwrap_or(u32::MAX),
        is_arrival: hindrance.is_arrival,
    }
}

fn policy(name: &str, of: &Restriction) -> v1::AttachmentPolicy {
    v1::AttachmentPolicy {
        attachment: name.to_owned(),
        egress_restricted: of.egress.is_some(),
        egress_allowed: of.egress.iter().flatten().take(SHOWN).map(ToString::to_string).collect(),
        ingress_blocked: of.is_ingress_blocked,
        reason: of.reason.clone(),
    }
}

/// The overlay peers of an attachment that are in force.
pub(crate) fn peers(node: &Node, name: &str) -> Result<Vec<v1::PeerState>, NodeError> {
    let index = node.served.find(name).ok_or_else(|| NodeError::Unknown(name.to_owned()))?;
    let overlay = node.served.overlay_of(index);
    Ok(overlay.into_iter().flat_map(|overlay| &overlay.state.peers).map(peer).collect())
}

fn peer(peer: &PeerState) -> v1::PeerState {
    let (vtep, mac, missing) = match &peer.end {
        Ok((vtep, mac)) => (vtep.to_string(), mac.to_string(), String::new()),
        Err(missing) => (String::new(), String::new(), missing.clone()),
    };
    let known = v1::VxlanPeer { prefix: peer.prefix.to_string(), vtep, mac };
    v1::PeerState {
        peer: Some(known),
        source: peer.source.word().to_owned(),
        missing,
        left: peer.left.clone().unwrap_or_default(),
    }
}

fn count(peers: usize) -> u32 {
    u32::try_from(peers).unwrap_or(u32::MAX)
}

/// An attachment's overlay in few words, however many peers it has.
fn overlay(news: &OverlayNews) -> v1::OverlayState {
    let overlay = &news.state;
    let mut peers = std::collections::BTreeMap::new();
    for peer in &overlay.peers {
        *peers.entry(peer.source.word().to_owned()).or_insert(0) += 1;
    }
    let missing = overlay.peers.iter().filter(|peer| peer.end.is_err()).count();
    v1::OverlayState {
        device: overlay.device.clone(),
        vni: overlay.vni,
        port: u32::from(overlay.port),
        local: if overlay.local.is_unspecified() { String::new() } else { overlay.local.to_string() },
        mac: overlay.device_mac.to_string(),
        fault: overlay.fault.clone().unwrap_or_default(),
        peers,
        peers_left: count(overlay.peers.iter().filter(|peer| peer.left.is_some()).count()),
        peers_missing: count(missing),
        conflicts: overlay.conflicts.iter().take(SHOWN).cloned().collect(),
        conflicts_count: news.conflicts_count,
    }
}
