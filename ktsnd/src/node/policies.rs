// SPDX-License-Identifier: Apache-2.0
//! What the rules of the node's packet filter, and network policies, leave of the attachments' uplink egress and ingress fast path.
//!
//! In: rules that are read, checked restrictions by attachment. Out: tables that hold to them; a refusal; or, at ktsnd's start, an
//! attachment that is closed: nothing of it leaves past the kernel's rules (`network_policy`), and nothing takes the ingress fast
//! path. It is opened when the rules have been read and its tables hold to them. A start waits for the rules once, however many
//! attachments there are. A closed attachment is never forgotten, and never opened without the rules.

use std::net::IpAddr;
use std::sync::Arc;

use ktsn_resolve::AttachmentIndex;
use tracing::{info, warn};

use super::{Node, NodeError};
use crate::config::Attachment;
use crate::policy::{self, Rule, Unread};
use crate::tables::{Added, Restriction};

impl Node {
    /// Holds the node's rules against an attachment that was just added. At ktsnd's start rules that cannot be read close
    /// it, and so do, where the state file has it (`is_saved`), rules about it: these came after it, and become its tables' when
    /// they are followed.
    ///
    /// # Errors
    /// `Precondition` where a rule is about datagrams that KTSN would send or deliver past it, or rules cannot be read.
    pub(super) async fn close_or_refuse_by_rules(
        &mut self,
        attachment: &Attachment,
        is_saved: bool,
        index: AttachmentIndex,
        added: &mut Added,
    ) -> Result<(), NodeError> {
        let tables = added.tables.attachment(index).filter(|_| !attachment.allow_policy_bypass);
        // The ingress fast path needs an overlay.
        let Some(tables) = tables.filter(|tables| policy::is_past_the_kernel(tables)) else { return Ok(()) };
        let own: Vec<IpAddr> = tables.interface().addresses().iter().map(|(address, _)| *address).collect();
        let why = match self.node_rules().await {
            Err(unread) if self.intent.is_starting() => {
                format!("the rules of the node's packet filter cannot be read yet: {unread}")
            }
            Err(unread) => {
                return Err(NodeError::precondition(
                    "attachment.allow_policy_bypass",
                    &format_args!(
                        "false, and the rules of the node's packet filter cannot be read, \
                     which frames by the uplink bypass: {unread}; expected rules that can be read, or true \
                     (docs/guide/policy.md)"
                    ),
                ));
            }
            Ok(rules) => match policy::hindrances(&rules, &own, &policy::past_the_kernel(tables)).first() {
                None => return Ok(()),
                Some(found) if self.intent.is_starting() && is_saved => {
                    format!("a rule of the node's packet filter is not followed yet: {}", found.rule)
                }
                Some(found) => {
                    return Err(NodeError::precondition(
                        "attachment.allow_policy_bypass",
                        &format_args!(
                            "false, and the node's packet filter has a rule about this \
                         pod's datagrams, which frames by the uplink bypass ({}); expected no such rule, \
                         destinations that leave them to the kernel, or true (docs/guide/policy.md)",
                            found.rule
                        ),
                    ));
                }
            },
        };
        self.close(&attachment.name, index, why, added).await;
        Ok(())
    }

    /// The node's rules. Once a start has waited for them in vain, only those that are followed already.
    async fn node_rules(&mut self) -> Result<Arc<Vec<Rule>>, Unread> {
        let followed = self.manager.rules();
        if let Some(unread) = self.watch.closed.unread.filter(|_| self.intent.is_starting()) {
            return policy::followed_rules(followed).unwrap_or(Err(unread));
        }
        let rules = policy::rules(followed).await;
        self.watch.closed.unread = rules.as_ref().err().copied();
        rules
    }

    async fn close(&mut self, name: &str, index: AttachmentIndex, reason: String, added: &mut Added) {
        warn!(
            attachment = name,
            "taken up closed, until the node's rules are followed nothing leaves by the uplink (network_policy) and \
             nothing takes the ingress fast path: {reason}"
        );
        let closed = Restriction { egress: Some(Vec::new()), is_ingress_blocked: true, reason };
        let closed = Arc::new(closed);
        self.watch.closed.add(name, closed.clone());
        if let Some(tables) = self.manager.restrict(vec![(index, closed)]).await {
            added.tables = tables;
        }
    }

    /// The rules have been read, and all tables hold to them: what was closed is opened, as far as network policies let it.
    pub(super) async fn open_closed(&mut self) {
        let closed = self.watch.closed.open();
        let served = |name: &String| Some((self.served.find(name)?, self.intent.restriction_of(name)));
        let open: Vec<_> = closed.iter().filter_map(served).collect();
        if open.is_empty() {
            return;
        }
        for name in &closed {
            info!(attachment = name, "the rules of the node's packet filter are followed: opened");
        }
        if let Some(tables) = self.manager.restrict(open).await {
            self.publish(tables);
        }
    }

    /// Puts restrictions in force; answers the names of no attachment.
    ///
    /// # Errors
    /// `Unsaved` when the state file cannot be written. What takes away is in force all the same, nothing else is.
    pub(super) async fn set_policies(
        &mut self,
        given: Vec<(String, Restriction)>,
    ) -> Result<Vec<String>, NodeError> {
        let (mut changed, mut unknown) = (Vec::new(), Vec::new());
        for (name, restriction) in given {
            let index = self.served.find(&name);
            if index.is_none() && !self.intent.is_not_restored(&name) {
                unknown.push(name);
                continue;
            }
            let restriction = if self.skips_policies(&name) { Arc::default() } else { Arc::new(restriction) };
            if *self.intent.restriction_of(&name) == *restriction {
                continue;
            }
            changed.push((name, index, restriction));
        }
        if changed.is_empty() && !self.intent.must_save_policies() {
            return Ok(unknown);
        }
        let (changed, saved) = self.intent.restrict(changed);
        for (name, _, restriction) in &changed {
            tell(name, restriction);
        }
        // A closed attachment is under its policies once it is opened.
        let open = changed.into_iter().filter(|(name, ..)| self.watch.closed.of(name).is_none());
        let of_index = open.filter_map(|(_, index, restriction)| Some((index?, restriction)));
        if let Some(tables) = self.manager.restrict(of_index.collect()).await {
            self.publish(tables);
        }
        saved.map(|()| unknown).map_err(|error| NodeError::Unsaved {
            error,
            then: "what the policies take away is in force until ktsnd ends, what they give back is not; send them again \
                   when the file can be written",
        })
    }

    /// Whether the attachment says that policies may be skipped.
    fn skips_policies(&self, name: &str) -> bool {
        let mut attachments = self.served.iter().map(|served| &served.attachment);
        attachments.any(|attachment| attachment.name == name && attachment.allow_policy_bypass)
            || self.intent.skips_policies(name)
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
