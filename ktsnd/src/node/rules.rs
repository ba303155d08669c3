// SPDX-License-Identifier: Apache-2.0
//! What is shown of the rules of the node's packet filter that are about an attachment.

use ktsn_proto::v1;

use super::{Node, ServedAttachment};
use crate::policy::Hindrance;
use crate::tables::RulesNews;

/// Rules, and destinations of each, that a listing shows.
const SHOWN: usize = 16;

impl Node {
    /// Other rules are about an attachment now.
    pub(super) fn note_rules(&mut self, news: RulesNews) {
        if let Some(Some(attached)) = self.attached.get_mut(usize::from(news.index.0))
            && attached.rules.as_ref().is_none_or(|known| known.revision < news.revision)
        {
            attached.rules = Some(news);
        }
    }
}

/// The rules that hinder the attachment now, for the control API.
pub(super) fn messages(attached: &ServedAttachment) -> Vec<v1::RuleState> {
    let all = attached.rules.iter().flat_map(|news| news.hindrances.iter());
    all.take(SHOWN).map(message).collect()
}

fn message(hindrance: &Hindrance) -> v1::RuleState {
    let all = &hindrance.destinations;
    v1::RuleState {
        rule: hindrance.rule.clone(),
        destinations: all.iter().take(SHOWN).map(ToString::to_string).collect(),
        destinations_count: u32::try_from(all.len()).unwrap_or(u32::MAX),
        is_arrival: hindrance.is_arrival,
    }
}
