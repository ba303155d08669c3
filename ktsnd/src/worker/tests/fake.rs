// SPDX-License-Identifier: Apache-2.0
//! A ring of captured frames that a test fills.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use ktsn_bpf::{Clock, Counted, Taken};
use ktsn_model::Priority;
use ktsn_resolve::AttachmentIndex;

use crate::worker::{CaptureRing, Captured};

type Frames = VecDeque<(Taken, Vec<u8>)>;

/// A ring whose frames a test makes. A clone is the same ring.
#[derive(Clone, Debug)]
pub(in crate::worker) struct Fake {
    pub waiting: Arc<Mutex<Frames>>,
    pub counters: Arc<[AtomicU64; Counted::ALL.len()]>,
    descriptor: Arc<OwnedFd>,
}

impl Fake {
    pub(in crate::worker) fn new() -> Self {
        let descriptor = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        Self { waiting: Arc::default(), counters: Arc::default(), descriptor: Arc::new(descriptor) }
    }

    /// The frames of this ring for an attachment.
    pub(in crate::worker) fn captured(&self, attachment: AttachmentIndex, slots: u16) -> Box<Captured> {
        Box::new(Captured::new(attachment, Box::new(self.clone()), Priority::capped(2), slots, 1450))
    }

    /// A frame without content.
    pub(in crate::worker) fn send_empty(&self) {
        let taken = Taken { tx_time: 0, clock: Clock::Tai, captured_at: 0, octets: 0, segment_octets: 0 };
        self.waiting.lock().unwrap().push_back((taken, Vec::new()));
    }
}

impl CaptureRing for Fake {
    fn is_waiting(&self) -> bool {
        !self.waiting.lock().unwrap().is_empty()
    }
    fn take(&mut self, buffer: &mut [u8]) -> Option<Taken> {
        let (taken, frame) = self.waiting.lock().unwrap().pop_front()?;
        buffer[..frame.len()].copy_from_slice(&frame);
        Some(taken)
    }
    fn counters(&self) -> [u64; Counted::ALL.len()] {
        std::array::from_fn(|which| self.counters[which].load(SeqCst))
    }
    fn descriptor(&self) -> BorrowedFd<'_> {
        (*self.descriptor).as_fd()
    }
}
