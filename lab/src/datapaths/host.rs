// SPDX-License-Identifier: Apache-2.0
//! What the host did meanwhile. In: `/proc`, the threads of a run. Out: samples, and the difference between two of them
//! as [`Host`]; what they say of a frame that took long ([`Counted`]). The kernel's counters of a tenth of a second are the finest that can be had without being a load.

use ktsn_measure::clock::tai_now;
use ktsn_measure::datapaths::spikes::{Cause, Evidence, Host, attribute};
use ktsn_time::{Nanos, Tai};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::read_to_string;
use std::path::PathBuf;

/// The kinds of soft interrupts, in the order of `/proc/stat`.
const KINDS: [&str; 10] =
    ["HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU"];

/// The host's counters at one instant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sample {
    #[serde(with = "nanoseconds", rename = "at_ns")]
    at: Tai,
    steal_ticks: u64,
    pressure_us: Option<u64>,
    waited_us: u64,
    interrupts: u64,
    context_switches: u64,
    softirqs: Vec<u64>,
}

/// An instant as a number.
pub(super) mod nanoseconds {
    use ktsn_time::Tai;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(in crate::datapaths) fn serialize<S: Serializer>(at: &Tai, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(at.as_nanos())
    }

    pub(in crate::datapaths) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Tai, D::Error> {
        u64::deserialize(from).map(Tai::from_nanos)
    }
}

/// A thread of this process.
pub(super) fn own_thread(number: i32) -> PathBuf {
    format!("/proc/self/task/{number}").into()
}

/// The threads of a process.
pub(super) fn threads_of(process: u32) -> Vec<PathBuf> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    tasks.map(|task| task.path()).collect()
}

/// The CPU time of a process so far, in the kernel's ticks of 10 ms.
pub(super) fn cpu_time_of(process: u32) -> Nanos {
    let text = read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The program's name ends with the last parenthesis; state is the next word, utime and stime the 12th and 13th.
    let words = text.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ');
    let ticks: i64 = words.skip(11).take(2).filter_map(|word| word.parse::<i64>().ok()).sum();
    Nanos::from_millis(ticks.saturating_mul(10))
}

impl Sample {
    /// When it was taken, by the clock of its host.
    pub(crate) const fn at(&self) -> Tai {
        self.at
    }

    /// Reads the counters; of these threads, named by their directories in `/proc`, how long they waited in run queues.
    pub(crate) fn now(threads: &[PathBuf]) -> Self {
        let stat = read_to_string("/proc/stat").unwrap_or_default();
        let pressure = read_to_string("/proc/pressure/cpu").ok();
        let waited = |thread: &PathBuf| {
            let text = read_to_string(thread.join("schedstat")).unwrap_or_default();
            text.split_whitespace().nth(1)?.parse::<u64>().ok()
        };
        let waited_ns: u64 = threads.iter().filter_map(waited).sum();
        Self { at: tai_now(), waited_us: waited_ns / 1_000, ..Self::parse(&stat, pressure.as_deref()) }
    }

    fn parse(stat: &str, pressure: Option<&str>) -> Self {
        let numbers = |key: &str| -> Vec<u64> {
            let line = stat.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
            line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
        };
        let first = |key: &str| numbers(key).first().copied().unwrap_or(0);
        let pressure_us = pressure.and_then(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
            line.split_whitespace().find_map(|word| word.strip_prefix("total=")?.parse().ok())
        });
        Self {
            // user nice system idle iowait irq softirq steal
            steal_ticks: numbers("cpu ").get(7).copied().unwrap_or(0),
            pressure_us,
            interrupts: first("intr "),
            context_switches: first("ctxt "),
            softirqs: numbers("softirq ").into_iter().skip(1).collect(),
            ..Self::default()
        }
    }

    /// What was counted between `earlier` and `self`.
    fn since(&self, earlier: &Self) -> Host {
        let softirqs: BTreeMap<String, u64> = KINDS
            .iter()
            .zip(self.softirqs.iter().zip(&earlier.softirqs))
            .map(|(kind, (now, then))| ((*kind).to_owned(), now.saturating_sub(*then)))
            .filter(|(_, count)| *count > 0)
            .collect();
        Host {
            span_us: u64::try_from(self.at.since(earlier.at).get() / 1_000).unwrap_or(0),
            steal_ticks: self.steal_ticks.saturating_sub(earlier.steal_ticks),
            cpu_pressure_us: self
                .pressure_us
                .zip(earlier.pressure_us)
                .map(|(now, then)| now.saturating_sub(then)),
            waited_us: self.waited_us.saturating_sub(earlier.waited_us),
            interrupts: self.interrupts.saturating_sub(earlier.interrupts),
            context_switches: self.context_switches.saturating_sub(earlier.context_switches),
            softirqs,
        }
    }
}

/// The samples of the hosts of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Samples<'a> {
    pub(crate) here: &'a [Sample],
    /// The other host's name and samples, if there is one. Its instants are by its own clock.
    pub(crate) there: Option<(&'a str, &'a [Sample])>,
}

/// What the hosts of a run counted.
#[derive(Debug)]
pub(crate) struct Counted<'a> {
    samples: Samples<'a>,
    usual: [Host; 2],
}

impl<'a> Counted<'a> {
    pub(crate) fn of(samples: Samples<'a>) -> Self {
        let usual = [samples.here, samples.there.map_or(&[][..], |there| there.1)].map(usual);
        Self { samples, usual }
    }

    /// Why a frame took long that was under way at `at`, what shows it, and what the host counted around then: this host, unless only the
    /// other one's counters stand out.
    pub(crate) fn explain(&self, evidence: &Evidence, at: Option<Tai>) -> (Cause, String, Host) {
        self.explain_on(evidence, at, false)
    }

    /// The same; `there_first`: the time went on the other host, so its counters are looked at first.
    pub(crate) fn explain_on(
        &self,
        evidence: &Evidence,
        at: Option<Tai>,
        there_first: bool,
    ) -> (Cause, String, Host) {
        let on = |samples: &[Sample], usual: &Host| {
            let host = at.and_then(|at| around(samples, at)).unwrap_or_default();
            let (cause, detail) = attribute(evidence, &host, usual);
            (cause, detail, host)
        };
        let here = on(self.samples.here, &self.usual[0]);
        let Some((name, samples)) = self.samples.there else { return here };
        let (cause, detail, host) = on(samples, &self.usual[1]);
        let there = (cause, format!("{name}: {detail}"), host);
        let here = (here.0, format!("this host: {}", here.1), here.2);
        let (first, second) = if there_first { (there, here) } else { (here, there) };
        if first.0 == Cause::Unknown && second.0 != Cause::Unknown { second } else { first }
    }
}

/// What the host counted around `at`: between the last sample before and the first one after. `None`: fewer than two samples.
fn around(samples: &[Sample], at: Tai) -> Option<Host> {
    let after =
        samples.partition_point(|sample| sample.at < at).clamp(1, samples.len().saturating_sub(1).max(1));
    Some(samples.get(after)?.since(&samples[after - 1]))
}

/// What the host usually counts between two samples: of each counter the median.
fn usual(samples: &[Sample]) -> Host {
    let spans: Vec<Host> = samples.windows(2).map(|pair| pair[1].since(&pair[0])).collect();
    let median = |counter: &dyn Fn(&Host) -> u64| {
        let mut counts: Vec<u64> = spans.iter().map(counter).collect();
        counts.sort_unstable();
        counts.get(counts.len() / 2).copied().unwrap_or(0)
    };
    let has_pressure = spans.iter().any(|span| span.cpu_pressure_us.is_some());
    let of_kind = |kind: &str| median(&|host| host.softirqs.get(kind).copied().unwrap_or(0));
    Host {
        span_us: median(&|host| host.span_us),
        steal_ticks: median(&|host| host.steal_ticks),
        cpu_pressure_us: has_pressure.then(|| median(&|host| host.cpu_pressure_us.unwrap_or(0))),
        waited_us: median(&|host| host.waited_us),
        interrupts: median(&|host| host.interrupts),
        context_switches: median(&|host| host.context_switches),
        softirqs: KINDS.iter().map(|kind| ((*kind).to_owned(), of_kind(kind))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str =
        "cpu  1 2 3 4 5 6 7 8 9 9\ncpu0 1\nintr 900 1 2\nctxt 70\nsoftirq 55 0 10 0 30 0 0 0 5 0 10\n";

    fn sample(at: u64, steal_ticks: u64, interrupts: u64) -> Sample {
        Sample { at: Tai::from_nanos(at), steal_ticks, interrupts, ..Sample::default() }
    }

    #[test]
    fn counters_are_read_field_by_field() {
        let read = Sample::parse(STAT, Some("some avg10=0.00 total=123\nfull total=9\n"));
        assert_eq!((read.steal_ticks, read.interrupts, read.context_switches), (8, 900, 70));
        assert_eq!((read.pressure_us, read.softirqs.len(), read.softirqs[3]), (Some(123), 10, 30));
        let none = Sample::parse("", None);
        assert_eq!(none, Sample::default());
        let later = Sample { softirqs: vec![0, 10, 0, 37, 0, 0, 0, 5, 0, 10], ..read.clone() };
        assert_eq!(later.since(&read).softirqs, [("NET_RX".to_owned(), 7)].into());
        assert!(Sample::now(&[]).interrupts > 0);
    }

    #[test]
    fn threads_and_cpu_time_of_a_process_are_found() {
        let process = std::process::id();
        let threads = threads_of(process);
        // Another test's thread may end at any time.
        assert!(threads.len() > 1 && threads.iter().any(|thread| thread.join("schedstat").exists()));
        let before = cpu_time_of(process);
        while cpu_time_of(process) <= before {}
        assert_eq!(cpu_time_of(u32::MAX), Nanos::ZERO);
        let own = own_thread(rustix::thread::gettid().as_raw_nonzero().get());
        assert!(own.join("schedstat").exists());
    }

    #[test]
    fn a_spike_is_between_the_sample_before_and_the_one_after() {
        let samples = [sample(100, 0, 10), sample(200, 1, 30), sample(300, 1, 90)];
        let interrupts = |at| around(&samples, Tai::from_nanos(at)).map(|host| host.interrupts);
        assert_eq!([50, 101, 200, 201, 300, 999].map(interrupts), [20, 20, 20, 60, 60, 60].map(Some));
        assert_eq!(around(&samples[..1], Tai::from_nanos(150)), None);
        assert_eq!(around(&[], Tai::from_nanos(150)), None);
        let usual = usual(&samples);
        assert_eq!((usual.interrupts, usual.steal_ticks, usual.cpu_pressure_us), (60, 1, None));
    }

    #[test]
    fn the_other_host_s_counters_explain_what_this_one_s_do_not() {
        let quiet = [sample(100, 0, 10), sample(200, 0, 30), sample(300, 0, 50)];
        let taken = [sample(100, 0, 10), sample(200, 1, 30), sample(300, 1, 50)];
        let evidence = Evidence { latency_ns: 900_000, ..Evidence::default() };
        let explain = |here: &[Sample], there: Option<&[Sample]>, at: u64| {
            let samples = Samples { here, there: there.map(|samples| ("ssh:b", samples)) };
            let (cause, detail, host) = Counted::of(samples).explain(&evidence, Some(Tai::from_nanos(at)));
            (cause, detail.starts_with("ssh:b: "), host.steal_ticks)
        };
        assert_eq!(explain(&quiet, Some(&taken), 150), (Cause::Steal, true, 1));
        assert_eq!(explain(&quiet, Some(&taken), 250), (Cause::Unknown, false, 0));
        assert_eq!(explain(&taken, Some(&quiet), 150), (Cause::Steal, false, 1));
        assert_eq!(explain(&quiet, None, 150), (Cause::Unknown, false, 0));
        // Where both stand out, the host counts on which the time went.
        let samples = Samples { here: &taken, there: Some(("ssh:b", &taken)) };
        for (there_first, name) in [(false, "this host: "), (true, "ssh:b: ")] {
            let at = Some(Tai::from_nanos(150));
            let (_, detail, _) = Counted::of(samples).explain_on(&evidence, at, there_first);
            assert!(detail.starts_with(name), "{detail}");
        }
    }
}
