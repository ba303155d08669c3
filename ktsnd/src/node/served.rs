// SPDX-License-Identifier: Apache-2.0
//! The attachments that are served, and what they count.
//!
//! In: attachments, news of their overlays, of rules about them. Out: which attachment has which index, what is in force for it, its
//! counters and those of attachments that are gone. Kernel capture begins and ends with an attachment.

mod capture;
mod counters;

use std::collections::BTreeMap;
use std::sync::Arc;

use ktsn_resolve::AttachmentIndex;

use super::request::NodeError;
use crate::capture::HostEnd;
use crate::clients::ServedAttachment;
use crate::limits;
use crate::tables::{OverlayNews, RulesNews};
pub(super) use capture::load;
use counters::Counters;

/// All attachments that are served, and what may change about each. No attachment itself changes.
#[derive(Default)]
pub(crate) struct ServedAttachments {
    served: BTreeMap<AttachmentIndex, Arc<ServedAttachment>>,
    captures: BTreeMap<AttachmentIndex, HostEnd>,
    /// The overlays as they are in force.
    overlays: BTreeMap<AttachmentIndex, OverlayNews>,
    /// The rules of the node's packet filter about each attachment, once there were any.
    rules: BTreeMap<AttachmentIndex, RulesNews>,
    /// The next search for a free index begins here.
    next: u16,
    counters: Counters,
}

impl ServedAttachments {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &ServedAttachment> {
        self.served.values().map(Arc::as_ref)
    }

    pub(crate) fn get(&self, index: AttachmentIndex) -> Option<&ServedAttachment> {
        self.served.get(&index).map(Arc::as_ref)
    }

    pub(crate) fn find(&self, name: &str) -> Option<AttachmentIndex> {
        self.iter().find(|served| served.name() == name).map(|served| served.index)
    }

    pub(crate) fn overlay_of(&self, index: AttachmentIndex) -> Option<&OverlayNews> {
        self.overlays.get(&index)
    }

    pub(crate) fn rules_of(&self, index: AttachmentIndex) -> Option<&RulesNews> {
        self.rules.get(&index)
    }

    pub(super) fn name_of(&self, index: AttachmentIndex) -> Option<String> {
        Some(self.get(index)?.name().to_owned())
    }

    /// An index that was free for longest: news about the attachment that had one before must not meet the next.
    pub(super) fn free_index(&self) -> Result<AttachmentIndex, NodeError> {
        let mut all = (self.next..limits::ATTACHMENTS_MAX as u16).chain(0..self.next).map(AttachmentIndex);
        all.find(|index| !self.served.contains_key(index)).ok_or(NodeError::Full)
    }

    /// An attachment is about to get this index.
    pub(super) fn reserve(&mut self, index: AttachmentIndex) {
        self.next = (index.0 + 1) % limits::ATTACHMENTS_MAX as u16;
    }

    pub(super) fn add(&mut self, served: Arc<ServedAttachment>, overlay: Option<OverlayNews>) {
        self.overlays.extend(overlay.map(|overlay| (served.index, overlay)));
        self.served.insert(served.index, served);
    }

    /// An attachment is served no more, and nothing of it is captured. What it counted joins the sums.
    pub(super) fn remove(&mut self, index: AttachmentIndex) -> Option<Arc<ServedAttachment>> {
        let served = self.served.remove(&index)?;
        self.captures.remove(&index);
        self.overlays.remove(&index);
        self.rules.remove(&index);
        self.counters.ended(served.stats.clone());
        Some(served)
    }

    /// An attachment's overlay is another one now.
    pub(super) fn note_overlay(&mut self, news: OverlayNews) {
        let is_newer = self.overlays.get(&news.index).is_none_or(|known| known.revision < news.revision);
        if is_newer && self.served.contains_key(&news.index) {
            self.overlays.insert(news.index, news);
        }
    }

    /// Other rules are about an attachment now.
    pub(super) fn note_rules(&mut self, news: RulesNews) {
        let is_newer = self.rules.get(&news.index).is_none_or(|known| known.revision < news.revision);
        if is_newer && self.served.contains_key(&news.index) {
            self.rules.insert(news.index, news);
        }
    }
}
