// SPDX-License-Identifier: Apache-2.0
//! The kernel, its clocks and its CPUs.
//!
//! In: files under /proc and /sys, the kernel's clock state. Out: findings. Where a file is missing (containers), the
//! finding says so; nothing is changed.

use std::fs;
use std::path::{Path, PathBuf};

use super::finding::{Finding, Look};
use crate::cmd::clock::Snapshot;

/// SO_NETNS_COOKIE, by which ktsnd finds a socket's attachment.
const KERNEL_MIN: (u32, u32) = (5, 14);
/// Whole-machine sleeps longer than this show in the spin margin.
const IDLE_EXIT_MAX_MICROS: u64 = 100;
const UNKNOWN: &str = "unknown";
const CPUS: &str = "/sys/devices/system/cpu";

/// All findings about the machine.
pub(super) fn findings() -> Vec<Finding> {
    let mut findings =
        vec![kernel(), preemption(), cpus(), idle(Path::new(CPUS)), governor(Path::new(CPUS)), timer_slack()];
    findings.push(clock_source());
    findings.extend(clock());
    findings.extend(crate::cmd::clock::follower().map(|follower| guest_clock(&follower)));
    findings
}

/// A file's text without its end, where it can be read.
pub(crate) fn text(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn kernel() -> Finding {
    const LOOK: Look = Look::at("kernel", "/proc/sys/kernel/osrelease");
    let release = text("/proc/sys/kernel/osrelease").unwrap_or_else(|| UNKNOWN.into());
    let meaning = format!("KTSN needs Linux {}.{} or newer", KERNEL_MIN.0, KERNEL_MIN.1);
    match version_of(&release) {
        Some(version) if version >= KERNEL_MIN => LOOK.ok(release, meaning),
        Some(_) => LOOK.fail(release, meaning, "use a newer kernel"),
        None => LOOK.not_known(release, meaning, "mount /proc, so that the kernel's version can be read"),
    }
}

fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn preemption() -> Finding {
    const LOOK: Look = Look::at(
        "preemption",
        "/proc/sys/kernel/version, /sys/kernel/realtime, /sys/kernel/debug/sched/preempt, /proc/cmdline",
    );
    let version = text("/proc/sys/kernel/version");
    let is_shown = version.is_some();
    let version = version.unwrap_or_default();
    let realtime = text("/sys/kernel/realtime").as_deref() == Some("1") || version.contains("PREEMPT_RT");
    // "none voluntary (full) lazy": the one in brackets holds.
    let chosen = text("/sys/kernel/debug/sched/preempt")
        .and_then(|modes| modes.split(['(', ')']).nth(1).map(str::to_owned));
    if realtime {
        return LOOK.ok("PREEMPT_RT", "kernel code gives way to the worker nearly everywhere");
    }
    let asked = text("/proc/cmdline").and_then(|line| {
        line.split_whitespace().find_map(|word| word.strip_prefix("preempt=").map(str::to_owned))
    });
    let mode = chosen.or(asked);
    let model =
        ["PREEMPT_DYNAMIC", "PREEMPT_LAZY", "PREEMPT"].into_iter().find(|model| version.contains(model));
    let value = match (model, &mode) {
        (Some(model), Some(mode)) => format!("{model}, mode {mode}"),
        (Some(model), None) => format!("{model}, its mode is not shown (debugfs is not mounted)"),
        (None, _) => "no preemption".to_owned(),
    };
    let delayed = "long system calls of others may delay the worker: p99 and above, not p50, suffer";
    if !is_shown || (model == Some("PREEMPT_DYNAMIC") && mode.is_none()) {
        let value = if is_shown { value } else { UNKNOWN.to_owned() };
        return LOOK.not_known(
            value,
            delayed,
            "mount /proc and debugfs (/sys/kernel/debug), and run doctor as root",
        );
    }
    match mode.as_deref() {
        Some("full" | "lazy") => LOOK.ok(value, "kernel code gives way to the worker at most places"),
        _ if matches!(model, Some("PREEMPT" | "PREEMPT_LAZY")) => {
            LOOK.ok(value, "kernel code gives way to the worker at most places")
        }
        _ => LOOK.warn(value, delayed, "boot with preempt=full, or use a PREEMPT_RT kernel"),
    }
}

fn cpus() -> Finding {
    const LOOK: Look = Look::at("cpus", "sched_getaffinity, /sys/devices/system/cpu/isolated");
    let isolated = text("/sys/devices/system/cpu/isolated");
    let shown = match isolated.as_deref() {
        None => UNKNOWN,
        Some("") => "none",
        Some(list) => list,
    };
    let Ok(count) = std::thread::available_parallelism().map(std::num::NonZero::get) else {
        let remedy = "allow sched_getaffinity(2) in the sandbox";
        return LOOK.not_known(UNKNOWN, "whether the worker and programs share a CPU is unknown", remedy);
    };
    let value = format!("{count} usable, isolated: {shown}");
    if count >= 2 {
        return LOOK.ok(value, "the worker may spin on one while programs run on another");
    }
    LOOK.warn(
        value,
        "the spinning worker and the programs share one CPU: programs are delayed by up to the spin margin",
        "allow ktsnd and its programs at least two CPUs",
    )
}

/// The enabled idle states of a CPU, of its folder `cpuidle`: how long it takes to leave one, in µs, and its name. `None` where a
/// state cannot be read.
pub(super) fn idle_states(folder: impl AsRef<Path>) -> Option<Vec<(u64, String)>> {
    let mut states = Vec::new();
    for state in fs::read_dir(folder).ok()? {
        let state = state.ok()?.path();
        let is_disabled = text(state.join("disable"))? == "1";
        if !is_disabled {
            states.push((text(state.join("latency"))?.parse().ok()?, text(state.join("name"))?));
        }
    }
    Some(states)
}

/// The folders of the CPUs that are there.
fn cpu_folders(cpus: &Path) -> Vec<PathBuf> {
    let is_cpu = |name: &str| {
        name.strip_prefix("cpu")
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|octet| octet.is_ascii_digit()))
    };
    let entries = fs::read_dir(cpus).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name().to_str().is_some_and(is_cpu)).map(|entry| entry.path()).collect()
}

fn idle(cpus: &Path) -> Finding {
    const LOOK: Look =
        Look::at("cpu_idle", "/sys/devices/system/cpu/cpuidle, /sys/devices/system/cpu/cpu*/cpuidle");
    const SLOW: &str =
        "waking from it takes longer than the usual spin margin: the margin grows and with it the CPU time";
    let driver = text(cpus.join("cpuidle/current_driver"));
    let folders: Vec<PathBuf> = cpu_folders(cpus)
        .into_iter()
        .map(|cpu| cpu.join("cpuidle"))
        .filter(|folder| folder.exists())
        .collect();
    if driver.as_deref() == Some("none") && folders.is_empty() {
        return LOOK
            .ok("driver none", "the kernel enters no deep state by itself; the spin margin covers a halt");
    }
    let states: Option<Vec<_>> = folders.iter().map(idle_states).collect();
    let deepest = states.and_then(|states| states.into_iter().flatten().max_by_key(|state| state.0));
    let (Some(driver), Some(deepest)) = (driver, deepest) else {
        return LOOK.not_known(UNKNOWN, "how long an idle CPU takes to wake up is unknown", "mount /sys");
    };
    let value = format!("driver {driver}, deepest enabled state {} (exit {} µs)", deepest.1, deepest.0);
    if deepest.0 <= IDLE_EXIT_MAX_MICROS {
        return LOOK.ok(value, "waking up costs little; the spin margin covers it");
    }
    LOOK.warn(
        value,
        SLOW,
        "disable the deep states while armed: cpupower idle-set -D 50, or hold /dev/cpu_dma_latency",
    )
}

fn governor(cpus: &Path) -> Finding {
    const LOOK: Look = Look::at("cpu_governor", "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor");
    let folders = cpu_folders(cpus);
    let mut names: Vec<String> =
        folders.iter().filter_map(|cpu| text(cpu.join("cpufreq/scaling_governor"))).collect();
    names.sort();
    names.dedup();
    let is_governed = |cpu: &PathBuf| cpu.join("cpufreq").exists();
    if folders.is_empty() || (names.is_empty() && folders.iter().any(is_governed)) {
        return LOOK.not_known(UNKNOWN, "whether the CPUs change their frequency is unknown", "mount /sys");
    }
    if names.is_empty() {
        let meaning = "the CPUs' frequency is not governed by this kernel (usual in a virtual machine)";
        return LOOK.ok("none", meaning);
    }
    if names.iter().all(|name| matches!(name.as_str(), "performance" | "schedutil")) {
        return LOOK.ok(names.join(", "), "the frequency follows the load at once");
    }
    LOOK.warn(
        names.join(", "),
        "a slow CPU makes the hand-over to the port slower and uneven",
        "choose the performance governor: cpupower frequency-set -g performance",
    )
}

fn timer_slack() -> Finding {
    const LOOK: Look = Look::at("timer_slack", "prctl(PR_GET_TIMERSLACK)");
    let meaning =
        "ordinary threads wake up later by as much; ktsnd sets 1 ns for its worker, FIFO threads have none";
    match rustix::thread::current_timer_slack() {
        Ok(nanos) => LOOK.ok(format!("{nanos} ns"), meaning),
        Err(error) => LOOK.not_known(error.to_string(), meaning, "allow prctl(2) in the sandbox"),
    }
}

fn clock_source() -> Finding {
    const LOOK: Look = Look::at("clock_source", "/sys/devices/system/clocksource/clocksource0");
    let folder = Path::new("/sys/devices/system/clocksource/clocksource0");
    let Some(current) = text(folder.join("current_clocksource")) else {
        return LOOK.not_known(UNKNOWN, "how much reading the clock costs is unknown", "mount /sys");
    };
    if matches!(current.as_str(), "tsc" | "arch_sys_counter" | "kvm-clock" | "hyperv_clocksource_tsc_page") {
        return LOOK.ok(current, "the clock is read without a system call");
    }
    let choice = text(folder.join("available_clocksource")).unwrap_or_default();
    LOOK.warn(
        current,
        "reading the clock is a slow device access: each frame leaves later by as much",
        format!("boot with clocksource=tsc where the hardware allows (available here: {choice})"),
    )
}

fn clock() -> Vec<Finding> {
    const SYNCHRONISED: Look = Look::at("clock_synchronised", "adjtimex");
    const OFFSET: Look = Look::at("tai_offset", "adjtimex");
    let discipline = match ktsn_traffic::clock::clock_state() {
        Ok(discipline) => discipline,
        Err(error) => {
            return vec![SYNCHRONISED.warn(
                format!("adjtimex: {error}"),
                "whether the clock is synchronised is unknown",
                "allow adjtimex(2) in the sandbox",
            )];
        }
    };
    let synchronised = if discipline.synchronised {
        SYNCHRONISED.ok(
            format!("yes, greatest error {} µs", discipline.error_max_micros),
            "instants mean the same on all synchronised machines",
        )
    } else {
        SYNCHRONISED.warn("no",
            "TxTimes hold on this machine; between machines they are off by the clocks' difference, and latencies \
             measured between two machines are wrong",
            "run ptp4l and phc2sys (linuxptp), or chrony, on all machines",
        )
    };
    let offset = discipline.tai_offset_seconds;
    let value = format!("TAI - UTC = {offset} s");
    let offset = match offset {
        37.. => OFFSET.ok(value, "CLOCK_TAI is TAI"),
        0 => OFFSET.warn(value,
            "CLOCK_TAI reads UTC here: TxTimes from a machine with the right offset lie 37 s ahead and are refused as \
             beyond_horizon",
            "set the offset on all machines or on none: phc2sys -w, or chrony with leapsectz right/UTC",
        ),
        _ => OFFSET.warn(value,
            "no TAI - UTC offset since 2017 is other than 37 s",
            "let phc2sys or chrony set it, and look at what else does (adjtimex, ADJ_TAI)",
        ),
    };
    vec![synchronised, offset]
}

/// A guest's clock that follows its host's (vPTP).
fn guest_clock(follower: &Snapshot) -> Finding {
    const LOOK: Look = Look::at("guest_clock", "the state that `ktsn clock follow` writes");
    const MEANING: &str = "instants of this guest mean the same as its host's, up to the bound";
    match follower.state() {
        "following" => LOOK.ok(follower.line(), MEANING),
        "hold-over" => LOOK.warn(follower.line(),
            "the host's page is late: the clock goes on at its rate, and the bound grows",
            "look at `ktsn clock publish` on the host: has it ended, or is the host overloaded?",
        ),
        _ => LOOK.warn(follower.line(),
            "the guest's clock does not follow its host's: its instants may mean something else",
            "`ktsn clock status` says what happened; `ktsn clock publish` must run on the host, and `ktsn clock follow` here",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::State;

    #[test]
    fn a_guests_clock_that_does_not_follow_is_a_warning_with_its_bound() {
        let follower = |state: &str| -> Snapshot {
            let mut all = serde_json::to_value(Snapshot::default()).unwrap();
            (all["state"], all["error_ns"], all["error_bound_ns"]) = (state.into(), 40.into(), 312.into());
            serde_json::from_value(all).unwrap()
        };
        let good = guest_clock(&follower("following"));
        assert_eq!((good.state, good.remedy), (State::Ok, None));
        assert!(good.value.contains("40 ns off") && good.value.contains("bound 312 ns"), "{}", good.value);
        for (state, words) in
            [("hold-over", "page is late"), ("unsynchronised", "does not"), ("starting", "does not")]
        {
            let bad = guest_clock(&follower(state));
            assert!(bad.state == State::Warn && bad.meaning.contains(words), "{bad:?}");
            assert!(bad.remedy.unwrap().contains("ktsn clock publish"));
        }
    }

    #[test]
    fn all_cpus_are_looked_at_and_none_is_not_known() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        assert_eq!(
            (idle(folder.path()).state, governor(folder.path()).state),
            (State::NotKnown, State::NotKnown)
        );
        write("cpuidle/current_driver", "none\n");
        write("cpu0/online", "1");
        assert_eq!((idle(folder.path()).state, governor(folder.path()).state), (State::Ok, State::Ok));
        write("cpuidle/current_driver", "intel_idle\n");
        for (cpu, latency, governor) in [(0, "2", "performance"), (12, "170", "powersave")] {
            for (file, text) in [("name", "C1"), ("disable", "0"), ("latency", latency)] {
                write(&format!("cpu{cpu}/cpuidle/state0/{file}"), text);
            }
            write(&format!("cpu{cpu}/cpufreq/scaling_governor"), governor);
        }
        let (idling, governed) = (idle(folder.path()), governor(folder.path()));
        assert!(idling.state == State::Warn && idling.value.contains("exit 170 µs"), "{idling:?}");
        assert!(governed.state == State::Warn && governed.value == "performance, powersave", "{governed:?}");
        // A state whose latency cannot be read is no short one.
        write("cpu12/cpuidle/state0/latency", "");
        assert_eq!(idle(folder.path()).state, State::NotKnown);
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(version_of("6.18.44-fc-v669"), Some((6, 18)));
        assert_eq!(version_of("5.4"), Some((5, 4)));
        assert_eq!(version_of("unknown"), None);
        assert!(version_of("10.0.1").unwrap() > KERNEL_MIN);
        assert!(version_of("5.4.0").unwrap() < KERNEL_MIN);
    }
}
