// SPDX-License-Identifier: Apache-2.0
//! The handle that the node holds, and the task behind it.
//!
//! In: commands through a [`Manager`]. Out: answers, and events through the function given at the start. The task
//! runs beside others on the control thread; between two of its steps every attachment is either wholly there or not.

use std::sync::Arc;
use std::time::Duration;

use ktsn_resolve::{AttachmentIndex, NextHop, Tables};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::namespace::Entered;
use super::state::{TablesState, Wake};
use super::{Added, AttachmentSpec, Event, OverlayNews, TablesError};
use crate::config::VxlanPeer;
use crate::policy::{self, Restriction};

/// A change after a quiet time waits so long for those that come with it: a frame may wait for its next hop's MAC address.
const GATHER: Duration = Duration::from_millis(1);
/// Where changes go on, a generation costs at most one part in so many of the time, but is never kept back for longer than this.
const SHARE: u32 = 5;
const COALESCE: Duration = Duration::from_millis(20);
/// How often namespaces' paths are looked at.
const LOOK: Duration = Duration::from_millis(250);
/// How often neighbours that nobody confirms are probed.
const PROBE: Duration = Duration::from_secs(5);
/// When to try again what the kernel refused.
const RETRY: Duration = Duration::from_secs(1);

/// Commands that wait at most.
const COMMANDS_MAX: usize = 1024;

/// Whose peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PeersOf {
    /// Those of one attachment.
    Attachment(AttachmentIndex),
    /// Those of every attachment whose overlay has this network identifier.
    Vni(u32),
}

enum Command {
    Add(Box<AttachmentSpec>, Option<Entered>, oneshot::Sender<Result<Added, TablesError>>),
    Remove(AttachmentIndex, oneshot::Sender<()>),
    Neighbour(AttachmentIndex, NextHop),
    Peers(PeersOf, Vec<VxlanPeer>, oneshot::Sender<Vec<OverlayNews>>),
    Restrict(Vec<(AttachmentIndex, Arc<Restriction>)>, oneshot::Sender<Option<Arc<Tables>>>),
}

/// Keeps the tables; ends when it is dropped.
#[derive(Debug)]
pub struct Manager {
    commands: mpsc::Sender<Command>,
    rules: policy::Known,
}

impl Manager {
    /// Starts the task on the current runtime. `report` is called from it and must not block.
    ///
    /// # Errors
    /// `Netlink` when the kernel does not talk to us.
    #[allow(clippy::unused_async)] // needs a runtime, and says so
    pub async fn start(report: impl Fn(Event) + Send + 'static) -> Result<Self, TablesError> {
        let (commands, inbox) = mpsc::channel(COMMANDS_MAX);
        let state = TablesState::new(Box::new(report))?;
        let watch = policy::Watch::start();
        let rules = watch.known();
        tokio::spawn(run(state, inbox, watch));
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
    pub async fn add(&self, spec: AttachmentSpec) -> Result<Added, TablesError> {
        self.add_entered(spec, None).await
    }

    /// The same, where somebody has been in the pod's namespace already.
    pub(crate) async fn add_entered(
        &self,
        spec: AttachmentSpec,
        entered: Option<Entered>,
    ) -> Result<Added, TablesError> {
        let (answer, answered) = oneshot::channel();
        self.send(Command::Add(Box::new(spec), entered, answer)).await;
        answered.await.unwrap_or(Err(TablesError::Ended))
    }

    /// Removes an attachment; when this returns, nothing is held in its namespace any more.
    pub async fn remove(&self, index: AttachmentIndex) {
        let (answer, answered) = oneshot::channel();
        self.send(Command::Remove(index, answer)).await;
        // A task that has ended holds nothing either.
        let _ = answered.await;
    }

    /// Makes the kernel resolve a neighbour and keeps it fresh as long as the attachment stands. Where too much waits already it
    /// is left out: a worker asks again as long as frames need it.
    pub fn ensure_neighbour(&self, index: AttachmentIndex, next_hop: NextHop) {
        let _ = self.commands.try_send(Command::Neighbour(index, next_hop));
    }

    /// Replaces the peers that were given before; none: forgets them. In force when this returns, with all overlays as
    /// they are then. An attachment's go with it.
    pub async fn set_peers(&self, of: PeersOf, peers: Vec<VxlanPeer>) -> Vec<OverlayNews> {
        let (answer, answered) = oneshot::channel();
        self.send(Command::Peers(of, peers, answer)).await;
        // A task that has ended serves nobody.
        answered.await.unwrap_or_default()
    }

    /// Says what network policies leave of these attachments' short cuts; answers the newest tables.
    pub async fn restrict(
        &self,
        restrictions: Vec<(AttachmentIndex, Arc<Restriction>)>,
    ) -> Option<Arc<Tables>> {
        let (answer, answered) = oneshot::channel();
        self.send(Command::Restrict(restrictions, answer)).await;
        // A task that has ended serves nobody.
        answered.await.unwrap_or_default()
    }

    async fn send(&self, command: Command) {
        // The task ends only after its last Manager.
        let _ = self.commands.send(command).await;
    }
}

async fn run(mut state: TablesState, mut inbox: mpsc::Receiver<Command>, mut rules: policy::Watch) {
    let (mut look, mut probe) = (interval(LOOK), interval(PROBE));
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    probe.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut refresh_at, mut not_before): (Option<Instant>, _) = (None, Instant::now());
    loop {
        let due = refresh_at.unwrap_or_else(Instant::now);
        tokio::select! {
            command = inbox.recv() => match command {
                Some(command) => execute(&mut state, command),
                None => return,
            },
            wake = state.wake() => match wake {
                Wake::Changed => {}
                Wake::PathGone => state.look(),
            },
            () = sleep_until(due), if refresh_at.is_some() => {
                let begun = Instant::now();
                let is_whole = state.refresh();
                let now = Instant::now();
                refresh_at = (!is_whole).then(|| now + RETRY);
                not_before = now + ((now - begun) * (SHARE - 1)).min(COALESCE);
            }
            _ = look.tick() => state.look(),
            _ = probe.tick() => state.probe(),
            (rules, is_whole) = rules.changed() => state.set_rules(rules, is_whole),
        }
        rules.want(state.wants_rules());
        if state.is_behind() {
            refresh_at.get_or_insert_with(|| not_before.max(Instant::now() + GATHER));
        }
    }
}

fn execute(state: &mut TablesState, command: Command) {
    // Who asked may have gone; then nobody reads the answer.
    match command {
        Command::Add(spec, entered, answer) => {
            let _ = answer.send(state.add(*spec, entered));
        }
        Command::Remove(index, answer) => {
            state.remove(index);
            let _ = answer.send(());
        }
        Command::Peers(of, peers, answer) => {
            let _ = answer.send(state.set_peers(of, peers));
        }
        Command::Restrict(restrictions, answer) => {
            let _ = answer.send(state.restrict(restrictions));
        }
        Command::Neighbour(index, next_hop) => state.ensure_neighbour(index, next_hop),
    }
}
