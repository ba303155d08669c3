// SPDX-License-Identifier: Apache-2.0
//! What makes wake-ups late on this machine: `ktsn doctor --rt`, and the advice of `ktsn rt run`.
//!
//! In: files under /proc, /sys and /var/lib/kubelet, below a root that tests choose. Out: findings, each with the causes of late wake-ups
//! that its remedy takes away. Nothing is changed.

use std::path::{Path, PathBuf};

use ktsn_lab::vm::cpus_of;
use ktsn_realtime::advice::Advice;
use ktsn_realtime::causes::Cause;

use super::finding::{Finding, State};
use super::machine::{idle_states, text};

/// Idle states that take longer to leave show in latencies.
const IDLE_EXIT_MAX_MICROS: u64 = 10;
/// The most CPUs of a list.
const CPUS_MAX: usize = 4096;

/// A finding, and what its remedy takes away.
pub(crate) struct Disturbance {
    pub(crate) finding: Finding,
    causes: &'static [Cause],
}

/// All findings about the machine, for a program on `cpu`.
pub(crate) fn findings(cpu: u32) -> Vec<Disturbance> {
    let machine = Machine { root: PathBuf::from("/"), cpu };
    machine.findings()
}

/// The findings that ask for a change, for the report of a run.
pub(crate) fn advice(cpu: u32) -> Vec<Advice> {
    let is_bad = |one: &Disturbance| one.finding.state != State::Ok;
    let advice = |one: Disturbance| Advice {
        finding: one.finding.name,
        value: one.finding.value,
        meaning: one.finding.meaning,
        remedy: one.finding.remedy.unwrap_or_default(),
        causes: one.causes.to_vec(),
        explained_ratio: 0.0,
    };
    findings(cpu).into_iter().filter(is_bad).map(advice).collect()
}

struct Machine {
    root: PathBuf,
    cpu: u32,
}

impl Machine {
    fn findings(&self) -> Vec<Disturbance> {
        let of = |finding, causes| Disturbance { finding, causes };
        vec![
            of(self.preemption(), &[Cause::Waiting, Cause::Softirqs, Cause::Interrupts]),
            of(self.isolation(), &[Cause::Waiting, Cause::Migrations, Cause::Softirqs, Cause::RtThreads]),
            of(self.ticks(), &[Cause::Interrupts, Cause::Softirqs]),
            of(self.interrupts(), &[Cause::Interrupts, Cause::Softirqs]),
            of(self.governor(), &[Cause::FrequencyChanges]),
            of(self.idle(), &[Cause::IdleStates]),
            of(self.throttling(), &[Cause::RtThrottling]),
            of(self.cpu_manager(), &[Cause::CfsThrottling, Cause::Waiting, Cause::Migrations]),
            of(self.swap(), &[Cause::MajorFaults]),
            of(self.hypervisor(), &[Cause::Steal]),
        ]
    }

    fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        text(self.root.join(path))
    }

    /// A list of CPUs that the kernel shows, without what stands for none.
    fn cpus(&self, path: &str) -> Option<String> {
        self.text(path).filter(|list| !list.is_empty() && list != "(null)")
    }

    fn preemption(&self) -> Finding {
        const NAME: &str = "rt_preemption";
        let version = self.text("proc/sys/kernel/version").unwrap_or_default();
        let is_rt =
            self.text("sys/kernel/realtime").as_deref() == Some("1") || version.contains("PREEMPT_RT");
        let meaning = "without PREEMPT_RT kernel code, interrupts and softirqs go before every thread";
        if is_rt {
            return Finding::ok(NAME, "PREEMPT_RT", "kernel code gives way to real-time threads");
        }
        let remedy = "use a PREEMPT_RT kernel (Debian: apt-get install linux-image-rt-amd64)";
        Finding::warn(NAME, "no PREEMPT_RT", meaning, remedy)
    }

    fn isolation(&self) -> Finding {
        const NAME: &str = "rt_isolation";
        let isolated = self.cpus("sys/devices/system/cpu/isolated");
        let is_ours = isolated.as_ref().is_some_and(|list| contains(list, self.cpu));
        let value = format!("CPU {}, isolated: {}", self.cpu, isolated.as_deref().unwrap_or("none"));
        if is_ours {
            return Finding::ok(NAME, value, "the scheduler puts no other threads onto this CPU");
        }
        let remedy = format!(
            "boot with isolcpus=managed_irq,domain,{cpu} rcu_nocbs={cpu}, and start the program there: taskset -c {cpu}",
            cpu = self.cpu
        );
        Finding::warn(NAME, value, "other threads and kernel work share the CPU with the program", remedy)
    }

    fn ticks(&self) -> Finding {
        const NAME: &str = "rt_nohz_full";
        let list = self.cpus("sys/devices/system/cpu/nohz_full");
        let value = list.clone().unwrap_or_else(|| "none".to_owned());
        if list.is_some_and(|list| contains(&list, self.cpu)) {
            return Finding::ok(NAME, value, "no periodic tick while one thread runs on this CPU");
        }
        let remedy = format!("boot with nohz_full={} (a kernel with CONFIG_NO_HZ_FULL)", self.cpu);
        Finding::warn(NAME, value, "the scheduler's tick interrupts the program", remedy)
    }

    /// Device interrupts that this CPU may get.
    fn interrupts(&self) -> Finding {
        const NAME: &str = "rt_irq_affinity";
        let folders = std::fs::read_dir(self.root.join("proc/irq")).into_iter().flatten().flatten();
        let mut count = 0;
        for folder in folders.filter(|entry| entry.path().is_dir()) {
            // The kernel's own word for where the interrupt goes; older ones show only where it may go.
            let list = ["effective_affinity_list", "smp_affinity_list"]
                .iter()
                .find_map(|name| self.text(folder.path().join(name)).filter(|list| !list.is_empty()));
            count += u32::from(list.is_some_and(|list| contains(&list, self.cpu)));
        }
        let value = format!("{count} device interrupts go to CPU {}", self.cpu);
        if count == 0 {
            return Finding::ok(NAME, value, "devices interrupt other CPUs");
        }
        let remedy = format!(
            "move them: write other CPUs than {} to /proc/irq/*/smp_affinity_list, and stop irqbalance or ban the CPU there",
            self.cpu
        );
        Finding::warn(NAME, value, "devices interrupt the program", remedy)
    }

    fn governor(&self) -> Finding {
        const NAME: &str = "rt_governor";
        match self.text(format!("sys/devices/system/cpu/cpu{}/cpufreq/scaling_governor", self.cpu)) {
            None => Finding::ok(NAME, "none", "the frequency is not governed here"),
            Some(name) if name == "performance" => Finding::ok(NAME, name, "the frequency does not change"),
            Some(name) => Finding::warn(
                NAME,
                name,
                "a CPU that changes its frequency stops for it, and wakes up slow",
                "choose the performance governor: cpupower frequency-set -g performance",
            ),
        }
    }

    fn idle(&self) -> Finding {
        const NAME: &str = "rt_idle_states";
        let folder = self.root.join(format!("sys/devices/system/cpu/cpu{}/cpuidle", self.cpu));
        let states = idle_states(folder).filter(|state| state.0 > 0);
        let deepest = states.max_by_key(|state| state.0).unwrap_or_else(|| (0, "none".to_owned()));
        let value = format!("deepest enabled state {} (exit {} µs)", deepest.1, deepest.0);
        if deepest.0 <= IDLE_EXIT_MAX_MICROS {
            return Finding::ok(NAME, value, "a CPU that slept is awake at once");
        }
        Finding::warn(
            NAME,
            value,
            "a CPU that slept deeply wakes up late; cyclictest keeps it awake, other programs do not",
            "disable deep states: cpupower idle-set -D 10, or hold /dev/cpu_dma_latency in the program",
        )
    }

    fn throttling(&self) -> Finding {
        const NAME: &str = "rt_throttling";
        let sysctl = |name: &str| self.text(format!("proc/sys/kernel/{name}"))?.parse::<i64>().ok();
        let (runtime, period) = (sysctl("sched_rt_runtime_us"), sysctl("sched_rt_period_us"));
        match runtime.zip(period) {
            Some((runtime, period)) if runtime >= 0 && runtime < period => Finding::warn(
                NAME,
                format!("{} of {} ms", runtime / 1000, period / 1000),
                "real-time threads that use up this share of a CPU are stopped for the rest of the span",
                "sysctl -w kernel.sched_rt_runtime_us=-1, where no real-time thread can run without end",
            ),
            Some(_) => Finding::ok(NAME, "off", "real-time threads are never stopped"),
            None => Finding::ok(NAME, "unknown", "this kernel shows no limit"),
        }
    }

    fn cpu_manager(&self) -> Finding {
        const NAME: &str = "rt_cpu_manager";
        let state = self.text("var/lib/kubelet/cpu_manager_state");
        let policy = state.as_ref().map(|text| {
            let value: Option<serde_json::Value> = serde_json::from_str(text).ok();
            value.and_then(|value| Some(value["policyName"].as_str()?.to_owned())).unwrap_or_default()
        });
        let meaning = "containers share CPUs with others, and a quota stops them";
        match policy.as_deref() {
            Some("static") => {
                Finding::ok(NAME, "static", "a Guaranteed pod with whole CPUs has them for itself")
            }
            Some(other) => Finding::warn(
                NAME,
                if other.is_empty() { "unknown" } else { other },
                meaning,
                "set the kubelet's cpuManagerPolicy: static, and give the pod whole CPUs, request and limit the same",
            ),
            None => Finding::warn(
                NAME,
                "no kubelet here",
                meaning,
                "give a container CPUs of its own and no quota: --cpuset-cpus; in Kubernetes the static CPU manager",
            ),
        }
    }

    fn swap(&self) -> Finding {
        const NAME: &str = "rt_swap";
        let areas = self.text("proc/swaps").map_or(0, |text| text.lines().skip(1).count());
        let value = format!("{areas} swap areas");
        if areas == 0 {
            return Finding::ok(NAME, value, "memory stays in memory");
        }
        let remedy = "swapoff -a, or lock the program's memory (mlockall)";
        Finding::warn(NAME, value, "a page that was swapped out is read from a disk", remedy)
    }

    fn hypervisor(&self) -> Finding {
        const NAME: &str = "rt_hypervisor";
        let text = self.text("proc/cpuinfo").unwrap_or_default();
        let is_guest = text
            .lines()
            .filter(|line| line.starts_with("flags"))
            .any(|line| line.split_whitespace().any(|flag| flag == "hypervisor"));
        if !is_guest {
            return Finding::ok(NAME, "none", "no hypervisor takes this CPU away");
        }
        Finding::warn(
            NAME,
            "this machine is a virtual one",
            "its host decides when a virtual CPU runs",
            "on the host: give each virtual CPU a CPU of its own (ktsn doctor --vm=host), or measure on the host itself",
        )
    }
}

/// Whether a list such as `0,2-3` has this CPU.
fn contains(list: &str, cpu: u32) -> bool {
    cpus_of(list, CPUS_MAX).is_some_and(|cpus| cpus.iter().any(|&one| u32::try_from(one) == Ok(cpu)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<Finding> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let machine = Machine { root: root.path().to_owned(), cpu: 3 };
        machine.findings().into_iter().map(|one| one.finding).collect()
    }

    fn one(files: &[(&str, &str)], name: &str) -> Finding {
        found(files).into_iter().find(|finding| finding.name == name).unwrap()
    }

    #[test]
    fn each_setting_is_found_good_and_bad() {
        let idle = "sys/devices/system/cpu/cpu3/cpuidle/state2";
        let cases: &[(&str, &str, &str, &str, &str)] = &[
            (
                "rt_preemption",
                "proc/sys/kernel/version",
                "#1 SMP PREEMPT_RT Debian",
                "#1 SMP PREEMPT",
                "linux-image-rt",
            ),
            (
                "rt_isolation",
                "sys/devices/system/cpu/isolated",
                "2-3",
                "0-1\n",
                "isolcpus=managed_irq,domain,3",
            ),
            ("rt_nohz_full", "sys/devices/system/cpu/nohz_full", "3", "(null)", "nohz_full=3"),
            ("rt_irq_affinity", "proc/irq/24/smp_affinity_list", "0-2", "0-3", "smp_affinity_list"),
            (
                "rt_governor",
                "sys/devices/system/cpu/cpu3/cpufreq/scaling_governor",
                "performance",
                "powersave",
                "-g performance",
            ),
            ("rt_idle_states", &format!("{idle}/latency"), "2", "133", "idle-set -D 10"),
            (
                "rt_throttling",
                "proc/sys/kernel/sched_rt_runtime_us",
                "-1",
                "950000",
                "sched_rt_runtime_us=-1",
            ),
            (
                "rt_cpu_manager",
                "var/lib/kubelet/cpu_manager_state",
                r#"{"policyName":"static"}"#,
                r#"{"policyName":"none"}"#,
                "static",
            ),
            ("rt_swap", "proc/swaps", "Filename Type", "Filename Type\n/dev/vdb partition 1 0 -2", "swapoff"),
            ("rt_hypervisor", "proc/cpuinfo", "flags : fpu tsc", "flags : fpu hypervisor tsc", "--vm=host"),
        ];
        let period = ("proc/sys/kernel/sched_rt_period_us", "1000000");
        for (name, path, good, bad, remedy) in cases {
            let finding = one(&[(path, good), period], name);
            assert_eq!(finding.state, State::Ok, "{finding:?}");
            let finding = one(&[(path, bad), period], name);
            assert_eq!(finding.state, State::Warn, "{finding:?}");
            assert!(finding.remedy.as_ref().unwrap().contains(remedy), "{finding:?}");
        }
        assert_eq!(found(&[]).len(), cases.len());
    }

    #[test]
    fn every_cause_but_those_of_the_probe_itself_has_a_remedy() {
        let machine = Machine { root: "/nowhere".into(), cpu: 0 };
        let with: Vec<Cause> = machine.findings().iter().flat_map(|one| one.causes).copied().collect();
        // A stopped process, the firmware, and pages that are touched first are not this machine's settings.
        let without = [Cause::Stopped, Cause::Smi, Cause::MinorFaults];
        for cause in Cause::ALL {
            assert_eq!(with.contains(cause), !without.contains(cause), "{cause:?}");
        }
    }

    #[test]
    fn lists_of_cpus_are_read() {
        assert!(contains("0,2-3", 3) && contains("3", 3) && !contains("0-2,4", 3) && !contains("", 3));
        assert!(!contains("a-b", 3) && !contains("3-", 3));
    }
}
