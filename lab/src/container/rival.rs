// SPDX-License-Identifier: Apache-2.0
//! How long the senders of whole frames spin before each time.
//!
//! In: the CPU that runs of KTSN and of packet-spin took. Out: the margin of the next run: with it packet-spin takes as much as KTSN's talker and
//! ktsnd take together.

use super::Path;
use super::one_run::Row;
use ktsn_measure::results::Series;
use ktsn_time::Nanos;
use serde_json::{Value, json};

/// Before anything was measured.
const FIRST: Nanos = Nanos::from_micros(60);
/// Of a sender whose CPU does not count. One that polled all the time would lose its CPU for up to 50 ms in each second, as it runs under
/// SCHED_FIFO; its median was the same.
const FREE: Nanos = Nanos::from_micros(200);

/// The mean of what was added.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    sum: f64,
    count: u32,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
    }

    fn get(self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / f64::from(self.count))
    }
}

/// What was learnt so far, as shares of a CPU.
#[derive(Debug, Default)]
pub(super) struct Rival {
    ktsn: Mean,
    /// Of packet-spin, without its spinning.
    rest: Mean,
    period: Nanos,
    used: Vec<i64>,
}

impl Rival {
    /// How long the sender of a path spins.
    pub(super) fn margin(&self, path: Path) -> Nanos {
        if path != Path::PacketSpin {
            return FREE;
        }
        let Some(ktsn) = self.ktsn.get() else { return FIRST };
        // Its own work is not known before its first run; a wake-up and a hand-over take some 2 % at 1 kHz.
        let rest = self.rest.get().unwrap_or(20_000.0 / self.period.get() as f64);
        let margin = (ktsn - rest) * self.period.get() as f64;
        Nanos::new(margin as i64).clamp(Nanos::ZERO, FREE)
    }

    /// Learns from a run with this margin.
    pub(super) fn took(&mut self, row: Row, margin: Nanos, period: Nanos, series: &[Series]) {
        self.period = period;
        for one in series {
            let Some(talker) = one.talker_cpu_ratio else { continue };
            match (row.path, one.daemon_cpu_ratio) {
                (Path::Ktsn, Some(daemon)) => self.ktsn.add(talker + daemon),
                (Path::PacketSpin, _) => {
                    self.rest.add(talker - margin.get() as f64 / period.get().max(1) as f64);
                    self.used.push(margin.get());
                }
                _ => {}
            }
        }
    }

    /// The margins of packet-spin's runs, in nanoseconds.
    pub(super) fn describe(&self) -> Value {
        json!(self.used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container::Load;

    const PERIOD: Nanos = Nanos::from_millis(1);

    fn ran(rival: &mut Rival, path: Path, talker: f64, daemon: Option<f64>) {
        let row = Row { path, payload: 64, load: Load::Idle, etf: None };
        let margin = rival.margin(path);
        let series = Series { talker_cpu_ratio: Some(talker), daemon_cpu_ratio: daemon, ..Series::default() };
        rival.took(row, margin, PERIOD, &[series]);
    }

    /// It takes 1.5 % beside its spinning; KTSN takes 9 %.
    #[test]
    fn the_rival_takes_as_much_cpu_as_ktsn() {
        let mut rival = Rival::default();
        let share = |rival: &Rival| 0.015 + rival.margin(Path::PacketSpin).get() as f64 / 1e6;
        assert!((share(&rival) - 0.075).abs() < 1e-9, "nothing is known before");
        for _ in 0..3 {
            ran(&mut rival, Path::Ktsn, 0.03, Some(0.06));
            let of_the_rival = share(&rival);
            ran(&mut rival, Path::PacketSpin, of_the_rival, None);
        }
        assert!((share(&rival) - 0.09).abs() < 1e-6, "{}", share(&rival));
        assert_eq!(rival.margin(Path::PacketSpinFree), FREE);
        assert_eq!(rival.used.len(), 3);
    }

    #[test]
    fn a_margin_is_never_negative_nor_longer_than_the_free_ones() {
        let mut rival = Rival::default();
        ran(&mut rival, Path::Ktsn, 0.0, Some(0.001));
        assert_eq!(rival.margin(Path::PacketSpin), Nanos::ZERO);
        ran(&mut rival, Path::Ktsn, 0.9, Some(0.9));
        assert_eq!(rival.margin(Path::PacketSpin), FREE);
    }
}
