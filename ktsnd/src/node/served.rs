// SPDX-License-Identifier: Apache-2.0
//! The attachments that are served, and what they count.
//!
//! In: attachments, news of their overlays, of rules about them. Out: which attachment has which index, what is in force for it, its
//! counters and those of attachments that are gone. Kernel capture begins and ends with an attachment.

mod capture;
mod counters;

use std::sync::Arc;

use ktsn_resolve::{AttachmentIndex, PortIndex};

use super::request::NodeError;
use crate::capture::HostEnd;
use crate::config::Attachment;
use crate::limits;
use crate::stats::AttachmentStats;
use crate::tables::{OverlayNews, RulesNews};
pub(super) use capture::load;
use counters::Counters;

/// An attachment that is served. [`ServedAttachments`] gives no way to change one.
pub(crate) struct ServedAttachment {
    pub(crate) attachment: Attachment,
    pub(crate) uplink: String,
    pub(crate) interface_port: PortIndex,
    pub(crate) stats: Arc<AttachmentStats>,
    pub(super) capture: Option<HostEnd>,
    /// The attachment's overlay as it is in force.
    pub(crate) overlay: Option<OverlayNews>,
    /// The rules of the node's packet filter about this attachment, once there were any.
    pub(crate) rules: Option<RulesNews>,
}

impl ServedAttachment {
    pub(crate) fn name(&self) -> &str {
        &self.attachment.name
    }
}

/// All attachments that are served, each at its index.
#[derive(Default)]
pub(crate) struct ServedAttachments {
    attached: Vec<Option<ServedAttachment>>,
    /// The next search for a free index begins here.
    next: usize,
    counters: Counters,
}

impl ServedAttachments {
    pub(crate) fn iter(&self) -> impl Iterator<Item = (AttachmentIndex, &ServedAttachment)> {
        let indexed = (0..).map(AttachmentIndex).zip(&self.attached);
        indexed.filter_map(|(index, attached)| Some((index, attached.as_ref()?)))
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &ServedAttachment> {
        self.attached.iter().flatten()
    }

    pub(crate) fn get(&self, index: AttachmentIndex) -> Option<&ServedAttachment> {
        self.attached.get(usize::from(index.0))?.as_ref()
    }

    fn get_mut(&mut self, index: AttachmentIndex) -> Option<&mut ServedAttachment> {
        self.attached.get_mut(usize::from(index.0))?.as_mut()
    }

    pub(crate) fn find(&self, name: &str) -> Option<AttachmentIndex> {
        self.iter().find(|(_, attached)| attached.name() == name).map(|(index, _)| index)
    }

    pub(super) fn name_of(&self, index: AttachmentIndex) -> Option<String> {
        Some(self.get(index)?.name().to_owned())
    }

    /// An index that was free for longest: news about the attachment that had one before must not meet the next.
    pub(super) fn free_index(&self) -> Result<AttachmentIndex, NodeError> {
        let is_free = |i: &usize| self.attached.get(*i).is_none_or(Option::is_none);
        let found = (self.next..limits::ATTACHMENTS_MAX).chain(0..self.next).find(is_free);
        Ok(AttachmentIndex(found.ok_or(NodeError::Full)? as u16))
    }

    /// An attachment is about to get this index.
    pub(super) fn reserve(&mut self, index: AttachmentIndex) {
        self.next = (usize::from(index.0) + 1) % limits::ATTACHMENTS_MAX;
    }

    pub(super) fn add(&mut self, index: AttachmentIndex, attached: ServedAttachment) {
        let slot = usize::from(index.0);
        if self.attached.len() <= slot {
            self.attached.resize_with(slot + 1, || None);
        }
        self.attached[slot] = Some(attached);
    }

    /// An attachment is served no more. What it counted joins the sums.
    pub(super) fn remove(&mut self, index: AttachmentIndex) -> Option<ServedAttachment> {
        let attached = self.attached.get_mut(usize::from(index.0))?.take()?;
        self.counters.ended(attached.stats.clone());
        Some(attached)
    }

    /// An attachment's overlay is another one now.
    pub(super) fn note_overlay(&mut self, news: OverlayNews) {
        if let Some(attached) = self.get_mut(news.index)
            && attached.overlay.as_ref().is_none_or(|known| known.revision < news.revision)
        {
            attached.overlay = Some(news);
        }
    }

    /// Other rules are about an attachment now.
    pub(super) fn note_rules(&mut self, news: RulesNews) {
        if let Some(attached) = self.get_mut(news.index)
            && attached.rules.as_ref().is_none_or(|known| known.revision < news.revision)
        {
            attached.rules = Some(news);
        }
    }
}
