// SPDX-License-Identifier: Apache-2.0
//! Helpers that do a job when the fuzz target lets them.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::net::sockopt;

use super::passed::FOREIGN_NETNS;
use crate::clients::examiner::{Done, Helpers, Job, work};
use crate::clients::socket::{NotASocket, SocketFacts, examine};

#[derive(Default)]
struct State {
    begun: BTreeMap<u64, Job>,
    done: VecDeque<Done>,
    are_asleep: bool,
    are_missing: bool,
}

/// The jobs, shared by driver and registrar.
#[derive(Clone, Default)]
pub(super) struct Jobs(Arc<Mutex<State>>);

/// A broadcasting socket is taken for one of another namespace.
fn look(fd: OwnedFd) -> Result<SocketFacts, NotASocket> {
    let is_foreign = sockopt::socket_broadcast(&fd) == Ok(true);
    let facts = examine(fd)?;
    let netns_cookie = if is_foreign { FOREIGN_NETNS } else { facts.netns_cookie };
    Ok(SocketFacts { netns_cookie, ..facts })
}

impl Jobs {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begun(&self) -> usize {
        self.lock().begun.len()
    }

    pub(super) fn finish(&self, at: usize, spent: Duration) {
        let mut state = self.lock();
        let Some(job_number) = state.begun.keys().nth(at).copied() else { return };
        if let Some(job) = state.begun.remove(&job_number) {
            let answer = work(job, look);
            state.done.push_back(Done { job_number, answer, spent });
        }
    }

    pub(super) fn set(&self, are_asleep: bool, are_ready: bool) {
        let mut state = self.lock();
        state.are_asleep = are_asleep;
        state.are_missing = !are_ready;
    }
}

impl Helpers for Jobs {
    fn is_ready(&mut self) -> bool {
        !self.lock().are_missing
    }

    fn begin(&mut self, job_number: u64, job: Job) {
        self.lock().begun.insert(job_number, job);
    }

    fn next_done(&mut self) -> Option<Done> {
        self.lock().done.pop_front()
    }

    fn is_asleep(&self, _job_number: u64) -> bool {
        self.lock().are_asleep
    }
}
