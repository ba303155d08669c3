// SPDX-License-Identifier: Apache-2.0
//! How late this machine wakes a real-time thread, and how long ktsnd therefore spins before a frame.
//!
//! In: sleeps of a thread like ktsnd's worker. Out: a spin margin, or none where ktsnd's own adaptive one is enough. A guest's timer is a
//! timer of its hypervisor: there wake-ups are later than ktsnd's adaptive margin, which is made for a host, can become.

use ktsn_time::{Nanos, TxTime};
use ktsn_traffic::clock::{RealTime, monotonic_now, sleep_until};

/// Sleeps that are measured: 0.3 s.
const SLEEPS: usize = 256;
const SLEEP: Nanos = Nanos::from_millis(1);
/// SCHED_FIFO priority of ktsnd's worker.
const PRIORITY: u8 = 50;
/// Wake-ups that the margin covers, parts per thousand. What the rest needs more would be spun before every frame.
const COVERED_PERMILLE: usize = 900;
/// The most that ktsnd's adaptive margin becomes.
const ADAPTIVE_MAX: Nanos = Nanos::from_micros(120);
/// The most that is spun before a frame: at 1 kHz 40 % of a CPU.
const MARGIN_MAX: Nanos = Nanos::from_micros(400);
const STEP: Nanos = Nanos::from_micros(10);

/// Measures, and returns the spin margin for this machine; `None`: ktsnd's adaptive one is enough, or SCHED_FIFO is refused here.
#[must_use]
pub(crate) fn spin_margin() -> Option<Nanos> {
    // A thread of its own: the priority ends with it.
    std::thread::spawn(lateness).join().ok().and_then(margin_for)
}

/// How late each sleep ended.
fn lateness() -> Vec<Nanos> {
    let rights = RealTime { fifo: Some(PRIORITY), ..RealTime::default() };
    if rights.apply().is_err() {
        return Vec::new();
    }
    let sleep = |_| {
        let until = monotonic_now().saturating_add(SLEEP);
        sleep_until(TxTime::Monotonic(until));
        monotonic_now().since(until)
    };
    (0..SLEEPS).map(sleep).collect()
}

/// The spin margin for a machine with these latenesses.
fn margin_for(mut lateness: Vec<Nanos>) -> Option<Nanos> {
    lateness.sort_unstable();
    let covered = *lateness.get(lateness.len() * COVERED_PERMILLE / 1000)?;
    let steps = covered.get().max(0) / STEP.get() + 1;
    (covered > ADAPTIVE_MAX).then(|| Nanos::new(steps * STEP.get()).min(MARGIN_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_margin_covers_nine_of_ten_late_wake_ups_and_is_bounded() {
        let micros =
            |micros: &[i64]| micros.iter().map(|&micros| Nanos::from_micros(micros)).collect::<Vec<_>>();
        let tenth = |most, last| margin_for([micros(&[most; 9]), micros(&[last; 1])].concat());
        assert_eq!(margin_for(Vec::new()), None);
        assert_eq!(margin_for(micros(&[120; 100])), None);
        assert_eq!(margin_for(micros(&[121; 100])), Some(Nanos::from_micros(130)));
        let uneven: Vec<i64> = (0..100).map(|number| 5 * number).collect();
        assert_eq!(margin_for(micros(&uneven)), Some(MARGIN_MAX));
        assert_eq!(tenth(200, 255), Some(Nanos::from_micros(260)));
        assert_eq!(
            margin_for([micros(&[203; 95]), micros(&[9_000; 5])].concat()),
            Some(Nanos::from_micros(210))
        );
    }
}
