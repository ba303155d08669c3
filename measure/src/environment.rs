// SPDX-License-Identifier: Apache-2.0
//! Where a measurement ran, and how busy the machine was.
//!
//! In: `/proc`, `/sys`, the kernel's clock state. Out: [`Environment`] and [`CpuUse`]. Nothing is changed; what the
//! machine does not show is `unknown` or zero.

use ktsn_traffic::clock::clock_state;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::read_to_string;

/// The machine, as the results name it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Environment {
    /// `uname -r` and `-v`.
    pub kernel: String,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// The first CPU's model.
    pub cpu_model: String,
    /// Preemption: `none`, `voluntary`, `full`, `lazy`, `rt`, or `dynamic` when the kernel does not say which.
    pub preempt: String,
    /// The clock source in use.
    pub clocksource: String,
    /// TAI − UTC in whole seconds; 0 when the kernel was not given one.
    pub tai_offset_seconds: i32,
    /// Whether something disciplines the clock.
    pub clock_synchronised: bool,
    /// Load averages of 1, 5 and 15 minutes.
    pub load_average: [f64; 3],
    /// Versions of the programs involved.
    pub versions: BTreeMap<String, String>,
}

impl Environment {
    /// Reads the machine's state now.
    #[must_use]
    pub fn read() -> Self {
        let uname = rustix::system::uname();
        let (release, version) = (uname.release().to_string_lossy(), uname.version().to_string_lossy());
        let clock = clock_state().unwrap_or_default();
        let boot = ["/sys/kernel/debug/sched/preempt", "/proc/cmdline"].map(|path| read_to_string(path).ok());
        let load = read_to_string("/proc/loadavg").unwrap_or_default();
        Self {
            kernel: format!("{release} {version}"),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            cpu_model: cpu_model(&read_to_string("/proc/cpuinfo").unwrap_or_default()),
            preempt: preempt(boot[0].as_deref(), boot[1].as_deref().unwrap_or_default(), &version),
            clocksource: read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource")
                .map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned()),
            tai_offset_seconds: clock.tai_offset_seconds,
            clock_synchronised: clock.synchronised,
            load_average: load_average(&load),
            versions: BTreeMap::from([("ktsn".to_owned(), own_version(cfg!(debug_assertions)))]),
        }
    }
}

/// This program's version. A debug build says so: its times are of other programs than those that users run.
fn own_version(is_debug: bool) -> String {
    let version = env!("CARGO_PKG_VERSION");
    if is_debug { format!("{version}, debug build") } else { version.to_owned() }
}

fn cpu_model(cpuinfo: &str) -> String {
    let model = cpuinfo.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim().to_owned())
    });
    model.unwrap_or_else(|| "unknown".to_owned())
}

/// From the scheduler's own word (`none (voluntary) full`), the boot parameter, or the build's banner.
fn preempt(scheduler: Option<&str>, command_line: &str, version: &str) -> String {
    let chosen = scheduler
        .and_then(|text| text.split_whitespace().find_map(|word| word.strip_prefix('(')?.strip_suffix(')')));
    let asked = command_line.split_whitespace().find_map(|word| word.strip_prefix("preempt="));
    let built = || {
        let has = |word| version.split_whitespace().any(|flag| flag == word);
        match () {
            () if has("PREEMPT_RT") => "rt",
            () if has("PREEMPT_DYNAMIC") => "dynamic",
            () if has("PREEMPT") => "full",
            () => "none",
        }
    };
    chosen.or(asked).unwrap_or_else(built).to_owned()
}

fn load_average(text: &str) -> [f64; 3] {
    let mut averages = [0.0; 3];
    for (average, word) in averages.iter_mut().zip(text.split_whitespace()) {
        *average = word.parse().unwrap_or(0.0);
    }
    averages
}

/// Ticks of `/proc/stat` in a second, on every architecture that Linux runs on today.
const USER_HZ: f64 = 100.0;

/// The CPUs' counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuUse {
    ticks: u64,
    stolen_ticks: u64,
    softirq_ticks: u64,
    waited_micros: Option<u64>,
    at: ktsn_time::Monotonic,
}

/// How disturbed the machine was between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Disturbance {
    /// Share of all CPUs' time that the hypervisor took.
    pub steal_ratio: f64,
    /// Share of elapsed time in which some task waited for a CPU; unknown without PSI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_pressure_some_ratio: Option<f64>,
}

impl CpuUse {
    /// Reads the counters now.
    #[must_use]
    pub fn now() -> Self {
        let stat = read_to_string("/proc/stat").unwrap_or_default();
        let pressure = read_to_string("/proc/pressure/cpu").ok();
        let at = ktsn_traffic::clock::monotonic_now();
        Self { at, ..Self::parse(&stat, pressure.as_deref()) }
    }

    fn parse(stat: &str, pressure: Option<&str>) -> Self {
        let fields = stat.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default();
        // user nice system idle iowait irq softirq steal; guest time is inside user.
        let ticks: Vec<u64> =
            fields.split_whitespace().take(8).filter_map(|word| word.parse().ok()).collect();
        let waited_micros = pressure.and_then(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
            line.split_whitespace().find_map(|word| word.strip_prefix("total=")?.parse().ok())
        });
        Self {
            ticks: ticks.iter().sum(),
            stolen_ticks: ticks.get(7).copied().unwrap_or(0),
            softirq_ticks: ticks.get(6).copied().unwrap_or(0),
            waited_micros,
            ..Self::default()
        }
    }

    /// How many CPUs soft interrupts kept busy between `earlier` and `self`, as the kernel's ticks saw it.
    #[must_use]
    pub fn softirqs_since(&self, earlier: &Self) -> f64 {
        let elapsed = self.at.since(earlier.at).get() as f64 / 1e9;
        let ticks = self.softirq_ticks.saturating_sub(earlier.softirq_ticks) as f64;
        if elapsed > 0.0 { ticks / USER_HZ / elapsed } else { 0.0 }
    }

    /// What happened between `earlier` and `self`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Disturbance {
        let elapsed_micros = self.at.since(earlier.at).get() as f64 / 1e3;
        let waited =
            self.waited_micros.zip(earlier.waited_micros).map(|(now, then)| now.saturating_sub(then));
        Disturbance {
            steal_ratio: share(
                self.stolen_ticks.saturating_sub(earlier.stolen_ticks) as f64,
                self.ticks.saturating_sub(earlier.ticks) as f64,
            ),
            cpu_pressure_some_ratio: waited.map(|waited| share(waited as f64, elapsed_micros)),
        }
    }
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { (part / whole).clamp(0.0, 1.0) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ktsn_time::Monotonic;

    #[test]
    fn this_machine_is_described() {
        let environment = Environment::read();
        assert!(environment.cpus >= 1);
        assert!(environment.kernel.len() > 3);
        assert!(!environment.preempt.is_empty() && !environment.clocksource.is_empty());
        assert_eq!(environment.versions["ktsn"], own_version(cfg!(debug_assertions)));
        assert_eq!(own_version(false), env!("CARGO_PKG_VERSION"));
        assert!(own_version(true).ends_with(", debug build"));
    }

    #[test]
    fn preemption_is_the_schedulers_word_first() {
        assert_eq!(preempt(Some("none (voluntary) full"), "preempt=full", "PREEMPT_DYNAMIC"), "voluntary");
        assert_eq!(preempt(None, "quiet preempt=none", "#1 SMP PREEMPT_DYNAMIC"), "none");
        assert_eq!(preempt(None, "", "#1 SMP PREEMPT_DYNAMIC Sat"), "dynamic");
        assert_eq!(preempt(None, "", "#1 SMP PREEMPT_RT Sat"), "rt");
        assert_eq!(preempt(None, "", "#1 SMP Sat"), "none");
    }

    #[test]
    fn files_are_read_field_by_field() {
        assert_eq!(cpu_model("processor\t: 0\nmodel name\t: AMD EPYC\n"), "AMD EPYC");
        assert_eq!(cpu_model(""), "unknown");
        assert_eq!(load_average("0.50 0.40 0.30 1/99 7"), [0.5, 0.4, 0.3]);
    }

    #[test]
    fn disturbance_is_the_share_between_two_readings() {
        let at = |stat, pressure, nanos| CpuUse {
            at: Monotonic::from_nanos(nanos),
            ..CpuUse::parse(stat, pressure)
        };
        let earlier = at(
            "cpu  10 0 10 70 0 0 0 10 99 99\ncpu0 1\n",
            Some("some avg10=1.0 total=1000\nfull total=9\n"),
            0,
        );
        let later = at("cpu  50 0 10 110 0 0 0 30 99 99\n", Some("some avg10=1.0 total=3500\n"), 10_000_000);
        assert_eq!(
            later.since(&earlier),
            Disturbance { steal_ratio: 0.2, cpu_pressure_some_ratio: Some(0.25) }
        );
        // 20 ticks of 10 ms in a second of two CPUs: a fifth of one.
        let [begun, ended] = [(4, 0), (24, 1_000_000_000)].map(|(softirq, nanos)| CpuUse {
            at: Monotonic::from_nanos(nanos),
            ..CpuUse::parse(&format!("cpu  1 0 1 1 0 0 {softirq} 0\n"), None)
        });
        assert!((ended.softirqs_since(&begun) - 0.2).abs() < 1e-9);
        assert!(begun.softirqs_since(&begun).abs() < 1e-9);
        let blind = at("cpu  50 0 10 110 0 0 0 30\n", None, 5);
        assert_eq!(blind.since(&earlier).cpu_pressure_some_ratio, None);
    }
}
