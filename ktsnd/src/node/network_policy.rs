// SPDX-License-Identifier: Apache-2.0
//! What network policies leave of the attachments' uplink egress and ingress fast path, as the control API says it.
//!
//! In: checked restrictions by attachment. Out: tables that hold to them, what is shown and kept. A restriction is kept in the
//! state file before anything changes, so it is in force again from the first frame after a restart. Where it cannot be kept,
//! what it takes away is in force all the same.

use std::collections::BTreeMap;
use std::sync::Arc;

use ktsn_proto::v1;
use ktsn_resolve::AttachmentIndex;
use tracing::{info, warn};

use super::{Node, NodeError};
use crate::messages::policies;
use crate::run_dir::KeptPolicy;
use crate::tables::Restriction;

/// Prefixes that a listing shows.
const SHOWN: usize = 16;

/// What network policies leave of attachments, by name.
pub(super) type Restrictions = BTreeMap<String, Arc<Restriction>>;
/// An attachment's name, its index where it is served, and its restriction from now on.
type Change = (String, Option<AttachmentIndex>, Arc<Restriction>);

/// The restrictions as entries of the state file.
pub(super) fn to_save(restrictions: &Restrictions) -> Vec<KeptPolicy> {
    let keep = |(name, of): (&String, &Arc<Restriction>)| KeptPolicy {
        attachment: name.clone(),
        egress_allowed: of.egress.as_ref().map(|all| all.iter().map(ToString::to_string).collect()),
        ingress_blocked: of.is_ingress_blocked,
        reason: of.reason.clone(),
    };
    restrictions.iter().map(keep).collect()
}

/// A restriction as it is shown, with at most `most` prefixes.
fn message(name: &str, of: &Restriction, most: usize) -> v1::AttachmentPolicy {
    v1::AttachmentPolicy {
        attachment: name.to_owned(),
        egress_restricted: of.egress.is_some(),
        egress_allowed: of.egress.iter().flatten().take(most).map(ToString::to_string).collect(),
        ingress_blocked: of.is_ingress_blocked,
        reason: of.reason.clone(),
    }
}

impl Node {
    /// What network policies leave of an attachment's uplink egress and ingress fast path.
    pub(super) fn restriction_of(&self, name: &str) -> Arc<Restriction> {
        self.restrictions.get(name).cloned().unwrap_or_default()
    }

    /// What is shown of them, or of what closes the attachment; none: everything is left.
    pub(super) fn policy_message(&self, name: &str) -> Option<v1::AttachmentPolicy> {
        let of = self.awaiting_rules.of(name).or_else(|| self.restrictions.get(name));
        of.map(|of| message(name, of, SHOWN))
    }

    /// Puts restrictions in force; answers the names of no attachment.
    ///
    /// # Errors
    /// `Internal` when the state file cannot be written. What takes away is in force all the same, nothing else is.
    pub(super) async fn set_policies(
        &mut self,
        given: Vec<(String, Restriction)>,
    ) -> Result<Vec<String>, NodeError> {
        let (mut changed, mut unknown) = (Vec::new(), Vec::new());
        let mut all = self.restrictions.clone();
        for (name, restriction) in given {
            let index = self.find(&name);
            if index.is_none() && !self.is_waiting(&name) {
                unknown.push(name);
                continue;
            }
            let restriction = if self.skips_policies(&name) { Arc::default() } else { Arc::new(restriction) };
            if *self.restriction_of(&name) == *restriction {
                continue;
            }
            if restriction.is_any() {
                all.insert(name.clone(), restriction.clone());
            } else {
                all.remove(&name);
            }
            changed.push((name, index, restriction));
        }
        if changed.is_empty() && !self.must_save_policies {
            return Ok(unknown);
        }
        let before = std::mem::replace(&mut self.restrictions, all);
        let saved = self.try_save();
        self.must_save_policies = saved.is_err();
        if saved.is_err() {
            changed = self.only_take_away(before, changed);
        }
        for (name, _, restriction) in &changed {
            tell(name, restriction);
        }
        // A closed attachment is under its policies once it is opened.
        let open = changed.into_iter().filter(|(name, ..)| self.awaiting_rules.of(name).is_none());
        let of_index = open.filter_map(|(_, index, restriction)| Some((index?, restriction)));
        if let Some(tables) = self.manager.restrict(of_index.collect()).await {
            self.publish(tables);
        }
        saved.map(|()| unknown).map_err(|error| {
            NodeError::Internal(format!(
                "state file: {error}; what the policies take away is in force until ktsnd ends, what they give back is \
                 not; send them again when the file can be written"
            ))
        })
    }

    /// The restrictions could not be kept. One that a restart forgets is still better than none; one that a restart brings
    /// back must not be lifted. So of what changed only that is in force which takes away; answers those changes.
    fn only_take_away(&mut self, before: Restrictions, changed: Vec<Change>) -> Vec<Change> {
        self.restrictions = before;
        let mut taken = Vec::new();
        for (name, index, restriction) in changed {
            let held = self.restriction_of(&name);
            let both = Arc::new(held.and(&restriction));
            if (&both.egress, both.is_ingress_blocked) != (&held.egress, held.is_ingress_blocked) {
                self.restrictions.insert(name.clone(), both.clone());
                taken.push((name, index, both));
            }
        }
        taken
    }

    /// Whether it is an attachment of the state file that is not served.
    fn is_waiting(&self, name: &str) -> bool {
        let is_foreign = |entry: &serde_json::Value| entry["name"].as_str() == Some(name);
        self.not_restored.iter().any(|kept| kept.raw.name.as_deref() == Some(name))
            || self.foreign.attachments.iter().any(is_foreign)
    }

    /// Whether the attachment says that policies may be skipped.
    fn skips_policies(&self, name: &str) -> bool {
        let served = self.attached.iter().flatten().map(|attached| &attached.attachment.raw);
        let mut all = served.chain(self.not_restored.iter().map(|kept| &kept.raw));
        all.any(|raw| raw.name.as_deref() == Some(name) && raw.allow_policy_bypass == Some(true))
    }

    /// Forgets restrictions of attachments that did not come back with the state file.
    pub(super) fn prune_policies(&mut self) {
        let mut all = std::mem::take(&mut self.restrictions);
        all.retain(|name, _| self.find(name).is_some() || self.is_waiting(name));
        self.restrictions = all;
    }

    /// Takes up the restrictions of the state file again, before any attachment.
    pub(crate) fn restore_policies(&mut self, kept: Vec<KeptPolicy>) {
        for policy in kept {
            let message = v1::AttachmentPolicy {
                attachment: policy.attachment.clone(),
                egress_restricted: policy.egress_allowed.is_some(),
                egress_allowed: policy.egress_allowed.unwrap_or_default(),
                ingress_blocked: policy.ingress_blocked,
                reason: policy.reason,
            };
            match policies(v1::SetPoliciesRequest { policies: vec![message] }) {
                Ok(checked) => {
                    self.restrictions.extend(checked.into_iter().map(|(name, of)| (name, Arc::new(of))));
                }
                Err(error) => {
                    // Not knowing is no permission.
                    let reason = format!("the state file's restriction cannot be read: {error}");
                    self.warn(format!("{}: {reason}", policy.attachment));
                    let none = Restriction { egress: Some(Vec::new()), is_ingress_blocked: true, reason };
                    self.restrictions.insert(policy.attachment, Arc::new(none));
                }
            }
        }
    }
}

/// Says what changed.
fn tell(name: &str, restriction: &Restriction) {
    if !restriction.is_any() {
        info!(attachment = name, "no network policy restricts it any more");
        return;
    }
    let egress = match &restriction.egress {
        None => "frames leave as before".to_owned(),
        Some(all) if all.is_empty() => {
            "frames that leave by the uplink are dropped (network_policy)".to_owned()
        }
        Some(all) => format!(
            "frames that leave by the uplink to other than {} prefixes are dropped (network_policy)",
            all.len()
        ),
    };
    let ingress =
        if restriction.is_ingress_blocked { ", and nothing takes the ingress fast path" } else { "" };
    let reason = &restriction.reason;
    warn!(attachment = name, "network policies: {egress}{ingress}: {reason}");
}
