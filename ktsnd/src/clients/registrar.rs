// SPDX-License-Identifier: Apache-2.0
//! The registrar thread: accepts clients, examines their sockets, sends commands to the workers.
//!  
//! It may be slow but never waits for a client. The examiner examines and closes passed sockets, and seals regions; the registrar
//! reads a connection again when the answer is there. Namespaces take turns by the time that they have used. A connection is a
//! process; when it closes, or the process ends, the client is over.

mod accepting;
mod admission;
mod ending;
pub(crate) mod fuzzing;
mod keeping;
mod looking;
mod passing;
mod registering;
mod tables;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::Poll;
use std::time::{Duration, Instant};

use ktsn_resolve::{AttachmentIndex, AttachmentTables};
use ktsn_ring::control::{self, Message};
use ktsn_ring::receive::ReceiveArea;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;
use tracing::debug;

use super::connection::{self, Read, Received, watch};
use super::credit::cpu_time;
use super::directory::Directory;
use super::examiner::{Examiner, Facts, Helpers, Unsealed};
use super::following::{Following, Round};
use super::granted::Granted;
use super::pace::{self, Pace};
use super::socket::{Examine, examine};
use super::threads::Threads;
use super::turns::Turns;
use crate::log_limit::LogLimit;
use crate::worker::{ClientKey, ClientTables, Outbox};

/// How long a connection may stay without Hello.
const STRANGER_PATIENCE: Duration = Duration::from_secs(1);
/// How long a Hello may wait for its namespace's turn.
const STRANGER_PATIENCE_MAX: Duration = Duration::from_secs(10);
/// Messages that are read before the connections are polled again.
const MESSAGES_A_TURN: usize = 64;

const TOKEN_LISTENER: u64 = u64::MAX;
const TOKEN_WAKE: u64 = u64::MAX - 1;
const TOKEN_ANSWERS: u64 = u64::MAX - 2;
/// Set in the token of a pidfd; the rest is the connection's number.
const TOKEN_PROCESS: u64 = 1 << 62;

/// Why the registrar cannot start.
#[derive(Debug, thiserror::Error)]
#[error("clients' socket {path}: {error}")]
pub struct RegistrarError {
    path: String,
    error: io::Error,
}

/// Clocks of the registrar.
#[derive(Clone, Copy)]
pub(super) struct Clock {
    pub now: fn() -> Instant,
    /// CPU time of the calling thread.
    pub cpu_time: fn() -> Duration,
}

impl Clock {
    /// The kernel's.
    pub(super) const REAL: Self = Self { now: Instant::now, cpu_time };
}

struct Connection<P> {
    /// Shared with the examiner, which may have to close what is unread in it.
    fd: Arc<OwnedFd>,
    process: Option<OwnedFd>,
    pid: u32,
    /// SO_NETNS_COOKIE of the caller's end: an accepted socket has it.
    netns_cookie: u64,
    since: Instant,
    /// Not read for a moment.
    is_paused: bool,
    /// The message with a descriptor that is examined now; what follows waits.
    message: Option<Box<Received>>,
    client: Option<Registered<P>>,
}

impl<P> Connection<P> {
    /// Whether no message of it is being handled.
    fn is_stranger(&self) -> bool {
        self.client.is_none() && self.message.is_none()
    }
}

/// How far the sealing of a client's region is. The worker gets only a sealed region: a program could punch holes into an unsealed
/// region, and block its reader.
enum SealState {
    /// The region is not sealed yet: its program has registered nothing, and asked for no grant.
    Unsealed(Unsealed),
    /// The examiner seals the region.
    BeingSealed,
    /// The region is sealed, and the worker has it.
    WithWorker,
    /// The region could not be sealed.
    Failed,
}

struct Registered<P> {
    key: ClientKey,
    attachment: AttachmentIndex,
    /// SO_NETNS_COOKIE of its attachment.
    netns_cookie: u64,
    seal: SealState,
    worker: Outbox<P>,
    client_tables: ClientTables,
    /// True when the client's tables changed before the worker had the client.
    are_client_tables_changed: bool,
    /// The attachment's tables that `client_tables` was made from.
    tables: Option<Arc<AttachmentTables>>,
    /// The version of the served attachments that `client_tables` was made from.
    version: u64,
    /// Its streams that are still to be compared with the tables.
    round: Round,
    /// It waits to be notified of what changed.
    is_followed: bool,
    /// Its receive area, not to be touched before the region is sealed.
    receive: ReceiveArea,
}

/// What other threads ask of the registrar.
#[derive(Debug)]
struct Requests {
    /// Written to when there is something to look at.
    wake: OwnedFd,
    /// The registrar ends.
    stop: AtomicBool,
    /// No client is admitted.
    is_closing: AtomicBool,
}

impl Requests {
    fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

/// A handle on the registrar thread.
#[derive(Debug)]
pub struct RegistrarHandle {
    requests: Arc<Requests>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl RegistrarHandle {
    /// Listens at `path` and begins to serve what is in `directory`.
    ///
    /// # Errors
    /// [`RegistrarError`] when the socket cannot be made.
    pub fn start<P: Send + 'static>(path: &Path, directory: Directory<P>) -> Result<Self, RegistrarError> {
        Self::start_with(path, directory, examine)
    }

    /// Starts with another function that examines sockets.
    pub(super) fn start_with<P: Send + 'static>(
        path: &Path,
        directory: Directory<P>,
        examine: Examine,
    ) -> Result<Self, RegistrarError> {
        let failed = |error: rustix::io::Errno| RegistrarError {
            path: path.display().to_string(),
            error: error.into(),
        };
        let listener = connection::listen_at(path).map_err(failed)?;
        let answers = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed)?);
        let helpers = Box::new(Threads::new(examine, answers.clone()));
        let mut service =
            Registrar::new(listener, answers, directory, helpers, Clock::REAL).map_err(failed)?;
        let requests = service.requests.clone();
        let thread = std::thread::Builder::new()
            .name("ktsn-registrar".into())
            .spawn(move || service.run())
            .map_err(|error| RegistrarError { path: path.display().to_string(), error })?;
        Ok(Self { requests, thread: Some(thread) })
    }

    /// From now on no client is admitted: programs find no daemon, keep their counts, and ask the next daemon. Counts in a region of this
    /// daemon would be lost when it has drained.
    pub fn admit_no_more(&self) {
        self.requests.is_closing.store(true, SeqCst);
        self.requests.wake();
    }

    /// Reports that the directory's tables changed.
    pub fn tables_changed(&self) {
        self.requests.wake();
    }
}

impl Drop for RegistrarHandle {
    fn drop(&mut self) {
        self.requests.stop.store(true, SeqCst);
        self.requests.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The registrar without its thread: [`Self::attend`] is one turn of it.
pub(super) struct Registrar<P> {
    epoll: OwnedFd,
    listener: OwnedFd,
    requests: Arc<Requests>,
    clock: Clock,
    directory: Directory<P>,
    connections: BTreeMap<u64, Connection<P>>,
    next_number: u64,
    /// The generations of the tables and of the attachments served, when clients were last notified.
    generation: u64,
    version: u64,
    /// By SO_NETNS_COOKIE: a socket belongs to the namespace, whichever of its attachments a program asks for.
    granted: BTreeMap<u64, Granted>,
    /// Connections that are not read for a moment.
    paused: Vec<u64>,
    /// Recent messages of each namespace; those of namespaces that are not served count together under 0.
    paces: BTreeMap<u64, Pace>,
    turns: Turns,
    examiner: Examiner,
    /// Readable when the examiner has an answer.
    answers: Arc<OwnedFd>,
    log_limit: LogLimit,
    /// Clients to be notified of what changed.
    following: Following,
    /// For messages.
    buffer: Box<[u8]>,
}

impl<P: Send + 'static> Registrar<P> {
    /// A registrar that serves what is in `directory`; `answers` is readable when a helper has an answer.
    ///
    /// # Errors
    /// The kernel's, when descriptors run out.
    pub(super) fn new(
        listener: OwnedFd,
        answers: Arc<OwnedFd>,
        directory: Directory<P>,
        helpers: Box<dyn Helpers>,
        clock: Clock,
    ) -> Result<Self, Errno> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        watch(&epoll, &listener, TOKEN_LISTENER)?;
        watch(&epoll, &wake, TOKEN_WAKE)?;
        watch(&epoll, &answers, TOKEN_ANSWERS)?;
        Ok(Self {
            epoll,
            listener,
            requests: Arc::new(Requests { wake, stop: false.into(), is_closing: false.into() }),
            clock,
            directory,
            connections: BTreeMap::new(),
            next_number: 1,
            generation: 0,
            version: 0,
            granted: BTreeMap::new(),
            paused: Vec::new(),
            paces: BTreeMap::new(),
            turns: Turns::new((clock.now)()),
            examiner: Examiner::new(helpers, clock.now),
            answers,
            log_limit: LogLimit::default(),
            following: Following::new((clock.now)()),
            buffer: vec![0; connection::BUFFER_OCTETS].into(),
        })
    }

    fn run(&mut self) {
        let watched = crate::supervise::Watched::enter("ktsn-registrar", "");
        let mut events = Vec::with_capacity(1024);
        while !self.requests.stop.load(SeqCst) {
            let patience =
                self.patience().map(|patience| Timespec { tv_sec: 0, tv_nsec: patience.as_nanos() as i64 });
            watched.waits();
            let waited = self.wait(&mut events, patience.as_ref());
            watched.works();
            if waited.is_ok() {
                self.attend(&events, &|| watched.works());
            }
        }
        self.leave(&|| watched.works());
    }

    /// How long it may sleep if nothing happens; `None`: without limit.
    fn patience(&self) -> Option<Duration> {
        let strangers = self.connections.values().any(|c| c.client.is_none());
        let soon = !self.paused.is_empty() || self.examiner.is_watching() || !self.following.is_empty();
        let patience = if soon { pace::WINDOW } else { Duration::from_millis(200) };
        (strangers || soon || !self.directory.later().is_empty()).then_some(patience)
    }

    /// Waits for something to happen.
    pub(super) fn wait(
        &self,
        events: &mut Vec<epoll::Event>,
        patience: Option<&Timespec>,
    ) -> Result<(), Errno> {
        events.clear();
        epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), patience).map(|_| ())
    }

    /// One turn: handles events and expired time limits. It calls `works` between steps that may take some time.
    pub(super) fn attend(&mut self, events: &[epoll::Event], works: &dyn Fn()) {
        for event in events.iter().map(|e| e.data.u64()) {
            match event {
                TOKEN_LISTENER => self.accept(),
                TOKEN_WAKE => {
                    let _ = rustix::io::read(&self.requests.wake, &mut [0u8; 8]);
                    self.close_if_asked();
                    self.follow_tables();
                }
                TOKEN_ANSWERS => {
                    let _ = rustix::io::read(&*self.answers, &mut [0u8; 8]);
                }
                token if token & TOKEN_PROCESS != 0 => self.end_process(token & !TOKEN_PROCESS),
                number => self.turns.add(self.owner_of(number).netns_cookie, number),
            }
            // One connection's turn is bounded, all of them together are not.
            works();
        }
        self.take_turns();
        self.follow();
        self.take_answers();
        self.listen_again();
        self.lose_patience();
        self.directory.later().look();
    }

    /// The daemon ends: what the kernel is to send later is sent, as queued frames are; the workers mark regions, processes live on. The
    /// kernel closes and unmaps the rest when the process ends; no thread waits for it.
    fn leave(&mut self, works: &dyn Fn()) {
        for number in self.connections.keys().copied().collect::<Vec<_>>() {
            if let Some(connection) = self.connections.get(&number) {
                connection::shut(&connection.fd);
            }
            self.take_unread(number);
        }
        self.directory.later().finish(works);
        for connection in std::mem::take(&mut self.connections).into_values() {
            if !connection::is_empty(&connection.fd) {
                std::mem::forget(connection.fd);
            }
            if let Some(SealState::Unsealed(unsealed)) = connection.client.map(|client| client.seal) {
                std::mem::forget(unsealed);
            }
        }
    }

    /// Reads available input, a message of one connection at a time, in an order that is fair to namespaces.
    fn take_turns(&mut self) {
        for _ in 0..MESSAGES_A_TURN {
            let Some((netns_cookie, number)) = self.turns.next() else { return };
            let before = (self.clock.cpu_time)();
            self.serve(number);
            let took = (self.clock.cpu_time)().saturating_sub(before);
            self.turns.spend(netns_cookie, took, (self.clock.now)());
        }
        self.turns.clear();
    }

    /// The client of a connection.
    fn client(&self, number: u64) -> Option<&Registered<P>> {
        self.connections.get(&number)?.client.as_ref()
    }

    /// The client of a connection, to be changed.
    fn client_mut(&mut self, number: u64) -> Option<&mut Registered<P>> {
        self.connections.get_mut(&number)?.client.as_mut()
    }

    /// Whether clients are no longer admitted.
    fn is_closing(&self) -> bool {
        self.requests.is_closing.load(SeqCst)
    }

    /// The kernel refuses callers from now on, also those in the listener's queue.
    fn close_if_asked(&mut self) {
        if self.is_closing() {
            let _ = epoll::delete(&self.epoll, &self.listener);
            let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        }
    }

    /// Reads one message of a connection, if it has one and its namespace may be read.
    fn serve(&mut self, number: u64) {
        let Some(connection) = self.connections.get(&number) else { return };
        // A paused connection that is read here would be read again before its message is handled, and keep the registrar awake.
        if connection.message.is_some() || connection.is_paused {
            return;
        }
        // Unread descriptors are not the registrar's to close.
        let owner = self.owner_of(number);
        let now = (self.clock.now)();
        let has_time = self.paces.entry(owner.netns_cookie).or_insert_with(|| Pace::new(now)).may_read(now);
        if !has_time || self.examiner.room_for(owner) == 0 {
            return self.pause(number);
        }
        let Some(connection) = self.connections.get(&number) else { return };
        match connection::read(connection.fd.as_fd(), &mut self.buffer) {
            Read::Nothing => {}
            Read::Ended => self.end(number),
            Read::Message(message) if message.descriptors.len() > 1 => self.end_crowded(number, *message),
            Read::Message(mut message) => {
                if let Some(facts) = passing::facts_of_datagram(&message) {
                    if !self.take_datagram(number, *message, &facts) {
                        self.end(number);
                    }
                    return;
                }
                let kept = keeping::kept_of(&message);
                // The program has mapped its region by now.
                let seals =
                    matches!(control::parse(message.octets()), Ok(Message::Register(_) | Message::Expect(_)));
                match self.look(number, seals, std::mem::take(&mut message.descriptors)) {
                    Poll::Pending => {
                        message.descriptors.extend(kept);
                        self.wait_for_facts(number, message);
                    }
                    Poll::Ready(facts) => {
                        message.descriptors.extend(kept);
                        if !self.handle(number, *message, facts) {
                            self.end(number);
                        }
                    }
                }
            }
        }
    }

    /// Handles one message; false ends the connection.
    fn handle(&mut self, number: u64, mut message: Received, facts: Facts) -> bool {
        // What is left of the descriptors: the socket that may be kept.
        let kept = message.descriptors.pop();
        match (control::parse(message.octets()), facts) {
            (Ok(Message::Hello(hello)), Some(Ok(facts))) => self.hello(number, hello, &facts),
            (Ok(Message::Register(register)), Some(facts)) => {
                self.register(number, register, facts.ok(), kept)
            }
            (Ok(Message::ShowPort(shown)), Some(facts)) => self.show_port(number, shown, facts.ok()),
            (Ok(Message::Expect(_)), None) => self.expect(number),
            (Ok(Message::Unregister(unregister)), None) => self.unregister(number, unregister.stream_index),
            (parsed, _) => {
                debug!(?parsed, "not a message: connection ends");
                false
            }
        }
    }
}
