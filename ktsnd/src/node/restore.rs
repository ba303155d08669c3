// SPDX-License-Identifier: Apache-2.0
//! Takes up the attachments of the state file.
//!
//! In: what the state file kept. Out: attachments that are served, and those that wait because they could not be taken up.
//! It forgets an attachment only when its namespace is gone.

use tracing::warn;

use super::Node;
use crate::config::Attachment;
use crate::run_dir::{Foreign, KeptAttachment};

impl Node {
    /// Takes up the attachments of the state file again. One whose namespace is gone is forgotten, one that fails for
    /// another reason (its uplink is not there yet, say) is logged and kept, and so is what this ktsnd does not understand.
    pub(crate) async fn restore(&mut self, kept: Vec<KeptAttachment>, mut foreign: Foreign) {
        foreign
            .attachments
            .retain(|entry| entry["netns"].as_str().is_none_or(|path| netns_path(path).exists()));
        self.foreign = foreign;
        for kept in kept {
            let name = kept.raw.name.clone().unwrap_or_default();
            let is_silent = kept.raw.addresses.is_none();
            let is_there = kept.raw.netns.as_deref().is_none_or(|path| netns_path(path).exists());
            let attached = match Attachment::check("state.json", kept.raw.clone()) {
                Ok(attachment) => {
                    self.attach(attachment.by_api(), true).await.map_err(|error| error.to_string())
                }
                Err(error) => Err(error.to_string()),
            };
            match attached {
                Ok(_) => {
                    if is_silent {
                        self.tell_found(&name);
                    }
                    self.wholes.extend(kept.whole.map(|whole| (name, whole)));
                }
                Err(error) => {
                    self.warn(format!("attachment {name} of the state file is not taken up again: {error}"));
                    self.not_restored.extend(Some(kept).filter(|_| is_there));
                }
            }
        }
        self.starting = false;
        self.prune_policies();
        self.save();
        // The start is a whole one: the counters that it went on with are its own now.
        self.counts_on();
    }

    /// Forgets what the state file said of an attachment that is not served; whether it said anything.
    pub(super) fn forget_not_restored(&mut self, name: &str) -> bool {
        let known = self.not_restored.len() + self.foreign.attachments.len() + self.wholes.len();
        self.not_restored.retain(|entry| entry.raw.name.as_deref() != Some(name));
        self.foreign.attachments.retain(|entry| entry["name"].as_str() != Some(name));
        self.wholes.remove(name);
        known != self.not_restored.len() + self.foreign.attachments.len() + self.wholes.len()
    }

    /// An older ktsnd wrote no addresses: what the interface has now is given from here on, and kept.
    fn tell_found(&self, name: &str) {
        let found = self.attached.iter().flatten().find(|attached| attached.attachment.name == name);
        let addresses = found.map(|attached| attached.attachment.addresses.to_string());
        warn!(
            attachment = name,
            "the state file, of an older ktsnd, names no addresses; given are those that the interface has now: {}",
            addresses.unwrap_or_default()
        );
    }
}

/// The file that a namespace's path or name means.
fn netns_path(netns: &str) -> std::path::PathBuf {
    if netns.contains('/') { netns.into() } else { std::path::Path::new("/run/netns").join(netns) }
}
