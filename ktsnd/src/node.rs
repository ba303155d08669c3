// SPDX-License-Identifier: Apache-2.0
//! The node: all attachments, ports and workers, changed by one task at a time.
//!
//! In: questions from the control API, events from tables and workers. Out: commands to workers, the directory
//! for the registrar, the state file. It holds no frame and is on no frame's way.

mod attach;
mod capture;
mod clock;
mod closed;
mod detached;
mod ingress;
mod interface;
mod kept;
mod mailbox;
mod margins;
mod network_policy;
mod peers;
mod policing;
mod restore;
mod rules;
mod schedule;
mod view;
mod worker_thread;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ktsn_port::AnyPort;
use ktsn_proto::v1;
use ktsn_resolve::{AttachmentIndex, PortIndex, Tables};
use ktsn_time::Nanos;
use tokio::sync::{mpsc, oneshot};
use tracing::{debug, error, info, warn};

use crate::capture::HostEnd;
use crate::config::{Attachment, Config, Schedule, VxlanPeer, write_schedule};
use crate::ingress::Uplink;
use crate::limits;
use crate::margins::MarginCache;
use crate::run_dir::{Foreign, KeptAttachment, KeptSchedule, RunDir, State};
use crate::stats::{AttachmentStats, PortStats, StreamFilterStats};
use crate::tables::{self, OverlayNews, Restriction, RulesNews};
use crate::tenant::{Directory, Registrar};
use crate::worker::{Command, Returned};
pub(crate) use mailbox::{Mailbox, Outlet};
pub use peers::PeersTarget;
use schedule::{Looked, States};
use worker_thread::WorkerThread;

/// How often it is seen whether a link has another speed now.
const SPEED_LOOK: std::time::Duration = std::time::Duration::from_secs(1);

/// How often it is seen whether the short ways in are where they were put.
const INGRESS_LOOK: std::time::Duration = std::time::Duration::from_millis(200);

/// Why a question could not be answered as asked.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Another attachment has this name.
    #[error("attachment.name: {0:?} is attached with other contents; detach it first")]
    Exists(String),
    /// No such port.
    #[error("port: {device:?}: no such port; ktsnd has: {known}")]
    UnknownPort {
        /// What was asked for.
        device: String,
        /// What there is.
        known: String,
    },
    /// A value that cannot be.
    #[error("{0}")]
    Invalid(String),
    /// No such attachment.
    #[error("name: {0:?}: no such attachment")]
    Unknown(String),
    /// A bound is reached.
    #[error("{0}")]
    Full(String),
    /// Something outside is not as it must be.
    #[error("{0}")]
    Precondition(String),
    /// Our own fault.
    #[error("{0}")]
    Internal(String),
}

/// What the control API asks.
#[derive(Debug)]
pub enum Question {
    /// Attach; answers whether it was attached already.
    Attach(Box<Attachment>, oneshot::Sender<Result<bool, NodeError>>),
    /// Detach by name.
    Detach(String, oneshot::Sender<Result<(), NodeError>>),
    /// Set overlay peers.
    SetPeers(PeersTarget, Vec<VxlanPeer>, oneshot::Sender<Result<(), NodeError>>),
    /// The overlay peers of an attachment.
    GetPeers(String, oneshot::Sender<Result<Vec<v1::PeerState>, NodeError>>),
    /// What network policies leave of attachments' short cuts, by name; answers the names of no attachment.
    SetPolicies(Vec<(String, Restriction)>, oneshot::Sender<Result<Vec<String>, NodeError>>),
    /// Everything there is.
    List(oneshot::Sender<v1::ListReply>),
    /// Counters, of one attachment or (empty) of all.
    Statistics(String, oneshot::Sender<Result<v1::StatisticsReply, NodeError>>),
    /// Set the gates of a port; `None`: as the configuration has it; true: only check.
    ApplySchedule(String, Option<Box<Schedule>>, bool, oneshot::Sender<States>),
    /// Gates of one port or (empty) of all.
    GetSchedule(String, oneshot::Sender<States>),
    /// Health.
    Health(oneshot::Sender<v1::HealthReply>),
}

/// What happens by itself.
#[derive(Debug)]
pub(crate) enum Event {
    Tables(tables::Event),
    /// The clock went from good to not good or back.
    Clock,
    /// From the worker with this number: another one may serve its uplink by now.
    Worker(u64, Returned<AnyPort>),
}

struct Attached {
    attachment: Attachment,
    uplink: String,
    interface_port: PortIndex,
    stats: Arc<AttachmentStats>,
    capture: Option<HostEnd>,
    /// Its overlay as it is in force.
    overlay: Option<OverlayNews>,
    /// Rules of the node's packet filter about it, once there were any.
    rules: Option<RulesNews>,
    /// Whether it came by the control API and belongs into the state file.
    kept: bool,
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
    /// What the stream filters in front of it have seen, in their order.
    policing: Arc<[StreamFilterStats]>,
    /// By which thread its frames leave, where it is a pod's.
    way: interface::Way,
    /// Frames that the device had sent when it was opened.
    sent_before: u64,
}

/// The node.
pub struct Node {
    config: Config,
    run_dir: RunDir,
    attached: Vec<Option<Attached>>,
    detached: detached::Detached,
    ports: BTreeMap<u16, OpenPort>,
    workers: BTreeMap<String, WorkerThread>,
    /// The short ways in, by uplink.
    ingress: BTreeMap<String, Uplink>,
    /// What was said of them last: it is said again when it comes anew.
    ingress_told: BTreeSet<String>,
    manager: tables::Manager,
    latest: Arc<Tables>,
    directory: Directory<AnyPort>,
    registrar: Registrar,
    events: Outlet,
    warnings: Vec<String>,
    workers_started: u64,
    stopping: bool,
    clock: crate::clock::Known,
    /// The attachment index and the port index that are tried first.
    next: (usize, u16),
    /// Attachments of the configuration and of the state file are being taken up: the file is written when all are.
    starting: bool,
    /// Attachments that were taken up before the node's rules were known.
    closed: closed::Closed,
    /// Attachments went away by themselves since it was written.
    unsaved: bool,
    /// Those that could not be taken up; kept until they are detached.
    waiting: Vec<KeptAttachment>,
    /// Attachments of the state file that says more of them than this ktsnd knows, by name: written back as they were.
    wholes: BTreeMap<String, serde_json::Value>,
    /// What else of the state file this ktsnd does not understand: written back as it was.
    foreign: Foreign,
    /// Gate schedules applied by the control API, by device.
    applied: BTreeMap<String, Schedule>,
    /// Overlay peers given by the control API.
    given: BTreeMap<PeersTarget, Vec<VxlanPeer>>,
    /// What network policies leave of short cuts, where they leave less than everything; by attachment.
    restrictions: network_policy::Restrictions,
    /// Some are not in the state file, which could not be written.
    unsaved_policies: bool,
    /// Questions about gates that workers have not answered yet.
    looks: BTreeMap<u64, oneshot::Sender<Looked>>,
    looks_count: u64,
    /// What workers learnt of this machine; `None` before the daemon has said where it is kept.
    margins: Option<MarginCache>,
    /// What the daemon before has counted for attachments that this one does not have yet.
    kept_counters: kept::KeptCounters,
}

impl Node {
    pub(crate) fn new(
        config: Config,
        run_dir: RunDir,
        manager: tables::Manager,
        directory: Directory<AnyPort>,
        registrar: Registrar,
        events: Outlet,
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
            ingress_told: BTreeSet::new(),
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
            closed: closed::Closed::default(),
            unsaved: false,
            waiting: Vec::new(),
            wholes: BTreeMap::new(),
            foreign: Foreign::default(),
            applied: BTreeMap::new(),
            given: BTreeMap::new(),
            restrictions: BTreeMap::new(),
            unsaved_policies: false,
            looks: BTreeMap::new(),
            looks_count: 0,
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
        mut questions: mpsc::Receiver<Question>,
        mut events: Mailbox,
        mut stop: oneshot::Receiver<()>,
    ) {
        let mut looks = tokio::time::interval(SPEED_LOOK);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut ingress_looks = tokio::time::interval(INGRESS_LOOK);
        ingress_looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = &mut stop, if !self.stopping => {
                    info!("draining: nothing new is taken, queued frames are sent");
                    self.stopping = true;
                    // A drain may be killed: what is counted by now is kept all the same.
                    self.keep_counters();
                    self.registrar.admit_no_more();
                    self.end_captures();
                    self.ingress.clear();
                    for worker in self.workers.values() {
                        worker.send(Command::Drain);
                    }
                }
                Some(question) = questions.recv() => self.answer(question).await,
                event = events.next() => {
                    self.happened(event).await;
                    // Many pods that go at once are written once: writing waits for the disk.
                    if self.unsaved && events.is_empty() {
                        self.save();
                    }
                }
                _ = ingress_looks.tick(), if !self.ingress.is_empty() => self.look_at_ingress(),
                _ = looks.tick() => {
                    self.look_at_speeds();
                    self.look_at_captures();
                    self.look_at_deferred();
                    self.look_at_margins();
                }
            }
            if self.stopping && self.workers.values().all(|w| w.ended) {
                return;
            }
        }
    }

    async fn answer(&mut self, question: Question) {
        // Who asked may have gone; then nobody reads the answer.
        match question {
            Question::Attach(attachment, reply) => {
                let _ = reply.send(self.attach(*attachment, true).await);
            }
            Question::Detach(name, reply) => {
                let _ = reply.send(self.detach(&name).await);
            }
            Question::SetPeers(target, peers, reply) => {
                let _ = reply.send(self.set_peers(target, peers).await);
            }
            Question::GetPeers(name, reply) => {
                let _ = reply.send(self.get_peers(&name));
            }
            Question::SetPolicies(policies, reply) => {
                let _ = reply.send(self.set_policies(policies).await);
            }
            Question::List(reply) => {
                let _ = reply.send(self.list());
            }
            Question::Statistics(name, reply) => {
                let _ = reply.send(self.statistics(&name));
            }
            Question::ApplySchedule(device, schedule, check_only, reply) => {
                self.apply_schedule(&device, schedule.map(|s| *s), check_only, reply);
            }
            Question::GetSchedule(device, reply) => self.get_schedule(&device, reply),
            Question::Health(reply) => {
                let _ = reply.send(self.health());
            }
        }
    }

    async fn happened(&mut self, event: Event) {
        match event {
            Event::Tables(tables::Event::Tables(tables)) => self.publish(tables),
            Event::Tables(tables::Event::NamespaceGone(index)) => {
                if let Some(name) = self.name_of(index) {
                    info!(attachment = name, "its network namespace or interface is gone: detached");
                    match self.detach_unsaved(&name).await {
                        Ok(kept) => self.unsaved |= kept,
                        Err(error) => error!(attachment = name, %error, "detaching failed"),
                    }
                }
            }
            Event::Tables(tables::Event::Overlay(news)) => self.note_overlay(news),
            Event::Tables(tables::Event::Rules(news)) => self.note_rules(news),
            Event::Tables(tables::Event::RulesRead) => self.open_closed().await,
            Event::Tables(tables::Event::Warning(text)) => warn!("{text}"),
            Event::Clock => self.clock_changed(),
            Event::Worker(_, Returned::Gates(_, view, is_there)) => {
                if let Some(waiting) = self.looks.remove(&view.number) {
                    // Who asked may have given up.
                    let _ = waiting.send((view, is_there));
                }
            }
            Event::Worker(number, returned) => self.returned(number, &returned),
        }
    }

    fn returned(&mut self, number: u64, returned: &Returned<AnyPort>) {
        // News of a worker that was taken back are nobody's; its successor must not be joined for it.
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
                "; TAI - UTC is 37 s: the program adds it to a time that has it already, or it was not told to this \
                 kernel (CLOCK_TAI is {offset} s ahead of UTC here)"
            )
        } else {
            String::new()
        };
        warn!(attachment = name, "TxTime {ahead} ahead, horizon {horizon}: dropped as beyond_horizon{hint}");
    }

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

    fn save(&mut self) {
        self.unsaved = false;
        if let Err(error) = self.try_save() {
            self.warn(format!("state file: {error}; what changed now is lost at the next restart"));
        }
    }

    fn try_save(&self) -> std::io::Result<()> {
        let served = self.attached.iter().flatten().filter(|a| a.kept).map(|a| KeptAttachment {
            raw: a.attachment.raw.clone(),
            whole: self.wholes.get(&a.attachment.name).cloned(),
        });
        let attachments: Vec<_> = served.chain(self.waiting.iter().cloned()).collect();
        let schedules = self
            .applied
            .iter()
            .map(|(port, schedule)| KeptSchedule { port: port.clone(), schedule: write_schedule(schedule) })
            .collect();
        let foreign = self.foreign.clone();
        let (peers, policies) = (peers::kept(&self.given), network_policy::kept(&self.restrictions));
        self.run_dir.save(&State { attachments, schedules, peers, policies, foreign })
    }
}
