// SPDX-License-Identifier: Apache-2.0
//! Overlay peers that the control API gives, and what is shown of all peers.
//!
//! In: checked lists. Out: lists for the tables' task, and messages. A list is kept in the state file before anything
//! changes; where that fails, nothing does.

use std::collections::BTreeMap;

use ktsn_proto::v1;
use ktsn_resolve::AttachmentIndex;
use tracing::info;

use super::{Node, NodeError, ServedAttachment};
use crate::config::{PeersTarget, VxlanPeer, check_peers, check_vni};
use crate::messages::peer_config;
use crate::run_dir::KeptPeers;
use crate::tables::{OverlayNews, PeerState, PeersOf};

/// Conflicts that a listing shows.
const CONFLICTS_SHOWN: usize = 16;

/// The lists as the state file keeps them.
pub(super) fn to_save(lists: &BTreeMap<PeersTarget, Vec<VxlanPeer>>) -> Vec<KeptPeers> {
    let list = |(target, peers): (&PeersTarget, &Vec<VxlanPeer>)| {
        let peers = peers.iter().map(peer_config).collect();
        match target {
            PeersTarget::Attachment(name) => KeptPeers { attachment: Some(name.clone()), vni: None, peers },
            PeersTarget::Vni(vni) => KeptPeers { attachment: None, vni: Some(*vni), peers },
        }
    };
    lists.iter().map(list).collect()
}

impl Node {
    /// Replaces a list as a whole.
    pub(super) async fn set_peers(
        &mut self,
        target: PeersTarget,
        peers: Vec<VxlanPeer>,
    ) -> Result<(), NodeError> {
        if self.stopping {
            return Err(NodeError::Precondition("ktsnd is ending".to_owned()));
        }
        let of = match &target {
            PeersTarget::Vni(vni) => PeersOf::Vni(*vni),
            PeersTarget::Attachment(name) => {
                let index = self.find(name).ok_or_else(|| NodeError::Unknown(name.clone()))?;
                self.check_family(index, &peers)?;
                PeersOf::Attachment(index)
            }
        };
        let before = self.overlay_peers.remove(&target);
        if !peers.is_empty() {
            self.overlay_peers.insert(target.clone(), peers.clone());
        }
        if let Err(error) = self.try_save() {
            match before {
                Some(before) => self.overlay_peers.insert(target, before),
                None => self.overlay_peers.remove(&target),
            };
            return Err(NodeError::Internal(format!("state file: {error}; nothing was changed")));
        }
        info!(?target, count = peers.len(), "overlay peers given");
        for news in self.manager.set_peers(of, peers).await {
            self.note_overlay(news);
        }
        Ok(())
    }

    /// An attachment's overlay is another one now.
    pub(super) fn note_overlay(&mut self, news: OverlayNews) {
        if let Some(Some(attached)) = self.attached.get_mut(usize::from(news.index.0))
            && attached.overlay.as_ref().is_none_or(|known| known.revision < news.revision)
        {
            attached.overlay = Some(news);
        }
    }

    /// Peers of an attachment must have an overlay, and be of the family of its own tunnel end.
    fn check_family(&self, index: AttachmentIndex, peers: &[VxlanPeer]) -> Result<(), NodeError> {
        let Some(Some(attached)) = self.attached.get(usize::from(index.0)) else { return Ok(()) };
        let Some(vxlan) = attached.attachment.overlay.routed() else {
            let name = &attached.attachment.name;
            return Err(NodeError::Precondition(format!(
                "attachment: {name:?} has no overlay; no peers are possible"
            )));
        };
        let known =
            attached.overlay.as_ref().map(|overlay| overlay.state.local).filter(|a| !a.is_unspecified());
        let Some(local) = vxlan.local.or(known) else { return Ok(()) };
        match peers.iter().position(|peer| peer.vtep.is_ipv4() != local.is_ipv4()) {
            Some(i) => Err(NodeError::Invalid(format!(
                "peers[{i}].vtep: \"{}\": expected an address of the same family as this node's {local}",
                peers[i].vtep
            ))),
            None => Ok(()),
        }
    }

    /// What was given for an attachment before it came (at a restart).
    pub(super) async fn give_peers(&mut self, index: AttachmentIndex) {
        let Some(name) = self.name_of(index) else { return };
        if let Some(peers) = self.overlay_peers.get(&PeersTarget::Attachment(name)) {
            for news in self.manager.set_peers(PeersOf::Attachment(index), peers.clone()).await {
                self.note_overlay(news);
            }
        }
    }

    /// An attachment's list goes with it; whether there was one.
    pub(super) fn forget_peers(&mut self, name: &str) -> bool {
        self.overlay_peers.remove(&PeersTarget::Attachment(name.to_owned())).is_some()
    }

    /// Takes up the lists of the state file again, before any attachment.
    pub(crate) async fn restore_peers(&mut self, kept: Vec<KeptPeers>) {
        for list in kept {
            let peers = check_peers("state.json: peers", &list.peers);
            let target = match (list.attachment, list.vni) {
                (Some(name), _) => Ok(PeersTarget::Attachment(name)),
                (None, vni) => check_vni("state.json: vni", vni.unwrap_or(0)).map(PeersTarget::Vni),
            };
            match (target, peers) {
                (Ok(target), Ok(peers)) => {
                    if let PeersTarget::Vni(vni) = target {
                        self.manager.set_peers(PeersOf::Vni(vni), peers.clone()).await;
                    }
                    self.overlay_peers.insert(target, peers);
                }
                (Err(error), _) | (_, Err(error)) => {
                    self.warn(format!("overlay peers of the state file are not taken up again: {error}"));
                }
            }
        }
    }

    /// The peers in force.
    pub(super) fn get_peers(&self, name: &str) -> Result<Vec<v1::PeerState>, NodeError> {
        let index = self.find(name).ok_or_else(|| NodeError::Unknown(name.to_owned()))?;
        let attached = self.attached.get(usize::from(index.0)).and_then(Option::as_ref);
        let overlay = attached.and_then(|attached| attached.overlay.as_ref());
        Ok(overlay.map_or_else(Vec::new, |overlay| overlay.state.peers.iter().map(state_message).collect()))
    }
}

fn state_message(peer: &PeerState) -> v1::PeerState {
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
pub(super) fn overlay_message(attached: &ServedAttachment) -> Option<v1::OverlayState> {
    let news = attached.overlay.as_ref()?;
    let overlay = &news.state;
    let mut peers = std::collections::BTreeMap::new();
    for peer in &overlay.peers {
        *peers.entry(peer.source.word().to_owned()).or_insert(0) += 1;
    }
    let missing = overlay.peers.iter().filter(|peer| peer.end.is_err()).count();
    Some(v1::OverlayState {
        device: overlay.device.clone(),
        vni: overlay.vni,
        port: u32::from(overlay.port),
        local: if overlay.local.is_unspecified() { String::new() } else { overlay.local.to_string() },
        mac: overlay.device_mac.to_string(),
        fault: overlay.fault.clone().unwrap_or_default(),
        peers,
        peers_left: count(overlay.peers.iter().filter(|peer| peer.left.is_some()).count()),
        peers_missing: count(missing),
        conflicts: overlay.conflicts.iter().take(CONFLICTS_SHOWN).cloned().collect(),
        conflicts_count: news.conflicts_count,
    })
}
