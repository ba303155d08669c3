// SPDX-License-Identifier: Apache-2.0
//! What makes wake-ups late on this machine: `ktsn doctor --rt`, from which `ktsn rt run` takes its advice.
//!
//! In: files under /proc, /sys and /var/lib/kubelet, below a root that tests choose. Out: findings, each with the causes of late wake-ups
//! that its remedy takes away. Nothing is changed.

use std::path::{Path, PathBuf};

use ktsn_host::cpus_of;
use ktsn_realtime::causes::Cause;

use super::finding::{Finding, Look};
use super::machine::{idle_states, text};

/// Idle states that take longer to leave show in latencies.
const IDLE_EXIT_MAX_MICROS: u64 = 10;
/// The most CPUs of a list.
const CPUS_MAX: usize = 4096;

/// All findings about the machine, for a program on `cpu`.
pub(crate) fn findings(cpu: u32) -> Vec<Finding> {
    let machine = Machine { root: PathBuf::from("/"), cpu };
    machine.findings()
}

/// Whether the machine has this CPU.
///
/// # Errors
/// It has not, with those that it has.
pub(crate) fn check_cpu(cpu: u32) -> Result<(), String> {
    let list = text("/sys/devices/system/cpu/online").ok_or(
        "the machine's CPUs are not known: /sys/devices/system/cpu/online cannot be read; mount /sys",
    )?;
    if contains(&list, cpu) { Ok(()) } else { Err(format!("there is no such CPU online; there are {list}")) }
}

struct Machine {
    root: PathBuf,
    cpu: u32,
}

impl Machine {
    fn findings(&self) -> Vec<Finding> {
        vec![
            self.preemption().of(&[Cause::Waiting, Cause::Softirqs, Cause::Interrupts]),
            self.isolation().of(&[Cause::Waiting, Cause::Migrations, Cause::Softirqs, Cause::RtThreads]),
            self.ticks().of(&[Cause::Interrupts, Cause::Softirqs]),
            self.interrupts().of(&[Cause::Interrupts, Cause::Softirqs]),
            self.governor().of(&[Cause::FrequencyChanges]),
            self.idle().of(&[Cause::IdleStates]),
            self.throttling().of(&[Cause::RtThrottling]),
            self.cpu_manager().of(&[Cause::CfsThrottling, Cause::Waiting, Cause::Migrations]),
            self.swap().of(&[Cause::MajorFaults]),
            self.hypervisor().of(&[Cause::Steal]),
        ]
    }

    fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        text(self.root.join(path))
    }

    /// A list of CPUs that the kernel shows; `None` where it shows no such list, empty for none.
    fn cpus(&self, path: &str) -> Option<String> {
        self.text(path).map(|list| if list == "(null)" { String::new() } else { list })
    }

    /// The folder of the CPU in /sys, where it can be looked at.
    fn cpu_folder(&self) -> Option<PathBuf> {
        let folder = self.root.join(format!("sys/devices/system/cpu/cpu{}", self.cpu));
        folder.is_dir().then_some(folder)
    }

    fn preemption(&self) -> Finding {
        const LOOK: Look = Look::at("rt_preemption", "/proc/sys/kernel/version, /sys/kernel/realtime");
        let version = self.text("proc/sys/kernel/version");
        let names_rt = version.as_ref().map(|version| version.contains("PREEMPT_RT"));
        let is_rt = self.text("sys/kernel/realtime").as_deref() == Some("1") || names_rt == Some(true);
        let meaning = "without PREEMPT_RT kernel code, interrupts and softirqs go before every thread";
        if is_rt {
            return LOOK.ok("PREEMPT_RT", "kernel code gives way to real-time threads");
        }
        if names_rt.is_none() {
            return LOOK.not_known("the kernel's version cannot be read", meaning, "mount /proc");
        }
        let remedy = "use a PREEMPT_RT kernel (Debian: apt-get install linux-image-rt-amd64)";
        LOOK.warn("no PREEMPT_RT", meaning, remedy)
    }

    fn isolation(&self) -> Finding {
        const LOOK: Look = Look::at("rt_isolation", "/sys/devices/system/cpu/isolated");
        let meaning = "other threads and kernel work share the CPU with the program";
        let Some(isolated) = self.cpus("sys/devices/system/cpu/isolated") else {
            return LOOK.not_known("no list of isolated CPUs", meaning, "mount /sys");
        };
        let shown = if isolated.is_empty() { "none" } else { &isolated };
        let value = format!("CPU {}, isolated: {shown}", self.cpu);
        if contains(&isolated, self.cpu) {
            return LOOK.ok(value, "the scheduler puts no other threads onto this CPU");
        }
        let remedy = format!(
            "boot with isolcpus=managed_irq,domain,{cpu} rcu_nocbs={cpu}, and start the program there: taskset -c {cpu}",
            cpu = self.cpu
        );
        LOOK.warn(value, meaning, remedy)
    }

    fn ticks(&self) -> Finding {
        const LOOK: Look = Look::at("rt_nohz_full", "/sys/devices/system/cpu/nohz_full");
        let meaning = "the scheduler's tick interrupts the program";
        let list = self.cpus("sys/devices/system/cpu/nohz_full");
        if list.is_none() && !self.root.join("sys/devices/system/cpu").is_dir() {
            return LOOK.not_known("no folder of CPUs", meaning, "mount /sys");
        }
        let list = list.unwrap_or_default();
        let value = if list.is_empty() { "none".to_owned() } else { list.clone() };
        if contains(&list, self.cpu) {
            return LOOK.ok(value, "no periodic tick while one thread runs on this CPU");
        }
        let remedy = format!("boot with nohz_full={} (a kernel with CONFIG_NO_HZ_FULL)", self.cpu);
        LOOK.warn(value, meaning, remedy)
    }

    /// Device interrupts that this CPU may get: (those that go to it, all whose CPUs are shown).
    fn interrupt_counts(&self) -> (u32, u32) {
        let folders = std::fs::read_dir(self.root.join("proc/irq")).into_iter().flatten().flatten();
        let (mut ours, mut shown) = (0, 0);
        for folder in folders.filter(|entry| entry.path().is_dir()) {
            // The kernel's own word for where the interrupt goes: empty, where it goes nowhere. Older kernels show only where it may go.
            let list = ["effective_affinity_list", "smp_affinity_list"]
                .iter()
                .find_map(|name| self.text(folder.path().join(name)));
            shown += u32::from(list.is_some());
            ours += u32::from(list.is_some_and(|list| contains(&list, self.cpu)));
        }
        (ours, shown)
    }

    fn interrupts(&self) -> Finding {
        const LOOK: Look =
            Look::at("rt_irq_affinity", "/proc/irq/*/effective_affinity_list, else smp_affinity_list");
        let meaning = "devices interrupt the program";
        let (ours, shown) = self.interrupt_counts();
        if shown == 0 {
            return LOOK.not_known(
                "no interrupt can be looked at",
                meaning,
                "mount /proc, and run doctor as root",
            );
        }
        let value = format!("{ours} of {shown} device interrupts go to CPU {}", self.cpu);
        if ours == 0 {
            return LOOK.ok(value, "devices interrupt other CPUs");
        }
        let remedy = format!(
            "move them: write other CPUs than {} to /proc/irq/*/smp_affinity_list, and stop irqbalance or ban the CPU there",
            self.cpu
        );
        LOOK.warn(value, meaning, remedy)
    }

    fn governor(&self) -> Finding {
        const LOOK: Look =
            Look::at("rt_governor", "the CPU's cpufreq/scaling_governor in /sys/devices/system/cpu");
        let meaning = "a CPU that changes its frequency stops for it, and wakes up slow";
        let folder = self.cpu_folder().map(|cpu| cpu.join("cpufreq"));
        let name = folder.as_ref().and_then(|folder| text(folder.join("scaling_governor")));
        match (folder, name) {
            (_, Some(name)) if name == "performance" => LOOK.ok(name, "the frequency does not change"),
            (_, Some(name)) => LOOK.warn(
                name,
                meaning,
                "choose the performance governor: cpupower frequency-set -g performance",
            ),
            (Some(folder), None) if !folder.exists() => {
                LOOK.ok("none", "this kernel does not govern the CPU's frequency")
            }
            _ => LOOK.not_known("the governor cannot be read", meaning, "mount /sys"),
        }
    }

    fn idle(&self) -> Finding {
        const LOOK: Look = Look::at(
            "rt_idle_states",
            "the CPU's cpuidle in /sys/devices/system/cpu, cpuidle/current_driver",
        );
        let meaning =
            "a CPU that slept deeply wakes up late; cyclictest keeps it awake, other programs do not";
        let driver = self.text("sys/devices/system/cpu/cpuidle/current_driver");
        let folder = self.cpu_folder().map(|cpu| cpu.join("cpuidle"));
        let is_without = folder.as_ref().is_some_and(|folder| !folder.exists());
        if is_without && driver.as_deref() == Some("none") {
            return LOOK.ok("no driver of idle states", "the kernel enters no deep state by itself");
        }
        let Some(states) = folder.and_then(idle_states) else {
            return LOOK.not_known("idle states cannot be read", meaning, "mount /sys");
        };
        let deepest = states.into_iter().max_by_key(|state| state.0);
        let deepest = deepest.filter(|state| state.0 > 0).unwrap_or_else(|| (0, "none".to_owned()));
        let value = format!("deepest enabled state {} (exit {} µs)", deepest.1, deepest.0);
        if deepest.0 <= IDLE_EXIT_MAX_MICROS {
            return LOOK.ok(value, "a CPU that slept is awake at once");
        }
        LOOK.warn(
            value,
            meaning,
            "disable deep states: cpupower idle-set -D 10, or hold /dev/cpu_dma_latency in the program",
        )
    }

    fn throttling(&self) -> Finding {
        const LOOK: Look = Look::at(
            "rt_throttling",
            "/proc/sys/kernel/sched_rt_runtime_us, /proc/sys/kernel/sched_rt_period_us",
        );
        let meaning =
            "real-time threads that use up this share of a CPU are stopped for the rest of the span";
        let sysctl = |name: &str| self.text(format!("proc/sys/kernel/{name}"))?.parse::<i64>().ok();
        let (runtime, period) = (sysctl("sched_rt_runtime_us"), sysctl("sched_rt_period_us"));
        match runtime.zip(period) {
            Some((runtime, period)) if runtime >= 0 && runtime < period => LOOK.warn(
                format!("{} of {} ms", runtime / 1000, period / 1000),
                meaning,
                "sysctl -w kernel.sched_rt_runtime_us=-1, where no real-time thread can run without end",
            ),
            Some(_) => LOOK.ok("off", "real-time threads are never stopped"),
            None => LOOK.not_known("this kernel shows no limit", meaning, "mount /proc"),
        }
    }

    fn cpu_manager(&self) -> Finding {
        const LOOK: Look = Look::at("rt_cpu_manager", "/var/lib/kubelet/cpu_manager_state");
        let meaning = "containers share CPUs with others, and a quota stops them";
        let path = self.root.join("var/lib/kubelet/cpu_manager_state");
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let remedy = "give a container CPUs of its own and no quota: --cpuset-cpus; in Kubernetes the static CPU manager";
                return LOOK.warn("no kubelet here", meaning, remedy);
            }
            Err(error) => return LOOK.not_known(error.to_string(), meaning, "run doctor as root"),
        };
        let value: Option<serde_json::Value> = serde_json::from_str(&text).ok();
        let policy = value.and_then(|value| Some(value["policyName"].as_str()?.to_owned()));
        match policy.as_deref() {
            Some("static") => LOOK.ok("static", "a Guaranteed pod with whole CPUs has them for itself"),
            Some(other) => LOOK.warn(
                other,
                meaning,
                "set the kubelet's cpuManagerPolicy: static, and give the pod whole CPUs, request and limit the same",
            ),
            None => LOOK.not_known("no policyName", meaning, "look at the kubelet's configuration: cpuManagerPolicy"),
        }
    }

    fn swap(&self) -> Finding {
        const LOOK: Look = Look::at("rt_swap", "/proc/swaps");
        let meaning = "a page that was swapped out is read from a disk";
        // Without swap in the kernel there is no such file.
        let areas = match self.text("proc/swaps") {
            Some(text) => text.lines().skip(1).count(),
            None if self.root.join("proc/version").exists() => 0,
            None => return LOOK.not_known("no /proc", meaning, "mount /proc"),
        };
        let value = format!("{areas} swap areas");
        if areas == 0 {
            return LOOK.ok(value, "memory stays in memory");
        }
        LOOK.warn(value, meaning, "swapoff -a, or lock the program's memory (mlockall)")
    }

    fn hypervisor(&self) -> Finding {
        const LOOK: Look = Look::at("rt_hypervisor", "/proc/cpuinfo: the processor's flags");
        const REMEDY: &str = "on the host: give each virtual CPU a CPU of its own (ktsn doctor --vm=host), or measure on the host itself";
        let text = self.text("proc/cpuinfo").unwrap_or_default();
        let mut flags = text.lines().filter(|line| line.starts_with("flags")).peekable();
        let meaning = "its host decides when a virtual CPU runs";
        if flags.peek().is_none() {
            let value = "the processor shows no flags";
            return LOOK.not_known(value, format!("in a virtual machine {meaning}"), REMEDY);
        }
        if !flags.any(|line| line.split_whitespace().any(|flag| flag == "hypervisor")) {
            return LOOK.ok("no flag hypervisor", "no hypervisor takes this CPU away");
        }
        LOOK.warn("this machine is a virtual one", meaning, REMEDY)
    }
}

/// Whether a list such as `0,2-3` has this CPU.
fn contains(list: &str, cpu: u32) -> bool {
    cpus_of(list, CPUS_MAX).is_some_and(|cpus| cpus.iter().any(|&one| u32::try_from(one) == Ok(cpu)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::State;

    fn found(files: &[(&str, &str)]) -> Vec<Finding> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let machine = Machine { root: root.path().to_owned(), cpu: 3 };
        machine.findings()
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
        let (disable, called) = (format!("{idle}/disable"), format!("{idle}/name"));
        let also = [
            ("proc/sys/kernel/sched_rt_period_us", "1000000"),
            (disable.as_str(), "0"),
            (called.as_str(), "C2"),
        ];
        for (name, path, good, bad, remedy) in cases {
            let with = |text: &'static str| [&[(*path, text)][..], &also].concat();
            let finding = one(&with(good), name);
            assert_eq!(finding.state, State::Ok, "{finding:?}");
            let finding = one(&with(bad), name);
            assert_eq!(finding.state, State::Warn, "{finding:?}");
            assert!(finding.remedy.as_ref().unwrap().contains(remedy), "{finding:?}");
        }
        assert_eq!(found(&[]).len(), cases.len());
    }

    /// Only that no kubelet is there can be seen where nothing is.
    #[test]
    fn nothing_is_ok_where_nothing_can_be_read() {
        for finding in found(&[]) {
            let expected = if finding.name == "rt_cpu_manager" { State::Warn } else { State::NotKnown };
            assert_eq!(finding.state, expected, "{finding:?}");
        }
    }

    #[test]
    fn an_interrupt_that_goes_nowhere_is_no_interrupt_of_this_cpu() {
        let all = [
            ("proc/irq/5/smp_affinity_list", "0-3"),
            ("proc/irq/5/effective_affinity_list", ""),
            ("proc/irq/24/smp_affinity_list", "0-3"),
            ("proc/irq/24/effective_affinity_list", "0"),
        ];
        let finding = one(&all, "rt_irq_affinity");
        assert_eq!(
            (finding.state, finding.value.as_str()),
            (State::Ok, "0 of 2 device interrupts go to CPU 3")
        );
    }

    #[test]
    fn a_cpu_that_is_not_there_is_an_error() {
        assert_eq!(check_cpu(0), Ok(()));
        let error = check_cpu(4_000).unwrap_err();
        assert!(error.starts_with("there is no such CPU online; there are 0"), "{error}");
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
