// SPDX-License-Identifier: Apache-2.0
//! The registrar thread: accepts clients, looks at their sockets, tells the workers.
//!
//! It may be slow but never waits for a client: passed sockets are looked at, and closed, by the examiner, for a
//! bounded time. A connection is a process; when it closes, or the process ends, the client is over.

mod ending;
mod tables;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ktsn_resolve::{AttachmentIndex, AttachmentTables};
use ktsn_ring::control::{self, HelloReply, HelloStatus, Message};
use ktsn_ring::{Consumer, StreamCode, StreamStatus, layout};
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with};
use tracing::{debug, warn};

use super::answer::{flags_of, judge, layout_for, link_status_of, offer, status_of};
use super::connection::{self, Read, Received, watch};
use super::directory::{ClientView, Directory, Served, StreamView};
use super::examiner::{Examine, Examiner};
use super::granted::Granted;
use super::pace::{self, Pace};
use super::quiet::Quiet;
use super::socket::{self, SocketFacts, examine};
use crate::limits;
use crate::worker::{Client, ClientKey, Command, Offer, Outbox, StreamInfo};

/// Connections that have not said Hello yet.
const STRANGERS_MAX: usize = 64;
/// How long a connection may stay without Hello.
const STRANGER_PATIENCE: Duration = Duration::from_secs(1);
/// Messages read from one connection before the others get their turn.
const MESSAGES_A_TURN: usize = 16;

const TOKEN_LISTENER: u64 = u64::MAX;
const TOKEN_WAKE: u64 = u64::MAX - 1;
/// Set in the token of a pidfd; the rest is the connection's number.
const TOKEN_PROCESS: u64 = 1 << 62;

/// Why the registrar cannot begin.
#[derive(Debug, thiserror::Error)]
#[error("clients' socket {path}: {error}")]
pub struct RegistrarError {
    path: String,
    error: io::Error,
}

struct Connection<P> {
    /// Shared with the examiner, who may have to close what lies in it.
    fd: Arc<OwnedFd>,
    process: Option<OwnedFd>,
    pid: u32,
    since: Instant,
    pace: Pace,
    client: Option<Registered<P>>,
}

struct Registered<P> {
    key: ClientKey,
    attachment: AttachmentIndex,
    worker: Outbox<P>,
    streams: BTreeMap<u32, StreamInfo>,
    offer: Offer,
    /// What `offer` follows from, as far as the tables go.
    tables: Option<Arc<AttachmentTables>>,
}

/// A handle on the registrar thread.
#[derive(Debug)]
pub struct Registrar {
    wake: Arc<OwnedFd>,
    stop: Arc<std::sync::atomic::AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Registrar {
    /// Listens at `path` and begins to serve what is in `directory`.
    ///
    /// # Errors
    /// [`RegistrarError`] when the socket cannot be made.
    pub fn start<P: Send + 'static>(path: &Path, directory: Directory<P>) -> Result<Self, RegistrarError> {
        Self::start_with(path, directory, examine)
    }

    /// The same with another way to look at sockets.
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
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed)?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        watch(&epoll, &listener, TOKEN_LISTENER).map_err(failed)?;
        watch(&epoll, &wake, TOKEN_WAKE).map_err(failed)?;
        let mut service = Service {
            epoll,
            listener,
            wake: wake.clone(),
            stop: stop.clone(),
            directory,
            connections: BTreeMap::new(),
            next_number: 1,
            generation: 0,
            version: 0,
            granted: BTreeMap::new(),
            paused: Vec::new(),
            examiner: Examiner::new(examine),
            quiet: Quiet::default(),
        };
        let thread = std::thread::Builder::new()
            .name("ktsn-registrar".into())
            .spawn(move || service.run())
            .map_err(|error| RegistrarError { path: path.display().to_string(), error })?;
        Ok(Self { wake, stop, thread: Some(thread) })
    }

    /// Tells it that the directory's tables changed.
    pub fn tables_changed(&self) {
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }
}

impl Drop for Registrar {
    fn drop(&mut self) {
        self.stop.store(true, std::sync::atomic::Ordering::SeqCst);
        self.tables_changed();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Service<P> {
    epoll: OwnedFd,
    listener: OwnedFd,
    wake: Arc<OwnedFd>,
    stop: Arc<std::sync::atomic::AtomicBool>,
    directory: Directory<P>,
    connections: BTreeMap<u64, Connection<P>>,
    next_number: u64,
    /// Of the tables, and of the attachments served, when clients were told last.
    generation: u64,
    version: u64,
    /// By SO_NETNS_COOKIE: a socket is the namespace's, whichever of its attachments a program asks.
    granted: BTreeMap<u64, Granted>,
    /// Connections that are not listened to for a moment.
    paused: Vec<u64>,
    examiner: Examiner,
    quiet: Quiet,
}

impl<P: Send + 'static> Service<P> {
    fn run(&mut self) {
        let watched = crate::supervise::Watched::enter("ktsn-registrar", "");
        let mut events = Vec::with_capacity(64);
        while !self.stop.load(std::sync::atomic::Ordering::SeqCst) {
            events.clear();
            let strangers = self.connections.values().any(|c| c.client.is_none());
            let soon = !self.paused.is_empty() || self.examiner.is_waiting();
            let patience = if soon { pace::WINDOW } else { Duration::from_millis(200) };
            let patience = Timespec { tv_sec: 0, tv_nsec: patience.as_nanos() as i64 };
            let timeout = (strangers || soon).then_some(&patience);
            watched.waits();
            let waited = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout);
            watched.works();
            if waited.is_err() {
                continue;
            }
            for event in events.iter().map(|e: &epoll::Event| e.data.u64()) {
                match event {
                    TOKEN_LISTENER => self.accept(),
                    TOKEN_WAKE => {
                        let _ = rustix::io::read(&*self.wake, &mut [0u8; 8]);
                        self.follow_tables();
                    }
                    token if token & TOKEN_PROCESS != 0 => self.end(token & !TOKEN_PROCESS),
                    number => self.serve(number),
                }
            }
            self.listen_again();
            self.lose_patience();
        }
        // The daemon ends: regions are marked by the workers, processes live on.
        for number in self.connections.keys().copied().collect::<Vec<u64>>() {
            if let Some(connection) = self.connections.remove(&number) {
                self.close(connection.pid, connection.fd);
            }
        }
    }

    fn accept(&mut self) {
        if !self.can_listen() {
            // They wait in the listener, which stays ready: don't ask it again and again.
            std::thread::sleep(pace::WINDOW);
            return;
        }
        for _ in 0..MESSAGES_A_TURN {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let fd = match acceptfrom_with(&self.listener, flags) {
                Ok((fd, _)) => fd,
                Err(Errno::MFILE | Errno::NFILE) => {
                    if self.quiet.may() {
                        warn!("no descriptors left for further clients; raise the limit of open files");
                    }
                    // The listener stays ready: don't ask it again and again.
                    std::thread::sleep(Duration::from_millis(10));
                    return;
                }
                Err(_) => return,
            };
            let strangers: Vec<u64> =
                self.connections.iter().filter(|(_, c)| c.client.is_none()).map(|(n, _)| *n).collect();
            if strangers.len() >= STRANGERS_MAX {
                self.end_if_silent(strangers[0]);
            }
            let number = self.next_number;
            self.next_number += 1;
            let (process, pid) = socket::process_of(&fd);
            if self.examiner.is_hanging(pid) {
                // Who looked at what lies in it would hang on the same socket; nobody waits for dropping it.
                connection::shut(&fd);
                socket::close_elsewhere(fd);
                continue;
            }
            let fd = Arc::new(fd);
            if watch(&self.epoll, &fd, number).is_err() {
                self.close(pid, fd);
                continue;
            }
            if let Some(process) = &process {
                let _ = watch(&self.epoll, process, TOKEN_PROCESS | number);
            }
            self.connections.insert(
                number,
                Connection {
                    fd,
                    process,
                    pid,
                    since: Instant::now(),
                    pace: Pace::new(Instant::now()),
                    client: None,
                },
            );
        }
    }

    /// Whether anything can be read from clients; if not, that is told.
    fn can_listen(&mut self) -> bool {
        let can = self.examiner.is_ready();
        if !can && self.quiet.may() {
            warn!("too many passed descriptors that hang or take long to close: clients wait");
        }
        can
    }

    fn serve(&mut self, number: u64) {
        for _ in 0..MESSAGES_A_TURN {
            // What is not read is not ours to close.
            let can_listen = self.can_listen();
            let Some(connection) = self.connections.get_mut(&number) else { return };
            if !can_listen || !connection.pace.may_read(Instant::now()) {
                return self.pause(number);
            }
            match connection::read(connection.fd.as_fd()) {
                Read::Nothing => return,
                Read::Ended => return self.end(number),
                Read::Message(message) => {
                    if !self.handle(number, *message) {
                        return self.end(number);
                    }
                }
            }
        }
    }

    /// Handles one message; false ends the connection.
    fn handle(&mut self, number: u64, mut message: Received) -> bool {
        let Ok(facts) = self.look(number, std::mem::take(&mut message.descriptors)) else { return false };
        match (control::parse(message.octets()), facts) {
            (Ok(Message::Hello(hello)), Some(Ok(facts))) => self.hello(number, hello, &facts),
            (Ok(Message::Register(register)), Some(facts)) => self.register(number, register, facts.ok()),
            (Ok(Message::Unregister(unregister)), None) => self.unregister(number, unregister.stream_index),
            (parsed, _) => {
                debug!(?parsed, "not a message: connection ends");
                false
            }
        }
    }

    fn reply(&self, number: u64, status: HelloStatus) -> bool {
        if let Some(connection) = self.connections.get(&number) {
            let _ = connection::write(&connection.fd, &HelloReply::refusing(status).encode(), &[]);
        }
        false
    }

    fn hello(&mut self, number: u64, hello: control::Hello, facts: &SocketFacts) -> bool {
        if self.connections.get(&number).is_none_or(|c| c.client.is_some()) {
            return false;
        }
        let abi = layout::ABI as u16;
        if control::select_abi((hello.abi_min, hello.abi_max), (abi, abi)).is_none() {
            if self.quiet.may() {
                warn!(
                    min = hello.abi_min,
                    max = hello.abi_max,
                    ours = abi,
                    "a client speaks no ring ABI of ours"
                );
            }
            return self.reply(number, HelloStatus::Version);
        }
        let served = {
            let known = self.directory.lock();
            known.find(facts.netns_cookie, hello.interface_index).cloned()
        };
        let Some(served) = served else { return self.reply(number, HelloStatus::NotAttached) };
        let clients = self.directory.lock().clients.values().filter(|c| c.attachment == served.index).count();
        if clients >= served.clients_max as usize {
            if self.quiet.may() {
                warn!(attachment = served.name, clients_max = served.clients_max, "too many clients");
            }
            return self.reply(number, HelloStatus::ClientsMax);
        }
        match self.admit(number, &served) {
            Ok(()) => true,
            Err(error) => {
                if self.quiet.may() {
                    warn!(attachment = served.name, %error, "a client cannot be served");
                }
                self.reply(number, HelloStatus::Refused)
            }
        }
    }

    /// Makes the region and the doorbell, and tells the worker before the client.
    fn admit(&mut self, number: u64, served: &Served<P>) -> anyhow::Result<()> {
        let layout = layout_for(served)?;
        let (mut consumer, memfd) = Consumer::create(layout)?;
        let (ours, theirs) = connection::doorbell()?;
        let (offer, tables) = {
            let known = self.directory.lock();
            let tables = known.tables.attachments().get(usize::from(served.index.0)).cloned().flatten();
            (Offer { others: known.others(served), ..offer(&known.tables, served.index) }, tables)
        };
        consumer.set_destinations(&offer.table)?;
        consumer.set_link(&offer.link);
        consumer.set_sole_v4(offer.sole_v4);
        consumer.set_others(&offer.others);
        let key = ClientKey(number);
        let attention = consumer.attention();
        let client =
            Client::new(key, served.index, consumer, ours, layout.slots_count(), layout.payload_max());
        let client = client.on_interface(served.interface_index);
        let Some(connection) = self.connections.get_mut(&number) else { return Ok(()) };
        self.directory.reach(key, connection.process.as_ref(), served.netns_cookie, attention);
        served.stats.transmit_error.make_room();
        served.worker.send(Command::AddClient(Box::new(client)))?;
        connection.client = Some(Registered {
            key,
            attachment: served.index,
            worker: served.worker.clone(),
            streams: BTreeMap::new(),
            offer,
            tables,
        });
        let view = ClientView {
            pid: connection.pid,
            attachment: served.index,
            streams: BTreeMap::new(),
            ending: false,
        };
        self.directory.lock().clients.insert(key, view);
        let region_octets = u32::try_from(layout.region_octets())?;
        let reply = HelloReply::attached(layout::ABI as u16, region_octets, served.interface_index);
        connection::write(&connection.fd, &reply.encode(), &[memfd.as_fd(), theirs.as_fd()])?;
        debug!(pid = connection.pid, attachment = served.name, "client attached");
        Ok(())
    }

    fn register(&mut self, number: u64, register: control::Register, facts: Option<SocketFacts>) -> bool {
        let control::Register { stream_index: index, token, txtime } = register;
        let Some(client) = self.connections.get_mut(&number).and_then(|c| c.client.as_mut()) else {
            return false;
        };
        if index >= limits::STREAMS_MAX {
            return false;
        }
        let served = {
            let known = self.directory.lock();
            known.served.iter().find(|s| s.index == client.attachment).cloned()
        };
        let refuse = |code| StreamStatus { token, code, ..StreamStatus::default() };
        let (Some(served), Some(facts)) = (served, facts) else {
            client.streams.remove(&index);
            let _ = client.worker.send(Command::Refuse(client.key, index, refuse(StreamCode::NotAttached)));
            return true;
        };
        let code = judge(&served, &self.directory.lock().tables, &facts);
        if code != StreamCode::Registered {
            client.streams.remove(&index);
            let _ = client.worker.send(Command::Refuse(client.key, index, refuse(code)));
            return true;
        }
        let granted = self.granted.entry(served.netns_cookie).or_default();
        let flags = granted.answer(flags_of(&served), txtime, facts.cookie);
        let status = match facts.link {
            Some(_) => link_status_of(token, flags, &self.directory.lock().tables, served.index),
            None => status_of(token, flags, &client.offer.table, facts.peer.map(|p| p.ip())),
        };
        let info = StreamInfo {
            token,
            cookie: facts.cookie,
            attachment: served.index,
            local: facts.local,
            peer: facts.peer,
            link: facts.link,
            status,
        };
        client.streams.insert(index, info.clone());
        if let Some(view) = self.directory.lock().clients.get_mut(&client.key) {
            let stream = StreamView { cookie: facts.cookie, local: facts.local, peer: facts.peer };
            view.streams.insert(index, stream);
        }
        client.worker.send(Command::Register(client.key, index, Box::new(info))).is_ok()
    }

    fn unregister(&mut self, number: u64, index: u32) -> bool {
        let Some(client) = self.connections.get_mut(&number).and_then(|c| c.client.as_mut()) else {
            return false;
        };
        client.streams.remove(&index);
        if let Some(view) = self.directory.lock().clients.get_mut(&client.key) {
            view.streams.remove(&index);
        }
        client.worker.send(Command::Unregister(client.key, index)).is_ok()
    }
}
