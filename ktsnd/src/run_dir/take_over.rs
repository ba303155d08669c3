// SPDX-License-Identifier: Apache-2.0
//! Takes a run directory over from a ktsnd that still runs: waits for the end of its lock.
//!
//! In: a path, a time limit, a request to stop. Out: the held directory at the moment at which the lock is free. While it
//! waits it changes nothing in the directory.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tokio::sync::oneshot;
use tokio::time::{Instant, interval, sleep_until};
use tracing::info;

use super::place::Place;
use super::{RunDir, RunDirError};

/// How often the log says that ktsnd waits.
const REMINDER: Duration = Duration::from_secs(10);

/// Waits at most `patience` for the lock, and takes the directory. `None`: `stop` came first.
///
/// # Errors
/// [`RunDirError`]; [`RunDirError::Taken`] at the end of `patience`.
pub(crate) async fn take_over(
    path: &Path,
    patience: Duration,
    stop: &mut oneshot::Receiver<()>,
) -> Result<Option<RunDir>, RunDirError> {
    let until = Instant::now() + patience;
    loop {
        let place = Place::open(path)?;
        if !place.try_lock() {
            let mut locked = lock_in_thread(path, place.clone_lock()?)?;
            let mut reminders = interval(REMINDER);
            loop {
                tokio::select! {
                    _ = &mut *stop => return Ok(None),
                    _ = &mut locked => break,
                    () = sleep_until(until) => return Err(place.taken()),
                    _ = reminders.tick() => {
                        info!("run directory {}: waits for {} to end", path.display(), place.holder());
                    }
                }
            }
        }
        // The holder may have removed the directory at its end: the next ktsnd would make and lock another one.
        if place.is_current() {
            return place.occupy().map(Some);
        }
    }
}

/// Locks a file in a thread of its own, which wakes as soon as the lock is free. The answer comes then. A caller that gives up leaves
/// the thread behind; it lets the lock go as soon as it has it.
fn lock_in_thread(path: &Path, lock: File) -> Result<oneshot::Receiver<()>, RunDirError> {
    let (sender, locked) = oneshot::channel();
    let wait = move || {
        while flock(&lock, FlockOperation::LockExclusive) == Err(Errno::INTR) {}
        // The caller may have given up.
        let _ = sender.send(());
    };
    let thread = std::thread::Builder::new().name("ktsn-take-over".into()).spawn(wait);
    thread.map_err(|error| RunDirError::Io { path: path.to_owned(), error })?;
    Ok(locked)
}

#[cfg(test)]
#[path = "take_over_tests.rs"]
mod tests;
