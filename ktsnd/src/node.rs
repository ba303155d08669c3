// SPDX-License-Identifier: Apache-2.0
//! The node: all attachments, ports and workers, changed by one task at a time.
//!
//! In: requests from the control API, events from tables and workers. Out: commands to workers, the directory
//! for the registrar, the state file. It holds no frame and is on no frame's way.

mod attach;
mod awaiting_rules;
mod capture;
mod clock;
mod detached;
mod errors;
mod ingress;
mod interface;
mod kept;
mod mailbox;
mod margins;
mod metrics;
mod network_policy;
mod peers;
mod policing;
mod receive;
mod request;
mod restore;
mod rules;
mod schedule;
mod switch;
mod view;
mod worker_thread;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ktsn_port::AnyPort;
use ktsn_resolve::{AttachmentIndex, PortIndex, Tables};
use ktsn_time::Nanos;
use tokio::sync::{mpsc, oneshot};
use tracing::{debug, error, info, warn};

use crate::capture::HostEnd;
use crate::config::{Attachment, Config, PeersTarget, Schedule, VxlanPeer, write_schedule};
use crate::ingress::Uplink;
use crate::limits;
use crate::margins::MarginCache;
use crate::run_dir::{Foreign, KeptAttachment, KeptSchedule, RunDir, State};
use crate::stats::{AttachmentStats, PortStats, StreamFilterStats};
use crate::tables::{self, OverlayNews, RulesNews};
use crate::tenant::{Directory, Registrar};
use crate::worker::{Command, GateView, Returned};
pub(crate) use mailbox::{Event, EventSender, Mailbox};
pub use request::{NodeError, NodeRequest};
use worker_thread::WorkerThread;

/// How often it is seen whether a link has another speed now.
const SPEED_LOOK: std::time::Duration = std::time::Duration::from_secs(1);

/// Period at which the programs of the ingress fast path are checked for being in place.
const INGRESS_LOOK: std::time::Duration = std::time::Duration::from_millis(200);

struct ServedAttachment {
    attachment: Attachment,
    uplink: String,
    interface_port: PortIndex,
    stats: Arc<AttachmentStats>,
    capture: Option<HostEnd>,
    /// The attachment's overlay as it is in force.
    overlay: Option<OverlayNews>,
    /// The rules of the node's packet filter about this attachment, once there were any.
    rules: Option<RulesNews>,
    /// True when the attachment came by the control API: the state file holds it.
    is_saved: bool,
}

struct OpenPort {
    device: String,
    netns: String,
    adapter: &'static str,
    reason: String,
    link_speed: u64,
    up: bool,
    tried_at: Option<std::time::Instant>,
    stats: Arc<PortStats>,
    /// Counters of the stream filters in front of the port, in the order of the filters.
    policing: Arc<[StreamFilterStats]>,
    /// For a pod's interface: whether an ordinary thread sends its frames instead of the worker, and since when.
    deferral: interface::DeferralState,
    /// For a port to a virtual switch: its state.
    backend: Option<switch::Backend>,
    /// The number of frames that the device had sent when the port was opened.
    sent_before: u64,
}

/// The node.
pub struct Node {
    config: Config,
    run_dir: RunDir,
    attached: Vec<Option<ServedAttachment>>,
    detached: detached::Detached,
    ports: BTreeMap<u16, OpenPort>,
    workers: BTreeMap<String, WorkerThread>,
    /// The programs of the ingress fast path, by uplink.
    ingress: BTreeMap<String, Uplink>,
    /// The warnings about the ingress fast path that hold now. A warning is logged again only after it has gone away.
    ingress_warnings: BTreeSet<String>,
    manager: tables::Manager,
    latest: Arc<Tables>,
    directory: Directory<AnyPort>,
    registrar: Registrar,
    events: EventSender,
    warnings: Vec<String>,
    workers_started: u64,
    stopping: bool,
    clock: crate::clock::Known,
    /// The next search for a free attachment index and a free port index begins at these two.
    next: (usize, u16),
    /// True while the node attaches what the configuration and the state file name. The file is written at the end of that.
    starting: bool,
    /// Attachments that stay closed until the rules of the node's packet filter are followed.
    awaiting_rules: awaiting_rules::AwaitingRules,
    /// True when an attachment has gone since the state file was written: the file must be written again.
    must_save: bool,
    /// The warning that the state file could not be written, while that is so.
    unsaved: Option<String>,
    /// Attachments of the state file that could not be attached after the restart. They stay in the file until they are detached.
    not_restored: Vec<KeptAttachment>,
    /// Attachments with fields in the state file that this ktsnd does not know, by name. They are written back unchanged.
    wholes: BTreeMap<String, serde_json::Value>,
    /// All other parts of the state file that this ktsnd does not understand. They are written back unchanged.
    foreign: Foreign,
    /// The gate schedules that the control API applied, by device.
    applied: BTreeMap<String, Schedule>,
    /// The overlay peers that the control API set.
    overlay_peers: BTreeMap<PeersTarget, Vec<VxlanPeer>>,
    /// The restrictions that network policies put on attachments, by name. An attachment without a restriction is not in it.
    restrictions: network_policy::Restrictions,
    /// True when the last restrictions are not in the state file because it could not be written.
    must_save_policies: bool,
    /// Requests about gates that workers have not answered yet, by number.
    gate_requests: BTreeMap<u64, oneshot::Sender<Box<GateView>>>,
    /// The number of requests about gates so far. It is the last request's number.
    gate_requests_count: u64,
    /// The spin margins that workers learnt on this machine. `None` until the daemon has set the directory of their file.
    margins: Option<MarginCache>,
    /// The counters that the previous ktsnd left, of attachments that this ktsnd does not have yet.
    kept_counters: kept::KeptCounters,
}

impl Node {
    pub(crate) fn new(
        config: Config,
        run_dir: RunDir,
        manager: tables::Manager,
        directory: Directory<AnyPort>,
        registrar: Registrar,
        events: EventSender,
        latest: Arc<Tables>,
    ) -> Self {
        Self {
            config,
            run_dir,
            attached: Vec::new(),
            detached: detached::Detached::default(),
            ports: BTreeMap::new(),
            workers: BTreeMap::new(),
            ingress: BTreeMap::new(),
            ingress_warnings: BTreeSet::new(),
            manager,
            latest,
            directory,
            registrar,
            events,
            warnings: Vec::new(),
            workers_started: 0,
            stopping: false,
            clock: crate::clock::Known::default(),
            next: (0, 0),
            starting: true,
            awaiting_rules: awaiting_rules::AwaitingRules::default(),
            must_save: false,
            unsaved: None,
            not_restored: Vec::new(),
            wholes: BTreeMap::new(),
            foreign: Foreign::default(),
            applied: BTreeMap::new(),
            overlay_peers: BTreeMap::new(),
            restrictions: BTreeMap::new(),
            must_save_policies: false,
            gate_requests: BTreeMap::new(),
            gate_requests_count: 0,
            margins: None,
            kept_counters: kept::KeptCounters::default(),
        }
    }

    /// Adds a warning that `Health` shows.
    pub(crate) fn warn(&mut self, warning: String) {
        warn!("{warning}");
        // What goes on happening is shown once.
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    /// Serves until `stop`, then drains: nothing new is taken, what is queued is sent.
    pub(crate) async fn run(
        &mut self,
        mut requests: mpsc::Receiver<NodeRequest>,
        mut events: Mailbox,
        mut stop: oneshot::Receiver<()>,
    ) {
        let mut poll = tokio::time::interval(SPEED_LOOK);
        poll.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut ingress_poll = tokio::time::interval(INGRESS_LOOK);
        ingress_poll.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut receive_renewal = tokio::time::interval(limits::RECEIVE_RENEWAL);
        receive_renewal.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let receivers = self.directory.receivers().clone();
        loop {
            tokio::select! {
                _ = &mut stop, if !self.stopping => {
                    info!("draining: nothing new is taken, queued frames are sent");
                    self.stopping = true;
                    self.directory.receivers().close();
                    // A drain may be killed: what is counted by now is kept all the same.
                    self.keep_counters();
                    self.registrar.admit_no_more();
                    self.end_captures();
                    self.ingress.clear();
                    for worker in self.workers.values() {
                        worker.send(Command::Drain);
                    }
                }
                Some(request) = requests.recv() => self.answer(request).await,
                event = events.next() => {
                    self.handle_event(event).await;
                    // Many pods that go at once are written once: writing waits for the disk.
                    if self.must_save && events.is_empty() {
                        self.save();
                    }
                }
                _ = receive_renewal.tick() => self.renew_grants(),
                () = receivers.wait_for_request() => self.renew_grants(),
                _ = ingress_poll.tick(), if !self.ingress.is_empty() => self.look_at_ingress(),
                _ = poll.tick() => {
                    self.look_at_speeds();
                    self.look_at_captures();
                    self.look_at_deferred();
                    self.look_at_margins();
                    if self.unsaved.is_some() {
                        self.save();
                    }
                }
            }
            if self.stopping && self.workers.values().all(|w| w.ended) {
                return;
            }
        }
    }

    async fn answer(&mut self, request: NodeRequest) {
        // A caller that has gone does not read the answer.
        match request {
            NodeRequest::Attach(attachment, false, reply) => {
                let _ = reply.send(self.attach(*attachment, true).await);
            }
            NodeRequest::Attach(attachment, true, reply) => {
                let _ = reply.send(self.check_attach(&attachment).await);
            }
            NodeRequest::Detach(name, reply) => {
                let _ = reply.send(self.detach(&name).await);
            }
            NodeRequest::SetPeers(target, peers, reply) => {
                let _ = reply.send(self.set_peers(target, peers).await);
            }
            NodeRequest::GetPeers(name, reply) => {
                let _ = reply.send(self.get_peers(&name));
            }
            NodeRequest::SetPolicies(policies, reply) => {
                let _ = reply.send(self.set_policies(policies).await);
            }
            NodeRequest::List(reply) => {
                let _ = reply.send(self.list());
            }
            NodeRequest::Statistics(name, reply) => {
                let _ = reply.send(self.statistics(&name));
            }
            NodeRequest::ApplySchedule(device, schedule, check_only, reply) => {
                self.apply_schedule(&device, schedule.map(|s| *s), check_only, reply);
            }
            NodeRequest::GetSchedule(device, reply) => self.get_schedule(&device, reply),
            NodeRequest::Health(reply) => {
                let _ = reply.send(self.health());
            }
            NodeRequest::Metrics(reply) => {
                let _ = reply.send(Box::new(self.snapshot()));
            }
        }
    }

    async fn handle_event(&mut self, event: Event) {
        match event {
            Event::Tables(tables::Event::Tables(tables)) => self.publish(tables),
            Event::Tables(tables::Event::NamespaceGone(index)) => {
                if let Some(name) = self.name_of(index) {
                    info!(attachment = name, "its network namespace or interface is gone: detached");
                    match self.detach_unsaved(&name).await {
                        Ok(must_save) => self.must_save |= must_save,
                        Err(error) => error!(attachment = name, %error, "detaching failed"),
                    }
                }
            }
            Event::Tables(tables::Event::Overlay(news)) => self.note_overlay(news),
            Event::Tables(tables::Event::Rules(news)) => self.note_rules(news),
            Event::Tables(tables::Event::RulesRead) => self.open_closed().await,
            Event::Tables(tables::Event::Warning(text)) => warn!("{text}"),
            Event::Clock => self.clock_changed(),
            Event::Worker(_, Returned::Gates(_, view)) => {
                if let Some(request) = self.gate_requests.remove(&view.number) {
                    // The caller may have given up.
                    let _ = request.send(view);
                }
            }
            Event::Worker(number, returned) => self.returned(number, &returned),
        }
    }

    fn returned(&mut self, number: u64, returned: &Returned<AnyPort>) {
        // The worker was taken back: its events do not concern its successor, which must not be joined.
        let Some(uplink) = self.workers.iter().find(|(_, w)| w.number == number).map(|(u, _)| u.clone())
        else {
            return;
        };
        match *returned {
            Returned::NeighbourWanted(index, next_hop) => self.manager.ensure_neighbour(index, next_hop),
            Returned::Retired(key, ref error) => {
                debug!(client = key.0, %error, "a client wrote impossible links into its region; it gets a new one");
            }
            Returned::BeyondHorizon(index, ahead) => self.beyond_horizon(index, ahead),
            Returned::PortFailed(index) => self.reopen(&uplink, index),
            Returned::PortSlow(index, longest) => self.defer(index, longest),
            Returned::CaptureRefused(index) => self.end_capture(index),
            Returned::Ended => {
                debug!(uplink, "worker ended");
                if let Some(worker) = self.workers.get_mut(&uplink) {
                    worker.join();
                }
            }
            // Freed where it was received.
            Returned::Client(_)
            | Returned::Port(..)
            | Returned::Boxed(_)
            | Returned::Tables(_)
            | Returned::Gates(..) => {}
        }
    }

    /// Says what the counter `beyond_horizon` cannot: how far, and what is probably wrong.
    fn beyond_horizon(&self, index: AttachmentIndex, ahead: Nanos) {
        let Some(Some(attached)) = self.attached.get(usize::from(index.0)) else { return };
        let (name, horizon) = (&attached.attachment.name, attached.attachment.horizon);
        let excess = ahead.saturating_sub(limits::TAI_MINUS_UTC);
        let mistaken = (Nanos::from_seconds(-1)..=Nanos::from_seconds(10)).contains(&excess);
        let (_, offset) = crate::sys::clock_state();
        let hint = if mistaken {
            format!(
                "; TAI - UTC is 37 s: the program adds it to a time that has it already, or it was not set in this \
                 kernel (CLOCK_TAI is {offset} s ahead of UTC here)"
            )
        } else {
            String::new()
        };
        warn!(attachment = name, "TxTime {ahead} ahead, horizon {horizon}: dropped as beyond_horizon{hint}");
    }

    /// Gives new tables to the workers and the registrar. Tables of an earlier or of the same generation are ignored: those of a new
    /// attachment come with the answer of `add_entered` first, and then once more as an event.
    fn publish(&mut self, tables: Arc<Tables>) {
        if tables.generation() <= self.latest.generation() {
            return;
        }
        self.latest = tables.clone();
        for worker in self.workers.values() {
            worker.send(Command::Tables(tables.clone()));
        }
        self.capture_by_tables();
        self.ingress_by_tables();
        self.directory.set_tables(tables);
        self.registrar.tables_changed();
    }

    fn find(&self, name: &str) -> Option<AttachmentIndex> {
        let at = self.attached.iter().position(|a| a.as_ref().is_some_and(|a| a.attachment.name == name))?;
        u16::try_from(at).ok().map(AttachmentIndex)
    }

    fn name_of(&self, index: AttachmentIndex) -> Option<String> {
        Some(self.attached.get(usize::from(index.0))?.as_ref()?.attachment.name.clone())
    }

    /// Writes the state file. Where that fails, it is tried again once a second, and `Health` shows the warning until it succeeds.
    fn save(&mut self) {
        let before = self.unsaved.take();
        self.must_save = false;
        if let Err(error) = self.try_save() {
            let warning = format!("state file: {error}; what changed now is lost at the next restart");
            if before.as_ref() == Some(&warning) {
                self.unsaved = before;
                return;
            }
            self.warnings.retain(|other| Some(other) != before.as_ref());
            self.warn(warning.clone());
            self.unsaved = Some(warning);
        } else if let Some(before) = before {
            self.warnings.retain(|other| *other != before);
            info!("the state file is written again");
        }
    }

    fn try_save(&self) -> std::io::Result<()> {
        let served = self.attached.iter().flatten().filter(|a| a.is_saved).map(|a| KeptAttachment {
            raw: a.attachment.raw.clone(),
            whole: self.wholes.get(&a.attachment.name).cloned(),
        });
        let attachments: Vec<_> = served.chain(self.not_restored.iter().cloned()).collect();
        let schedules = self
            .applied
            .iter()
            .map(|(port, schedule)| KeptSchedule { port: port.clone(), schedule: write_schedule(schedule) })
            .collect();
        let foreign = self.foreign.clone();
        let (peers, policies) =
            (peers::to_save(&self.overlay_peers), network_policy::to_save(&self.restrictions));
        self.run_dir.save(&State { attachments, schedules, peers, policies, foreign })
    }
}
