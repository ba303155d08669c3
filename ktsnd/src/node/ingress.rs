// SPDX-License-Identifier: Apache-2.0
//! The ingress fast path of the node's attachments: one BPF program for each uplink. It starts with the first attachment that
//! asks for it, and ends with the last one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use ktsn_bpf::Tallied;
use ktsn_proto::v1;
use ktsn_resolve::AttachmentIndex;
use tracing::{error, info, warn};

use super::errors::precondition;
use super::{Node, NodeError, ServedAttachment};
use crate::config::IngressMode;
use crate::ingress::{IngressError, Member, Uplink, check_host_end, conflict};
use crate::stats::count;

/// Without a `Delivery` in the tables.
const NO_WAY_IN: &str = "the VXLAN device, the interface or its host end is not up, or the latter is a port of something else than a bridge";

impl Node {
    /// The attachments that ask for the ingress fast path, by uplink.
    fn members(&self) -> BTreeMap<&str, Vec<Member<'_>>> {
        let mut members: BTreeMap<&str, Vec<Member<'_>>> = BTreeMap::new();
        for (index, attached) in (0..).map(AttachmentIndex).zip(&self.attached) {
            let Some(attached) = attached.as_ref().filter(|a| a.attachment.ingress == IngressMode::Short)
            else {
                continue;
            };
            let (name, netns) = (attached.attachment.name.as_str(), attached.attachment.netns.clone());
            members.entry(&attached.uplink).or_default().push(Member { index, name, netns });
        }
        members
    }

    /// Takes the attachment's arriving frames from here on, where it asks for that.
    pub(super) fn begin_ingress(&mut self, index: AttachmentIndex) -> Result<(), NodeError> {
        let Some(Some(attached)) = self.attached.get(usize::from(index.0)) else { return Ok(()) };
        if attached.attachment.ingress != IngressMode::Short {
            return Ok(());
        }
        let (name, uplink) = (attached.attachment.name.clone(), attached.uplink.clone());
        let netns = attached.attachment.netns.clone();
        self.try_begin_ingress(index, &netns, &uplink)
            .map_err(|error| precondition("attachment.ingress", &error))?;
        if self.latest.attachment(index).is_some_and(|tables| tables.delivery().is_some()) {
            info!(
                attachment = name,
                uplink, "ingress fast path: UDP out of the overlay goes past the node's stack and rules"
            );
        } else {
            warn!(attachment = name, uplink, "ingress fast path: nothing is taken: {NO_WAY_IN}");
        }
        Ok(())
    }

    fn try_begin_ingress(
        &mut self,
        index: AttachmentIndex,
        netns: &Path,
        uplink: &str,
    ) -> Result<(), IngressError> {
        if let Some(tables) = self.latest.attachment(index) {
            check_host_end(netns, tables)?;
        }
        let mut members = self.members();
        conflict(index, &members.remove(uplink).unwrap_or_default(), &self.latest)?;
        if !self.ingress.contains_key(uplink) {
            self.ingress.insert(uplink.to_owned(), Uplink::load()?);
        }
        if let Some(program) = self.ingress.get(uplink) {
            program.begin(index)?;
        }
        self.set_members()
    }

    fn set_members(&mut self) -> Result<(), IngressError> {
        let (mut programs, mut failed) = (std::mem::take(&mut self.ingress), None);
        let mut found = BTreeSet::new();
        let members = self.members();
        // Without attachments a program goes, and what it holds with it.
        programs.retain(|uplink, _| members.contains_key(uplink.as_str()));
        for (uplink, program) in &mut programs {
            let of_uplink = members.get(uplink.as_str()).map(Vec::as_slice).unwrap_or_default();
            match program.set_members(of_uplink, &self.latest) {
                Ok(warnings) => found.extend(warnings),
                Err(error) => failed = Some(error),
            }
        }
        self.ingress = programs;
        // The tables change for many reasons; what goes on holding is no news.
        let before = std::mem::replace(&mut self.ingress_warnings, found);
        for warning in self.ingress_warnings.difference(&before).cloned().collect::<Vec<_>>() {
            self.warn(warning);
        }
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// New tables, or an attachment less: other addresses, other devices.
    pub(super) fn ingress_by_tables(&mut self) {
        if self.ingress.is_empty() {
            return;
        }
        if let Err(error) = self.set_members() {
            self.warn(format!("ingress fast path: {error}"));
        }
    }

    /// Puts each program back that was removed from its uplink, or that another program was put in front of.
    pub(super) fn look_at_ingress(&mut self) {
        for (uplink, program) in &mut self.ingress {
            match program.look() {
                Ok(false) => {}
                Ok(true) => {
                    warn!(
                        uplink,
                        "the ingress fast path's program was removed from the uplink, or another program was put in front; it \
                         is in front again, and frames that arrived meanwhile took the kernel's path"
                    );
                    let concerned = self.attached.iter().flatten().filter(|a| a.uplink == *uplink);
                    for attached in concerned.filter(|a| a.attachment.ingress == IngressMode::Short) {
                        count(&attached.stats.ingress_reattached);
                    }
                }
                Err(error) => {
                    error!(uplink, %error, "the ingress fast path does not work; frames take the kernel's path");
                }
            }
        }
    }

    /// The counters of the ingress fast path for an attachment; `None` if the attachment does not ask for it.
    pub(super) fn ingress_statistics(&self, attached: &ServedAttachment) -> Option<v1::IngressStatistics> {
        let index = self.find(&attached.attachment.name)?;
        let program = self.ingress.get(&attached.uplink)?;
        let tallies = program.tallies(index);
        if attached.attachment.ingress != IngressMode::Short {
            return None;
        }
        let tallies = tallies.inspect_err(|error| warn!(%error, "counters of the ingress fast path")).ok()?;
        let of = |tallied: Tallied| tallies[tallied as usize];
        let is_reason = |tallied: &Tallied| {
            !matches!(tallied, Tallied::Taken | Tallied::Octets | Tallied::Failed) && of(*tallied) > 0
        };
        let left = Tallied::ALL.into_iter().filter(is_reason);
        Some(v1::IngressStatistics {
            taken: of(Tallied::Taken),
            taken_octets: of(Tallied::Octets),
            left: left.map(|tallied| (tallied.word().to_owned(), of(tallied))).collect(),
            failed: of(Tallied::Failed),
            reattached: attached.stats.ingress_reattached.load(Relaxed),
            idle: self.why_idle(attached, index, program),
        })
    }

    /// Why the ingress fast path takes no frame for the attachment now; empty: it takes frames.
    fn why_idle(&self, attached: &ServedAttachment, index: AttachmentIndex, program: &Uplink) -> String {
        let rules = attached.rules.iter().flat_map(|news| news.hindrances.iter());
        let is_blocked = self.restriction_of(&attached.attachment.name).is_ingress_blocked;
        let why = if self.awaiting_rules.of(&attached.attachment.name).is_some() {
            "the rules of the node's packet filter are not known yet"
        } else if is_blocked {
            "a network policy may forbid what arrives"
        } else if rules.into_iter().any(|hindrance| hindrance.is_arrival) {
            "a rule of the node's packet filter drops what arrives"
        } else if self.latest.attachment(index).is_none_or(|tables| tables.delivery().is_none()) {
            NO_WAY_IN
        } else if !program.is_taking(index) {
            "the uplink or the pod's device is not there"
        } else {
            ""
        };
        why.to_owned()
    }
}
