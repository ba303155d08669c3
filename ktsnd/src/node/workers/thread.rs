// SPDX-License-Identifier: Apache-2.0
//! Starts a worker on a thread of its own, with what the machine allows.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;

use ktsn_expect::Margins;
use ktsn_port::AnyPort;
use ktsn_resolve::Tables;
use ktsn_time::Nanos;
use rustix::thread::{CpuSet, sched_setaffinity, set_current_timer_slack};
use tracing::{debug, warn};

use crate::clients::Directory;
use crate::config::Port as PortConfig;
use crate::cpus;
use crate::limits;
use crate::node::events::{Event, EventSender};
use crate::queue::worker_to_thread;
use crate::rehearsal::Rehearsal;
use crate::stats::WorkerStats;
use crate::supervise::{WORKER, Watched};
use crate::sys;
use crate::worker::{ClockGate, Command, Host, Outbox, Returned, Worker, WorkerOptions, queues};

/// A running worker.
pub(super) struct WorkerThread {
    pub(super) outbox: Outbox<AnyPort>,
    pub(super) stats: Arc<WorkerStats>,
    pub(super) ended: bool,
    /// No two workers of a daemon have the same.
    pub(super) number: u64,
    thread: Option<JoinHandle<()>>,
    /// Closes what the worker hands back; it ends after the worker.
    freeing_thread: JoinHandle<()>,
}

impl WorkerThread {
    /// Starts the worker of `config.device`. What it returns arrives as events.
    pub(super) fn start(
        config: &PortConfig,
        number: u64,
        tables: Arc<Tables>,
        events: EventSender,
        directory: Directory<AnyPort>,
        is_clock_good: bool,
        known_margins: Option<Margins>,
    ) -> Result<Self, std::io::Error> {
        let (outbox, inbox, returned, wake) = queues::<AnyPort>()?;
        let stats = Arc::new(WorkerStats::default());
        let host = Host::new(wake)?.with_rehearsal(rehearsal(&config.device));
        let options = WorkerOptions {
            spin_margin: config.spin_margin,
            known_margins,
            spin_duty_max_permille: config.spin_duty_max_permille,
        };
        let (notifier, notices) = worker_to_thread(limits::NOTICES_QUEUED)?;
        let (passer, passed) = worker_to_thread(limits::PASSED_QUEUED)?;
        let mut worker = Worker::new(host, inbox, tables, options, stats.clone())
            .with_notifier(notifier)
            .with_passer(passer)
            .with_clock(ClockGate::new(config.unsynchronised, is_clock_good));
        let (cpu, priority, device) = (config.cpu, config.priority, config.device.clone());
        let (beats, asked) = (stats.clone(), outbox.clone());
        let watched = Watched::worker(&device, move || beats.passes.load(Relaxed), move || asked.ring());
        let thread = std::thread::Builder::new().name(WORKER.into()).spawn(move || {
            prepare(cpu, priority, &device);
            worker.run();
            drop(watched);
        })?;
        // Its sender goes with the worker; then this thread ends.
        let (notified, device) = (directory.clone(), config.device.clone());
        std::thread::Builder::new()
            .name("ktsn-notifier".into())
            .stack_size(256 << 10)
            .spawn(move || notified.notify(&notices, &device))?;
        let (told, of_worker) = (directory.clone(), outbox.clone());
        std::thread::Builder::new()
            .name("ktsn-passed".into())
            .stack_size(256 << 10)
            .spawn(move || told.pass(&passed, &of_worker))?;
        let (to_free, free_queue) = std::sync::mpsc::channel();
        let (events_of_returned, device_of_returned) = (events.clone(), config.device.clone());
        let device_of_freed = config.device.clone();
        // Both end with the worker: each when the sender before it is gone.
        std::thread::Builder::new().name("ktsn-returned".into()).stack_size(256 << 10).spawn(move || {
            pass_on(
                number,
                &WatchedReceiver::new("ktsn-returned", &device_of_returned, move || returned.recv().ok()),
                &to_free,
                &events_of_returned,
            );
        })?;
        let freeing_thread =
            std::thread::Builder::new().name("ktsn-freed".into()).stack_size(256 << 10).spawn(move || {
                free(
                    number,
                    &WatchedReceiver::new("ktsn-freed", &device_of_freed, move || free_queue.recv().ok()),
                    &directory,
                    &events,
                );
            })?;
        Ok(Self { outbox, stats, ended: false, number, thread: Some(thread), freeing_thread })
    }

    /// Sends a command; a worker that has ended needs none.
    pub(super) fn send(&self, command: Command<AnyPort>) {
        let _ = self.outbox.send(command);
    }

    /// The margins that it has learnt so far.
    pub(super) fn margins(&self) -> [Option<Nanos>; 3] {
        let margin = |nanos: u64| (nanos > 0).then_some(Nanos::new(nanos.cast_signed()));
        self.stats.margins_learnt.each_ref().map(|learnt| margin(learnt.load(Relaxed)))
    }

    /// Whether it takes no commands any more.
    pub(super) fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends it. Returns when its devices are closed: an AF_XDP socket that is still open would refuse the next one on the device. A
    /// worker whose attachment failed has nothing queued, so this takes the kernel's time to close sockets, tens of milliseconds. The
    /// runtime's one thread goes on meanwhile; the node's other requests wait.
    pub(super) async fn end(self) {
        self.send(Command::Drain);
        let threads = self.thread.into_iter().chain([self.freeing_thread]);
        let joined = tokio::task::spawn_blocking(move || threads.for_each(|thread| drop(thread.join())));
        let _ = joined.await;
    }

    /// The worker said that it ended.
    pub(super) fn join(&mut self) {
        self.ended = true;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A frame to rehearse with; `None` where ktsnd may make no namespace.
fn rehearsal(device: &str) -> Option<Rehearsal> {
    Rehearsal::open()
        .inspect_err(
            |error| debug!(device, %error, "no veth pair in a namespace of its own to rehearse with: frames after a pause are sent some microseconds later"),
        )
        .ok()
}

/// The receiving end of a thread's queue. It shows the supervisor whether the thread waits or works.
struct WatchedReceiver {
    receive: Box<dyn Fn() -> Option<Returned<AnyPort>>>,
    watched: Watched,
}

impl WatchedReceiver {
    fn new(
        thread: &'static str,
        device: &str,
        receive: impl Fn() -> Option<Returned<AnyPort>> + 'static,
    ) -> Self {
        Self { receive: Box::new(receive), watched: Watched::enter(thread, device) }
    }

    /// The next one; `None`: the sender has gone.
    fn next(&self) -> Option<Returned<AnyPort>> {
        self.watched.waits();
        let item = (self.receive)();
        self.watched.works();
        item
    }
}

/// Empties the worker's queue at once: what is freed may take the kernel long (a packet socket waits until no CPU
/// uses it, tens of milliseconds), and a full queue would have the worker free it.
fn pass_on(
    number: u64,
    returned: &WatchedReceiver,
    to_free: &Sender<Returned<AnyPort>>,
    events: &EventSender,
) {
    while let Some(item) = returned.next() {
        let is_passed = match item {
            Returned::Client(_) | Returned::Port(..) | Returned::Boxed(_) | Returned::Tables(_)
            // The receiver of these events opens the device again: not before the old port is closed.
            | Returned::PortFailed(..) | Returned::Ended => to_free.send(item).is_ok(),
            notice => events.send(Event::Worker(number, notice)).is_ok(),
        };
        if !is_passed {
            return;
        }
    }
}

/// Frees what the worker handed back, in order, and passes on what may only be known afterwards.
fn free(number: u64, free_queue: &WatchedReceiver, directory: &Directory<AnyPort>, events: &EventSender) {
    while let Some(item) = free_queue.next() {
        match item {
            Returned::Client(client) => directory.over(client.key),
            Returned::Port(..) | Returned::Boxed(_) | Returned::Tables(_) => {}
            notice => {
                if events.send(Event::Worker(number, notice)).is_err() {
                    return;
                }
            }
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
            cpus::anywhere();
        }
    } else {
        cpus::anywhere();
    }
    if let Err(error) = set_current_timer_slack(NonZeroU64::new(1)) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::EventQueue;
    use crate::worker::GateView;
    use ktsn_eventually::try_eventually;
    use ktsn_resolve::PortIndex;

    /// A port that closes only when the test lets it.
    struct Slow(std::sync::mpsc::Receiver<()>);

    impl Drop for Slow {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }

    #[test]
    fn answers_do_not_wait_for_what_is_freed_before_them_but_a_closed_port_does() {
        let (mut worker, returned) = worker_to_thread(8).unwrap();
        let (freed, bin) = std::sync::mpsc::channel();
        let (events, mut heard) = EventQueue::new();
        let (close, closing) = std::sync::mpsc::channel();
        let directory = Directory::new(Arc::new(Tables::new(0, Vec::new()).unwrap()));
        let news = events.clone();
        let passes = std::thread::spawn(move || {
            pass_on(7, &WatchedReceiver::new("test", "", move || returned.recv().ok()), &freed, &news);
        });
        let frees = std::thread::spawn(move || {
            free(7, &WatchedReceiver::new("test", "", move || bin.recv().ok()), &directory, &events);
        });
        worker.try_send(Returned::Boxed(Box::new(Slow(closing)))).unwrap();
        worker.try_send(Returned::PortFailed(PortIndex(3), 0)).unwrap();
        worker.try_send(Returned::Gates(PortIndex(3), Box::new(GateView::new(1)))).unwrap();
        let first = soon(&mut heard);
        assert!(matches!(first, Some(Event::Worker(7, Returned::Gates(..)))), "{first:?}");
        // Nothing may come yet.
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(heard.is_empty(), "the port is not closed yet");
        close.send(()).unwrap();
        let second = soon(&mut heard);
        assert!(
            matches!(second, Some(Event::Worker(7, Returned::PortFailed(PortIndex(3), 0)))),
            "{second:?}"
        );
        drop(worker);
        passes.join().unwrap();
        frees.join().unwrap();
    }

    fn soon(heard: &mut EventQueue) -> Option<Event> {
        try_eventually(std::time::Duration::from_secs(10), || heard.take())
    }
}
