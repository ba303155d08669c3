// SPDX-License-Identifier: Apache-2.0
//! Attachments that are taken up again before the node's rules are known.
//!
//! In: what the node's packet filter says of an attachment. Out: a refusal; or, at ktsnd's start, an attachment that is
//! closed: nothing of it leaves past the kernel's rules (`network_policy`), and nothing takes the ingress fast path. It is opened
//! when the rules have been read and its tables hold to them. A start waits for the rules once, however many
//! attachments there are. A closed attachment is never forgotten, and never opened without the rules.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ktsn_resolve::AttachmentIndex;
use tracing::{info, warn};

use super::{Node, NodeError};
use crate::config::Attachment;
use crate::policy::{self, Rule, Unread};
use crate::tables::{Added, Restriction};

/// Attachments that stay closed until the rules of the node's packet filter are followed.
#[derive(Debug, Default)]
pub(super) struct AwaitingRules {
    /// Why the rules were not known when the start waited for them. Later attachments of this start do not wait again.
    unread: Option<Unread>,
    /// The closed attachments by name, each with the restriction that `ktsn` shows.
    all: BTreeMap<String, Arc<Restriction>>,
}

impl AwaitingRules {
    pub(super) fn forget(&mut self, name: &str) {
        self.all.remove(name);
    }

    /// What an attachment is closed with; `None`: it is open.
    pub(super) fn of(&self, name: &str) -> Option<&Arc<Restriction>> {
        self.all.get(name)
    }
}

impl Node {
    /// Holds the node's rules against an attachment that was just added. At ktsnd's start rules that cannot be read close
    /// it, and so do, where the state file has it (`is_saved`), rules about it: these came after it, and become its tables' when
    /// they are followed.
    ///
    /// # Errors
    /// `Precondition` where a rule is about datagrams that KTSN would send or deliver past it, or rules cannot be read.
    pub(super) async fn check_rules(
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
            Err(unread) if self.starting => {
                format!("the rules of the node's packet filter cannot be read yet: {unread}")
            }
            Err(unread) => {
                return Err(NodeError::Precondition(format!(
                    "attachment.allow_policy_bypass: false, and the rules of the node's packet filter cannot be read, \
                     which frames by the uplink bypass: {unread}; expected rules that can be read, or true \
                     (docs/guide/policy.md)"
                )));
            }
            Ok(rules) => match policy::hindrances(&rules, &own, &policy::past_the_kernel(tables)).first() {
                None => return Ok(()),
                Some(found) if self.starting && is_saved => {
                    format!("a rule of the node's packet filter is not followed yet: {}", found.rule)
                }
                Some(found) => {
                    return Err(NodeError::Precondition(format!(
                        "attachment.allow_policy_bypass: false, and the node's packet filter has a rule about this \
                         pod's datagrams, which frames by the uplink bypass ({}); expected no such rule, \
                         destinations that leave them to the kernel, or true (docs/guide/policy.md)",
                        found.rule
                    )));
                }
            },
        };
        self.close(&attachment.name, index, why, added).await;
        Ok(())
    }

    /// The node's rules. Once a start has waited for them in vain, only those that are followed already.
    async fn node_rules(&mut self) -> Result<Arc<Vec<Rule>>, Unread> {
        let followed = self.manager.rules();
        if let Some(unread) = self.awaiting_rules.unread.filter(|_| self.starting) {
            return policy::followed_rules(followed).unwrap_or(Err(unread));
        }
        let rules = policy::rules(followed).await;
        self.awaiting_rules.unread = rules.as_ref().err().copied();
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
        self.awaiting_rules.all.insert(name.to_owned(), closed.clone());
        if let Some(tables) = self.manager.restrict(vec![(index, closed)]).await {
            added.tables = tables;
        }
    }

    /// The rules have been read, and all tables hold to them: what was closed is opened, as far as network policies let it.
    pub(super) async fn open_closed(&mut self) {
        let closed = std::mem::take(&mut self.awaiting_rules.all);
        let served = |name: &String| Some((self.find(name)?, self.restriction_of(name)));
        let open: Vec<_> = closed.keys().filter_map(served).collect();
        if open.is_empty() {
            return;
        }
        for name in closed.keys() {
            info!(attachment = name, "the rules of the node's packet filter are followed: opened");
        }
        if let Some(tables) = self.manager.restrict(open).await {
            self.publish(tables);
        }
    }
}
