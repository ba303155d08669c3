// SPDX-License-Identifier: Apache-2.0
//! A port whose frames leave by an ordinary thread: for a device whose hand-overs take too long for the caller's thread.
//!
//! In: staged frames. Out: the same frames, in the order of their commits, handed to the port inside by a thread that this
//! adapter starts. A commit moves the buffer into a queue and wakes the thread: it never waits, whatever the device does. The
//! buffer comes back by a second queue. So `Ok` means here that the thread has the frame. What the device refuses later is
//! counted (`deferred_dropped_count`) and passed to the observer.
//!
//! The thread has the scheduling policy and the CPUs of the thread that starts it. It measures each hand-over in CPU time, as
//! other threads may run in between.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rtrb::{Consumer, Producer, RingBuffer};
use rustix::time::{ClockId, clock_gettime};

use crate::error::{OpenError, SendError, StageError};
use crate::stages::Stages;
use crate::traits::{Builder, Capabilities, Counters, Occupancy, Port, StageId};

/// A frame that the device takes later is tried again after this, …
const RETRY_PAUSE: Duration = Duration::from_micros(320);
/// … until so much has passed.
const RETRY_MAX: Duration = Duration::from_millis(10);
/// A closed port's frames are still sent within this; the rest is counted as failed.
const CLOSE_MAX: Duration = Duration::from_millis(100);
const CLOSE_STEP: Duration = Duration::from_millis(1);
const STACK_OCTETS: usize = 256 << 10;

/// What became of one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// CPU time that its hand-over took; zero when it was not tried.
    pub took: Duration,
    /// Whether the device took it.
    pub result: Result<(), SendError>,
}

/// Called for each frame, in the thread that hands it over.
pub type Observer = Box<dyn FnMut(Left) + Send>;

/// A frame on its way to the thread, or its buffer on its way back.
#[derive(Debug)]
struct Parcel {
    index: u16,
    octets: usize,
    is_dropped: bool,
    buffer: Box<[u8]>,
}

#[derive(Debug)]
struct Shared {
    is_link_up: AtomicBool,
    /// When the port was closed.
    closed_at: OnceLock<Instant>,
}

/// The port. Dropping it waits for queued frames, 100 ms at most.
#[derive(Debug)]
pub struct Deferred {
    stages: Stages,
    /// `None`: the thread has it.
    buffers: Box<[Option<Box<[u8]>>]>,
    capabilities: Capabilities,
    queue: Producer<Parcel>,
    back: Consumer<Parcel>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Deferred {
    /// Starts a thread that owns `port`; at most `stage_count` frames (a power of two) are staged or queued.
    ///
    /// # Errors
    /// [`OpenError::StageCount`]; [`OpenError::Os`] when no thread can be started.
    pub fn start<P>(port: P, stage_count: u16, observer: Observer) -> Result<Self, OpenError>
    where
        P: Port + Send + 'static,
    {
        let stages = Stages::new(stage_count)?;
        let count = usize::from(stage_count);
        let capabilities = Capabilities { adapter: "deferred", stage_count, ..port.capabilities().clone() };
        // Written once, so that no page is missing when a frame is due.
        let buffer = || Some(vec![1; capabilities.frame_octets_max].into_boxed_slice());
        let buffers = (0..count).map(|_| buffer()).collect();
        let shared =
            Arc::new(Shared { is_link_up: AtomicBool::new(port.link_up()), closed_at: OnceLock::new() });
        let (queue, frames) = RingBuffer::new(count);
        let (sent, back) = RingBuffer::new(count);
        let mut sender = Sender { port, frames, sent, observer, shared: shared.clone() };
        let thread = std::thread::Builder::new()
            .name("ktsn-deferred".to_owned())
            .stack_size(STACK_OCTETS)
            .spawn(move || sender.run())
            .map_err(|error| OpenError::Os { step: "clone", errno: error.raw_os_error().unwrap_or(0) })?;
        Ok(Self { stages, buffers, capabilities, queue, back, shared, thread: Some(thread) })
    }

    /// A launched frame did not reach the thread.
    #[cold]
    fn refuse(&mut self, stage: StageId, error: SendError) -> SendError {
        self.stages.withdraw(stage);
        error
    }
}

impl Port for Deferred {
    fn stage(&mut self, build: &mut Builder<'_>) -> Result<StageId, StageError> {
        let index = usize::from(self.stages.next_free()?);
        let buffer = self.buffers[index].as_deref_mut().ok_or(StageError::Full)?;
        self.stages.build(buffer, build, self.capabilities.frame_octets_max)
    }

    fn staged_frame(&self, stage: StageId) -> Option<&[u8]> {
        let octets = self.stages.staged_octets(stage)?;
        self.buffers.get(stage.index())?.as_deref()?.get(..octets)
    }

    fn commit(&mut self, stage: StageId) -> Result<(), SendError> {
        let octets = self.stages.launch(stage)?;
        let thread = self.thread.as_ref().filter(|_| !self.queue.is_abandoned());
        let (Some(thread), Some(buffer)) = (thread, self.buffers[stage.index()].take()) else {
            return Err(self.refuse(stage, SendError::DeviceGone));
        };
        let parcel = Parcel { index: stage.0, octets, is_dropped: false, buffer };
        if let Err(rtrb::PushError::Full(parcel)) = self.queue.push(parcel) {
            self.buffers[stage.index()] = Some(parcel.buffer);
            return Err(self.refuse(stage, SendError::Busy));
        }
        // One atomic exchange, and a system call where the thread sleeps.
        thread.thread().unpark();
        self.stages.counters.committed_count += 1;
        self.stages.counters.deferred_count += 1;
        Ok(())
    }

    fn reap(&mut self) -> usize {
        let mut count = 0;
        // No more than there are buffers, however quick the thread is.
        while count < self.buffers.len()
            && let Ok(parcel) = self.back.pop()
        {
            self.buffers[usize::from(parcel.index)] = Some(parcel.buffer);
            self.stages.complete(usize::from(parcel.index));
            self.stages.counters.deferred_dropped_count += u64::from(parcel.is_dropped);
            count += 1;
        }
        count
    }

    /// The link's state when the last frame was handed over.
    fn link_up(&self) -> bool {
        self.shared.is_link_up.load(Relaxed)
    }

    crate::stages::stage_methods!();
}

impl Drop for Deferred {
    fn drop(&mut self) {
        let closed_at = *self.shared.closed_at.get_or_init(Instant::now);
        let Some(thread) = self.thread.take() else { return };
        thread.thread().unpark();
        // A hand-over that takes longer is not waited for: the thread ends after it.
        while !thread.is_finished() && closed_at.elapsed() < CLOSE_MAX {
            std::thread::sleep(CLOSE_STEP);
        }
    }
}

/// The thread's part.
struct Sender<P> {
    port: P,
    frames: Consumer<Parcel>,
    sent: Producer<Parcel>,
    observer: Observer,
    shared: Arc<Shared>,
}

impl<P: Port> Sender<P> {
    fn run(&mut self) {
        loop {
            // Asked first: what was committed before the end is found below. The port or the observer may use up what wakes this
            // thread, so both are asked again after each frame.
            let is_closed = self.shared.closed_at.get().is_some();
            match self.frames.pop() {
                Ok(parcel) => self.deliver(parcel),
                Err(_) if is_closed => return,
                Err(_) => std::thread::park(),
            }
        }
    }

    fn deliver(&mut self, mut parcel: Parcel) {
        let left = self.send(&parcel.buffer[..parcel.octets]);
        parcel.is_dropped = left.result.is_err();
        (self.observer)(left);
        // There is room for every buffer; without a receiver it is freed here.
        let _ = self.sent.push(parcel);
    }

    fn send(&mut self, frame: &[u8]) -> Left {
        if self.shared.closed_at.get().is_some_and(|at| at.elapsed() >= CLOSE_MAX) {
            return Left { took: Duration::ZERO, result: Err(SendError::Dropped) };
        }
        let began = (cpu_time(), Instant::now());
        let mut result = self.hand_over(frame);
        while matches!(result, Err(SendError::Busy | SendError::NoMemory)) && began.1.elapsed() < RETRY_MAX {
            std::thread::sleep(RETRY_PAUSE);
            result = self.hand_over(frame);
        }
        match result {
            Ok(()) => self.shared.is_link_up.store(true, Relaxed),
            Err(SendError::LinkDown | SendError::DeviceGone) => self.shared.is_link_up.store(false, Relaxed),
            Err(_) => {}
        }
        Left { took: cpu_time().saturating_sub(began.0), result }
    }

    fn hand_over(&mut self, frame: &[u8]) -> Result<(), SendError> {
        self.port.reap();
        let staged = self.port.stage_copy(frame).map_err(|error| match error {
            StageError::Full => SendError::Busy,
            StageError::TooLong { .. } => SendError::TooLong,
            StageError::NotBuilt | StageError::TooShort { .. } => SendError::NotStaged,
        })?;
        self.port.commit(staged)
    }
}

/// CPU time of the calling thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests;
