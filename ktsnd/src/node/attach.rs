// SPDX-License-Identifier: Apache-2.0
//! Attaching and detaching: a list of steps, undone in reverse when one fails.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use ktsn_port::{AnyPort, Device, OpenError, Opened, Options, Port as _, link_info, link_speed, open};
use ktsn_port::{af_packet::AfPacket, af_xdp::AfXdp, vhost_user::Socket};
use ktsn_resolve::{AttachmentIndex, PortIndex};

use tracing::{info, warn};

use super::capture;
use super::errors::{not_opened, precondition};
use super::interface::DeferralState;
use super::worker_thread::WorkerThread;
use super::{Node, NodeError, OpenPort, ServedAttachment};
use crate::config::{AdapterChoice, Attachment, EgressMode, Port as PortConfig};
use crate::limits;
use crate::margins::MarginCache;
use crate::stats::{AttachmentStats, PortStats};
use crate::tables;
use crate::tenant::Served;
use crate::worker::{AttachmentPolicy, Command, NewPort, Usage};

/// Transmit buffers of an uplink.
const UPLINK_STAGES: u16 = 256;
/// A device that is gone is looked for at most this often.
const REOPEN_PAUSE: Duration = Duration::from_millis(100);

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
        self.next.0 = (usize::from(index.0) + 1) % limits::ATTACHMENTS_MAX;
        let (name, mut done) = (attachment.name.clone(), Vec::new());
        if let Err(error) = self.carry_out(&mut done, index, &uplink, attachment, is_saved).await {
            while let Some(step) = done.pop() {
                self.undo(step, index, &uplink, &name).await;
            }
            return Err(error);
        }
        // It takes the place of an entry of the state file with this name.
        self.forget_not_restored(&name);
        if is_saved && !self.starting {
            self.save();
        }
        Ok(false)
    }

    /// Checks what [`Self::attach`] checks before it looks into the pod's namespace; true when the attachment is attached with the
    /// same contents already. Nothing changes.
    pub(super) async fn check_attach(&self, attachment: &Attachment) -> Result<bool, NodeError> {
        let Some((_, uplink)) = self.index_and_uplink_for(attachment).await? else { return Ok(true) };
        if self.known_uplink(&uplink)?.is_none() {
            let config = self.port_config(&uplink);
            link_info(&Device { ifname: &uplink, netns: None })
                .map_err(|e| not_opened("attachment.uplink", &e))?;
            self.check_selection(&config)?;
            self.policing(&uplink)?;
        }
        tables::check_devices(attachment, &uplink).map_err(|e| precondition("attachment", &e))?;
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
            return Err(NodeError::Precondition("ktsnd is ending".to_owned()));
        }
        if let Some(index) = self.find(&attachment.name) {
            let same = self.attached[usize::from(index.0)]
                .as_ref()
                .is_some_and(|a| a.attachment.is_asked_by(attachment));
            return if same { Ok(None) } else { Err(NodeError::Exists(attachment.name.clone())) };
        }
        let index = self.free_index()?;
        let uplink = match &attachment.uplink {
            Some(uplink) => uplink.clone(),
            None => tables::default_uplink().await.map_err(|e| precondition("attachment.uplink", &e))?,
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
        let (interface_port, entered) = if is_by_uplink {
            (uplink_port, None)
        } else {
            let opened = match &attachment.egress {
                EgressMode::Interface => self.open_interface(&attachment, uplink)?,
                EgressMode::VhostUser { socket, queues, .. } => (
                    self.open_vhost_user(&attachment, uplink, &Socket { path: socket, queues: *queues })?,
                    None,
                ),
            };
            done.push(Step::Interface(opened.0));
            opened
        };
        let spec = tables::AttachmentSpec {
            index,
            interface: attachment.interface.clone(),
            interface_port,
            uplink: uplink.to_owned(),
            uplink_port,
            addresses: attachment.addresses.clone(),
            restriction: self.restriction_of(&attachment.name),
            attachment: Arc::new(attachment.clone()),
        };
        let mut added = self
            .manager
            .add_entered(spec, entered)
            .await
            .map_err(|error| precondition("attachment", &error))?;
        done.push(Step::Tables);
        self.check_rules(&attachment, is_saved, index, &mut added).await?;
        let loaded = capture::load(index, &attachment, &added)
            .map_err(|error| precondition("attachment.capture", &error))?;
        let overlay = added.overlay.clone();
        attachment.give(added.addresses.clone());
        let stats = self.begin_to_serve(index, &attachment, uplink, added);
        log_attached(&attachment, uplink);
        let uplink = uplink.to_owned();
        let attached = ServedAttachment {
            attachment,
            uplink,
            interface_port,
            stats,
            capture: None,
            overlay,
            rules: None,
            is_saved,
        };
        self.note_attached(index, attached);
        // `end_service` undoes everything except a new worker, so only these two steps are left to undo.
        done.retain(|step| matches!(step, Step::Worker(_)));
        done.push(Step::Served);
        self.give_peers(index).await;
        self.begin_capture(index, loaded)?;
        self.begin_ingress(index)
    }

    /// Takes back one step. What the state file holds about this name stays: an entry that was not restored, peers, restrictions.
    async fn undo(&mut self, step: Step, index: AttachmentIndex, uplink: &str, name: &str) {
        match step {
            Step::Worker(port) => {
                self.close_port(uplink, port);
                if let Some(worker) = self.workers.remove(uplink) {
                    worker.end().await;
                }
            }
            Step::Interface(port) => self.close_port(uplink, port),
            Step::Tables => {
                self.awaiting_rules.forget(name);
                self.manager.remove(index).await;
            }
            Step::Served => self.end_service(index).await,
        }
    }

    fn note_attached(&mut self, index: AttachmentIndex, attached: ServedAttachment) {
        let slot = usize::from(index.0);
        if self.attached.len() <= slot {
            self.attached.resize_with(slot + 1, || None);
        }
        self.attached[slot] = Some(attached);
    }

    /// From here on clients find the attachment. It returns, and `Attach` is answered, when the commands for the worker are queued, not when
    /// the worker has applied them. The worker applies them in order, so before any command about a client of the attachment.
    fn begin_to_serve(
        &mut self,
        index: AttachmentIndex,
        attachment: &Attachment,
        uplink: &str,
        added: tables::Added,
    ) -> Arc<AttachmentStats> {
        let stats = Arc::new(self.kept_counters.begin(&attachment.name));
        let policy = AttachmentPolicy {
            classes: attachment.classes,
            late: attachment.late,
            overrun_limit: attachment.overrun_limit,
            horizon: attachment.horizon,
            streams: self.streams_of(&attachment.name),
            stats: stats.clone(),
            usage: Usage::default(),
        };
        self.publish(added.tables);
        let worker = &self.workers[uplink];
        worker.send(Command::SetAttachment(index, Box::new(policy)));
        self.directory.serve(Served {
            index,
            name: attachment.name.clone(),
            netns_cookie: added.netns_cookie,
            interface_index: added.interface_index,
            mtu: added.mtu,
            limits: attachment.clients,
            stats: stats.clone(),
            worker: worker.outbox.clone(),
        });
        // The namespace's other clients hear of it.
        self.registrar.tables_changed();
        stats
    }

    /// Detaches: drops the queued frames, notifies the clients, and closes the namespace.
    pub(crate) async fn detach(&mut self, name: &str) -> Result<(), NodeError> {
        let must_save = self.detach_unsaved(name).await?;
        if must_save {
            self.save();
        }
        Ok(())
    }

    /// Detaches by name without writing the state file. True when the file must be written: after many detaches, once.
    pub(super) async fn detach_unsaved(&mut self, name: &str) -> Result<bool, NodeError> {
        let Some(index) = self.find(name) else {
            // One that could not be taken up again after a restart.
            if !self.forget_not_restored(name) {
                return Err(NodeError::Unknown(name.to_owned()));
            }
            self.forget_peers(name);
            self.restrictions.remove(name);
            return Ok(true);
        };
        let is_saved = self.attached[usize::from(index.0)].as_ref().is_some_and(|attached| attached.is_saved);
        self.end_service(index).await;
        info!(attachment = name, "detached");
        // The state file may name it twice, or the configuration names it too.
        let had_other = self.forget_not_restored(name);
        let had_peers = self.forget_peers(name);
        let was_restricted = self.restrictions.remove(name).is_some();
        Ok(is_saved || had_other || had_peers || was_restricted)
    }

    /// Serves the attachment no more: its frames are dropped, its clients notified, its namespace closed.
    async fn end_service(&mut self, index: AttachmentIndex) {
        let Some(mut attached) = self.attached[usize::from(index.0)].take() else { return };
        self.awaiting_rules.forget(&attached.attachment.name);
        // From here on frames take the kernel's way.
        attached.capture = None;
        self.ingress_by_tables();
        self.directory.forget(index);
        self.registrar.tables_changed();
        if let Some(worker) = self.workers.get(&attached.uplink) {
            worker.send(Command::RemoveAttachment(index));
        }
        if self.open_index(&attached.uplink) != Some(attached.interface_port) {
            self.close_port(&attached.uplink, attached.interface_port);
        }
        self.manager.remove(index).await;
        self.detached.add(attached.stats);
    }

    /// An index that was free for longest: news about the attachment that had one before must not meet the next.
    fn free_index(&self) -> Result<AttachmentIndex, NodeError> {
        let most = limits::ATTACHMENTS_MAX;
        let free = |i: &usize| self.attached.get(*i).is_none_or(Option::is_none);
        let next = self.next.0;
        let found = (next..most).chain(0..next).find(free).ok_or_else(|| {
            NodeError::Full(format!("{most} attachments are the most that one ktsnd serves"))
        })?;
        Ok(AttachmentIndex(found as u16))
    }

    /// Not the one that was closed last: a worker may still be at work on it.
    pub(super) fn free_port(&mut self) -> PortIndex {
        let (next, most) = (self.next.1, limits::PORTS_MAX as u16);
        let free = (next..most).chain(0..next).find(|i| !self.ports.contains_key(i)).unwrap_or(u16::MAX);
        self.next.1 = free.wrapping_add(1) % most;
        PortIndex(free)
    }

    /// The port's configuration; all defaults for a device that none names.
    pub(super) fn port_config(&self, device: &str) -> PortConfig {
        let named = self.config.ports.iter().find(|p| p.device == device);
        named.cloned().unwrap_or_else(|| PortConfig::on(device))
    }

    /// The port of an uplink that has a worker already.
    fn known_uplink(&self, uplink: &str) -> Result<Option<PortIndex>, NodeError> {
        let Some(index) = self.open_index(uplink) else { return Ok(None) };
        if self.workers[uplink].is_over() {
            return Err(NodeError::Internal(format!("attachment.uplink: the worker of {uplink} has ended")));
        }
        if let Some(silent) = crate::supervise::stuck_worker(uplink) {
            return Err(NodeError::Precondition(format!(
                "attachment.uplink: the worker of {uplink} is stuck, it has not answered for {silent}; ktsnd \
                 restarts itself when it stays so, try again then"
            )));
        }
        Ok(Some(index))
    }

    /// The worker of an uplink and the uplink's port; started when missing.
    fn uplink_worker(&mut self, uplink: &str) -> Result<(PortIndex, bool), NodeError> {
        if let Some(index) = self.known_uplink(uplink)? {
            return Ok((index, false));
        }
        let config = self.port_config(uplink);
        let opened = open_uplink(&config).map_err(|e| not_opened("attachment.uplink", &e))?;
        let (selection, program) = self.selection(&config, limits::QUEUE_MAX)?;
        let policing = self.policing(uplink)?;
        self.workers_started += 1;
        let number = self.workers_started;
        let worker = WorkerThread::start(
            &config,
            number,
            self.latest.clone(),
            self.events.clone(),
            self.directory.clone(),
            self.clock.is_good(),
            self.margins.as_ref().and_then(MarginCache::known),
        )
        .map_err(|e| NodeError::Internal(format!("worker of {uplink}: {e}")))?;
        let index = self.free_port();
        let reason = opened.fallback.as_ref().map(ToString::to_string).unwrap_or_default();
        if !reason.is_empty() {
            self.warn(format!("port {uplink}: AF_XDP cannot be used ({reason}); AF_PACKET serves instead"));
        }
        let speed = speed_of(&config);
        let stats = self.note_port(index, uplink, String::new(), &opened.port, reason, speed);
        if let (Some(policing), Some(port)) = (&policing, self.ports.get_mut(&index.0)) {
            port.policing = policing.stats();
        }
        let (port, priority_map) = (Box::new(opened.port), self.priority_map(uplink));
        let new = NewPort { port, priority_map, selection, policing, stats, is_pod_interface: false };
        if let Err(error) = worker.must_take(Command::AddPort(index, new)) {
            self.ports.remove(&index.0);
            return Err(error);
        }
        if let Some(program) = program {
            worker.send(Command::ChangeSchedule(index, program));
        }
        self.workers.insert(uplink.to_owned(), worker);
        Ok((index, true))
    }

    fn close_port(&mut self, uplink: &str, index: PortIndex) {
        self.ports.remove(&index.0);
        if let Some(worker) = self.workers.get(uplink) {
            worker.send(Command::RemovePort(index));
        }
    }

    pub(super) fn note_port(
        &mut self,
        index: PortIndex,
        device: &str,
        netns: String,
        port: &AnyPort,
        reason: String,
        speed: Option<u64>,
    ) -> Arc<PortStats> {
        let adapter = port.capabilities().adapter;
        let up = port.link_up();
        // A port that is opened again goes on counting.
        let known = self.ports.remove(&index.0);
        let stats = known.as_ref().map(|p| p.stats.clone()).unwrap_or_default();
        let sent_by_device = if netns.is_empty() { frames_sent(device) } else { 0 };
        let policing = known.as_ref().map_or_else(|| Arc::from([]), |p| p.policing.clone());
        let open = OpenPort {
            device: device.to_owned(),
            netns,
            adapter,
            reason,
            link_speed: speed.unwrap_or(0),
            up,
            tried_at: known.and_then(|p| p.tried_at),
            stats: stats.clone(),
            policing,
            deferral: DeferralState::default(),
            backend: None,
            sent_before: sent_by_device.saturating_sub(frames_of(&stats)),
        };
        self.ports.insert(index.0, open);
        stats
    }

    /// The uplink's device went away: it is opened again, once there is one of its name.
    pub(super) fn reopen(&mut self, uplink: &str, index: PortIndex) {
        let Some(known) = self.ports.get_mut(&index.0) else { return };
        known.up = false;
        let pods = known.device != uplink || !known.netns.is_empty();
        // A pod's interface is watched with its namespace. Frames that fail meanwhile ask again and again.
        if pods || known.tried_at.is_some_and(|at| at.elapsed() < REOPEN_PAUSE) {
            return;
        }
        known.tried_at = Some(Instant::now());
        let config = self.port_config(uplink);
        if let Ok(opened) = open_uplink(&config) {
            warn!(device = uplink, "the device is there again: port opened again");
            let reason = opened.fallback.as_ref().map(ToString::to_string).unwrap_or_default();
            self.note_port(index, uplink, String::new(), &opened.port, reason, speed_of(&config));
            // Another device may be faster or slower; one that does not say keeps what was known.
            let speed = self.ports.get(&index.0).map(|p| p.link_speed).filter(|speed| *speed > 0);
            if let Some(worker) = self.workers.get(uplink) {
                worker.send(Command::ReplacePort(index, Box::new(opened.port)));
                if speed.is_some() && (config.is_shaped() || self.schedule_of(uplink).is_some()) {
                    worker.send(Command::SetLinkSpeed(index, speed));
                }
            }
        }
    }
}

/// An uplink's speed in bit/s as configured, else as the device says.
fn speed_of(config: &PortConfig) -> Option<u64> {
    config.link_speed.or_else(|| link_speed(&Device { ifname: &config.device, netns: None }))
}

fn log_attached(attachment: &Attachment, uplink: &str) {
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

/// Frames that the device has sent since it was made, whichever program sent them; 0 if the device has no counter.
pub(super) fn frames_sent(device: &str) -> u64 {
    let path = format!("/sys/class/net/{device}/statistics/tx_packets");
    std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// Frames that the worker has handed over.
pub(super) fn frames_of(stats: &PortStats) -> u64 {
    stats.frames.iter().map(|count| count.load(Relaxed)).sum()
}

fn open_uplink(config: &PortConfig) -> Result<Opened, OpenError> {
    let device = Device { ifname: &config.device, netns: None };
    let options = Options { stage_count: UPLINK_STAGES, ..Options::default() };
    match &config.adapter {
        AdapterChoice::Auto => open(&device, &options),
        AdapterChoice::AfXdp => {
            AfXdp::open(&device, &options).map(|port| Opened { port: AnyPort::from(port), fallback: None })
        }
        AdapterChoice::AfPacket => {
            AfPacket::open(&device, &options).map(|port| Opened { port: AnyPort::from(port), fallback: None })
        }
        #[cfg(feature = "dpdk")]
        AdapterChoice::Dpdk { devargs } => ktsn_port::dpdk::Dpdk::open(Some(&device), devargs, &options)
            .map(|port| Opened { port: AnyPort::from(port), fallback: None }),
    }
}
