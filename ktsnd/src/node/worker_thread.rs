// SPDX-License-Identifier: Apache-2.0
//! Starts a worker on a thread of its own, with what the machine allows.

use std::sync::Arc;
use std::thread::JoinHandle;

use ktsn_port::AnyPort;
use ktsn_resolve::Tables;
use rustix::thread::{CpuSet, sched_setaffinity};
use tokio::sync::mpsc;
use tracing::warn;

use super::Event;
use crate::config::Port as PortConfig;
use crate::limits;
use crate::stats::WorkerStats;
use crate::sys;
use crate::tenant::Directory;
use crate::worker::{Command, Host, Outbox, Returned, Worker, WorkerOptions, queues};

/// A running worker.
pub(super) struct WorkerThread {
    pub(super) outbox: Outbox<AnyPort>,
    pub(super) stats: Arc<WorkerStats>,
    pub(super) ended: bool,
    /// No two workers of a daemon have the same.
    pub(super) number: u64,
    thread: Option<JoinHandle<()>>,
}

impl WorkerThread {
    /// Starts the worker of `config.device`. What it returns arrives as events.
    pub(super) fn start(
        config: &PortConfig,
        number: u64,
        tables: Arc<Tables>,
        events: mpsc::UnboundedSender<Event>,
        directory: Directory<AnyPort>,
    ) -> Result<Self, std::io::Error> {
        let (outbox, inbox, returned, wake) = queues::<AnyPort>()?;
        let stats = Arc::new(WorkerStats::default());
        let host = Host::new(wake)?;
        let options = WorkerOptions {
            spin_margin: config.spin_margin,
            spin_duty_max_permille: config.spin_duty_max_permille,
        };
        let (notifier, notices) = std::sync::mpsc::sync_channel(limits::NOTICES_QUEUED);
        let mut worker = Worker::new(host, inbox, tables, options, stats.clone()).with_notifier(notifier);
        let (cpu, priority, device) = (config.cpu, config.priority, config.device.clone());
        let thread = std::thread::Builder::new().name("ktsn-worker".into()).spawn(move || {
            prepare(cpu, priority, &device);
            worker.run();
        })?;
        // Its sender goes with the worker; then this thread ends.
        let told = directory.clone();
        std::thread::Builder::new()
            .name("ktsn-notifier".into())
            .stack_size(256 << 10)
            .spawn(move || told.notify(&notices))?;
        // Frees what the worker hands back, and passes news on.
        std::thread::Builder::new().name("ktsn-returned".into()).stack_size(256 << 10).spawn(move || {
            for item in returned {
                match item {
                    Returned::Client(client) => directory.over(client.key),
                    Returned::Port(..) | Returned::Boxed(_) | Returned::Tables(_) => {}
                    news => {
                        if events.send(Event::Worker(number, news)).is_err() {
                            return;
                        }
                    }
                }
            }
        })?;
        Ok(Self { outbox, stats, ended: false, number, thread: Some(thread) })
    }

    /// Sends a command; a worker that has ended needs none.
    pub(super) fn send(&self, command: Command<AnyPort>) {
        let _ = self.outbox.send(command);
    }

    /// The worker said that it ended.
    pub(super) fn join(&mut self) {
        self.ended = true;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Real-time settings of the worker's thread. Each may be refused; then frames leave later, never earlier.
fn prepare(cpu: Option<u32>, priority: u32, device: &str) {
    if let Some(cpu) = cpu {
        let mut set = CpuSet::new();
        let fits = (cpu as usize) < CpuSet::MAX_CPU;
        if fits {
            set.set(cpu as usize);
        }
        if !fits || sched_setaffinity(None, &set).is_err() {
            warn!(device, cpu, "port.cpu: there is no such CPU here; the worker runs on any");
        }
    }
    if let Err(error) = sys::set_timer_slack() {
        warn!(device, %error, "timer slack stays at 50 µs: wake-ups are late by that much");
    }
    if let Err(error) = sys::set_fifo(priority) {
        warn!(
            device, priority, %error,
            "the worker runs as an ordinary thread: expect late frames under load. \
             Needed: CAP_SYS_NICE and, in a cgroup v1 child, cpu.rt_runtime_us > 0"
        );
    }
}
