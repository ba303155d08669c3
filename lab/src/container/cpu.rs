// SPDX-License-Identifier: Apache-2.0
//! What all parts of KTSN cost together. In: the runs. Out: libktsn's share of its talker, and the sum with both daemons.
//!
//! A call under libktsn cannot be timed from outside: its doorbell wakes the worker, which has the higher priority on
//! the same CPU and runs before the call returns. So the talker's CPU time is set against that of the same talker on
//! Flannel's path, in the same round, without its own calls (which are not interrupted): what is left is the library's.

use super::Path;
use super::one_run::SendCalls;
use crate::carry_out::Measured;
use ktsn_measure::results::Series;

/// How CPU is counted, for the results.
pub(crate) const METHOD: &str = "all of KTSN = ktsnd on both nodes (/proc/PID/task/*/schedstat, every thread) + libktsn's share of the \
     talker: the talker's CPU time less that of the same talker on flannel in the same round without its send calls (flannel \
     not measured: the whole talker). The kernel counts soft interrupts into whoever they interrupt (no \
     IRQ_TIME_ACCOUNTING), and over veth the receiving node's run inside the hand-over's system call: ktsnd's CPU contains \
     them, the way into the pod included. softirq: the machine's, sampled by ticks";

/// Fills in the library's share and the sum of every run that has a daemon.
pub(super) fn account(observed: &mut [Measured<SendCalls>]) {
    let key = |series: &Series| (series.round, series.payload_octets, series.load.clone());
    // A talker's sleeping, waking and writing, by round, payload and load.
    let mut plain = Vec::new();
    for one in observed.iter() {
        for series in one.series.iter().filter(|series| series.path == Path::Flannel.word()) {
            plain.extend(series.talker_cpu_ratio.map(|talker| (key(series), talker - one.extra.share)));
        }
    }
    for series in observed.iter_mut().flat_map(|one| &mut one.series) {
        let Some(daemon) = series.daemon_cpu_ratio else { continue };
        let own = key(series);
        let without = plain.iter().find(|(key, _)| *key == own).map_or(0.0, |(_, ratio)| ratio.max(0.0));
        let preloaded = Path::ALL.iter().any(|path| path.is_preloaded() && path.word() == series.path);
        let library = series.talker_cpu_ratio.filter(|_| preloaded).map(|talker| (talker - without).max(0.0));
        series.library_cpu_ratio = library;
        let far = series.far_daemon_cpu_ratio.unwrap_or(0.0);
        series.ktsn_cpu_ratio = Some(daemon + far + library.unwrap_or(0.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ktsn_measure::records::RunRecords;
    use ktsn_measure::results::Round;

    fn run(path: Path, round: u32, talker: f64, daemon: Option<f64>, share: f64) -> Measured<SendCalls> {
        let series = Series {
            path: path.word().to_owned(),
            payload_octets: 64,
            round: Round::Number(round),
            talker_cpu_ratio: Some(talker),
            daemon_cpu_ratio: daemon,
            far_daemon_cpu_ratio: daemon.map(|_| 0.005),
            ..Series::default()
        };
        Measured::one((series, RunRecords::default()), None).with(SendCalls { spans: Vec::new(), share })
    }

    #[test]
    fn the_library_is_what_the_talker_uses_beyond_its_own() {
        // On Flannel's path 3 % of which 1.5 % are the kernel's calls.
        let mut runs = [
            run(Path::Ktsn, 1, 0.019, Some(0.06), 0.03),
            run(Path::Flannel, 1, 0.03, None, 0.015),
            run(Path::Ktsn, 2, 0.019, Some(0.06), 0.03),
        ];
        account(&mut runs);
        let shares =
            runs.each_ref().map(|one| (one.series[0].library_cpu_ratio, one.series[0].ktsn_cpu_ratio));
        let near = |found: Option<f64>, expected: f64| (found.unwrap() - expected).abs() < 1e-9;
        assert!(near(shares[0].0, 0.004) && near(shares[0].1, 0.069), "{shares:?}");
        assert_eq!(shares[1], (None, None));
        // Without its counterpart the whole talker counts.
        assert!(near(shares[2].0, 0.019) && near(shares[2].1, 0.084), "{shares:?}");
    }
}
