// SPDX-License-Identifier: Apache-2.0
//! Takes up the attachments of the state file.
//!
//! In: what the state file kept. Out: attachments that are served, and those that wait because they could not be taken up.
//! It forgets an attachment only when its namespace is gone.

use tracing::{info, warn};

use super::intent::netns_path;
use super::{Node, NodeError};
use crate::config::Attachment;
use crate::run_dir::{Foreign, KeptAttachment, State};
use crate::tables::PeersOf;

impl Node {
    /// At the daemon's end: saves what the workers have learnt, and the counters.
    pub(crate) fn keep_for_the_next(&mut self) {
        self.served.keep_counters(self.intent.run_dir());
        self.workers.keep_margins();
    }

    /// Takes up schedules, overlay peers and restrictions of the state file again, before any attachment.
    pub(crate) async fn restore_lists(&mut self, kept: &State) {
        let mut warnings = self.intent.restore_schedules(&kept.schedules);
        for (vni, peers) in self.intent.restore_peers(&kept.peers, &mut warnings) {
            self.manager.set_peers(PeersOf::Vni(vni), peers).await;
        }
        self.intent.restore_policies(&kept.policies, &mut warnings);
        warnings.into_iter().for_each(|warning| self.watch.warn(warning));
    }

    /// Takes up the attachments of the state file again. One whose namespace is gone is forgotten, one that fails for
    /// another reason (its uplink is not there yet, say) is logged and kept, and so is what this ktsnd does not understand.
    pub(crate) async fn restore(&mut self, kept: Vec<KeptAttachment>, foreign: Foreign) {
        self.intent.restore_foreign(foreign);
        for kept in kept {
            let name = kept.raw.name.clone().unwrap_or_default();
            let is_silent = kept.raw.addresses.is_none();
            let is_there = kept.raw.netns.as_deref().is_none_or(|path| netns_path(path).exists());
            let checked = Attachment::check("state.json", kept.raw.clone()).map(Attachment::by_api);
            let attached = match &checked {
                Ok(attachment) => {
                    self.attach(attachment.clone(), true).await.map_err(|error| error.to_string())
                }
                Err(error) => Err(error.to_string()),
            };
            match attached {
                Ok(_) => {
                    if is_silent {
                        self.tell_found(&name);
                    }
                    self.intent.keep_whole(self.served.find(&name), kept.whole);
                }
                Err(error) => {
                    let why = format!("attachment {name} of the state file is not taken up again: {error}");
                    match checked {
                        Ok(attachment) if is_there => self.intent.wait_for(attachment, true, why),
                        _ => self.watch.warn(why),
                    }
                    if is_there {
                        self.intent.not_restored(kept);
                    }
                }
            }
        }
        self.intent.started(&|name| self.served.find(name).is_some());
        // The start is a whole one: the counters that it went on with are its own now.
        self.intent.run_dir().forget_counters();
    }

    /// Attaches what the configuration names. One that fails waits, unless ktsnd's own rights are missing or the command line
    /// named it: who typed it wants to know at once.
    ///
    /// # Errors
    /// Those two.
    pub(crate) async fn attach_configured(&mut self) -> anyhow::Result<()> {
        for attachment in self.intent.config().attachments.clone() {
            let name = attachment.name.clone();
            let is_required = self.intent.config().required.contains(&name);
            match self.attach(attachment.clone(), false).await {
                Ok(_) => {}
                Err(error) if is_required || matches!(error, NodeError::Rights { .. }) => {
                    return Err(anyhow::Error::new(error).context(format!("attachment {name}")));
                }
                Err(error) => self.intent.wait_for(attachment, false, error.to_string()),
            }
        }
        Ok(())
    }

    /// Attaches the waiting attachments again whose pause is over.
    pub(super) async fn retry_waiting(&mut self) {
        if self.stopping {
            return;
        }
        for (attachment, is_saved) in self.intent.waiting.due() {
            let name = attachment.name.clone();
            // A restored attachment goes on with what its entry had beside the fields that are known.
            let whole = self.intent.whole_of(&name);
            match self.attach(attachment, is_saved).await {
                Ok(_) => {
                    info!(attachment = name, "attached now");
                    self.intent.keep_whole(self.served.find(&name), whole);
                    self.intent.waiting.remove(&name);
                }
                Err(error) => self.intent.waiting.failed(&name, error.to_string()),
            }
        }
    }

    /// An older ktsnd wrote no addresses: what the interface has now is given from here on, and kept.
    fn tell_found(&self, name: &str) {
        let found = self.served.iter().find(|served| served.name() == name);
        let addresses = found.map(|served| served.attachment.addresses.to_string());
        warn!(
            attachment = name,
            "the state file, of an older ktsnd, names no addresses; given are those that the interface has now: {}",
            addresses.unwrap_or_default()
        );
    }
}
