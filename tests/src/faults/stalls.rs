// SPDX-License-Identifier: Apache-2.0
//! How long the machine itself stood still: for promises in seconds, which hold of KTSN and not of a machine that somebody else
//! uses meanwhile.
//!
//! In: nothing. Out: what each CPU's own thread, which would run every millisecond, could not run, added up. It is no measurement.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

const TICK: Duration = Duration::from_millis(1);

/// Watches from now on, until it is dropped.
#[derive(Debug)]
pub struct Stalls {
    began: Instant,
    stop: Arc<AtomicBool>,
    watches: Vec<(Arc<Watch>, Option<JoinHandle<()>>)>,
}

/// One CPU: nanoseconds since the beginning.
#[derive(Debug, Default)]
struct Watch {
    lost: AtomicU64,
    /// Its thread's last look.
    seen: AtomicU64,
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

impl Stalls {
    /// A thread for each CPU.
    ///
    /// # Panics
    /// When the kernel does not tell which CPUs there are.
    #[must_use]
    pub fn watched() -> Self {
        let (began, stop) = (Instant::now(), Arc::new(AtomicBool::new(false)));
        let all = sched_getaffinity(None).expect("the CPUs");
        let watches = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)).map(|cpu| {
            let watch = Arc::new(Watch::default());
            let (own, stop) = (Arc::clone(&watch), Arc::clone(&stop));
            let thread = std::thread::spawn(move || {
                let mut only = CpuSet::new();
                only.set(cpu);
                let _ = sched_setaffinity(None, &only);
                while !stop.load(SeqCst) {
                    std::thread::sleep(TICK);
                    own.look(nanos(began.elapsed()));
                }
            });
            (watch, Some(thread))
        });
        let watches = watches.collect();
        Self { began, stop, watches }
    }

    /// What all CPUs have lost so far, a stall that lasts still included.
    #[must_use]
    pub fn lost(&self) -> Duration {
        let now = nanos(self.began.elapsed());
        let of = |watch: &Watch| watch.lost.load(SeqCst) + late(watch.seen.load(SeqCst), now);
        Duration::from_nanos(self.watches.iter().map(|(watch, _)| of(watch)).sum())
    }
}

/// By how much more than a tick and what a wake-up takes this is later than that.
fn late(seen: u64, now: u64) -> u64 {
    now.saturating_sub(seen).saturating_sub(2 * nanos(TICK))
}

impl Watch {
    fn look(&self, now: u64) {
        self.lost.fetch_add(late(self.seen.swap(now, SeqCst), now), SeqCst);
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        for (_, thread) in &mut self.watches {
            let _ = thread.take().map(JoinHandle::join);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_later_than_a_tick_is_lost() {
        let watch = Watch::default();
        for now in [1, 3, 5, 25, 26].map(|ms| ms * nanos(TICK)) {
            watch.look(now);
        }
        assert_eq!(watch.lost.load(SeqCst), 18 * nanos(TICK));
        assert_eq!(late(nanos(TICK), 0), 0);
    }

    #[test]
    fn every_cpu_is_watched() {
        let stalls = Stalls::watched();
        std::thread::sleep(20 * TICK);
        assert!(stalls.watches.iter().all(|(watch, _)| watch.seen.load(SeqCst) > 0) || stalls.lost() > TICK);
    }
}
