// SPDX-License-Identifier: Apache-2.0
//! The notifier thread of a worker: makes the kernel tell programs that completions wait for them.
//!
//! In: notices from the worker. Out: markers on the programs' own error queues. It holds a program's socket only
//! while it sends, never while the program closes it, and no namespace beyond that. It may be slow; what it misses,
//! programs find when they look.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ktsn_ring::Attention;
use ktsn_ring::completion::kind;
use ktsn_ring::marker::Marker;
use rustix::process::{PidfdGetfdFlags, pidfd_getfd};

use super::marker::Target;
use super::socket::{can_close_unknown, close_elsewhere};
use crate::worker::{ClientKey, Notice};

/// Notices answered with one socket in hand: a program that closes it waits for no more than these.
const MARKERS_A_HOLD: usize = 16;

/// How a client's sockets are reached.
#[derive(Debug)]
pub(super) struct Process {
    /// The process.
    pub pidfd: OwnedFd,
    /// Its region's words for closing streams.
    pub attention: Attention,
}

/// The clients whose sockets can be reached, shared with the registrar.
#[derive(Clone, Debug, Default)]
pub(super) struct Processes(Arc<Mutex<BTreeMap<ClientKey, Arc<Process>>>>);

impl Processes {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ClientKey, Arc<Process>>> {
        // A panic elsewhere leaves a map that is still right.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn insert(&self, client: ClientKey, process: Process) {
        self.lock().insert(client, Arc::new(process));
    }

    pub(super) fn remove(&self, client: ClientKey) {
        self.lock().remove(&client);
    }

    fn get(&self, client: ClientKey) -> Option<Arc<Process>> {
        self.lock().get(&client).cloned()
    }
}

/// Answers notices until the worker has gone.
pub(super) fn run(notices: &Receiver<Notice>, processes: &Processes) {
    let mut next = notices.recv().ok();
    while let Some(first) = next.take() {
        let process = processes.get(first.client);
        let mut batch = vec![first];
        while batch.len() < MARKERS_A_HOLD && next.is_none() {
            match notices.try_recv() {
                Ok(notice) if is_same_socket(&notice, &first) => batch.push(notice),
                Ok(other) => next = Some(other),
                Err(_) => break,
            }
        }
        if let Some(process) = process {
            notify(&process, &batch);
        }
        if next.is_none() {
            next = notices.recv().ok();
        }
    }
}

fn is_same_socket(one: &Notice, other: &Notice) -> bool {
    let name =
        |notice: &Notice| (notice.client, notice.stream, notice.token, notice.descriptor, notice.cookie);
    name(one) == name(other)
}

/// Marks a batch of one socket's notices.
fn notify(process: &Process, batch: &[Notice]) {
    let Some(first) = batch.first() else { return };
    // What lies under the number may have to be closed elsewhere.
    if !can_close_unknown() {
        return;
    }
    // Declared first, dropped last: the socket is closed before the program may go on closing.
    let Some(_holding) = process.attention.begin(first.stream, first.token) else { return };
    let Ok(descriptor) = pidfd_getfd(&process.pidfd, first.descriptor, PidfdGetfdFlags::empty()) else {
        return;
    };
    let target = match Target::new(descriptor, first.cookie) {
        Ok(target) => target,
        Err(other) => {
            // Whatever lies under this number now: closing it may take as long as its file system likes.
            close_elsewhere(other);
            return;
        }
    };
    for notice in batch {
        // In the order of the events that they tell of.
        for kind in [kind::SCHEDULED, kind::SOFTWARE, kind::ERROR] {
            if notice.kinds & kind != 0 {
                let Notice { sequence, slot, .. } = *notice;
                let nonce = process.attention.nonce();
                // Refused (no memory, a filter, lo down): the program finds it when it looks.
                let _ = target.mark(&Marker { nonce, sequence, slot, kind });
            }
        }
    }
}
