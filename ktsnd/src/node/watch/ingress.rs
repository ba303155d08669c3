// SPDX-License-Identifier: Apache-2.0
//! The ingress fast path of the node's attachments: one BPF program for each uplink. It starts with the first attachment that
//! asks for it, and ends with the last one.

use std::collections::{BTreeMap, BTreeSet};

use ktsn_resolve::Tables;
use tracing::{error, info, warn};

use super::Watch;
use crate::clients::ServedAttachment;
use crate::ingress::{IngressError, Member, Uplink, check_host_end, conflict};
use crate::node::request::NodeError;
use crate::node::served::ServedAttachments;
use crate::stats::count;

/// Without a `Delivery` in the tables.
pub(crate) const NO_WAY_IN: &str = "the VXLAN device, the interface or its host end is not up, or the latter is a port of something else than a bridge";

/// The attachments that ask for the ingress fast path, by uplink.
fn members(all: &ServedAttachments) -> BTreeMap<&str, Vec<Member<'_>>> {
    let mut members: BTreeMap<&str, Vec<Member<'_>>> = BTreeMap::new();
    for served in all.iter().filter(|served| served.attachment.is_short()) {
        let (index, netns) = (served.index, served.attachment.netns.clone());
        members.entry(&served.uplink).or_default().push(Member { index, name: served.name(), netns });
    }
    members
}

impl Watch {
    /// Takes the attachment's arriving frames from here on, where it asks for that.
    pub(in crate::node) fn begin_ingress(
        &mut self,
        served: &ServedAttachment,
        all: &ServedAttachments,
        tables: &Tables,
    ) -> Result<(), NodeError> {
        if !served.attachment.is_short() {
            return Ok(());
        }
        let (name, uplink) = (served.name(), &served.uplink);
        self.try_begin_ingress(served, all, tables)
            .map_err(|error| NodeError::precondition("attachment.ingress", &error))?;
        if tables.attachment(served.index).is_some_and(|tables| tables.delivery().is_some()) {
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
        served: &ServedAttachment,
        all: &ServedAttachments,
        tables: &Tables,
    ) -> Result<(), IngressError> {
        let (index, uplink) = (served.index, &served.uplink);
        if let Some(of_attachment) = tables.attachment(index) {
            check_host_end(&served.attachment.netns, of_attachment)?;
        }
        conflict(index, &members(all).remove(uplink.as_str()).unwrap_or_default(), tables)?;
        if !self.ingress.contains_key(uplink) {
            self.ingress.insert(uplink.clone(), Uplink::load()?);
        }
        if let Some(program) = self.ingress.get(uplink) {
            program.begin(index)?;
        }
        self.set_members(all, tables)
    }

    fn set_members(&mut self, all: &ServedAttachments, tables: &Tables) -> Result<(), IngressError> {
        let (members, mut failed) = (members(all), None);
        let mut found = BTreeSet::new();
        // Without attachments a program goes, and what it holds with it.
        self.ingress.retain(|uplink, _| members.contains_key(uplink.as_str()));
        for (uplink, program) in &mut self.ingress {
            let of_uplink = members.get(uplink.as_str()).map(Vec::as_slice).unwrap_or_default();
            match program.set_members(of_uplink, tables) {
                Ok(warnings) => found.extend(warnings),
                Err(error) => failed = Some(error),
            }
        }
        // The tables change for many reasons; what goes on holding is no news.
        let before = std::mem::replace(&mut self.ingress_warnings, found);
        for warning in self.ingress_warnings.difference(&before).cloned().collect::<Vec<_>>() {
            self.warn(warning);
        }
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// New tables, or an attachment less: other addresses, other devices.
    pub(in crate::node) fn ingress_by_tables(&mut self, all: &ServedAttachments, tables: &Tables) {
        if self.ingress.is_empty() {
            return;
        }
        if let Err(error) = self.set_members(all, tables) {
            self.warn(format!("ingress fast path: {error}"));
        }
    }

    /// Puts each program back that was removed from its uplink, or that another program was put in front of.
    pub(in crate::node) fn look_at_ingress(&mut self, all: &ServedAttachments) {
        for (uplink, program) in &mut self.ingress {
            match program.look() {
                Ok(false) => {}
                Ok(true) => {
                    warn!(
                        uplink,
                        "the ingress fast path's program was removed from the uplink, or another program was put in front; it \
                         is in front again, and frames that arrived meanwhile took the kernel's path"
                    );
                    let concerned = all.iter().filter(|a| a.uplink == *uplink && a.attachment.is_short());
                    for served in concerned {
                        count(&served.stats.ingress_reattached);
                    }
                }
                Err(error) => {
                    error!(uplink, %error, "the ingress fast path does not work; frames take the kernel's path");
                }
            }
        }
    }

    /// The programs of the ingress fast path end.
    pub(in crate::node) fn end_ingress(&mut self) {
        self.ingress.clear();
    }

    /// The program of an uplink.
    pub(crate) fn ingress_program(&self, uplink: &str) -> Option<&Uplink> {
        self.ingress.get(uplink)
    }
}
