// SPDX-License-Identifier: Apache-2.0
//! All overlays of the node: learnt tables, peers given by the control API, and what was shown last.
//!
//! In: snapshots of the node, lists of peers. Out: [`Inputs`] for building an attachment, events when what is in force
//! is another one now.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use ktsn_resolve::AttachmentIndex;

use super::learn::{Learner, Missing};
use super::state::{Inputs, OverlayState};
use crate::config::VxlanPeer;
use crate::tables::kernel::snapshot::Snapshot;
use crate::tables::kernel::xfrm::Policies;
use crate::tables::news::{Event, OverlayNews};
use crate::tables::tracked::TrackedAttachment;

/// The attachments that a list of peers is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PeersOf {
    /// The peers that were given to one attachment.
    Attachment(AttachmentIndex),
    /// The peers that were given to every attachment with this network identifier.
    Vni(u32),
}

/// Conflicts that are logged one by one; more are counted.
const LOGGED_MAX: usize = 8;

/// The overlays of all attachments: what devices teach, what the control API gave, and what was reported last.
#[derive(Debug, Default)]
pub(crate) struct Overlays {
    learners: BTreeMap<String, Learner>,
    given: BTreeMap<PeersOf, Vec<VxlanPeer>>,
    shown: BTreeMap<u16, OverlayNews>,
    revision: u64,
}

impl Overlays {
    /// Learns from the devices that `attachments` name, and forgets others.
    pub(crate) fn learn<'a>(
        &mut self,
        attachments: impl Iterator<Item = &'a TrackedAttachment>,
        host: &Snapshot,
    ) {
        let names = names(attachments);
        self.learners.retain(|name, _| names.contains(name));
        for name in names {
            self.learners.entry(name.clone()).or_default().update(host, &name, Instant::now());
        }
    }

    /// Whether something remembered is to be forgotten by now.
    pub(crate) fn is_due(&self) -> bool {
        self.learners.values().any(|learner| learner.is_due(Instant::now()))
    }

    /// What is known of the overlay of `tracked`.
    pub(crate) fn inputs<'a>(&'a self, tracked: &TrackedAttachment, policies: &'a Policies) -> Inputs<'a> {
        let policies = (!tracked.attachment.allow_policy_bypass).then_some(policies);
        let Some(vxlan) = tracked.attachment.overlay.routed() else {
            let learner =
                tracked.attachment.overlay.bridged_from().and_then(|from| self.learners.get(&from.device));
            return Inputs { policies, learner, ..Inputs::default() };
        };
        let learner = vxlan.is_learnt.then(|| self.learners.get(&vxlan.device)).flatten();
        let vni = vxlan.vni.or_else(|| Some(learner?.device()?.vni));
        let list = |of: PeersOf| self.given.get(&of).map_or(&[][..], Vec::as_slice);
        let given =
            [list(PeersOf::Attachment(tracked.index)), vni.map_or(&[], |vni| list(PeersOf::Vni(vni)))];
        Inputs { given, learner, policies }
    }

    /// Replaces a list as a whole; an empty one is none.
    pub(crate) fn give(&mut self, of: PeersOf, peers: Vec<VxlanPeer>) {
        if peers.is_empty() {
            self.given.remove(&of);
        } else {
            self.given.insert(of, peers);
        }
    }

    /// Tells of an attachment's overlay when it is another one than before. Of what several attachments on one device have in
    /// common, the first tells.
    pub(crate) fn show(&mut self, index: u16, state: Option<OverlayState>, report: &dyn Fn(Event)) {
        let before = self.shown.remove(&index);
        let Some(state) = state else { return };
        if let Some(before) = before.as_ref().filter(|before| *before.state == state) {
            self.shown.insert(index, before.clone());
            return;
        }
        let was = before.as_ref().map(|before| &*before.state);
        let new = new_conflicts(&state, was);
        let others: Vec<&OverlayState> = self
            .shown
            .values()
            .map(|news| &*news.state)
            .filter(|other| other.device == state.device)
            .collect();
        for line in lines(&state, was, &new, &others) {
            report(Event::Warning(format!("overlay {}: {line}", state.device)));
        }
        let conflicts_count = before.as_ref().map_or(0, |before| before.conflicts_count) + new.len() as u64;
        self.revision += 1;
        let (state, revision) = (Arc::new(state), self.revision);
        let news = OverlayNews { index: AttachmentIndex(index), state, conflicts_count, revision };
        report(Event::Overlay(news.clone()));
        self.shown.insert(index, news);
    }

    /// What was shown last of each attachment.
    pub(crate) fn shown(&self) -> Vec<OverlayNews> {
        self.shown.values().cloned().collect()
    }

    /// What was shown last of one attachment.
    pub(crate) fn shown_of(&self, index: AttachmentIndex) -> Option<OverlayNews> {
        self.shown.get(&index.0).cloned()
    }

    /// Nothing is known of an attachment any more.
    pub(crate) fn forget(&mut self, index: u16) {
        self.shown.remove(&index);
        self.given.remove(&PeersOf::Attachment(AttachmentIndex(index)));
    }

    /// Gateways on learnt devices whose MAC addresses are unknown, or were not confirmed for a while.
    pub(crate) fn gateways(&self, host: &Snapshot) -> Vec<(u32, IpAddr)> {
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

/// Conflicts that there were not before.
fn new_conflicts(state: &OverlayState, was: Option<&OverlayState>) -> Vec<String> {
    let known: BTreeSet<&String> = was.iter().flat_map(|was| &was.conflicts).collect();
    state.conflicts.iter().filter(|conflict| !known.contains(conflict)).cloned().collect()
}

/// What is said of a change, unless one of the `others` on the device said so already.
fn lines(
    state: &OverlayState,
    was: Option<&OverlayState>,
    new: &[String],
    others: &[&OverlayState],
) -> Vec<String> {
    let said: BTreeSet<&String> = others.iter().flat_map(|other| &other.conflicts).collect();
    let new: Vec<&String> = new.iter().filter(|conflict| !said.contains(conflict)).collect();
    let mut lines: Vec<String> =
        new.iter().take(LOGGED_MAX).map(|conflict| format!("peers in conflict: {conflict}")).collect();
    if let Some(more) = new.len().checked_sub(LOGGED_MAX).filter(|more| *more > 0) {
        lines.push(format!("{more} more conflicts"));
    }
    let (fault, had) = (state.fault.as_ref(), was.and_then(|was| was.fault.as_ref()));
    let is_said = |fault: &String| others.iter().any(|other| other.fault.as_ref() == Some(fault));
    match (fault, had) {
        (Some(fault), had) if had != Some(fault) && !is_said(fault) => {
            lines.push(format!("{fault}; frames to its peers are dropped (no_neighbour)"));
        }
        // The last one of those that had it.
        (None, Some(had)) if !is_said(had) => lines.push("serves again".to_owned()),
        _ => {}
    }
    let (now, then) = (left(state), was.and_then(left));
    let is_said = |line: &String| others.iter().any(|other| left(other).as_ref() == Some(line));
    match (now, then) {
        (Some(now), then) if Some(&now) != then.as_ref() && !is_said(&now) => lines.push(now),
        (None, Some(then)) if !is_said(&then) => {
            lines.push("no peer is left to the kernel any more".to_owned());
        }
        _ => {}
    }
    lines
}

/// One line about the peers that are left to the kernel.
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

/// The VXLAN devices with forwarding tables that `attachments` need: the devices that they learn peers from, and those of attachments
/// on the ingress fast path.
pub(crate) fn watched<'a>(
    attachments: impl Iterator<Item = &'a TrackedAttachment> + Clone,
) -> BTreeSet<String> {
    let short = attachments.clone().filter(|tracked| tracked.attachment.is_short());
    let short = short.filter_map(|tracked| Some(tracked.attachment.overlay.routed()?.device.clone()));
    names(attachments).into_iter().chain(short).collect()
}

/// The devices that `attachments` learn from.
fn names<'a>(attachments: impl Iterator<Item = &'a TrackedAttachment>) -> BTreeSet<String> {
    let name = |tracked: &TrackedAttachment| {
        let routed = tracked
            .attachment
            .overlay
            .routed()
            .filter(|overlay| overlay.is_learnt)
            .map(|overlay| &overlay.device);
        routed.or(tracked.attachment.overlay.bridged_from().map(|from| &from.device)).cloned()
    };
    attachments.filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn state(conflicts: &[&str], fault: Option<&str>) -> OverlayState {
        OverlayState {
            device: "flannel.1".to_owned(),
            vni: 1,
            port: 8472,
            local: "192.0.2.1".parse().unwrap(),
            device_mac: "02:00:00:00:00:01".parse().unwrap(),
            fault: fault.map(str::to_owned),
            peers: Vec::new(),
            conflicts: conflicts.iter().map(|text| (*text).to_owned()).collect(),
        }
    }

    /// What is said when the attachments' overlays become `states`, and how many conflicts each has had.
    fn said(overlays: &mut Overlays, states: &[(u16, Option<OverlayState>)]) -> (Vec<String>, Vec<u64>) {
        let told = RefCell::new(Vec::new());
        for (index, state) in states {
            overlays.show(*index, state.clone(), &|event| {
                if let Event::Warning(text) = event {
                    told.borrow_mut().push(text);
                }
            });
        }
        (told.into_inner(), overlays.shown().iter().map(|news| news.conflicts_count).collect())
    }

    #[test]
    fn what_two_attachments_have_in_common_is_said_once() {
        let (mut overlays, one) = (Overlays::default(), "10.0.1.0/24 is claimed by two");
        let conflict = state(&[one], None);
        let both = [(1, Some(conflict.clone())), (2, Some(conflict.clone()))];
        let line = format!("overlay flannel.1: peers in conflict: {one}");
        assert_eq!(said(&mut overlays, &both), (vec![line.clone()], vec![1, 1]));
        assert_eq!(said(&mut overlays, &both), (Vec::new(), vec![1, 1]), "it goes on");

        let away = state(&[], Some("flannel.1: no such device"));
        let fault =
            "overlay flannel.1: flannel.1: no such device; frames to its peers are dropped (no_neighbour)";
        let both_away = [(1, Some(away.clone())), (2, Some(away))];
        assert_eq!(said(&mut overlays, &both_away).0, [fault]);
        let back = said(&mut overlays, &both);
        assert_eq!(back, (vec![line.clone(), "overlay flannel.1: serves again".to_owned()], vec![2, 2]));

        // One goes: the other's is no news. Both go: what comes then is.
        assert_eq!(said(&mut overlays, &[(1, None), (1, Some(conflict.clone()))]).0, [""; 0]);
        assert_eq!(said(&mut overlays, &[(1, None), (2, None), (2, Some(conflict))]).0, [line]);
    }

    #[test]
    fn another_device_says_its_own() {
        let (mut overlays, away) = (Overlays::default(), state(&[], Some("away")));
        let other = OverlayState { device: "vx7".to_owned(), ..away.clone() };
        assert_eq!(said(&mut overlays, &[(1, Some(away)), (2, Some(other))]).0.len(), 2);
    }
}
