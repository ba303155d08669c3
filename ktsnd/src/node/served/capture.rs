// SPDX-License-Identifier: Apache-2.0
//! Kernel capture of the node's attachments: begun and ended with them, their rules kept current.

use ktsn_model::Priority;
use ktsn_resolve::{AttachmentIndex, Tables};
use tracing::{error, info, warn};

use super::ServedAttachments;
use crate::capture::{CaptureError, HostEnd, Looked};
use crate::clients::ServedAttachment;
use crate::config::{Attachment, CaptureMode};
use crate::node::request::NodeError;
use crate::node::workers::Workers;
use crate::stats::count;
use crate::tables::Added;
use crate::worker::{Captured, Command};

/// A program that is loaded, and what its worker is to be given.
pub(in crate::node) struct Loaded {
    host_end: HostEnd,
    captured: Box<Captured>,
}

/// Loads what the attachment asks for; nothing happens to frames yet.
pub(in crate::node) fn load(
    index: AttachmentIndex,
    attachment: &Attachment,
    added: &Added,
) -> Result<Option<Loaded>, CaptureError> {
    if attachment.capture != CaptureMode::Kernel {
        return Ok(None);
    }
    let mut host_end = HostEnd::new(&attachment.netns, added.interface_index)?;
    host_end.set_tables(&added.tables, index)?;
    let source = Box::new(host_end.ring()?);
    let priority = Priority::capped(u32::from(attachment.capture_priority));
    // No datagram that is taken is longer than the interface's MTU.
    let payload_octets_max = added.mtu as usize;
    let captured =
        Captured::new(index, source, priority, attachment.clients.slots as u16, payload_octets_max);
    Ok(Some(Loaded { host_end, captured: Box::new(captured) }))
}

impl ServedAttachments {
    /// Gives the worker its source, then begins to take frames.
    pub(in crate::node) fn begin_capture(
        &mut self,
        served: &ServedAttachment,
        loaded: Option<Loaded>,
        workers: &Workers,
    ) -> Result<(), NodeError> {
        let Some(Loaded { mut host_end, captured }) = loaded else { return Ok(()) };
        served.stats.capture_lag.make_room();
        served.stats.transmit_error.make_room();
        workers.send(&served.uplink, Command::AddCaptured(captured));
        host_end.attach().map_err(|error| NodeError::precondition("attachment.capture", &error))?;
        info!(attachment = served.name(), "kernel capture: timed frames are taken at the veth's host end");
        self.captures.insert(served.index, host_end);
        Ok(())
    }

    /// The worker cannot read what is captured: the program must not take it from the kernel.
    pub(in crate::node) fn end_capture(&mut self, index: AttachmentIndex) {
        let Some(mut capture) = self.captures.remove(&index) else { return };
        capture.detach();
        error!(
            attachment = self.name_of(index).unwrap_or_default(),
            "kernel capture ends: the worker has no room to wait for it (limit of epoll watches or memory); detach and \
             attach again when there is"
        );
    }

    /// Whether frames of any attachment are captured.
    pub(in crate::node) fn has_captures(&self) -> bool {
        !self.captures.is_empty()
    }

    /// Frames take the kernel's way from here on; what was captured by now is sent.
    pub(in crate::node) fn end_captures(&mut self) {
        self.captures.values_mut().for_each(HostEnd::detach);
    }

    /// Tables after generation `before`: new rules for the attachments whose tables are new. Answers warnings.
    pub(in crate::node) fn capture_by_tables(&mut self, tables: &Tables, before: u64) -> Vec<String> {
        let mut failed = Vec::new();
        for (&index, capture) in &mut self.captures {
            // Tables that are older than the attachment know nothing of it.
            if tables.attachment(index).is_none() || tables.generation_of(index) <= before {
                continue;
            }
            if let Err(error) = capture.set_tables(tables, index) {
                let name = self.served.get(&index).map_or("", |served| served.name());
                failed.push(format!("attachment {name}: capture: {error}"));
            }
        }
        failed
    }

    /// Puts each capture program back that was removed from its veth.
    pub(in crate::node) fn look_at_captures(&mut self) {
        for (index, capture) in &mut self.captures {
            let Some(served) = self.served.get(index) else { continue };
            let name = served.name();
            match capture.look() {
                Looked::Unchanged => {}
                Looked::Reattached => {
                    count(&served.stats.capture_reattached);
                    warn!(
                        attachment = name,
                        "the capture program was removed from the veth; it is there again, and datagrams that were sent \
                         meanwhile took the kernel's path"
                    );
                }
                Looked::Failed(error) => error!(attachment = name, %error, "kernel capture does not work"),
            }
        }
    }
}
