// SPDX-License-Identifier: Apache-2.0
//! Attachments that cannot be attached now: of the configuration, of the state file, or that lost their interface.
//!
//! In: an attachment and why it failed. Out: what is to be tried now, each after a pause that doubles, at once where the namespace is
//! another one; warnings for `Health`. What a pod does in its namespace costs its own attachment only: no failure here keeps ktsnd
//! from serving the others.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tracing::warn;

use crate::config::Attachment;
use crate::tables::Identity;

/// The pause after the first try, and the longest one.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Tries in one look: each may open a namespace.
const TRIES_A_LOOK: usize = 8;

/// An attachment that waits, and why.
#[derive(Debug)]
struct Waiting {
    attachment: Attachment,
    is_saved: bool,
    why: String,
    pause: Duration,
    again_at: Instant,
    /// Where the path of its namespace led at the last try.
    identity: Option<Identity>,
}

impl Waiting {
    fn new(attachment: Attachment, is_saved: bool, why: String) -> Self {
        let identity = Identity::of(&attachment.netns).ok();
        Self { attachment, is_saved, why, pause: PAUSE, again_at: Instant::now() + PAUSE, identity }
    }

    fn is_due(&mut self) -> bool {
        let identity = Identity::of(&self.attachment.netns).ok();
        if identity != self.identity {
            (self.identity, self.pause) = (identity, PAUSE);
            return true;
        }
        self.again_at <= Instant::now()
    }
}

/// All that wait, by name.
#[derive(Debug, Default)]
pub(in crate::node) struct WaitingList(BTreeMap<String, Waiting>);

impl WaitingList {
    pub(super) fn add(&mut self, attachment: Attachment, is_saved: bool, why: String) {
        self.0.insert(attachment.name.clone(), Waiting::new(attachment, is_saved, why));
    }

    /// It does not wait any more; whether it did.
    pub(in crate::node) fn remove(&mut self, name: &str) -> bool {
        self.0.remove(name).is_some()
    }

    /// Devices of the node have changed: what waits is tried at the next look.
    pub(in crate::node) fn retry_soon(&mut self) {
        for waiting in self.0.values_mut() {
            (waiting.again_at, waiting.pause) = (Instant::now(), PAUSE);
        }
    }

    /// What is to be tried now, and whether it came by the control API.
    pub(in crate::node) fn due(&mut self) -> Vec<(Attachment, bool)> {
        let due = self
            .0
            .values_mut()
            .filter_map(|waiting| waiting.is_due().then(|| (waiting.attachment.clone(), waiting.is_saved)));
        due.take(TRIES_A_LOOK).collect()
    }

    /// Another try failed. It is said again where the reason is another one.
    pub(in crate::node) fn failed(&mut self, name: &str, why: String) {
        let Some(waiting) = self.0.get_mut(name) else { return };
        waiting.pause = (waiting.pause * 2).min(PAUSE_MAX);
        waiting.again_at = Instant::now() + waiting.pause;
        if waiting.why != why {
            warn!(attachment = name, "not attached: {why}; tried again until it succeeds");
            waiting.why = why;
        }
    }

    pub(super) fn warnings(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|(name, waiting)| {
            format!("attachment {name} is not attached: {}; tried again until it succeeds", waiting.why)
        })
    }
}
