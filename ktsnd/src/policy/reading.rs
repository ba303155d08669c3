// SPDX-License-Identifier: Apache-2.0
//! One reading of the node's rules for all callers at the same time.
//!  
//! In: a function that reads the rules and may wait for tools. Out: what the function read. At most one reading runs, however
//! long it takes and however many callers wait. Rules that were read are fresh for a second; a failure is returned only to the
//! callers that waited for that reading.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::{Rule, Seen, Unread};

/// Older rules are read again: many pods that are attached at once read once a second.
const FRESH: Duration = Duration::from_secs(1);

/// When a reading ended, and what was read; `None`: it runs.
type Outcome = Option<(Instant, Seen)>;

/// The last reading.
#[derive(Debug)]
pub(super) struct Readings(Mutex<Option<watch::Receiver<Outcome>>>);

impl Readings {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// The rules, read by `read` unless they are fresh or are being read already.
    ///
    /// # Errors
    /// The reading's; `Late` when it has not ended after `patience`. It goes on, and the next caller waits for the same one.
    pub(super) async fn rules(
        &self,
        read: impl FnOnce() -> Seen + Send + 'static,
        patience: Duration,
    ) -> Result<Arc<Vec<Rule>>, Unread> {
        let mut outcome = self.current(read);
        let ended = tokio::time::timeout(patience, outcome.wait_for(Option::is_some)).await;
        let Ok(Ok(outcome)) = ended else { return Err(Unread::Late) };
        outcome.as_ref().map_or(Err(Unread::Late), |(_, seen)| seen.known())
    }

    /// The reading to wait for: the last one while it is fresh, or a new one.
    fn current(&self, read: impl FnOnce() -> Seen + Send + 'static) -> watch::Receiver<Outcome> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = last.as_ref().filter(|known| is_of_use(known)) {
            return known.clone();
        }
        let (ended, outcome) = watch::channel(None);
        tokio::task::spawn_blocking(move || {
            let seen = read();
            ended.send_replace(Some((Instant::now(), seen)))
        });
        *last = Some(outcome.clone());
        outcome
    }
}

/// True while the reading runs, and while the rules that it read are fresh.
fn is_of_use(outcome: &watch::Receiver<Outcome>) -> bool {
    match &*outcome.borrow() {
        Some((at, seen)) => at.elapsed() < FRESH && seen.known().is_ok(),
        // A reading that ended without an outcome has dropped its sender.
        None => outcome.has_changed().is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn failed() -> Seen {
        Seen { unread: Some(Unread::Failed("nft")), ..Seen::default() }
    }

    #[tokio::test]
    async fn a_failure_is_not_kept_and_rules_are() {
        let readings = Readings::new();
        assert_eq!(readings.rules(failed, LONG).await, Err(Unread::Failed("nft")));
        assert_eq!(readings.rules(Seen::default, LONG).await, Ok(Arc::default()));
        assert_eq!(readings.rules(|| unreachable!("fresh"), LONG).await, Ok(Arc::default()));
    }

    /// One reader, however many callers wait, give up, and call again.
    #[tokio::test]
    async fn those_that_ask_while_a_reading_runs_share_it() {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let readings = Readings::new();
        let (go, may_go) = std::sync::mpsc::channel::<()>();
        let slow = move || {
            COUNT.fetch_add(1, Relaxed);
            let _ = may_go.recv();
            Seen::default()
        };
        let other = || {
            COUNT.fetch_add(1, Relaxed);
            failed()
        };
        let short = Duration::from_millis(20);
        assert_eq!(readings.rules(slow, short).await, Err(Unread::Late));
        assert_eq!(readings.rules(other, short).await, Err(Unread::Late));
        go.send(()).unwrap();
        let both = tokio::join!(readings.rules(other, LONG), readings.rules(other, LONG));
        assert_eq!(both, (Ok(Arc::default()), Ok(Arc::default())));
        assert_eq!(COUNT.load(Relaxed), 1);
    }

    #[tokio::test]
    async fn a_reading_that_ends_without_an_outcome_is_begun_again() {
        let readings = Readings::new();
        let panics = || -> Seen { std::panic::resume_unwind(Box::new("nothing read")) };
        assert_eq!(readings.rules(panics, LONG).await, Err(Unread::Late));
        assert_eq!(readings.rules(Seen::default, LONG).await, Ok(Arc::default()));
    }
}
