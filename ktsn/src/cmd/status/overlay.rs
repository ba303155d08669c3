// SPDX-License-Identifier: Apache-2.0
//! Overlays in `ktsn status`: who is on the other side, what is missing, what contradicts.
//!
//! In: the listing, and with `--peers` the peers of each attachment. Out: text or JSON.

use ktsn_proto::v1;

use crate::output::{or_dash, table, titled};

/// An attachment's name with its peers.
pub(super) type Peers = Vec<(String, Vec<v1::PeerState>)>;

fn named(states: &[v1::AttachmentState]) -> impl Iterator<Item = (&str, &v1::OverlayState)> {
    states.iter().filter_map(|state| {
        let name = state.name.as_str();
        Some((name, state.overlay.as_ref()?))
    })
}

/// Overlays of all attachments and what is wrong with them; empty when there are none.
pub(super) fn text(states: &[v1::AttachmentState], peers: Option<&Peers>) -> String {
    let mut text = titled(
        "Overlays",
        named(states),
        &[
            ("attachment", |(name, _)| (*name).to_owned()),
            ("device", |(_, overlay)| overlay.device.clone()),
            ("VNI", |(_, overlay)| known(overlay.vni)),
            ("port", |(_, overlay)| known(overlay.port)),
            ("local", |(_, overlay)| or_dash(&overlay.local)),
            ("MAC", |(_, overlay)| overlay.mac.clone()),
            ("peers", |(_, overlay)| counts(overlay)),
            ("without tunnel end", |(_, overlay)| overlay.peers_missing.to_string()),
            ("left to the kernel", |(_, overlay)| overlay.peers_left.to_string()),
            ("conflicts so far", |(_, overlay)| overlay.conflicts_count.to_string()),
        ],
    );
    if text.is_empty() {
        return text;
    }
    for (name, overlay) in named(states) {
        if !overlay.fault.is_empty() {
            text.push_str(&format!("{name}: nothing leaves through the tunnel: {}\n", overlay.fault));
        }
        for conflict in &overlay.conflicts {
            text.push_str(&format!("{name}: conflict: {conflict}\n"));
        }
    }
    for (name, peers) in peers.into_iter().flatten() {
        text.push_str(&format!("\nPeers of {name}: {}\n", peers.len()));
        let none = v1::VxlanPeer::default();
        let rows = peers.iter().map(|state| (state.peer.as_ref().unwrap_or(&none), state));
        text.push_str(&table(
            rows,
            &[
                ("prefix", |(peer, _)| peer.prefix.clone()),
                ("tunnel end", |(peer, _)| or_dash(&peer.vtep)),
                ("MAC", |(peer, _)| or_dash(&peer.mac)),
                ("source", |(_, state)| state.source.clone()),
                ("what keeps frames from it", |(_, state)| {
                    or_dash(if state.left.is_empty() { &state.missing } else { &state.left })
                }),
            ],
        ));
    }
    text
}

/// How many, by source, the most first.
fn counts(overlay: &v1::OverlayState) -> String {
    let mut by_source: Vec<(&String, &u32)> = overlay.peers.iter().collect();
    by_source.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
    let parts: Vec<String> = by_source.iter().map(|(source, count)| format!("{count} {source}")).collect();
    if parts.is_empty() { "0".to_owned() } else { parts.join(", ") }
}

fn known(number: u32) -> String {
    if number == 0 { "-".to_owned() } else { number.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlays_their_faults_and_their_peers_are_shown() {
        let overlay = v1::OverlayState {
            device: "flannel.1".into(),
            vni: 1,
            port: 8472,
            mac: "02:00:00:00:01:01".into(),
            fault: "flannel.1: no such device".into(),
            peers: [("learnt".to_owned(), 40), ("configuration".to_owned(), 2)].into(),
            peers_missing: 42,
            conflicts: vec!["10.244.1.0/24 is claimed twice".into()],
            conflicts_count: 3,
            ..Default::default()
        };
        let state =
            v1::AttachmentState { name: "pod/eth0".into(), overlay: Some(overlay), ..Default::default() };
        let peer = v1::VxlanPeer { prefix: "10.244.1.0/24".into(), ..Default::default() };
        let missing = "no neighbour entry for 10.244.1.0".to_owned();
        let peer = v1::PeerState { peer: Some(peer), source: "learnt".into(), missing, left: String::new() };
        let peers = vec![("pod/eth0".to_owned(), vec![peer])];
        let shown = text(std::slice::from_ref(&state), Some(&peers));
        for part in [
            "Overlays",
            "40 learnt, 2 configuration",
            "pod/eth0: nothing leaves through the tunnel: flannel.1: no such device",
            "pod/eth0: conflict: 10.244.1.0/24 is claimed twice",
            "Peers of pod/eth0: 1",
            "no neighbour entry for 10.244.1.0",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert_eq!(serde_json::json!(state)["overlay"]["peers"]["learnt"], 40);
        let shown = serde_json::json!(peers[0].1);
        assert_eq!((&shown[0]["source"], &shown[0]["prefix"]), (&"learnt".into(), &"10.244.1.0/24".into()));
        assert_eq!(text(&[v1::AttachmentState::default()], None), "");
    }
}
