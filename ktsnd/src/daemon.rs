// SPDX-License-Identifier: Apache-2.0
//! Puts the daemon together, runs it, and takes it apart.

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use ktsn_resolve::Tables;
use rustix::mm::{MlockAllFlags, mlockall};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tracing::{info, warn};

use crate::clients::{Directory, RegistrarHandle};
use crate::clock::{Source, Watcher};
use crate::config::Config;
use crate::control::Control;
use crate::margins::MarginCache;
use crate::metrics::Server;
use crate::node::intent::Intent;
use crate::node::workers::Workers;
use crate::node::{Event, EventQueue, Node, NodeRequest};
use crate::run_dir::{RunDir, take_over};
use crate::supervise::{CONTROL, Supervisor, Watched};
use crate::tables;

/// The settings that the command line decides.
#[derive(Debug, Clone)]
pub struct Options {
    /// Sockets, lock and state.
    pub run_dir: PathBuf,
    /// The directory for what ktsnd learns about this machine.
    pub cache_dir: PathBuf,
    /// The process that made the run directory and removes it. When that process is gone, ktsnd removes the directory at its end.
    pub run_dir_of: Option<u32>,
    /// How long to wait for the end of a ktsnd that uses the run directory. `None`: such a ktsnd is an error.
    pub take_over: Option<Duration>,
}

/// How long the kernel may take to close what a killed ktsnd had open.
const CLOSING: Duration = Duration::from_secs(1);

/// Runs until SIGTERM or SIGINT, then drains.
///
/// # Errors
/// What keeps the daemon from starting, with the field or path at fault and what to do.
pub fn run(config: Config, options: &Options) -> anyhow::Result<()> {
    // A ktsnd that waits for another one does all it can before: from the other one's end on, frames are lost.
    let held = options.take_over.is_none().then(|| RunDir::take(&options.run_dir)).transpose()?;
    // Three descriptors a client: the soft limit is for programs that use select.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, raised);
    crate::cpus::keep_off(config.ports.iter().filter_map(|port| port.cpu));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // A signal while attachments are made ends ktsnd in order, too.
        let mut stop = stop_signal()?;
        let patience = options.take_over.unwrap_or_default();
        let taken = match held {
            None => take_over(&options.run_dir, patience, &mut stop).await?,
            held => held,
        };
        let Some(mut run_dir) = taken else {
            info!("ends before it was its turn");
            return Ok(());
        };
        if let Some(owner) = options.run_dir_of {
            run_dir.belongs_to(owner);
        }
        // The ktsnd before has written its margins by now.
        let margins = MarginCache::open(&options.cache_dir);
        // A port that another program has is found before any pod is attached.
        let metrics_listener = match config.daemon.metrics_listen {
            Some(address) => Some(
                Server::bind_within(address, options.take_over.map_or(Duration::ZERO, |_| CLOSING)).await?,
            ),
            None => None,
        };
        serve(config, run_dir, margins, metrics_listener, stop).await
    })
}

/// Locks the memory that is touched, from now on.
fn lock_memory() -> rustix::io::Result<()> {
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT)
}

async fn serve(
    config: Config,
    run_dir: RunDir,
    margins: MarginCache,
    metrics_listener: Option<TcpListener>,
    stop: oneshot::Receiver<()>,
) -> anyhow::Result<()> {
    let lock = run_dir.lock();
    let (event_sender, events) = EventQueue::new();
    let (request_sender, requests) = mpsc::channel(64);
    let control_socket = run_dir.control_socket();
    let (kept, notes) = run_dir.load()?;
    let latest = Arc::new(Tables::new(0, Vec::new())?);
    let directory = Directory::new(latest.clone());
    directory.set_memory_max(config.daemon.memory_max);
    let manager = {
        let sender = event_sender.clone();
        tables::Manager::start(move |event| {
            // The node ends last: an event after it has no receiver, and needs none.
            let _ = sender.send(Event::Tables(event));
        })
        .await
        .context("netlink")?
    };
    crate::sys::give_memory_back();
    let _supervisor = Supervisor::start().context("supervisor")?;
    let registrar = RegistrarHandle::start(&run_dir.client_socket(), directory.clone())?;
    let mlock = config.daemon.mlock;
    let watcher = {
        let (source, error_max) = (config.daemon.clock_source, config.daemon.clock_error_max);
        let sender = event_sender.clone();
        let report = move || {
            // As above.
            let _ = sender.send(Event::Clock);
        };
        Watcher::start(Source::new(source, error_max), report).context("clock")?
    };
    let (intent, workers) = (Intent::new(config, run_dir), Workers::new(margins));
    let mut node = Node::new(intent, workers, manager, directory, registrar, event_sender, latest);
    for note in notes {
        node.watch.warn(format!("state file: {note}"));
    }
    if mlock {
        lock_memory_of(&mut node);
    }
    node.watch.clock = watcher.known();
    node.restore_lists(&kept).await;
    node.attach_configured().await?;
    node.restore(kept.attachments, kept.foreign).await;
    let metrics = metrics_listener.map(|listener| serve_metrics(listener, &request_sender)).transpose()?;
    let (served_sender, served) = oneshot::channel::<()>();
    node.note_health();
    let control =
        serve_control(Control::new(request_sender, node.watch.board.clone()), control_socket, served)
            .context("control thread")?;
    let _control = beat("ktsnd");
    info!("ready");
    node.run(requests, events, stop).await;
    node.keep_for_the_next();
    drop((node, metrics));
    // All that a next ktsnd needs for itself is free, and nothing is written any more.
    drop(lock);
    let _ = served_sender.send(());
    // A watcher that stays connected must not keep us.
    if let Ok(Ok(Err(error))) = tokio::time::timeout(CLOSING, control).await {
        warn!(%error, "control socket");
    }
    info!("drained");
    Ok(())
}

/// Answers clients from now on, on a thread of its own: the node may wait for the kernel. Its end, and how it ended.
fn serve_control(
    control: Control,
    socket: PathBuf,
    stop: oneshot::Receiver<()>,
) -> anyhow::Result<oneshot::Receiver<anyhow::Result<()>>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (ended, end) = oneshot::channel();
    std::thread::Builder::new().name(CONTROL.into()).spawn(move || {
        let served = runtime.block_on(async move {
            let _lives = beat(CONTROL);
            let stopped = async move {
                let _ = stop.await;
            };
            control.serve(&socket, stopped).await
        });
        let _ = ended.send(served);
    })?;
    Ok(end)
}

/// As `lock_memory`; where that is not allowed the node says so.
fn lock_memory_of(node: &mut Node) {
    if let Err(error) = lock_memory() {
        node.watch.warn(format!(
            "memory is not locked ({error}): page faults may delay frames; grant CAP_IPC_LOCK"
        ));
    }
}

/// Serves metrics from now on.
fn serve_metrics(listener: TcpListener, node: &mpsc::Sender<NodeRequest>) -> anyhow::Result<Server> {
    let address = listener.local_addr()?;
    info!("metrics at http://{address}/metrics");
    if !address.ip().is_loopback() {
        warn!("everyone who reaches {address} can read the metrics: there is no TLS and no password");
    }
    Server::start(listener, node.clone()).context("metrics")
}

/// Says when the daemon is to end: SIGTERM or SIGINT.
fn stop_signal() -> anyhow::Result<oneshot::Receiver<()>> {
    let (stop_sender, stop) = oneshot::channel();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        let _ = stop_sender.send(());
    });
    Ok(stop)
}

/// How often a thread with a runtime shows that it lives: twice before it counts as stuck.
const BEAT: std::time::Duration = std::time::Duration::from_millis(500);

/// The calling thread must live for as long as this is held.
fn beat(name: &'static str) -> tokio::task::JoinSet<()> {
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move {
        let watched = Watched::enter(name, "");
        let mut beats = tokio::time::interval(BEAT);
        beats.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            beats.tick().await;
            watched.works();
        }
    });
    tasks
}
