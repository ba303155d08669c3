// SPDX-License-Identifier: Apache-2.0
//! The thread that keeps a vhost-user port connected, and the port's end of it.
//!
//! In: a socket's path. Out: links, one after the other. Listening, negotiation (up to a second) and unmapping happen in the
//! thread; the port takes and returns links over wait-free queues.

use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use ktsn_virtio_net::{Link, OpenError as LinkOpenError, Options, Server, Watch};
use rtrb::{Consumer, Producer, RingBuffer};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::Socket;
use crate::error::OpenError;

/// One new link may wait beside the one in use.
const LINKS: usize = 2;
/// After a backend that failed, the next one is looked at so much later.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a negotiation may take. OVS answers in milliseconds, except while it gives up the connection before.
const NEGOTIATION_MAX: Duration = Duration::from_secs(5);
/// Receive buffers of each queue: the fewest that there can be.
const POSTED: u16 = 1;

/// A link, and whether its backend has hung up.
#[derive(Debug)]
struct Held {
    link: Link,
    is_gone: Arc<AtomicBool>,
}

/// What thread and port share, and others may read.
#[derive(Debug, Default)]
pub(super) struct Shared {
    is_closing: AtomicBool,
    is_up: AtomicBool,
    served_count: AtomicU64,
    failed_count: AtomicU64,
    /// The thread writes it; the port never takes this lock.
    last_fault: Mutex<Option<LinkOpenError>>,
    /// The connection that the thread negotiates over. The port's end shuts it down when it is dropped.
    negotiating: Mutex<Option<UnixStream>>,
}

impl Shared {
    pub(super) fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Acquire)
    }

    pub(super) fn served_count(&self) -> u64 {
        self.served_count.load(Ordering::Relaxed)
    }

    pub(super) fn failed_count(&self) -> u64 {
        self.failed_count.load(Ordering::Relaxed)
    }

    pub(super) fn last_fault(&self) -> Option<String> {
        self.fault().as_ref().map(ToString::to_string)
    }

    fn fault(&self) -> MutexGuard<'_, Option<LinkOpenError>> {
        self.last_fault.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn negotiating(&self) -> MutexGuard<'_, Option<UnixStream>> {
        self.negotiating.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The port's end.
#[derive(Debug)]
pub(super) struct Keeper {
    held: Option<Held>,
    new: Consumer<Held>,
    ended: Producer<Held>,
    wake: Arc<OwnedFd>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Listens, and starts the thread.
    pub(super) fn start(socket: &Socket<'_>) -> Result<Self, OpenError> {
        let options =
            Options { queues: socket.queues, posted: POSTED, limit: NEGOTIATION_MAX, ..Options::default() };
        let server = Server::listen(socket.path, &options)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| OpenError::os("eventfd", errno))?;
        let wake = Arc::new(wake);
        let shared = Arc::new(Shared::default());
        let (found, new) = RingBuffer::new(LINKS);
        let (ended, returned) = RingBuffer::new(2 * LINKS);
        let mut sentry = Sentry {
            server,
            options,
            found,
            returned,
            watched: None,
            wake: wake.clone(),
            shared: shared.clone(),
        };
        let thread = std::thread::Builder::new()
            .name("ktsn-vhost-user".to_owned())
            .spawn(move || sentry.run())
            .map_err(|error| OpenError::Os { step: "clone", errno: error.raw_os_error().unwrap_or(0) })?;
        Ok(Self { held: None, new, ended, wake, shared, thread: Some(thread) })
    }

    /// The link to send by, if there is one now. `lost` is increased by the frames that an ended link's backend has not taken.
    #[inline]
    pub(super) fn link(&mut self, lost: &mut u64) -> Option<&mut Link> {
        let is_gone = self.held.as_ref().is_some_and(|held| held.is_gone.load(Ordering::Acquire));
        if is_gone || !self.new.is_empty() {
            self.exchange(lost);
        }
        self.held.as_mut().map(|held| &mut held.link)
    }

    #[cold]
    fn exchange(&mut self, lost: &mut u64) {
        self.retire(lost);
        while let Ok(new) = self.new.pop() {
            self.retire(lost);
            self.held = Some(new);
        }
        if self.held.as_ref().is_some_and(|held| held.is_gone.load(Ordering::Acquire)) {
            self.retire(lost);
        }
    }

    /// Ends the link. Its thread closes the connection and frees the memory.
    #[cold]
    pub(super) fn retire(&mut self, lost: &mut u64) {
        let Some(mut held) = self.held.take() else { return };
        *lost += held.link.stop();
        // A backend that broke a rule has not hung up: the thread does.
        held.is_gone.store(true, Ordering::Release);
        // Without room it is freed here: that takes longer, and is right as well.
        let _freed_here = self.ended.push(held);
        self.ring();
    }

    /// Whether frames can be sent now.
    pub(super) fn is_up(&self) -> bool {
        self.shared.is_up()
    }

    pub(super) fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    /// Wakes the thread.
    fn ring(&self) {
        let _full_is_awake = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.held = None;
        self.shared.is_closing.store(true, Ordering::Release);
        self.ring();
        if let Some(socket) = &*self.shared.negotiating() {
            let _closed_already = socket.shutdown(Shutdown::Both);
        }
        if let Some(thread) = self.thread.take() {
            let _cannot_panic = thread.join();
        }
    }
}

/// The thread's part.
struct Sentry {
    server: Server,
    options: Options,
    found: Producer<Held>,
    returned: Consumer<Held>,
    watched: Option<(Watch, Arc<AtomicBool>)>,
    wake: Arc<OwnedFd>,
    shared: Arc<Shared>,
}

impl Sentry {
    fn run(&mut self) {
        while !self.shared.is_closing.load(Ordering::Acquire) {
            self.wait();
            let mut word = [0; 8];
            let _empty = rustix::io::read(&*self.wake, &mut word);
            while let Ok(ended) = self.returned.pop() {
                drop(ended);
            }
            if self
                .watched
                .as_ref()
                .is_some_and(|(watch, is_gone)| is_gone.load(Ordering::Acquire) || watch.is_hung_up())
            {
                self.forget();
            }
            if self.watched.is_none() && !self.found.is_full() {
                self.look_for_backend();
            }
        }
        self.forget();
    }

    /// The backend is gone: the port ends its link.
    fn forget(&mut self) {
        if let Some((_, is_gone)) = self.watched.take() {
            is_gone.store(true, Ordering::Release);
            self.shared.is_up.store(false, Ordering::Release);
        }
    }

    /// Until a backend connects or hangs up, or the port rings.
    fn wait(&self) {
        let mut waits = vec![PollFd::new(&*self.wake, PollFlags::IN)];
        // While a new link waits for the port, no other one is looked for.
        let mut limit = None;
        match &self.watched {
            Some((watch, _)) => {
                waits.push(PollFd::from_borrowed_fd(watch.as_fd(), PollFlags::IN | PollFlags::RDHUP));
            }
            None if self.found.is_full() => limit = Some(PAUSE),
            None => waits.push(PollFd::from_borrowed_fd(self.server.as_fd(), PollFlags::IN)),
        }
        let limit = limit.map(|limit| Timespec {
            tv_sec: limit.as_secs() as i64,
            tv_nsec: i64::from(limit.subsec_nanos()),
        });
        let _interrupted = poll(&mut waits, limit.as_ref());
    }

    /// `None`: no backend has connected.
    fn negotiate(&self) -> Result<Option<(Link, Watch)>, LinkOpenError> {
        let Some(socket) = self.server.accept_socket()? else { return Ok(None) };
        *self.shared.negotiating() = socket.try_clone().ok();
        // The port's end sets the flag first, and then looks for the connection.
        let link = match self.shared.is_closing.load(Ordering::Acquire) {
            true => Ok(None),
            false => Link::open(socket, &self.options).map(Some),
        };
        *self.shared.negotiating() = None;
        link?.map(|link| link.watch().map(|watch| (link, watch))).transpose()
    }

    fn look_for_backend(&mut self) {
        match self.negotiate() {
            Ok(Some((link, watch))) => {
                let is_gone = Arc::new(AtomicBool::new(false));
                self.watched = Some((watch, is_gone.clone()));
                let _cannot_be_full = self.found.push(Held { link, is_gone });
                *self.shared.fault() = None;
                self.shared.served_count.fetch_add(1, Ordering::Relaxed);
                self.shared.is_up.store(true, Ordering::Release);
            }
            Ok(None) => {}
            Err(error) => {
                *self.shared.fault() = Some(error);
                self.shared.failed_count.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(PAUSE);
            }
        }
    }
}
