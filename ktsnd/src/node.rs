// SPDX-License-Identifier: Apache-2.0
//! The node: all attachments, ports and workers, changed by one task at a time.
//!
//! In: requests from the control API, events from tables and workers. Out: commands to workers, the directory
//! for the registrar, the state file. It holds no frame and is on no frame's way.

mod answer;
mod attach;
mod events;
pub(crate) mod intent;
mod opening;
mod policies;
pub(crate) mod ports;
mod request;
mod restore;
mod schedule;
pub(crate) mod served;
pub(crate) mod watch;
mod watching;
pub(crate) mod workers;

use std::sync::Arc;

use ktsn_port::AnyPort;
use ktsn_resolve::{AttachmentIndex, Tables};
use ktsn_time::Nanos;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, error, info, warn};

use crate::clients::{Directory, RegistrarHandle, ServedAttachment};
use crate::limits;
use crate::tables;
use crate::worker::{Command, Returned, RouteNews};
pub(crate) use events::{Event, EventQueue, EventSender};
use intent::Intent;
use ports::Ports;
pub use request::{NodeError, NodeRequest};
use served::ServedAttachments;
use watch::Watch;
use workers::Workers;

/// How often captures, deferred interfaces and what is to be tried again are looked at.
const LOOK: std::time::Duration = std::time::Duration::from_secs(1);

/// New clients that ask for grants within this span are served together: a renewal visits all of them.
const RENEWAL_PAUSE: std::time::Duration = std::time::Duration::from_millis(10);

/// The node: it connects what is asked for, ports, workers, what is served, and what is watched.
pub struct Node {
    pub(crate) intent: Intent,
    pub(crate) ports: Ports,
    pub(crate) workers: Workers,
    pub(crate) served: ServedAttachments,
    pub(crate) watch: Watch,
    manager: tables::Manager,
    pub(crate) latest: Arc<Tables>,
    pub(crate) directory: Directory<AnyPort>,
    registrar: RegistrarHandle,
    events: EventSender,
    stopping: bool,
}

impl Node {
    pub(crate) fn new(
        intent: Intent,
        workers: Workers,
        manager: tables::Manager,
        directory: Directory<AnyPort>,
        registrar: RegistrarHandle,
        events: EventSender,
        latest: Arc<Tables>,
    ) -> Self {
        let mut served = ServedAttachments::default();
        served.go_on_counting(intent.run_dir());
        Self {
            intent,
            ports: Ports::default(),
            workers,
            served,
            watch: Watch::default(),
            manager,
            latest,
            directory,
            registrar,
            events,
            stopping: false,
        }
    }

    /// Serves until `stop`, then drains: nothing new is taken, what is queued is sent.
    pub(crate) async fn run(
        &mut self,
        mut requests: mpsc::Receiver<NodeRequest>,
        mut events: EventQueue,
        mut stop: oneshot::Receiver<()>,
    ) {
        let mut poll = tokio::time::interval(LOOK);
        poll.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut receive_renewal = tokio::time::interval(limits::RECEIVE_RENEWAL);
        receive_renewal.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let receivers = self.directory.receivers().clone();
        self.watch.start_looks(&self.events);
        let (mut renewed_at, mut renew_at) = (None::<Instant>, None::<Instant>);
        loop {
            tokio::select! {
                _ = &mut stop, if !self.stopping => {
                    info!("draining: nothing new is taken, queued frames are sent");
                    self.stopping = true;
                    self.note_health();
                    self.directory.receivers().close();
                    // A drain may be killed: what is counted by now is kept all the same.
                    self.served.keep_counters(self.intent.run_dir());
                    self.registrar.admit_no_more();
                    self.served.end_captures();
                    self.watch.end_ingress();
                    self.workers.send_all(|| Command::Drain);
                }
                Some(request) = requests.recv() => self.answer(request).await,
                event = events.next() => {
                    self.handle_event(event).await;
                    // Many pods that go at once are written once: writing waits for the disk.
                    if self.intent.has_to_save() && events.is_empty() {
                        self.intent.save();
                    }
                }
                _ = receive_renewal.tick() => self.renew_grants(),
                () = receivers.wait_for_request(), if renew_at.is_none() => {
                    let soonest = renewed_at.map_or_else(Instant::now, |at| at + RENEWAL_PAUSE);
                    renew_at = Some(soonest.max(Instant::now()));
                }
                () = sleep_until(renew_at.unwrap_or_else(Instant::now)), if renew_at.is_some() => {
                    (renewed_at, renew_at) = (Some(Instant::now()), None);
                    self.renew_grants();
                }
                _ = poll.tick() => {
                    self.look_at_deferred();
                    self.workers.look_at_margins();
                    if self.intent.is_unsaved() {
                        self.intent.save();
                    }
                    self.retry_waiting().await;
                    self.note_health();
                }
            }
            if self.stopping && self.workers.have_all_ended() {
                return;
            }
        }
    }

    async fn handle_event(&mut self, event: Event) {
        match event {
            Event::Tables(tables::Event::Tables(tables)) => self.publish(tables),
            Event::Tables(tables::Event::NamespaceGone(index)) => {
                if let Some(name) = self.served.name_of(index) {
                    info!(attachment = name, "its network namespace or interface is gone: detached");
                    match self.detach_unsaved(&name).await {
                        Ok(true) => self.intent.must_save(),
                        Ok(false) => {}
                        Err(error) => error!(attachment = name, %error, "detaching failed"),
                    }
                    if !self.stopping {
                        self.intent.wait_for_configured(&name);
                    }
                }
            }
            Event::Tables(tables::Event::Overlay(news)) => self.served.note_overlay(news),
            Event::Tables(tables::Event::Rules(news)) => self.served.note_rules(news),
            Event::Tables(tables::Event::RulesRead) => self.open_closed().await,
            Event::Tables(tables::Event::Route(number, answered)) => {
                // Where the worker was taken back, nobody waits for the answer.
                let tables::AnsweredRoute { flow, revision, answer } = answered;
                if let Some(uplink) = self.workers.uplink_of(number) {
                    let news = RouteNews { flow, revision, answer };
                    self.workers.send(&uplink, Command::Route(Box::new(news)));
                }
            }
            Event::Tables(tables::Event::Warning(text)) => warn!("{text}"),
            Event::Clock => self.clock_changed(),
            Event::Programs => self.look_at_programs(),
            Event::Uplink(worker, index, news) => self.uplink_news(worker, index, news),
            Event::Worker(_, Returned::Gates(_, view)) => self.workers.gates_seen(view),
            Event::Worker(number, returned) => self.returned(number, &returned),
        }
    }

    fn returned(&mut self, number: u64, returned: &Returned<AnyPort>) {
        // The worker was taken back: its events do not concern its successor, which must not be joined.
        let Some(uplink) = self.workers.uplink_of(number) else { return };
        match *returned {
            Returned::NeighbourWanted(index, next_hop) => self.manager.ensure_neighbour(index, next_hop),
            Returned::RouteWanted(flow) => self.manager.ask_route(number, flow),
            Returned::Retired(key, ref error) => {
                debug!(client = key.0, %error, "a client wrote impossible links into its region; it gets a new one");
            }
            Returned::BeyondHorizon(index, ahead) => self.beyond_horizon(index, ahead),
            Returned::PortFailed(index, generation) => self.ports.failed(index, generation),
            Returned::PortSlow(index, longest) => self.defer(index, longest),
            Returned::CaptureRefused(index) => self.served.end_capture(index),
            Returned::Ended => self.workers.join(&uplink),
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
        let Some(served) = self.served.get(index) else { return };
        let (name, horizon) = (served.name(), served.attachment.horizon);
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
    /// attachment come with the answer of `add` first, and then once more as an event.
    fn publish(&mut self, tables: Arc<Tables>) {
        if tables.generation() <= self.latest.generation() {
            return;
        }
        let before = std::mem::replace(&mut self.latest, tables.clone()).generation();
        self.workers.send_all(|| Command::Tables(tables.clone()));
        for warning in self.served.capture_by_tables(&tables, before) {
            self.watch.warn(warning);
        }
        let is_new = |served: &ServedAttachment| {
            served.attachment.is_short() && tables.generation_of(served.index) > before
        };
        if self.served.iter().any(is_new) {
            self.watch.ingress_by_tables(&self.served, &tables);
        }
        self.directory.set_tables(tables);
        self.registrar.tables_changed();
    }
}
