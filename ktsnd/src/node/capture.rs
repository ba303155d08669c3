// SPDX-License-Identifier: Apache-2.0
//! Kernel capture of the node's attachments: begun and ended with them, their rules kept current.

use ktsn_model::Priority;
use ktsn_resolve::AttachmentIndex;
use tracing::{error, info, warn};

use super::errors::precondition;
use super::{Node, NodeError};
use crate::capture::{CaptureError, HostEnd, Looked};
use crate::config::{Attachment, CaptureMode};
use crate::stats::count;
use crate::tables::Added;
use crate::worker::{Captured, Command};

/// A program that is loaded, and what its worker is to be given.
pub(super) struct Loaded {
    host_end: HostEnd,
    captured: Box<Captured>,
}

/// Loads what the attachment asks for; nothing happens to frames yet.
pub(super) fn load(
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

impl Node {
    /// Gives the worker its source, then begins to take frames.
    pub(super) fn begin_capture(
        &mut self,
        index: AttachmentIndex,
        loaded: Option<Loaded>,
    ) -> Result<(), NodeError> {
        let Some(Loaded { mut host_end, captured }) = loaded else { return Ok(()) };
        let Some(attached) = self.attached.get_mut(usize::from(index.0)).and_then(Option::as_mut) else {
            return Ok(());
        };
        attached.stats.capture_lag.make_room();
        attached.stats.transmit_error.make_room();
        if let Some(worker) = self.workers.get(&attached.uplink) {
            worker.send(Command::AddCaptured(captured));
        }
        host_end.attach().map_err(|error| precondition("attachment.capture", &error))?;
        info!(
            attachment = attached.attachment.name,
            "kernel capture: timed frames are taken at the veth's host end"
        );
        attached.capture = Some(host_end);
        Ok(())
    }

    /// The worker cannot read what is captured: the program must not take it from the kernel.
    pub(super) fn end_capture(&mut self, index: AttachmentIndex) {
        let Some(Some(attached)) = self.attached.get_mut(usize::from(index.0)) else { return };
        if let Some(mut capture) = attached.capture.take() {
            capture.detach();
            error!(
                attachment = attached.attachment.name,
                "kernel capture ends: the worker has no room to wait for it (limit of epoll watches or memory); detach and \
                 attach again when there is"
            );
        }
    }

    /// Frames take the kernel's way from here on; what was captured by now is sent.
    pub(super) fn end_captures(&mut self) {
        for attached in self.attached.iter_mut().flatten() {
            if let Some(capture) = &mut attached.capture {
                capture.detach();
            }
        }
    }

    /// New tables: new rules.
    pub(super) fn capture_by_tables(&mut self) {
        let mut failed = Vec::new();
        for (index, attached) in (0..).map(AttachmentIndex).zip(&mut self.attached) {
            let Some(attached) = attached else { continue };
            let Some(capture) = &mut attached.capture else { continue };
            // Tables that are older than the attachment know nothing of it.
            if self.latest.attachment(index).is_none() {
                continue;
            }
            if let Err(error) = capture.set_tables(&self.latest, index) {
                failed.push(format!("attachment {}: capture: {error}", attached.attachment.name));
            }
        }
        for warning in failed {
            self.warn(warning);
        }
    }

    /// Puts each capture program back that was removed from its veth.
    pub(super) fn look_at_captures(&mut self) {
        if self.stopping {
            return;
        }
        for attached in self.attached.iter_mut().flatten() {
            let Some(capture) = &mut attached.capture else { continue };
            let name = &attached.attachment.name;
            match capture.look() {
                Looked::Unchanged => {}
                Looked::Reattached => {
                    count(&attached.stats.capture_reattached);
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
