// SPDX-License-Identifier: Apache-2.0
//! What the keeper knows of overlays: learnt tables, peers given by the control API, and what was shown last.
//!
//! In: snapshots of the node, lists of peers. Out: [`Told`] for building an attachment, events when what is in force
//! is another one now.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use ktsn_resolve::AttachmentIndex;

use super::super::learn::{Learner, Missing};
use super::super::manager::PeersOf;
use super::super::overlay::Told;
use super::super::snapshot::Snapshot;
use super::super::xfrm::Policies;
use super::super::{AttachmentSpec, Event, OverlayNews, OverlayState};
use crate::config::VxlanPeer;

/// Conflicts that are told one by one; more are counted.
const TOLD_MAX: usize = 8;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Overlays {
    learners: BTreeMap<String, Learner>,
    given: BTreeMap<PeersOf, Vec<VxlanPeer>>,
    shown: BTreeMap<u16, OverlayNews>,
    revision: u64,
}

impl Overlays {
    /// Learns from the devices that `specs` name, and forgets others.
    pub(super) fn learn<'a>(&mut self, specs: impl Iterator<Item = &'a AttachmentSpec>, host: &Snapshot) {
        let names = names(specs);
        self.learners.retain(|name, _| names.contains(name));
        for name in names {
            self.learners.entry(name.clone()).or_default().update(host, &name, Instant::now());
        }
    }

    /// Whether something remembered is to be forgotten by now.
    pub(super) fn is_due(&self) -> bool {
        self.learners.values().any(|learner| learner.is_due(Instant::now()))
    }

    /// What is told of the overlay of `spec`.
    pub(super) fn told<'a>(&'a self, spec: &AttachmentSpec, policies: &'a Policies) -> Told<'a> {
        let policies = (!spec.allow_policy_bypass).then_some(policies);
        let Some(vxlan) = &spec.overlay else {
            let learner = spec.segment_from.as_ref().and_then(|from| self.learners.get(&from.device));
            return Told { policies, learner, ..Told::default() };
        };
        let learner = vxlan.is_learnt.then(|| self.learners.get(&vxlan.device)).flatten();
        let vni = vxlan.vni.or_else(|| Some(learner?.device()?.vni));
        let list = |of: PeersOf| self.given.get(&of).map_or(&[][..], Vec::as_slice);
        Told {
            given: [list(PeersOf::Attachment(spec.index)), vni.map_or(&[], |vni| list(PeersOf::Vni(vni)))],
            learner,
            policies,
        }
    }

    /// Replaces a list as a whole; an empty one is none.
    pub(super) fn give(&mut self, of: PeersOf, peers: Vec<VxlanPeer>) {
        if peers.is_empty() {
            self.given.remove(&of);
        } else {
            self.given.insert(of, peers);
        }
    }

    /// Tells of an attachment's overlay when it is another one than before.
    pub(super) fn show(&mut self, index: u16, state: Option<OverlayState>, report: &dyn Fn(Event)) {
        let Some(state) = state else {
            self.shown.remove(&index);
            return;
        };
        let before = self.shown.get(&index);
        if before.is_some_and(|before| *before.state == state) {
            return;
        }
        let known: BTreeSet<&String> = before.iter().flat_map(|before| &before.state.conflicts).collect();
        let new: Vec<&String> = state.conflicts.iter().filter(|conflict| !known.contains(conflict)).collect();
        let device = &state.device;
        for conflict in new.iter().take(TOLD_MAX) {
            report(Event::Warning(format!("overlay {device}: peers in conflict: {conflict}")));
        }
        if let Some(more) = new.len().checked_sub(TOLD_MAX).filter(|more| *more > 0) {
            report(Event::Warning(format!("overlay {device}: {more} more conflicts")));
        }
        let conflicts_count = before.map_or(0, |before| before.conflicts_count) + new.len() as u64;
        match (&state.fault, before.and_then(|before| before.state.fault.as_ref())) {
            (Some(fault), before) if before != Some(fault) => {
                report(Event::Warning(format!(
                    "overlay {device}: {fault}; frames to its peers are dropped (no_neighbour)"
                )));
            }
            (None, Some(_)) => report(Event::Warning(format!("overlay {device}: serves again"))),
            _ => {}
        }
        let left = left(&state);
        if left != before.and_then(|before| self::left(&before.state)) {
            let told = left.unwrap_or_else(|| "no peer is left to the kernel any more".to_owned());
            report(Event::Warning(format!("overlay {device}: {told}")));
        }
        self.revision += 1;
        let (state, revision) = (Arc::new(state), self.revision);
        let news = OverlayNews { index: AttachmentIndex(index), state, conflicts_count, revision };
        report(Event::Overlay(news.clone()));
        self.shown.insert(index, news);
    }

    /// What was told last of each attachment.
    pub(super) fn shown(&self) -> Vec<OverlayNews> {
        self.shown.values().cloned().collect()
    }

    /// What was told last of one.
    pub(super) fn shown_of(&self, index: AttachmentIndex) -> Option<OverlayNews> {
        self.shown.get(&index.0).cloned()
    }

    /// Nothing is known of an attachment any more.
    pub(super) fn forget(&mut self, index: u16) {
        self.shown.remove(&index);
        self.given.remove(&PeersOf::Attachment(AttachmentIndex(index)));
    }

    /// Gateways on learnt devices whose MAC addresses nobody knows, or nobody confirmed for a while.
    pub(super) fn gateways(&self, host: &Snapshot) -> Vec<(u32, IpAddr)> {
        let mut gateways = Vec::new();
        for (name, learner) in &self.learners {
            let Some((device, _)) = host.device(name).filter(|_| !learner.is_away()) else { continue };
            let usable = learner.peers().iter().filter(|peer| !matches!(peer.end, Err(Missing::Route)));
            gateways.extend(
                usable.map(|peer| (device, peer.gateway)).filter(|(device, at)| !host.is_fresh(*device, *at)),
            );
        }
        gateways.sort_unstable();
        gateways.dedup();
        gateways
    }
}

/// What is left to the kernel, in one line.
fn left(state: &OverlayState) -> Option<String> {
    let mut left = state.peers.iter().filter_map(|peer| peer.left.as_ref());
    let first = left.next()?;
    Some(format!(
        "{} of {} peers are left to the kernel (not_allowed), as KTSN would skip the encryption: {first}; \
         allow_policy_bypass = true on the attachment skips it knowingly",
        left.count() + 1,
        state.peers.len()
    ))
}

/// The devices that `specs` learn from.
pub(super) fn names<'a>(specs: impl Iterator<Item = &'a AttachmentSpec>) -> BTreeSet<String> {
    let name = |spec: &AttachmentSpec| {
        let routed = spec.overlay.as_ref().filter(|overlay| overlay.is_learnt).map(|overlay| &overlay.device);
        routed.or(spec.segment_from.as_ref().map(|from| &from.device)).cloned()
    };
    specs.filter_map(name).collect()
}
