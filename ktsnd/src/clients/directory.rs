// SPDX-License-Identifier: Apache-2.0
//! What registrar and control thread know in common: which namespace belongs to which attachment, and which
//! clients and streams there are. Workers never come here.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};

use ktsn_port::AnyPort;
use ktsn_resolve::{AttachmentIndex, PortIndex, Tables};
use ktsn_ring::Markers;
use ktsn_ring::receive::ReceiveArea;

use super::budget::{Account, RefusedBy, available};
use super::kept::KeptSockets;
use super::later::Later;
use super::notifier::{self, Process, Processes};
use super::receivers::{Grantee, Receivers};
use super::streams::Streams;
use crate::config::Attachment;
use crate::limits;
use crate::queue::Receiver;
use crate::stats::AttachmentStats;
use crate::worker::{ClientKey, Notice, Outbox, StreamInfo};

/// An attachment that is served, for the node and for the registrar. It never changes.
#[derive(Debug)]
pub struct ServedAttachment<P = AnyPort> {
    /// Its index in the tables.
    pub index: AttachmentIndex,
    /// As it was asked for, with the addresses that were found.
    pub attachment: Attachment,
    /// The device of its uplink.
    pub uplink: String,
    /// The port that sends what leaves by the pod's interface.
    pub interface_port: PortIndex,
    /// SO_NETNS_COOKIE of its namespace.
    pub netns_cookie: u64,
    /// Index of the pod's interface in its namespace, for SO_BINDTODEVICE.
    pub interface_index: u32,
    /// MTU of the pod's interface, octets.
    pub mtu: u32,
    /// Where its clients' frames are counted.
    pub stats: Arc<AttachmentStats>,
    /// The worker that takes its clients' frames.
    pub worker: Outbox<P>,
}

impl<P> ServedAttachment<P> {
    /// Its name, unique on the node.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.attachment.name
    }
}

/// A client as it is listed and counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientView {
    /// Its name.
    pub key: ClientKey,
    /// Process as seen from here; 0 = not visible.
    pub pid: u32,
    /// The attachment of its first socket.
    pub attachment: AttachmentIndex,
    /// Its streams by their index.
    pub streams: Streams,
    /// Octets of ktsnd's memory that it has at most, those of its streams included.
    pub octets: u64,
    /// Its process is gone; frames of it are still queued.
    pub ending: bool,
}

#[derive(Debug)]
pub(super) struct Known<P> {
    pub served: Vec<Arc<ServedAttachment<P>>>,
    pub clients: BTreeMap<ClientKey, ClientView>,
    pub tables: Arc<Tables>,
    /// Octets of ktsnd's memory that all clients together have at most.
    pub memory_max: u64,
    /// Counts changes of `served`.
    pub version: u64,
}

impl<P> Known<P> {
    /// The attachment that a program asks for: of its socket's namespace, with this interface, or the first one (0).
    pub(super) fn find(&self, netns_cookie: u64, interface_index: u32) -> Option<&Arc<ServedAttachment<P>>> {
        let mut of_namespace = self.served.iter().filter(|s| s.netns_cookie == netns_cookie);
        of_namespace.find(|s| interface_index == 0 || s.interface_index == interface_index)
    }

    /// Interfaces of the other attachments of an attachment's namespace.
    pub(super) fn others(&self, netns_cookie: u64, of: AttachmentIndex) -> Vec<u32> {
        let is_other = |s: &&Arc<ServedAttachment<P>>| s.netns_cookie == netns_cookie && s.index != of;
        self.served.iter().filter(is_other).map(|s| s.interface_index).collect()
    }

    /// Octets that may be added for clients of this attachment.
    pub(super) fn available(&self, of: AttachmentIndex) -> u64 {
        let mut used: BTreeMap<AttachmentIndex, u64> = BTreeMap::new();
        for client in self.clients.values() {
            *used.entry(client.attachment).or_default() += client.octets;
        }
        let account = |index, used: Option<u64>, max| Account { index, used: used.unwrap_or(0), max };
        let mut accounts: Vec<Account> = Vec::with_capacity(self.served.len() + used.len());
        for served in &self.served {
            let memory_max = served.attachment.clients.memory_max;
            accounts.push(account(served.index, used.remove(&served.index), memory_max));
        }
        // Their attachments are gone, and the worker has not given them back yet.
        accounts.extend(used.into_iter().map(|(index, used)| account(index, Some(used), 0)));
        available(self.memory_max, &accounts, of)
    }

    /// Keeps a stream of a client, where there is memory for it. Else what was kept stays as it was.
    pub(super) fn keep_stream(
        &mut self,
        key: ClientKey,
        index: u32,
        info: StreamInfo,
    ) -> Result<(), RefusedBy> {
        let Some(view) = self.clients.get(&key) else { return Ok(()) };
        let growth = view.streams.growth(index);
        if growth > 0 && growth > self.available(view.attachment) {
            return Err(RefusedBy::StreamsMemory);
        }
        if let Some(view) = self.clients.get_mut(&key) {
            view.octets += growth;
            view.streams.insert(index, info);
        }
        Ok(())
    }
}

/// The shared directory.
#[derive(Debug)]
pub struct Directory<P> {
    known: Arc<Mutex<Known<P>>>,
    processes: Processes,
    receivers: Receivers,
    kept: KeptSockets,
    later: Arc<Mutex<Later>>,
}

impl<P> Clone for Directory<P> {
    fn clone(&self) -> Self {
        let (known, processes, receivers) =
            (self.known.clone(), self.processes.clone(), self.receivers.clone());
        Self { known, processes, receivers, kept: self.kept.clone(), later: self.later.clone() }
    }
}

impl<P> Directory<P> {
    /// An empty directory.
    #[must_use]
    pub fn new(tables: Arc<Tables>) -> Self {
        let memory_max = limits::CLIENTS_MEMORY_MAX;
        let known = Known { served: Vec::new(), clients: BTreeMap::new(), tables, memory_max, version: 0 };
        Self {
            known: Arc::new(Mutex::new(known)),
            processes: Processes::default(),
            receivers: Receivers::default(),
            kept: KeptSockets::default(),
            later: Arc::new(Mutex::new(Later::new())),
        }
    }

    /// Bounds the memory of all clients together, in octets; [`limits::CLIENTS_MEMORY_MAX`] otherwise.
    pub fn set_memory_max(&self, octets: u64) {
        self.lock().memory_max = octets;
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Known<P>> {
        // A panic elsewhere leaves plain values that are still right.
        self.known.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Sockets that are kept for their streams.
    pub(super) const fn kept(&self) -> &KeptSockets {
        &self.kept
    }

    /// What the kernel is to send later.
    pub(super) fn later(&self) -> MutexGuard<'_, Later> {
        // A panic elsewhere leaves lanes that still send.
        self.later.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The process of a client, where its sockets can be reached.
    pub(super) fn process(&self, key: ClientKey) -> Option<Arc<Process>> {
        self.processes.get(key)
    }

    /// Begins to serve an attachment (instead of an older one with the same index); tell the registrar afterwards.
    pub fn serve(&self, served: Arc<ServedAttachment<P>>) {
        let mut known = self.lock();
        known.served.retain(|s| s.index != served.index);
        known.served.push(served);
        known.version += 1;
    }

    /// Stops serving an attachment; tell the registrar afterwards. Its clients' grants of expected arrival are withdrawn.
    pub fn forget(&self, index: AttachmentIndex) {
        let mut known = self.lock();
        known.served.retain(|s| s.index != index);
        known.version += 1;
        self.receivers.end_attachment(index);
    }

    /// Who may expect arrivals.
    #[must_use]
    pub const fn receivers(&self) -> &Receivers {
        &self.receivers
    }

    /// A client asks for a grant of expected arrival, of an attachment that is served.
    pub(super) fn add_receiver(
        &self,
        key: ClientKey,
        pid: u32,
        attachment: AttachmentIndex,
        area: &ReceiveArea,
    ) {
        // Under the lock: an attachment that goes now is gone before, or finds the receiver.
        let known = self.lock();
        if let Some(served) = known.served.iter().find(|served| served.index == attachment) {
            let stats = served.stats.clone();
            self.receivers.add(key, Grantee { pid, attachment, stats, area: area.clone() });
        }
    }

    /// New tables; tell the registrar afterwards.
    pub fn set_tables(&self, tables: Arc<Tables>) {
        self.lock().tables = tables;
    }

    /// All clients of this moment whose process is there.
    #[must_use]
    pub fn clients(&self) -> Vec<ClientView> {
        self.lock().clients.values().filter(|c| !c.ending).cloned().collect()
    }

    /// How many clients each attachment has that has any.
    pub(crate) fn clients_by_attachment(&self) -> BTreeMap<AttachmentIndex, usize> {
        let mut counts = BTreeMap::new();
        for client in self.lock().clients.values().filter(|client| !client.ending) {
            *counts.entry(client.attachment).or_insert(0) += 1;
        }
        counts
    }

    /// Adds the process of a client, so that its sockets can be reached for notices. Without a process they cannot be reached.
    pub(super) fn add_process(
        &self,
        key: ClientKey,
        process: Option<&OwnedFd>,
        netns_cookie: u64,
        markers: Markers,
    ) {
        if let Some(pidfd) = process.and_then(|process| process.try_clone().ok()) {
            self.processes.insert(key, Process::new(pidfd, netns_cookie, markers));
        }
    }

    /// Tells programs by their error queues what a worker's notices say; returns when the worker has gone.
    pub fn notify(&self, notices: &Receiver<Notice>, device: &str) {
        notifier::run(notices, &self.processes, device);
    }

    /// A client's stream is kept no more.
    pub(super) fn end_stream(&self, key: ClientKey, index: u32) {
        if let Some(view) = self.lock().clients.get_mut(&key) {
            let before = view.streams.octets();
            view.streams.remove(index);
            view.octets -= before - view.streams.octets();
        }
    }

    /// Whether nothing is kept of any client.
    pub(super) fn is_empty(&self) -> bool {
        self.processes.is_empty()
            && self.receivers.is_empty()
            && self.kept.is_empty()
            && self.lock().clients.is_empty()
    }

    /// A client's process is gone.
    pub(super) fn ending(&self, key: ClientKey) {
        self.processes.remove(key);
        self.receivers.end(key);
        if let Some(view) = self.lock().clients.get_mut(&key) {
            view.ending = true;
        }
    }

    /// A client's last frame is gone, too.
    pub fn over(&self, key: ClientKey) {
        self.kept.remove_client(key);
        self.processes.remove(key);
        self.lock().clients.remove(&key);
    }
}
