// SPDX-License-Identifier: Apache-2.0
//! The handle that the node holds, and the task behind it.
//!
//! In: commands through a [`Manager`]. Out: answers, and events through the function given at the start. The task has a
//! thread of its own: dumps of the node's namespace wait for the kernel's RTNL lock. Between two of its steps every attachment is
//! either wholly there or not.

use std::sync::Arc;
use std::time::Duration;

use ktsn_resolve::{AttachmentIndex, Flow, NextHop, Tables};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::assembly::state::{TablesState, Wake};
use super::error::TablesError;
use super::kernel::reader;
use super::news::{Added, Event, OverlayNews};
use super::overlay::overlays::PeersOf;
use super::tracked::TrackedAttachment;
use crate::config::VxlanPeer;
use crate::policy::{self, Restriction};
use crate::supervise::Watched;

/// A change after a quiet time waits so long for those that come with it: a frame may wait for its next hop's MAC address.
const GATHER: Duration = Duration::from_millis(1);
/// Where changes of the node go on, a generation costs at most one part in so many of the time, but is never kept back for longer
/// than this. Pods' namespaces have no such limit (`assembly/pod.rs`).
const SHARE: u32 = 5;
const COALESCE: Duration = Duration::from_millis(20);
/// How often namespaces' paths are looked at.
const LOOK: Duration = Duration::from_millis(250);
/// How often neighbours without confirmation are probed.
const PROBE: Duration = Duration::from_secs(5);
/// The span after which a refused request to the kernel is made again.
const RETRY: Duration = Duration::from_secs(1);

/// Commands that wait at most.
const COMMANDS_MAX: usize = 1024;

/// A step of the task; it answers by itself.
type TablesStep = Box<dyn FnOnce(&mut TablesState) + Send>;

/// Keeps the tables; ends when it is dropped.
#[derive(Debug)]
pub struct Manager {
    commands: mpsc::Sender<TablesStep>,
    rules: policy::Known,
}

impl Manager {
    /// Starts the task. `report` is called from it and must not block.
    ///
    /// # Errors
    /// `Netlink` when the kernel does not talk to us, `Ended` when there is no thread to be had.
    pub async fn start(report: impl Fn(Event) + Send + 'static) -> Result<Self, TablesError> {
        let (commands, inbox) = mpsc::channel(COMMANDS_MAX);
        let (started, starts) = oneshot::channel();
        let keep = move || {
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
                return;
            };
            runtime.block_on(async move {
                let watched = Watched::enter("ktsn-tables", "");
                let state = match TablesState::new(Box::new(report)) {
                    Ok(state) => state,
                    Err(error) => return drop(started.send(Err(error))),
                };
                let watch = policy::Watch::start();
                let _ = started.send(Ok(watch.known()));
                run(state, inbox, watch, &watched).await;
            });
        };
        let thread = std::thread::Builder::new().name("ktsn-tables".into()).spawn(keep);
        drop(thread.map_err(|_| TablesError::Ended)?);
        let rules = starts.await.map_err(|_| TablesError::Ended)??;
        Ok(Self { commands, rules })
    }

    /// The rules of the node's packet filter, as long as they are followed.
    pub(crate) fn rules(&self) -> &policy::Known {
        &self.rules
    }

    /// Adds an attachment; what stood at its index before is replaced.
    ///
    /// # Errors
    /// [`TablesError`] naming the field at fault; nothing is held then.
    pub async fn add(&self, tracked: TrackedAttachment) -> Result<Added, TablesError> {
        let opened = reader::open(tracked.attachment.netns.clone()).await?;
        self.call(move |state| state.add(tracked, opened)).await.unwrap_or(Err(TablesError::Ended))
    }

    /// Removes an attachment; when this returns, nothing is held in its namespace any more.
    pub async fn remove(&self, index: AttachmentIndex) {
        // A task that has ended holds nothing either.
        let _ = self.call(move |state| state.remove(index)).await;
    }

    /// Makes the kernel resolve a neighbour and keeps it fresh as long as the attachment stands. Where too much waits already it
    /// is left out: a worker asks again as long as frames need it.
    pub fn ensure_neighbour(&self, index: AttachmentIndex, next_hop: NextHop) {
        let _ = self.commands.try_send(Box::new(move |state| state.ensure_neighbour(index, next_hop)));
    }

    /// Asks the kernel about the route of a flow, for the worker of this number. Where too much waits already it is left out: the worker
    /// asks again as long as frames need it.
    pub fn ask_route(&self, worker: u64, flow: Flow) {
        let _ = self.commands.try_send(Box::new(move |state| state.ask_route(worker, &flow)));
    }

    /// Replaces the peers that were given before; none: forgets them. In force when this returns, with all overlays as
    /// they are then. An attachment's go with it.
    pub async fn set_peers(&self, of: PeersOf, peers: Vec<VxlanPeer>) -> Vec<OverlayNews> {
        // A task that has ended serves no attachment.
        self.call(move |state| state.set_peers(of, peers)).await.unwrap_or_default()
    }

    /// Says what network policies leave of these attachments' uplink egress and ingress fast path; answers the newest tables.
    pub async fn restrict(
        &self,
        restrictions: Vec<(AttachmentIndex, Arc<Restriction>)>,
    ) -> Option<Arc<Tables>> {
        // A task that has ended serves no attachment.
        self.call(move |state| state.restrict(restrictions)).await.flatten()
    }

    /// Has the task take a step; what the step returned, `None`: the task has ended.
    async fn call<T: Send + 'static>(
        &self,
        step: impl FnOnce(&mut TablesState) -> T + Send + 'static,
    ) -> Option<T> {
        let (answer, answered) = oneshot::channel();
        // Where the caller is gone, the answer is dropped.
        let command = move |state: &mut TablesState| drop(answer.send(step(state)));
        // The task ends only after its last Manager.
        let _ = self.commands.send(Box::new(command)).await;
        answered.await.ok()
    }
}

async fn run(
    mut state: TablesState,
    mut inbox: mpsc::Receiver<TablesStep>,
    mut rules: policy::Watch,
    watched: &Watched,
) {
    let (mut look, mut probe) = (interval(LOOK), interval(PROBE));
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    probe.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut refresh_at, mut not_before): (Option<Instant>, _) = (None, Instant::now());
    loop {
        let due = refresh_at.unwrap_or_else(Instant::now);
        let reading_due = state.begin_readings();
        let next_reading = reading_due.unwrap_or_else(Instant::now);
        watched.waits();
        tokio::select! {
            command = inbox.recv() => {
                watched.works();
                match command {
                    Some(command) => command(&mut state),
                    None => return,
                }
            }
            wake = state.wake() => match wake {
                Wake::Changed => {}
                Wake::PathGone => state.look(),
                Wake::Read(read) => {
                    watched.works();
                    state.take_read(*read);
                }
            },
            // The next round begins it.
            () = sleep_until(next_reading), if reading_due.is_some() => {}
            () = sleep_until(due), if refresh_at.is_some() => {
                watched.works();
                let begun = Instant::now();
                let is_whole = state.refresh();
                let now = Instant::now();
                refresh_at = (!is_whole).then(|| now + RETRY);
                not_before = now + ((now - begun) * (SHARE - 1)).min(COALESCE);
            }
            _ = look.tick(), if state.has_pods() => state.look(),
            _ = probe.tick() => state.probe(),
            (rules, is_whole) = rules.changed() => state.set_rules(rules, is_whole),
        }
        rules.want(state.wants_rules());
        if state.is_behind() {
            refresh_at.get_or_insert_with(|| not_before.max(Instant::now() + GATHER));
        }
    }
}
