// SPDX-License-Identifier: Apache-2.0
//! What the kernel counts around a late wake-up. In: `/proc`, `/sys`, the probe's thread. Out: [`Snapshot`]s, and the [`Evidence`] between
//! two of them. Nothing is changed, and what this machine does not show is absent.
//!
//! Frequencies are not read: on x86 that would interrupt the probe's CPU. The kernel's count of changes stands for them.

use super::groups::{Hierarchy, throttled_ns};
use super::thread::{Thread, field, fields};
use ktsn_measure::clock::monotonic_now;
use ktsn_realtime::causes::{Cause, Evidence};
use ktsn_time::{Monotonic, Span};
use std::collections::BTreeMap;
use std::fs::{self, read_to_string};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// `/proc/stat` counts in ticks of 10 ms.
const TICK_NS: u64 = 10_000_000;
/// How long the list of real-time threads stays true.
const THREADS_FOR: Span = Span::from_nanos(1_000_000_000);
/// Model-specific register of Intel's processors that counts system management interrupts.
const MSR_SMI_COUNT: u64 = 0x34;
/// From this share of their budget on, real-time threads of one CPU count as throttled.
const THROTTLED_FROM: f64 = 0.97;

/// One moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Snapshot {
    at: Monotonic,
    /// The probe's CPU.
    cpu: u32,
    /// The probe's own counters and those of the machine.
    counted: BTreeMap<Cause, u64>,
    /// The counters of each CPU.
    of_cpus: BTreeMap<(Cause, u32), u64>,
    /// Exit latency in nanoseconds and number of uses of the idle states of the probe's CPU.
    idle: Vec<(u64, u64)>,
    /// CPU time and CPU of other real-time threads.
    threads: BTreeMap<u32, (u64, u32)>,
    /// How long each thread that carries the probe was ready without a CPU.
    waited: BTreeMap<u32, u64>,
}

/// A thread that may keep the CPU from the probe.
#[derive(Clone, Debug)]
struct RealTimeThread {
    tid: u32,
    schedstat: PathBuf,
    stat: PathBuf,
    name: String,
}

/// Reads the counters around one probe.
#[derive(Debug)]
pub(super) struct Counters {
    /// The probe's, or the guest's.
    probe: Thread,
    /// Other threads count from this priority on; 0: all real-time threads.
    from_priority: u32,
    cpu_stat: Option<PathBuf>,
    msr: Option<fs::File>,
    threads: Vec<RealTimeThread>,
    listed_at: Option<Monotonic>,
    /// Whether the probe was stopped when it was last looked at, when that was, and how long it was stopped so far.
    stopped: (bool, Option<Monotonic>, u64),
    /// What real-time threads may use of a second, as a share; `None`: all of it.
    budget: Option<f64>,
}

fn number(path: &Path) -> Option<u64> {
    read_to_string(path).ok()?.trim().parse().ok()
}

/// Sums up the columns of a table with a head of `CPU0 CPU1 …`, CPU by CPU.
fn columns(text: &str) -> BTreeMap<u32, u64> {
    let mut lines = text.lines();
    let head = lines.next().unwrap_or_default();
    let cpus: Vec<u32> =
        head.split_whitespace().filter_map(|word| word.strip_prefix("CPU")?.parse().ok()).collect();
    let mut sums = BTreeMap::new();
    for line in lines {
        for (cpu, word) in cpus.iter().zip(line.split_whitespace().skip(1)) {
            let Ok(count) = word.parse::<u64>() else { break };
            *sums.entry(*cpu).or_default() += count;
        }
    }
    sums
}

/// Stolen ticks of each CPU in `/proc/stat`.
fn stolen(text: &str) -> impl Iterator<Item = (u32, u64)> + '_ {
    text.lines().filter_map(|line| {
        let mut words = line.strip_prefix("cpu")?.split(' ');
        let cpu = words.next()?.parse().ok()?;
        Some((cpu, words.nth(7)?.parse().ok()?))
    })
}

impl Counters {
    /// Counters around a thread, which has this priority under SCHED_FIFO (0: none).
    pub(super) fn new(thread: Thread, fifo: u8, cpu_stat: Option<PathBuf>) -> Self {
        let sysctl = |name: &str| {
            read_to_string(format!("/proc/sys/kernel/{name}"))
                .ok()
                .and_then(|text| text.trim().parse::<f64>().ok())
        };
        let budget = sysctl("sched_rt_runtime_us").zip(sysctl("sched_rt_period_us"));
        Self {
            probe: thread,
            from_priority: u32::from(fifo),
            cpu_stat,
            msr: fs::File::open("/dev/cpu/0/msr").ok(),
            threads: Vec::new(),
            listed_at: None,
            stopped: (false, None, 0),
            budget: budget
                .map(|(runtime, period)| runtime / period)
                .filter(|share| (0.0..1.0).contains(share)),
        }
    }

    /// The counters now; `None` when the probe's thread is gone.
    pub(super) fn read(&mut self) -> Option<Snapshot> {
        let (at, folder) = (monotonic_now(), self.probe.folder());
        let stat = read_to_string(folder.join("stat")).ok()?;
        let probe = fields(&stat)?;
        let cpu = field(&probe, 39)?;
        let stopped = self.stopped_ns(at, probe.first() == Some(&"T"));
        let mut now = Snapshot { at, cpu, ..Snapshot::default() };
        let mut put = |cause, value: Option<u64>| value.map(|value| now.counted.insert(cause, value));
        put(Cause::Stopped, Some(stopped));
        put(Cause::MinorFaults, field(&probe, 10));
        put(Cause::MajorFaults, field(&probe, 12));
        let sched = read_to_string(folder.join("sched")).unwrap_or_default();
        let migrations =
            sched.lines().find_map(|line| line.strip_prefix("se.nr_migrations")?.split(':').nth(1));
        put(Cause::Migrations, migrations.and_then(|word| word.trim().parse().ok()));
        let throttled = self.cpu_stat.as_ref().and_then(|path| read_to_string(path).ok());
        put(Cause::CfsThrottling, throttled.as_deref().and_then(throttled_ns));
        let mut octets = [0; 8];
        let smi = self.msr.as_ref().and_then(|file| file.read_exact_at(&mut octets, MSR_SMI_COUNT).ok());
        put(Cause::Smi, smi.map(|()| u64::from_le_bytes(octets) & 0xFFFF_FFFF));
        let folder = PathBuf::from(format!("/sys/devices/system/cpu/cpu{cpu}"));
        put(Cause::FrequencyChanges, number(&folder.join("cpufreq/stats/total_trans")));
        now.waited = self.probe.waited_ns();
        for (cpu, ticks) in stolen(&read_to_string("/proc/stat").unwrap_or_default()) {
            now.of_cpus.insert((Cause::Steal, cpu), ticks * TICK_NS);
        }
        for (cause, path) in [(Cause::Interrupts, "/proc/interrupts"), (Cause::Softirqs, "/proc/softirqs")] {
            let sums = columns(&read_to_string(path).unwrap_or_default());
            now.of_cpus.extend(sums.into_iter().map(|(cpu, sum)| ((cause, cpu), sum)));
        }
        for state in 0.. {
            let state = folder.join(format!("cpuidle/state{state}"));
            let Some(uses) = number(&state.join("usage")) else { break };
            now.idle.push((number(&state.join("latency")).unwrap_or(0) * 1000, uses));
        }
        if self.listed_at.is_none_or(|listed| at.span_since(listed) >= THREADS_FOR) {
            self.list_threads();
            self.listed_at = Some(at);
        }
        for thread in &self.threads {
            let used = read_to_string(&thread.schedstat).ok();
            let used = used.and_then(|text| text.split_whitespace().next()?.parse().ok());
            let stat = read_to_string(&thread.stat).unwrap_or_default();
            let cpu = fields(&stat).and_then(|fields| field(&fields, 39));
            if let (Some(used), Some(cpu)) = (used, cpu) {
                now.threads.insert(thread.tid, (used, cpu));
            }
        }
        Some(now)
    }

    /// How long the probe was stopped so far. A span counts whole if the probe was stopped at either end of it.
    fn stopped_ns(&mut self, at: Monotonic, is_stopped: bool) -> u64 {
        let (was_stopped, last, stopped) = self.stopped;
        let since = last.map_or(0, |last| at.span_since(last).as_nanos());
        let stopped = if is_stopped || was_stopped { stopped.saturating_add(since) } else { stopped };
        self.stopped = (is_stopped, Some(at), stopped);
        stopped
    }

    /// Lists the real-time threads that the probe cannot push aside.
    fn list_threads(&mut self) {
        self.threads.clear();
        let numbers = |folder: &Path| {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).collect::<Vec<_>>()
        };
        for pid in numbers(Path::new("/proc")) {
            let tasks = PathBuf::from(format!("/proc/{pid}/task"));
            for tid in numbers(&tasks).into_iter().filter(|tid| *tid != self.probe.tid) {
                let folder = tasks.join(tid.to_string());
                let Ok(stat) = read_to_string(folder.join("stat")) else { continue };
                let Some(fields) = fields(&stat) else { continue };
                let (priority, policy) = (field::<u32>(&fields, 40), field::<u32>(&fields, 41));
                // SCHED_FIFO 1, SCHED_RR 2, SCHED_DEADLINE 6, which goes before all priorities.
                let priority = match policy {
                    Some(6) => Some(100),
                    Some(1 | 2) => priority,
                    _ => None,
                };
                let Some(priority) = priority.filter(|&priority| priority >= self.from_priority.max(1))
                else {
                    continue;
                };
                let name = stat
                    .split_once('(')
                    .and_then(|(_, rest)| rest.rsplit_once(')'))
                    .map_or("?", |(name, _)| name);
                self.threads.push(RealTimeThread {
                    tid,
                    schedstat: folder.join("schedstat"),
                    stat: folder.join("stat"),
                    name: format!("{name} (thread {tid}, priority {priority})"),
                });
            }
        }
    }

    /// What was counted between two moments.
    pub(super) fn between(&self, earlier: &Snapshot, later: &Snapshot) -> Evidence {
        let window = later.at.span_since(earlier.at).as_nanos();
        let mut counted = BTreeMap::new();
        for (&cause, &value) in &later.counted {
            earlier.counted.get(&cause).map(|before| counted.insert(cause, value.saturating_sub(*before)));
        }
        let waited = later.waited.iter();
        let waited = waited.filter_map(|(tid, now)| Some(now.saturating_sub(*earlier.waited.get(tid)?)));
        if let Some(waited) = waited.reduce(u64::saturating_add) {
            counted.insert(Cause::Waiting, waited);
        }
        for (&(cause, cpu), &value) in &later.of_cpus {
            if let Some(before) = earlier.of_cpus.get(&(cause, cpu)).filter(|_| cpu == later.cpu) {
                counted.insert(cause, value.saturating_sub(*before));
            }
        }
        if earlier.cpu == later.cpu && !later.idle.is_empty() {
            let used = later.idle.iter().zip(&earlier.idle).filter(|(now, before)| now.1 > before.1);
            counted.insert(Cause::IdleStates, used.map(|(now, _)| now.0).max().unwrap_or(0));
        }
        let on_cpu = later.threads.iter().filter(|(_, (_, cpu))| *cpu == later.cpu);
        let used = on_cpu
            .filter_map(|(tid, (now, _))| Some((*tid, now.saturating_sub(earlier.threads.get(tid)?.0))));
        let used: Vec<(u32, u64)> = used.filter(|(_, used)| *used > 0).collect();
        let all: u64 = used.iter().map(|(_, used)| used).sum();
        counted.insert(Cause::RtThreads, all);
        if let Some(budget) = self.budget {
            let is_throttled = all as f64 >= window as f64 * budget * THROTTLED_FROM;
            counted.insert(
                Cause::RtThrottling,
                if is_throttled { (window as f64 * (1.0 - budget)) as u64 } else { 0 },
            );
        }
        let most = used.iter().max_by_key(|(_, used)| *used).map(|(tid, _)| *tid);
        let name =
            |tid| self.threads.iter().find(|thread| thread.tid == tid).map(|thread| thread.name.clone());
        Evidence { window_ns: window, counted, thread: most.and_then(name) }
    }
}

impl Snapshot {
    /// When it was taken.
    pub(super) const fn at(&self) -> Monotonic {
        self.at
    }
}

/// Causes that no counter of this machine shows, as seen at this very thread.
pub(super) fn unseen(hierarchy: Option<&Hierarchy>) -> Vec<Cause> {
    let mut counters = Counters::new(Thread::this(), 0, hierarchy.map(Hierarchy::own_cpu_stat));
    let Some(now) = counters.read() else { return Cause::ALL.to_vec() };
    let seen = counters.between(&now, &now).counted;
    // Without a budget the kernel throttles no real-time thread: there is nothing to be seen.
    let is_unseen = |cause: &Cause| !seen.contains_key(cause) && *cause != Cause::RtThrottling;
    Cause::ALL.iter().copied().filter(is_unseen).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_machine_does_not_count_is_named() {
        let found = unseen(None);
        assert!(found.contains(&Cause::CfsThrottling), "{found:?}");
        for always in
            [Cause::Stopped, Cause::RtThreads, Cause::RtThrottling, Cause::MajorFaults, Cause::Steal]
        {
            assert!(!found.contains(&always), "{found:?}");
        }
        let has_msr = Path::new("/dev/cpu/0/msr").exists();
        assert!(has_msr || found.contains(&Cause::Smi), "{found:?}");
    }

    #[test]
    fn columns_are_summed_by_cpu() {
        let text = "           CPU0       CPU2\n 24:   1   2  IO-APIC  5-edge\nLOC:  10  20   Local timer 7\nERR:   3\n";
        assert_eq!(columns(text), BTreeMap::from([(0, 14), (2, 22)]));
        let stat =
            "cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 2 3 4 5 6 7 80 9 10\ncpu12 1 2 3 4 5 6 7 9 0 0\nintr 5\n";
        assert_eq!(stolen(stat).collect::<Vec<_>>(), [(0, 80), (12, 9)]);
    }

    #[test]
    fn evidence_is_of_the_probes_cpu() {
        let mut counters = Counters::new(Thread::of(1, 1), 99, None);
        counters.budget = Some(0.95);
        let name = "hog (thread 7, priority 99)".to_owned();
        counters.threads = vec![RealTimeThread {
            tid: 7,
            schedstat: PathBuf::new(),
            stat: PathBuf::new(),
            name: name.clone(),
        }];
        let at = |ms: u64| Monotonic::from_nanos(ms * 1_000_000);
        let of = |ms: u32, interrupts, used, uses| Snapshot {
            at: at(ms.into()),
            cpu: 1,
            counted: BTreeMap::new(),
            of_cpus: BTreeMap::from([
                ((Cause::Interrupts, 0), 9 * interrupts),
                ((Cause::Interrupts, 1), interrupts),
            ]),
            idle: vec![(2_000, 5), (150_000, uses)],
            threads: BTreeMap::from([(7, (used, 1)), (8, (5 * used, 0))]),
            // A process of a user-mode Linux may have begun in the meantime.
            waited: BTreeMap::from([(1, used), (2, 2 * used), (ms, 9)]),
        };
        let found = counters.between(&of(100, 10, 1_000, 4), &of(200, 25, 6_000_000, 4));
        assert_eq!((found.window_ns, found.thread), (100_000_000, Some(name)));
        assert_eq!((found.counted[&Cause::Interrupts], found.counted[&Cause::Waiting]), (15, 3 * 5_999_000));
        assert_eq!((found.counted[&Cause::RtThreads], found.counted[&Cause::IdleStates]), (5_999_000, 0));
        assert_eq!(found.counted[&Cause::RtThrottling], 0);
        let found = counters.between(&of(100, 10, 0, 4), &of(200, 10, 95_000_000, 5));
        assert!(found.counted[&Cause::RtThrottling].abs_diff(5_000_000) < 10);
        assert_eq!(found.counted[&Cause::IdleStates], 150_000);
        assert!(!found.counted.contains_key(&Cause::Smi));
    }

    #[test]
    fn stopped_spans_count_whole() {
        let mut counters = Counters::new(Thread::of(1, 1), 0, None);
        let at = |ms: u64| Monotonic::from_nanos(ms * 1_000_000);
        let stopped: Vec<u64> =
            [(0, false), (100, false), (200, true), (300, true), (400, false), (500, false)]
                .map(|(ms, is_stopped)| counters.stopped_ns(at(ms), is_stopped) / 1_000_000)
                .to_vec();
        assert_eq!(stopped, [0, 0, 100, 200, 300, 300]);
    }

    #[test]
    fn a_thread_of_this_machine_can_be_read() {
        let pid = std::process::id();
        let mut counters = Counters::new(Thread::of(pid, pid), 0, None);
        let (one, other) = (counters.read().unwrap(), counters.read().unwrap());
        let evidence = counters.between(&one, &other);
        assert!(
            evidence.counted.contains_key(&Cause::Waiting)
                && evidence.counted.contains_key(&Cause::Interrupts)
        );
        assert!(Counters::new(Thread::of(u32::MAX, 1), 0, None).read().is_none());
    }
}
