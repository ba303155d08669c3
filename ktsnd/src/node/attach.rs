// SPDX-License-Identifier: Apache-2.0
//! Attaching and detaching: a list of steps, undone in reverse when one fails.
//!
//! The types of an attachment on its way from the request to where it is served:
//!
//! | type | what it is |
//! |---|---|
//! | `v1::AttachRequest` | the request of the control API, with the keys as JSON |
//! | `AttachmentConfig` | the keys as they were written; the state file has them too, with the addresses that were found |
//! | `Attachment` | the keys, checked, with their defaults |
//! | `NodeRequest::Attach` | the request to the node's task, and where to answer |
//! | `TrackedAttachment` | the tables' task: the interface that it found, and whatever it makes the tables from |
//! | `AttachmentTables` | resolve's tables of the attachment |
//! | `Added` | the answer of the tables' task |
//! | `AttachmentPolicy` | the worker: what its frames may do |
//! | `ServedAttachment` | the node and the registrar: it is served |
//! | `KeptAttachment` | the state file's entry |
//!
//! Four ways lead to [`Node::attach`]:
//!
//! | from | called by | does the state file have it |
//! |---|---|---|
//! | the control API | `answer` | yes; where it cannot be written, `Attach` succeeds all the same and `Health` warns (`intent`) |
//! | the configuration and `--attach` | `attach_configured` (`restore`) | no |
//! | the state file, at the start | `restore` | yes |
//! | the two ways before, again: it failed, or lost its interface | `retry_waiting` (`restore`) | as the first time |

use std::sync::Arc;

use ktsn_port::vhost_user::Socket;
use ktsn_port::{Device, link_info};
use ktsn_resolve::{AttachmentIndex, PortIndex};

use tracing::{info, warn};

use super::served::load;
use super::{Node, NodeError};
use crate::clients::ServedAttachment;
use crate::config::{Attachment, EgressMode};
use crate::supervise;
use crate::tables;
use crate::worker::{AttachmentPolicy, Command, Usage};

/// A step of an attachment that made something.
#[derive(Debug)]
enum Step {
    /// The uplink's worker was started, with this port.
    Worker(PortIndex),
    /// This port of the pod's interface was opened.
    Interface(PortIndex),
    /// The tables have the attachment.
    Tables,
    /// Clients find the attachment.
    Served,
}

impl Node {
    /// Attaches; true when it was attached with the same contents already. Where a step fails, those before it are undone.
    pub(crate) async fn attach(&mut self, attachment: Attachment, is_saved: bool) -> Result<bool, NodeError> {
        let Some((index, uplink)) = self.index_and_uplink_for(&attachment).await? else { return Ok(true) };
        self.served.reserve(index);
        let (name, mut done) = (attachment.name.clone(), Vec::new());
        if let Err(error) = self.carry_out(&mut done, index, &uplink, attachment, is_saved).await {
            while let Some(step) = done.pop() {
                self.undo(step, index, &uplink, &name).await;
            }
            return Err(error);
        }
        // Last: an attachment that cannot be saved is served all the same.
        let saved = self.served.get(index).filter(|_| is_saved);
        self.intent.attached(index, &name, saved.map(|served| served.attachment.raw.clone()));
        Ok(false)
    }

    /// Checks what [`Self::attach`] checks before it looks into the pod's namespace; true when the attachment is attached with the
    /// same contents already. Nothing changes.
    pub(super) async fn check_attach(&self, attachment: &Attachment) -> Result<bool, NodeError> {
        let Some((_, uplink)) = self.index_and_uplink_for(attachment).await? else { return Ok(true) };
        if self.known_uplink(&uplink)?.is_none() {
            let config = self.intent.port(&uplink);
            supervise::kernel("for the uplink's device", || {
                link_info(&Device { ifname: &uplink, netns: None })
            })
            .map_err(|e| NodeError::not_opened("attachment.uplink", e))?;
            self.check_selection(&config)?;
            self.intent.policing(&uplink)?;
        }
        tables::check_devices(attachment, &uplink).map_err(|e| NodeError::precondition("attachment", &e))?;
        Ok(false)
    }

    /// The index and the uplink that the attachment will get; `None` when it is attached with the same contents already. It changes
    /// nothing.
    ///
    /// # Errors
    /// ktsnd is ending; another attachment has the name; there is no free index, or no uplink.
    async fn index_and_uplink_for(
        &self,
        attachment: &Attachment,
    ) -> Result<Option<(AttachmentIndex, String)>, NodeError> {
        if self.stopping {
            return Err(NodeError::Ending);
        }
        if let Some(index) = self.served.find(&attachment.name) {
            let same = self.served.get(index).is_some_and(|a| a.attachment.is_asked_by(attachment));
            return if same { Ok(None) } else { Err(NodeError::Exists(attachment.name.clone())) };
        }
        let index = self.served.free_index()?;
        let uplink = match &attachment.uplink {
            Some(uplink) => uplink.clone(),
            None => tables::default_uplink()
                .await
                .map_err(|e| NodeError::precondition("attachment.uplink", &e))?,
        };
        Ok(Some((index, uplink)))
    }

    /// The steps of an attachment; those that have made something are put into `done`.
    async fn carry_out(
        &mut self,
        done: &mut Vec<Step>,
        index: AttachmentIndex,
        uplink: &str,
        mut attachment: Attachment,
        is_saved: bool,
    ) -> Result<(), NodeError> {
        let (uplink_port, is_new) = self.uplink_worker(uplink)?;
        done.extend(is_new.then_some(Step::Worker(uplink_port)));
        // The host's own programs: what leaves by the uplink's device leaves through the uplink's gates.
        let is_by_uplink = is_own_device(&attachment, uplink) && !attachment.egress.is_vhost_user();
        let interface_port = if is_by_uplink {
            uplink_port
        } else {
            let opened = match &attachment.egress {
                EgressMode::Interface => self.open_interface(&attachment, uplink)?,
                EgressMode::VhostUser { socket, queues, .. } => {
                    self.open_vhost_user(&attachment, uplink, &Socket { path: socket, queues: *queues })?
                }
            };
            done.push(Step::Interface(opened));
            opened
        };
        let restriction = self.intent.restriction_of(&attachment.name);
        let asked = Arc::new(attachment.clone());
        let by_uplink = (uplink.to_owned(), uplink_port);
        let tracked = tables::TrackedAttachment::new(index, asked, interface_port, by_uplink, restriction);
        let mut added =
            self.manager.add(tracked).await.map_err(|error| NodeError::precondition("attachment", &error))?;
        done.push(Step::Tables);
        self.close_or_refuse_by_rules(&attachment, is_saved, index, &mut added).await?;
        let loaded = supervise::kernel("to load a program", || load(index, &attachment, &added))
            .map_err(|error| NodeError::precondition("attachment.capture", &error))?;
        attachment.give(added.addresses.clone());
        let worker = self.workers.outbox(uplink)?;
        let served = Arc::new(ServedAttachment {
            index,
            uplink: uplink.to_owned(),
            interface_port,
            netns_cookie: added.netns_cookie,
            interface_index: added.interface_index,
            mtu: added.mtu,
            stats: Arc::new(self.served.begin_counters(&attachment.name)),
            worker,
            attachment,
        });
        self.begin_to_serve(&served, added);
        log_attached(&served);
        // `end_service` undoes everything except a new worker, so only these two steps are left to undo.
        done.retain(|step| matches!(step, Step::Worker(_)));
        done.push(Step::Served);
        self.give_peers(index).await;
        supervise::kernel("to put programs at devices", || {
            self.served.begin_capture(&served, loaded, &self.workers)?;
            self.watch.begin_ingress(&served, &self.served, &self.latest)
        })
    }

    /// Takes back one step. What the state file holds about this name stays: an entry that was not restored, peers, restrictions.
    async fn undo(&mut self, step: Step, index: AttachmentIndex, uplink: &str, name: &str) {
        match step {
            Step::Worker(port) => {
                self.close_port(uplink, port);
                self.workers.end(uplink).await;
            }
            Step::Interface(port) => self.close_port(uplink, port),
            Step::Tables => {
                self.watch.closed.forget(name);
                self.manager.remove(index).await;
            }
            Step::Served => self.end_service(index).await,
        }
    }

    /// From here on clients find the attachment. It returns, and `Attach` is answered, when the commands for the worker are queued, not when
    /// the worker has applied them. The worker applies them in order, so before any command about a client of the attachment.
    fn begin_to_serve(&mut self, served: &Arc<ServedAttachment>, added: tables::Added) {
        let attachment = &served.attachment;
        let policy = AttachmentPolicy {
            classes: attachment.classes,
            late: attachment.late,
            overrun_limit: attachment.overrun_limit,
            horizon: attachment.horizon,
            streams: self.intent.streams_of(&attachment.name),
            stats: served.stats.clone(),
            usage: Usage::default(),
        };
        self.publish(added.tables);
        self.workers.send(&served.uplink, Command::SetAttachment(served.index, Box::new(policy)));
        self.directory.serve(served.clone());
        // The namespace's other clients hear of it.
        self.registrar.tables_changed();
        self.served.add(served.clone(), added.overlay);
    }

    /// Detaches: drops the queued frames, notifies the clients, and closes the namespace.
    pub(crate) async fn detach(&mut self, name: &str) -> Result<(), NodeError> {
        let must_save = self.detach_unsaved(name).await?;
        if must_save {
            self.intent.save();
        }
        Ok(())
    }

    /// Detaches by name without writing the state file. True when the file must be written: after many detaches, once.
    pub(super) async fn detach_unsaved(&mut self, name: &str) -> Result<bool, NodeError> {
        let Some(index) = self.served.find(name) else {
            // One that could not be taken up again after a restart.
            let was_known = self.intent.forget(name);
            return was_known.then_some(true).ok_or_else(|| NodeError::Unknown(name.to_owned()));
        };
        self.end_service(index).await;
        info!(attachment = name, "detached");
        Ok(self.intent.detached(index, name))
    }

    /// Serves the attachment no more: its frames are dropped, its clients notified, its namespace closed.
    async fn end_service(&mut self, index: AttachmentIndex) {
        // From here on frames take the kernel's way.
        let ended = supervise::kernel("to take programs from devices", || {
            let ended = self.served.remove(index);
            self.watch.ingress_by_tables(&self.served, &self.latest);
            ended
        });
        let Some(served) = ended else { return };
        self.watch.closed.forget(served.name());
        self.directory.forget(index);
        self.registrar.tables_changed();
        self.workers.send(&served.uplink, Command::RemoveAttachment(index));
        if self.open_index(&served.uplink) != Some(served.interface_port) {
            self.close_port(&served.uplink, served.interface_port);
        }
        self.manager.remove(index).await;
    }
}

fn log_attached(served: &ServedAttachment) {
    let ServedAttachment { attachment, uplink, .. } = served;
    info!(attachment = attachment.name, interface = attachment.interface, uplink, "attached");
    if attachment.takes_no_datagram() {
        warn!(
            attachment = attachment.name,
            "no destination is allowed: datagrams of its programs are left to the kernel; name prefixes in \
             `destinations`, or an overlay with peers"
        );
    }
}

/// Whether the attachment's interface is the uplink itself, in ktsnd's own namespace.
fn is_own_device(attachment: &Attachment, uplink: &str) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let identity = |path: &std::path::Path| std::fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
    let own = identity(std::path::Path::new("/proc/self/ns/net"));
    attachment.interface == uplink && own.is_some() && identity(&attachment.netns) == own
}
