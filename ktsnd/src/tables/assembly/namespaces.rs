// SPDX-License-Identifier: Apache-2.0
//! Pods' namespaces that are read again.
//!
//! In: hints that a namespace changed; what a thread read of it. Out: the tables of its attachments, made again. Readings of
//! different namespaces go on side by side, so that one that takes long delays its own pod only.

use std::task::{Context, Poll};

use tokio::time::Instant;

use super::pod::Pod;
use super::state::TablesState;
use crate::tables::error::TablesError;
use crate::tables::kernel::reader::{self, Opened, Read};
use crate::tables::news::Event;

/// Readings at the same time.
const READINGS_MAX: usize = 64;

impl TablesState {
    /// Begins the readings that are due; when the next one is.
    pub(crate) fn begin_readings(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let mut going = self.pods.values().filter(|pod| pod.reading.is_some()).count();
        let mut next: Option<Instant> = None;
        for (path, pod) in &mut self.pods {
            let Some(due) = pod.due(now) else { continue };
            if due > now {
                next = Some(next.map_or(due, |next| next.min(due)));
                continue;
            }
            // One that ends makes room.
            if going >= READINGS_MAX {
                continue;
            }
            self.readings_count += 1;
            let (hints, excepted) = pod.begin(self.readings_count);
            let (before, results) = (pod.space.snapshot.clone(), self.read_sender.clone());
            match reader::read_again(path.clone(), before, hints, excepted, self.readings_count, results) {
                Ok(()) => going += 1,
                Err(_) => {
                    pod.reading = None;
                    pod.failed(std::time::Duration::ZERO);
                }
            }
        }
        next
    }

    /// The next reading that has ended.
    pub(super) fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Box<Read>> {
        match self.reads.poll_recv(context) {
            Poll::Ready(Some(read)) => Poll::Ready(Box::new(read)),
            // This state holds a sender.
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    /// Takes over what was read of a namespace.
    pub(crate) fn take_read(&mut self, read: Read) {
        let Read { path, number, identity, snapshot, cost } = read;
        // The namespace may have been let go, or read again as another one.
        let Some(pod) = self.pods.get_mut(&path).filter(|pod| pod.reading == Some(number)) else { return };
        pod.reading = None;
        let begun = Instant::now();
        let (is_other, failed) = match snapshot {
            Ok(snapshot) if identity == Some(pod.identity) => {
                (pod.fault.take().is_some() | pod.space.show(snapshot, pod.reads_layout), false)
            }
            // It is on its way out.
            Ok(_) | Err(TablesError::Namespace { .. }) => (false, true),
            Err(error @ TablesError::TooLarge { .. }) => {
                let fault = error.to_string();
                (pod.fault.replace(fault.clone()).as_ref() != Some(&fault), true)
            }
            Err(error) => {
                if pod.log_limit.allows() {
                    (self.report)(Event::Warning(format!("{}: {error}", path.display())));
                }
                (false, true)
            }
        };
        if is_other {
            self.rebuild(|tracked| tracked.attachment.netns == path);
        }
        // What follows from its changes is its cost, too.
        let cost = cost + begun.elapsed();
        if let Some(pod) = self.pods.get_mut(&path) {
            if failed { pod.failed(cost) } else { pod.rest(cost) }
        }
    }

    /// Holds a namespace that was read just now, in the place of an earlier reading of it.
    pub(super) fn hold(&mut self, netns: &std::path::Path, opened: Opened) -> Result<&mut Pod, TablesError> {
        let pod = Pod::new(opened)?;
        match self.pods.entry(netns.to_path_buf()) {
            std::collections::btree_map::Entry::Vacant(place) => Ok(place.insert(pod)),
            std::collections::btree_map::Entry::Occupied(place) => {
                let before = place.into_mut();
                *before = pod;
                Ok(before)
            }
        }
    }
}
