// SPDX-License-Identifier: Apache-2.0
//! What the node's packet filter leaves of the attachments' uplink egress and ingress fast path.
//!
//! In: the node's rules, an attachment's tables. Out: the same tables, less the destinations that a rule names (they are
//! the kernel's), and news when those are others. A rule that drops arriving frames ends the ingress fast path
//! of the attachment. Restrictions by network policies are applied here too.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ktsn_model::IpPrefix;
use ktsn_resolve::{AttachmentIndex, AttachmentTables, TableError};

use crate::policy::{self, Hindrance, Prefixes, Rule};
use crate::tables::news::{Event, RulesNews};
use crate::tables::tracked::TrackedAttachment;

/// Rules that are logged one by one; more are counted.
const LOGGED_MAX: usize = 4;
/// Characters of a rule that are logged.
const TEXT_MAX: usize = 300;

/// What was found for an attachment, and what it was found from.
struct Found {
    rules: Arc<Vec<Rule>>,
    own: Vec<IpAddr>,
    past: Prefixes,
    hindrances: Arc<Vec<Hindrance>>,
}

/// The rules of the node's packet filter, and what they take away from each attachment.
#[derive(Default)]
pub(super) struct Filter {
    rules: Arc<Vec<Rule>>,
    found: BTreeMap<u16, Found>,
    shown: BTreeMap<u16, RulesNews>,
    revision: u64,
}

impl Filter {
    /// The node's rules from now on.
    pub(super) fn set(&mut self, rules: Arc<Vec<Rule>>) {
        self.rules = rules;
    }

    /// Whether the node's rules may matter for an attachment.
    pub(super) fn concerns(tracked: &TrackedAttachment, tables: &AttachmentTables) -> bool {
        !tracked.attachment.allow_policy_bypass && policy::is_past_the_kernel(tables)
    }

    /// Returns `tables` without the destinations that rules name.
    pub(super) fn apply(
        &mut self,
        tracked: &TrackedAttachment,
        tables: AttachmentTables,
    ) -> Result<AttachmentTables, TableError> {
        let index = tracked.index.0;
        let tables = tracked.restriction.apply(tables)?;
        if self.rules.is_empty() || !Self::concerns(tracked, &tables) {
            self.found.remove(&index);
            return Ok(tables);
        }
        let own: Vec<IpAddr> = tables.interface().addresses().iter().map(|(address, _)| *address).collect();
        let past = policy::past_the_kernel(&tables);
        // Thousands of rules are not held against thousands of destinations each time that a neighbour answers.
        let is_known =
            |found: &&Found| Arc::ptr_eq(&found.rules, &self.rules) && found.own == own && found.past == past;
        let hindrances = match self.found.get(&index).filter(is_known) {
            Some(found) => found.hindrances.clone(),
            None => Arc::new(policy::hindrances(&self.rules, &own, &past)),
        };
        let left: BTreeSet<(IpAddr, u8)> = hindrances
            .iter()
            .flat_map(|hindrance| &hindrance.destinations)
            .copied()
            .chain(tables.left())
            .map(|prefix| (prefix.address(), prefix.bits()))
            .collect();
        let left = left.into_iter().filter_map(|(address, bits)| IpPrefix::new(address, bits).ok());
        let tables = tables.with_left_to_kernel(left.collect())?;
        let arrives = !hindrances.iter().any(|hindrance| hindrance.is_arrival);
        let delivery = tables.delivery().cloned().filter(|_| arrives);
        self.found.insert(index, Found { rules: self.rules.clone(), own, past, hindrances });
        Ok(tables.delivered(delivery))
    }

    /// Reports the rules about an attachment when they are others than before.
    pub(super) fn show(&mut self, index: u16, name: &str, report: &dyn Fn(Event)) {
        let now = self.found.get(&index).map(|found| found.hindrances.clone()).unwrap_or_default();
        let before = self.shown.get(&index);
        if before.map_or(now.is_empty(), |before| before.hindrances == now) {
            return;
        }
        let known: BTreeSet<&String> =
            before.iter().flat_map(|news| news.hindrances.iter()).map(|hindrance| &hindrance.rule).collect();
        let new: Vec<&Hindrance> = now.iter().filter(|hindrance| !known.contains(&hindrance.rule)).collect();
        for hindrance in new.iter().take(LOGGED_MAX) {
            report(Event::Warning(text(name, hindrance)));
        }
        if let Some(more) = new.len().checked_sub(LOGGED_MAX).filter(|more| *more > 0) {
            report(Event::Warning(format!("{name}: {more} more rules about its datagrams")));
        }
        if now.is_empty() {
            report(Event::Warning(format!(
                "{name}: no rule of the node's packet filter is about its datagrams any more; they are taken again"
            )));
        }
        let rules_count = before.map_or(0, |before| before.rules_count) + new.len() as u64;
        self.revision += 1;
        let (index_of, revision) = (AttachmentIndex(index), self.revision);
        let news = RulesNews { index: index_of, hindrances: now, rules_count, revision };
        report(Event::Rules(news.clone()));
        self.shown.insert(index, news);
    }

    /// Nothing is known of an attachment any more.
    pub(super) fn forget(&mut self, index: u16) {
        self.found.remove(&index);
        self.shown.remove(&index);
    }
}

/// One rule and what follows from it.
fn text(name: &str, hindrance: &Hindrance) -> String {
    let first = hindrance.destinations.first().map(ToString::to_string).unwrap_or_default();
    let more = match hindrance.destinations.len() {
        0 | 1 => String::new(),
        count => format!(" and {} more", count - 1),
    };
    let arrival = if hindrance.is_arrival { ", and no frame takes the ingress fast path" } else { "" };
    let rule: String = hindrance.rule.chars().take(TEXT_MAX).collect();
    format!(
        "{name}: the node's packet filter has a rule about its datagrams, which KTSN would skip: {first}{more} left to \
         the kernel (not_allowed){arrival}; allow_policy_bypass = true on the attachment skips it knowingly: {rule}"
    )
}
