// SPDX-License-Identifier: Apache-2.0
//! Bounded queues between a worker and other threads, for which the worker never waits.
//!
//! In: values at one end. Out: the same values in order at the other end. A step of one end is finished in a bounded number of
//! instructions, whatever the other end does: an ordinary thread that is preempted in the midst of a call holds up no worker.
//! The queues of the standard library cannot promise that: they wake a sleeping receiver through a mutex, and a receiver spins
//! while a sender is between two of its steps.
//!
//! [`worker_to_thread`] has one sender, the worker; [`threads_to_worker`] has many, which take turns by a lock of their own.

use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

/// How long a sender sleeps before it looks for room again.
const PAUSE: Duration = Duration::from_millis(1);

/// The other end is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the queue's other end is gone")]
pub struct Ended;

/// Nothing is in the queue now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the queue is empty")]
pub struct Empty;

/// What a receiver waits on.
#[derive(Debug)]
struct Bell {
    event: OwnedFd,
    /// The receiver sleeps, or is about to.
    is_asleep: AtomicBool,
}

impl Bell {
    fn ring(&self) {
        // The counter of an eventfd is far from its end, so this never waits.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }
}

/// The worker's end of a queue to a thread.
#[derive(Debug)]
pub struct Sender<T> {
    values: rtrb::Producer<T>,
    bell: Arc<Bell>,
}

/// A thread's end of a queue from a worker.
#[derive(Debug)]
pub struct Receiver<T> {
    values: RefCell<rtrb::Consumer<T>>,
    bell: Arc<Bell>,
}

/// A queue of at most `capacity` values from a worker to a thread.
///
/// # Errors
/// The kernel's, when descriptors run out.
pub fn worker_to_thread<T>(capacity: usize) -> Result<(Sender<T>, Receiver<T>), Errno> {
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let bell = Arc::new(Bell { event, is_asleep: AtomicBool::new(false) });
    let (sender, receiver) = rtrb::RingBuffer::new(capacity);
    Ok((Sender { values: sender, bell: bell.clone() }, Receiver { values: RefCell::new(receiver), bell }))
}

impl<T> Sender<T> {
    /// Puts a value into the queue; wakes the receiver where it sleeps.
    ///
    /// # Errors
    /// The value, where the queue is full or the receiver gone.
    pub fn try_send(&mut self, value: T) -> Result<(), T> {
        if self.values.is_abandoned() {
            return Err(value);
        }
        self.values.push(value).map_err(|rtrb::PushError::Full(value)| value)?;
        // The value is there before the receiver is seen asleep, as the receiver says so before it looks for the last time.
        fence(SeqCst);
        if self.bell.is_asleep.swap(false, SeqCst) {
            self.bell.ring();
        }
        Ok(())
    }

    /// How many values the queue surely takes now.
    #[must_use]
    pub fn room(&self) -> usize {
        self.values.slots()
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        // The receiver finds the queue's end once this value is dropped as a whole: it looks again after a while.
        self.bell.ring();
    }
}

impl<T> Receiver<T> {
    /// The next value; waits for one.
    ///
    /// # Errors
    /// [`Ended`]: the worker is gone, and all that it sent has been received.
    pub fn recv(&self) -> Result<T, Ended> {
        loop {
            // Asked first: what is sent before the end is found below.
            let is_over = self.values.borrow().is_abandoned();
            if let Ok(value) = self.try_recv() {
                return Ok(value);
            }
            if is_over {
                return Err(Ended);
            }
            self.bell.is_asleep.store(true, SeqCst);
            fence(SeqCst);
            if let Ok(value) = self.try_recv() {
                self.bell.is_asleep.store(false, SeqCst);
                return Ok(value);
            }
            // An end that is seen late is seen after this.
            let patience = rustix::event::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            let _ = poll(
                &mut [PollFd::from_borrowed_fd(self.bell.event.as_fd(), PollFlags::IN)],
                Some(&patience),
            );
            let _ = rustix::io::read(&self.bell.event, &mut [0u8; 8]);
        }
    }

    /// The next value, if there is one now.
    ///
    /// # Errors
    /// [`Empty`].
    pub fn try_recv(&self) -> Result<T, Empty> {
        self.values.borrow_mut().pop().map_err(|_| Empty)
    }

    /// The values that are there now.
    pub fn try_iter(&self) -> impl Iterator<Item = T> + '_ {
        std::iter::from_fn(|| self.try_recv().ok())
    }
}

/// The threads' end of a queue to a worker.
#[derive(Debug)]
pub struct ManySender<T> {
    values: Arc<Mutex<rtrb::Producer<T>>>,
    wake: Arc<OwnedFd>,
}

impl<T> Clone for ManySender<T> {
    fn clone(&self) -> Self {
        Self { values: self.values.clone(), wake: self.wake.clone() }
    }
}

/// The worker's end of a queue from other threads.
#[derive(Debug)]
pub struct WorkerReceiver<T>(rtrb::Consumer<T>);

/// A queue of at most `capacity` values from other threads to a worker, and the eventfd that each of them writes to.
///
/// # Errors
/// The kernel's, when descriptors run out.
pub fn threads_to_worker<T>(capacity: usize) -> Result<(ManySender<T>, WorkerReceiver<T>, OwnedFd), Errno> {
    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let theirs = rustix::io::fcntl_dupfd_cloexec(&wake, 0)?;
    let (sender, receiver) = rtrb::RingBuffer::new(capacity);
    let sender = ManySender { values: Arc::new(Mutex::new(sender)), wake: Arc::new(wake) };
    Ok((sender, WorkerReceiver(receiver), theirs))
}

impl<T> ManySender<T> {
    /// Puts a value into the queue and wakes the worker; waits while the queue is full.
    ///
    /// # Errors
    /// [`Ended`]: the worker is gone.
    pub fn send(&self, value: T) -> Result<(), Ended> {
        let mut value = Some(value);
        while let Some(it) = value.take() {
            let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
            if values.is_abandoned() {
                return Err(Ended);
            }
            let pushed = values.push(it);
            drop(values);
            self.ring();
            if let Err(rtrb::PushError::Full(it)) = pushed {
                value = Some(it);
                std::thread::sleep(PAUSE);
            }
        }
        Ok(())
    }

    /// Wakes the worker without a value.
    pub fn ring(&self) {
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }
}

impl<T> WorkerReceiver<T> {
    /// The next value, if there is one now.
    pub fn pop(&mut self) -> Option<T> {
        self.0.pop().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleeping_receiver_gets_every_value_in_order_and_then_the_end() {
        let (mut sender, receiver) = worker_to_thread::<u32>(4).unwrap();
        let received =
            std::thread::spawn(move || std::iter::from_fn(|| receiver.recv().ok()).collect::<Vec<_>>());
        for value in 0..2_000 {
            let mut value = Some(value);
            while let Some(it) = value.take() {
                value = sender.try_send(it).err();
                if value.is_some() || it % 64 == 0 {
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
        }
        drop(sender);
        assert_eq!(received.join().unwrap(), (0..2_000).collect::<Vec<_>>());
    }

    #[test]
    fn a_full_queue_and_one_without_receiver_give_the_value_back() {
        let (mut sender, receiver) = worker_to_thread::<u32>(1).unwrap();
        assert_eq!((sender.try_send(1), sender.try_send(2), sender.room()), (Ok(()), Err(2), 0));
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [1]);
        drop(receiver);
        assert_eq!(sender.try_send(3), Err(3));
    }

    #[test]
    fn many_senders_wait_for_room_and_learn_of_the_end() {
        let (sender, mut worker, _wake) = threads_to_worker::<u32>(2).unwrap();
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let sender = sender.clone();
                std::thread::spawn(move || (0..50).all(|value| sender.send(thread * 100 + value).is_ok()))
            })
            .collect();
        let mut seen = Vec::new();
        while seen.len() < 200 {
            seen.extend(worker.pop());
        }
        assert!(threads.into_iter().all(|thread| thread.join().unwrap()));
        for thread in 0..4 {
            let its: Vec<u32> = seen.iter().copied().filter(|value| value / 100 == thread).collect();
            assert_eq!(its, (0..50).map(|value| thread * 100 + value).collect::<Vec<_>>());
        }
        drop(worker);
        assert_eq!(sender.send(1), Err(Ended));
    }
}
