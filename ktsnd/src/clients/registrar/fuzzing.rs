// SPDX-License-Identifier: Apache-2.0
//! The registrar under a fuzz target: one thread, a clock that stands still unless it is moved, helpers that answer when the
//! target lets them, and a worker that gives clients back when the target lets it.
//!
//! In: what programs, helpers, worker and control thread do, one step at a time. Out: what the registrar made of it. Sockets and
//! regions are the kernel's own, as what is passed on them is what is tried; nothing of them outlives the driver.

mod helpers;
mod passed;
mod peer;
#[cfg(test)]
mod tables_tests;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use ktsn_port::AnyPort;
use ktsn_resolve::AttachmentIndex;
use ktsn_ring::control::{HelloReply, HelloStatus};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::accepting::Caller;
use super::{Clock, Registrar, connection};
use crate::clients::connection::Read;
use crate::clients::directory::{Directory, ServedAttachment};
use crate::clients::later::Later;
use crate::config::ClientLimits;
use crate::limits;
use crate::worker::{Client, ClientKey, Command, Inbox, queues};
use helpers::Jobs;
pub use passed::Passed;
pub(in crate::clients) use passed::served;
use passed::{FOREIGN_NETNS, Shelf};
pub use peer::{Peer, Region};

/// Attachments of a driver: two of the process's own namespace, one of another.
pub const ATTACHMENTS: u16 = 3;

/// Connections of one process at most.
pub const CLIENTS_A_PROCESS: usize = limits::CLIENTS_A_PROCESS;

/// What the attachments of a driver may have.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Clients of an attachment.
    pub clients_max: u32,
    /// Octets of an attachment's clients.
    pub memory_max: u64,
    /// Octets of all clients.
    pub memory_max_of_all: u64,
    /// Slots of a client that gets all that it may have.
    pub slots: u32,
    /// Nanoseconds between two looks at the clock.
    pub tick: u64,
}

/// In which namespace a program connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespace {
    /// That of attachments 0 and 1.
    Own,
    /// That of attachment 2.
    Foreign,
    /// One without an attachment.
    Unserved,
}

/// A connection that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

/// A command that a worker got, with the number of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// A client.
    Add(u64),
    /// A stream of it, with its registration's token.
    Register(u64, u32, u32),
    /// A stream of it is refused.
    Refuse(u64, u32, u32),
    /// A stream of it is over.
    Unregister(u64, u32),
    /// It is over.
    End(u64),
    /// Something changed for it.
    ClientTables(u64),
}

/// One client as the daemon counts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Its number.
    pub number: u64,
    /// Its process.
    pub pid: u32,
    /// Its attachment.
    pub attachment: u16,
    /// Octets that it may have.
    pub octets: u64,
    /// Its process is gone.
    pub is_ending: bool,
    /// Its streams.
    pub streams: Vec<u32>,
}

thread_local! {
    /// The clock of this thread's driver, and its tick in nanoseconds.
    static NOW: Cell<(Option<Instant>, u64)> = const { Cell::new((None, 0)) };
}

fn now() -> Instant {
    let (now, tick) = NOW.get();
    let now = now.unwrap_or_else(Instant::now) + Duration::from_nanos(tick);
    NOW.set((Some(now), tick));
    now
}

/// A registrar and all that is around it.
pub struct Driver {
    service: Registrar<AnyPort>,
    directory: Directory<AnyPort>,
    inbox: Inbox<AnyPort>,
    jobs: Jobs,
    /// What the worker has.
    clients: BTreeMap<u64, Box<Client>>,
    /// By attachment, what is served while it is served.
    offered: Vec<Arc<ServedAttachment>>,
    /// Readable when the process has ended.
    processes: BTreeMap<u32, OwnedFd>,
    shelf: Shelf,
    generation: u64,
}

impl Driver {
    /// A registrar that serves [`ATTACHMENTS`] attachments and has no connection.
    ///
    /// # Errors
    /// The kernel's, when descriptors run out.
    pub fn new(limits: Limits) -> Result<Self, Errno> {
        NOW.set((Some(Instant::now()), limits.tick));
        let (worker, inbox, _returned, _wake) = queues::<AnyPort>()?;
        let directory = Directory::new(Arc::new(passed::tables(0, 0)));
        directory.set_memory_max(limits.memory_max_of_all);
        let shelf = Shelf::new()?;
        let netns_cookie = shelf.netns_cookie();
        let offer = |index| {
            let clients = ClientLimits {
                slots: limits.slots,
                octets_max: 1 << 20,
                clients_max: limits.clients_max,
                memory_max: limits.memory_max,
                allow_tai: index != 1,
                ..ClientLimits::default()
            };
            Arc::new(ServedAttachment {
                netns_cookie: if index < 2 { netns_cookie } else { FOREIGN_NETNS },
                ..served(AttachmentIndex(index), 100, clients, worker.clone())
            })
        };
        let offered: Vec<_> = (0..ATTACHMENTS).map(offer).collect();
        offered.iter().cloned().for_each(|served| directory.serve(served));
        // Neither is ever readable: connections and answers come by the driver's calls.
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let (listener, answers) = (event()?, Arc::new(event()?));
        let jobs = Jobs::default();
        let clock = Clock { now, cpu_time: || Duration::ZERO };
        *directory.later() = Later::without_threads();
        let service = Registrar::new(listener, answers, directory.clone(), Box::new(jobs.clone()), clock)?;
        let (clients, processes) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { service, directory, inbox, jobs, clients, offered, processes, shelf, generation: 0 })
    }

    /// A program connects. `pid` 0: the process is not visible.
    ///
    /// # Errors
    /// The kernel's, when descriptors run out.
    pub fn connect(&mut self, pid: u32, namespace: Namespace) -> Result<Peer, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, fd) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        if pid != 0 && !self.processes.contains_key(&pid) {
            let process = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            self.processes.insert(pid, process);
        }
        let process = self.processes.get(&pid).and_then(|process| process.try_clone().ok());
        let netns_cookie = match namespace {
            Namespace::Own => self.shelf.netns_cookie(),
            Namespace::Foreign => FOREIGN_NETNS,
            Namespace::Unserved => FOREIGN_NETNS + 1,
        };
        let number = self.service.next_number;
        self.service.begin(ours, Caller { process, pid, netns_cookie });
        Ok(Peer { number, pid, region_octets: 0, fd, region: None })
    }

    /// A process ends; its connections stay until their peers are dropped.
    pub fn exit(&mut self, pid: u32) {
        if let Some(process) = self.processes.remove(&pid) {
            let _ = rustix::io::write(&process, &1u64.to_ne_bytes());
        }
    }

    /// A program says something and passes something. False where the kernel refuses it.
    pub fn send(&mut self, peer: &Peer, octets: &[u8], passed: &[Passed]) -> bool {
        let descriptors = passed.iter().filter_map(|kind| self.shelf.get(*kind, peer)).collect::<Vec<_>>();
        let passed: Vec<_> = descriptors.iter().map(|fd| fd.as_fd()).collect();
        passed::send(&peer.fd, octets, &passed).is_ok()
    }

    /// Whether the program has a region that the daemon has given up.
    #[must_use]
    pub fn is_given_back(&self, peer: &Peer) -> bool {
        peer.region.as_ref().is_none_or(Region::is_given_back)
    }

    /// What the program is answered; `None`: nothing yet.
    ///
    /// # Errors
    /// The connection is over.
    ///
    /// # Panics
    /// When the answer is none, or what comes with it is not what it says.
    pub fn answer_to(&mut self, peer: &mut Peer) -> Result<Option<HelloStatus>, Closed> {
        match connection::read(peer.fd.as_fd(), &mut vec![0; connection::BUFFER_OCTETS]) {
            Read::Nothing => Ok(None),
            Read::Ended => Err(Closed),
            Read::Message(message) => {
                let reply = HelloReply::parse(message.octets()).expect("an answer to Hello");
                let passed = <[OwnedFd; 2]>::try_from(message.descriptors).ok();
                assert_eq!(passed.is_some(), reply.status == HelloStatus::Attached, "{reply:?}");
                if let Some([memfd, doorbell]) = passed {
                    let size = rustix::fs::fstat(&memfd).map_or(0, |stat| stat.st_size);
                    assert_eq!(i64::from(reply.region_octets), size, "the region's size");
                    peer.region_octets = reply.region_octets;
                    peer.region = Some(Region { memfd, doorbell });
                }
                Ok(Some(reply.status))
            }
        }
    }

    /// Datagrams that wait for the kernel.
    #[must_use]
    pub fn datagrams(&self) -> usize {
        self.directory.later().len()
    }

    /// Whether the registrar waits for nothing but programs.
    #[must_use]
    pub fn is_calm(&self) -> bool {
        let service = &self.service;
        service.paused.is_empty() && !service.examiner.is_watching() && service.following.is_empty()
    }

    /// The program does to its region what it likes: `how` 0 forbids further seals, 1 seals it itself, else it punches a hole.
    pub fn spoil(&self, peer: &Peer, how: u8) {
        if let Some(region) = &peer.region {
            passed::spoil(&region.memfd, how);
        }
    }

    /// Time passes.
    pub fn pass_time(&mut self, span: Duration) {
        let (now, tick) = NOW.get();
        NOW.set((now.map(|now| now + span), tick));
    }

    /// One turn of the registrar. Says whether there was anything to attend to.
    pub fn turn(&mut self) -> bool {
        let mut events = Vec::with_capacity(1024);
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let waited = self.service.wait(&mut events, Some(&at_once));
        waited.expect("epoll");
        self.service.attend(&events, &|| ());
        !events.is_empty()
    }

    /// How many jobs the helpers have begun.
    #[must_use]
    pub fn jobs(&self) -> usize {
        self.jobs.begun()
    }

    /// The helper of the job at this place does it, and needs so much CPU time.
    pub fn finish_job(&self, at: usize, spent: Duration) {
        self.jobs.finish(at, spent);
    }

    /// Whether helpers with a job are asleep, and whether further jobs find a helper.
    pub fn set_helpers(&self, are_asleep: bool, are_ready: bool) {
        self.jobs.set(are_asleep, are_ready);
    }

    /// The commands that the worker got since the last call.
    pub fn commands(&mut self) -> Vec<Told> {
        let mut all = Vec::new();
        while let Some(command) = self.inbox.next() {
            all.push(match command {
                Command::AddClient(client) => {
                    let number = client.key.0;
                    assert!(self.clients.insert(number, client).is_none(), "client {number} comes once");
                    Told::Add(number)
                }
                Command::Register(key, index, info) => Told::Register(key.0, index, info.token),
                Command::Refuse(key, index, status) => Told::Refuse(key.0, index, status.token),
                Command::Unregister(key, index) | Command::Settle(key, index) => {
                    Told::Unregister(key.0, index)
                }
                Command::EndClient(key) => Told::End(key.0),
                Command::SetClientTables(key, _) => Told::ClientTables(key.0),
                other => panic!("the registrar says {other:?}"),
            });
        }
        all
    }

    /// The worker gives a client back. False where it has none of this number.
    pub fn give_back(&mut self, number: u64) -> bool {
        let client = self.clients.remove(&number);
        let is_there = client.is_some();
        drop(client);
        if is_there {
            self.directory.over(ClientKey(number));
        }
        is_there
    }

    /// An attachment comes, or goes.
    pub fn set_served(&mut self, index: u16, is_served: bool) {
        match self.offered.get(usize::from(index)) {
            Some(served) if is_served => self.directory.serve(served.clone()),
            _ => self.directory.forget(AttachmentIndex(index)),
        }
        self.wake();
    }

    /// New tables: one of some variants.
    pub fn set_tables(&mut self, variant: u8) {
        self.generation += 1;
        self.directory.set_tables(Arc::new(passed::tables(self.generation, variant)));
        self.wake();
    }

    /// The daemon drains.
    pub fn admit_no_more(&mut self) {
        self.service.requests.is_closing.store(true, SeqCst);
        self.wake();
    }

    fn wake(&self) {
        self.service.requests.wake();
    }

    /// The clients that are counted.
    #[must_use]
    pub fn counted(&self) -> Vec<Counted> {
        let known = self.directory.lock();
        let counted = known.clients.iter().map(|(key, view)| Counted {
            number: key.0,
            pid: view.pid,
            attachment: view.attachment.0,
            octets: view.octets,
            is_ending: view.ending,
            streams: view.streams.iter().map(|(index, _)| index).collect(),
        });
        counted.collect()
    }

    /// Whether the registrar keeps nothing of any connection, and nothing that was passed.
    #[must_use]
    pub fn is_empty(&mut self) -> bool {
        let service = &self.service;
        let is_served_none = service.connections.is_empty() && service.paused.is_empty();
        is_served_none
            && !service.examiner.is_watching()
            && self.clients.is_empty()
            && self.directory.is_empty()
            && self.shelf.is_all_closed()
    }

    /// Whether those connections are paused that the list of paused ones names: another one would never be heard again.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        let service = &self.service;
        let paused = service.connections.iter().filter(|(_, c)| c.is_paused).map(|(number, _)| *number);
        let mut listed = service.paused.clone();
        listed.retain(|number| service.connections.contains_key(number));
        listed.sort_unstable();
        paused.eq(listed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ktsn_ring::control::Hello;
    use ktsn_ring::layout::ABI;

    use crate::clients::examiner::{Job, LINE_MAX};

    /// A connection that was paused in this turn is not read in it, though it had something to read when the turn began.
    #[test]
    fn a_paused_connection_is_not_read() {
        let memory_max = 64 << 20;
        let limits =
            Limits { clients_max: 4, memory_max, memory_max_of_all: 4 * memory_max, slots: 4, tick: 0 };
        let mut driver = Driver::new(limits).unwrap();
        let mut peer = driver.connect(1, Namespace::Own).unwrap();
        let hello = Hello { abi_min: ABI as u16, abi_max: ABI as u16, interface_index: 0 }.encode();
        assert!(driver.send(&peer, hello.as_slice(), &[Passed::Udp]));
        driver.service.pause(peer.number);
        driver.service.serve(peer.number);
        assert_eq!((driver.jobs(), driver.answer_to(&mut peer)), (0, Ok(None)));
        // It is listened to again, with its message unread.
        driver.turn();
        assert!(driver.turn());
        assert_eq!(driver.jobs(), 1);
        assert!(!driver.turn(), "nothing to read while a helper looks");
        driver.finish_job(0, Duration::ZERO);
        driver.turn();
        assert_eq!(driver.answer_to(&mut peer), Ok(Some(HelloStatus::Attached)));
    }

    /// A namespace that has left so many jobs behind is not heard, another one is.
    #[test]
    fn a_namespace_whose_line_is_full_is_not_heard() {
        let memory_max = 64 << 20;
        let limits =
            Limits { clients_max: 4, memory_max, memory_max_of_all: 4 * memory_max, slots: 4, tick: 0 };
        let mut driver = Driver::new(limits).unwrap();
        let owner = driver.service.owner(driver.shelf.netns_cookie(), 1);
        let leave = |driver: &mut Driver, times| {
            (0..times).for_each(|_| {
                driver.service.examiner.give(owner, 0, Job::End { connection: None, client: None });
            });
        };
        leave(&mut driver, LINE_MAX);
        let mut heard = driver.connect(2, Namespace::Own).unwrap();
        leave(&mut driver, 1);
        let mut unheard = driver.connect(3, Namespace::Own).unwrap();
        let mut foreign = driver.connect(4, Namespace::Foreign).unwrap();
        assert_eq!(driver.answer_to(&mut heard), Ok(None));
        assert_eq!(driver.answer_to(&mut unheard), Err(Closed));
        assert_eq!(driver.answer_to(&mut foreign), Ok(None));
    }
}
