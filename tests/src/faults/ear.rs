// SPDX-License-Identifier: Apache-2.0
//! A thread that hears a packet socket until it is dropped.
//!
//! In: the socket, and what of a frame and its receive stamp counts. Out: that, in the order of arrival.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::sys::{self, FRAME_OCTETS_MAX};

/// A thread that collects what a socket receives.
#[derive(Debug)]
pub(crate) struct Ear<T> {
    stop: Arc<AtomicBool>,
    heard: Arc<Mutex<Vec<T>>>,
    thread: Option<JoinHandle<()>>,
}

impl<T: Clone + Send + 'static> Ear<T> {
    /// Hears `socket` from now on; what is `None` is left out.
    pub(crate) fn open(socket: OwnedFd, what: fn(&[u8], i64) -> Option<T>) -> Self {
        let (stop, heard) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let thread = {
            let (stop, heard) = (Arc::clone(&stop), Arc::clone(&heard));
            std::thread::spawn(move || listen(&socket, &stop, &heard, what))
        };
        Self { stop, heard, thread: Some(thread) }
    }

    /// What has been heard so far.
    pub(crate) fn heard(&self) -> MutexGuard<'_, Vec<T>> {
        lock(&self.heard)
    }
}

impl<T> Drop for Ear<T> {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn listen<T>(socket: &OwnedFd, stop: &AtomicBool, heard: &Mutex<Vec<T>>, what: fn(&[u8], i64) -> Option<T>) {
    let mut frame = [0; FRAME_OCTETS_MAX];
    while !stop.load(SeqCst) {
        match sys::receive(socket, &mut frame) {
            Ok((octets, stamp)) => lock(heard).extend(what(&frame[..octets], stamp)),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(1));
            }
            // The device went away with its namespace: nothing more will come.
            Err(_) => return,
        }
    }
}
