// SPDX-License-Identifier: Apache-2.0
//! The running workers, by their uplink, and what they answer.
//!
//! In: commands, answers about gates. Out: the commands in each worker's queue, the spin margins that workers learn, kept for the next
//! worker and the next daemon.

mod thread;

use std::collections::BTreeMap;
use std::sync::Arc;

use ktsn_port::AnyPort;
use ktsn_resolve::{PortIndex, Tables};
use tokio::sync::oneshot;
use tracing::debug;

use super::events::EventSender;
use super::request::NodeError;
use crate::clients::Directory;
use crate::config::Port as PortConfig;
use crate::margins::MarginCache;
use crate::queue::Ended;
use crate::stats::WorkerStats;
use crate::worker::{Command, GateView, Outbox};
use thread::WorkerThread;

/// All workers.
pub(crate) struct Workers {
    running: BTreeMap<String, WorkerThread>,
    /// The number of workers so far. It is the last worker's number.
    started: u64,
    /// The spin margins that workers learnt on this machine.
    margins: MarginCache,
    /// Requests about gates that workers have not answered yet, by number.
    gate_requests: BTreeMap<u64, oneshot::Sender<Box<GateView>>>,
    /// The number of requests about gates so far. It is the last request's number.
    gate_requests_count: u64,
}

impl Workers {
    /// No worker yet; they begin with the margins that are known of this machine.
    pub(crate) fn new(margins: MarginCache) -> Self {
        let (running, gate_requests) = (BTreeMap::new(), BTreeMap::new());
        Self { running, started: 0, margins, gate_requests, gate_requests_count: 0 }
    }

    pub(crate) fn stats(&self) -> impl Iterator<Item = (&String, &Arc<WorkerStats>)> {
        self.running.iter().map(|(uplink, worker)| (uplink, &worker.stats))
    }

    pub(crate) fn uplinks(&self) -> impl Iterator<Item = &String> {
        self.running.keys()
    }

    pub(crate) fn has(&self, uplink: &str) -> bool {
        self.running.contains_key(uplink)
    }

    /// The uplink of the worker with this number; `None`: it was taken back, and its events do not concern its successor.
    pub(super) fn uplink_of(&self, number: u64) -> Option<String> {
        self.running.iter().find(|(_, worker)| worker.number == number).map(|(uplink, _)| uplink.clone())
    }

    /// Whether the worker takes no commands any more.
    pub(super) fn is_over(&self, uplink: &str) -> bool {
        self.running.get(uplink).is_none_or(WorkerThread::is_over)
    }

    pub(super) fn have_all_ended(&self) -> bool {
        self.running.values().all(|worker| worker.ended)
    }

    /// Starts the worker of `config.device`. Answers its number: no two workers of a daemon have the same.
    pub(super) fn start(
        &mut self,
        config: &PortConfig,
        tables: Arc<Tables>,
        events: EventSender,
        directory: Directory<AnyPort>,
        is_clock_good: bool,
    ) -> Result<u64, NodeError> {
        self.started += 1;
        let margins = self.margins.known();
        let worker =
            WorkerThread::start(config, self.started, tables, events, directory, is_clock_good, margins)
                .map_err(|error| NodeError::NoWorker { uplink: config.device.clone(), error })?;
        self.running.insert(config.device.clone(), worker);
        Ok(self.started)
    }

    /// Sends a command that the worker must take for an attachment to be served.
    ///
    /// # Errors
    /// [`NodeError::WorkerEnded`].
    pub(super) fn must_take(&self, uplink: &str, command: Command<AnyPort>) -> Result<(), NodeError> {
        self.outbox(uplink)?.send(command).map_err(|Ended| NodeError::WorkerEnded(uplink.to_owned()))
    }

    /// Sends a command; a worker that has ended needs none.
    pub(super) fn send(&self, uplink: &str, command: Command<AnyPort>) {
        if let Some(worker) = self.running.get(uplink) {
            worker.send(command);
        }
    }

    /// Sends a command to each worker.
    pub(super) fn send_all(&self, command: impl Fn() -> Command<AnyPort>) {
        self.running.values().for_each(|worker| worker.send(command()));
    }

    /// Where commands for an uplink's worker are put in.
    ///
    /// # Errors
    /// [`NodeError::WorkerEnded`].
    pub(super) fn outbox(&self, uplink: &str) -> Result<Outbox<AnyPort>, NodeError> {
        let worker = self.running.get(uplink).ok_or_else(|| NodeError::WorkerEnded(uplink.to_owned()))?;
        Ok(worker.outbox.clone())
    }

    /// Takes a worker back.
    pub(super) async fn end(&mut self, uplink: &str) {
        if let Some(worker) = self.running.remove(uplink) {
            worker.end().await;
        }
    }

    /// Takes a worker back that has got nothing; it ends by itself.
    pub(super) fn drop_unused(&mut self, uplink: &str) {
        self.running.remove(uplink);
    }

    /// A worker said that it ended.
    pub(super) fn join(&mut self, uplink: &str) {
        debug!(uplink, "worker ended");
        if let Some(worker) = self.running.get_mut(uplink) {
            worker.join();
        }
    }

    /// Asks a worker for the gates of its uplink.
    pub(super) fn look_at_gates(
        &mut self,
        uplink: &str,
        index: PortIndex,
    ) -> oneshot::Receiver<Box<GateView>> {
        let (sender, receiver) = oneshot::channel();
        self.gate_requests.retain(|_, request| !request.is_closed());
        self.gate_requests_count += 1;
        let number = self.gate_requests_count;
        if self.has(uplink) {
            self.gate_requests.insert(number, sender);
            self.send(uplink, Command::LookAtGates(index, Box::new(GateView::new(number))));
        }
        receiver
    }

    /// A worker answers.
    pub(super) fn gates_seen(&mut self, view: Box<GateView>) {
        if let Some(request) = self.gate_requests.remove(&view.number) {
            // The caller may have given up.
            let _ = request.send(view);
        }
    }

    /// Takes what the running workers have learnt, and saves it now and then.
    pub(super) fn look_at_margins(&mut self) {
        self.margins.learn(self.running.values().map(WorkerThread::margins));
        self.margins.save_sometimes();
    }

    /// Saves what the workers have learnt.
    pub(super) fn keep_margins(&mut self) {
        self.look_at_margins();
        self.margins.save();
    }
}
