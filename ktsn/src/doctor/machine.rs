// SPDX-License-Identifier: Apache-2.0
//! The kernel, its clocks and its CPUs.
//!
//! In: files under /proc and /sys, the kernel's clock state. Out: findings. Where a file is missing (containers), the
//! finding says so; nothing is changed.

use std::fs;
use std::path::Path;

use super::finding::Finding;
use crate::cmd::clock::Snapshot;

/// SO_NETNS_COOKIE, by which ktsnd finds a socket's attachment.
const KERNEL_MIN: (u32, u32) = (5, 14);
/// Whole-machine sleeps longer than this show in the spin margin.
const IDLE_EXIT_MAX_MICROS: u64 = 100;
const UNKNOWN: &str = "unknown";

/// All findings about the machine.
pub(super) fn findings() -> Vec<Finding> {
    let mut findings = vec![kernel(), preemption(), cpus(), idle(), governor(), timer_slack()];
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
    const NAME: &str = "kernel";
    let release = text("/proc/sys/kernel/osrelease").unwrap_or_else(|| UNKNOWN.into());
    let meaning = format!("KTSN needs Linux {}.{} or newer", KERNEL_MIN.0, KERNEL_MIN.1);
    match version_of(&release) {
        Some(version) if version >= KERNEL_MIN => Finding::ok(NAME, release, meaning),
        Some(_) => Finding::fail(NAME, release, meaning, "use a newer kernel"),
        None => {
            Finding::warn(NAME, release, meaning, "mount /proc, so that the kernel's version can be read")
        }
    }
}

fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn preemption() -> Finding {
    const NAME: &str = "preemption";
    let version = text("/proc/sys/kernel/version").unwrap_or_default();
    let realtime = text("/sys/kernel/realtime").as_deref() == Some("1") || version.contains("PREEMPT_RT");
    // "none voluntary (full) lazy": the one in brackets holds.
    let chosen = text("/sys/kernel/debug/sched/preempt")
        .and_then(|modes| modes.split(['(', ')']).nth(1).map(str::to_owned));
    if realtime {
        return Finding::ok(NAME, "PREEMPT_RT", "kernel code gives way to the worker nearly everywhere");
    }
    let asked = text("/proc/cmdline").and_then(|line| {
        line.split_whitespace().find_map(|word| word.strip_prefix("preempt=").map(str::to_owned))
    });
    let mode = chosen.or(asked);
    let model =
        ["PREEMPT_DYNAMIC", "PREEMPT_LAZY", "PREEMPT"].into_iter().find(|model| version.contains(model));
    let value = match (model, &mode) {
        (Some(model), Some(mode)) => format!("{model}, mode {mode}"),
        (Some(model), None) => format!("{model}, mode unknown (debugfs is not mounted)"),
        (None, _) => "no preemption, or unknown".to_owned(),
    };
    match mode.as_deref() {
        Some("full" | "lazy") => {
            Finding::ok(NAME, value, "kernel code gives way to the worker at most places")
        }
        _ if model == Some("PREEMPT") => {
            Finding::ok(NAME, value, "kernel code gives way to the worker at most places")
        }
        _ => Finding::warn(
            NAME,
            value,
            "long system calls of others may delay the worker: p99 and above, not p50, suffer",
            "boot with preempt=full, or use a PREEMPT_RT kernel",
        ),
    }
}

fn cpus() -> Finding {
    const NAME: &str = "cpus";
    let count = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let isolated = text("/sys/devices/system/cpu/isolated").filter(|list| !list.is_empty());
    let value = format!("{count} usable, isolated: {}", isolated.as_deref().unwrap_or("none"));
    if count >= 2 {
        return Finding::ok(NAME, value, "the worker may spin on one while programs run on another");
    }
    Finding::warn(
        NAME,
        value,
        "the spinning worker and the programs share one CPU: programs are delayed by up to the spin margin",
        "allow ktsnd and its programs at least two CPUs",
    )
}

/// The enabled idle states of a CPU, of its folder `cpuidle`: how long it takes to leave one, in µs, and its name.
pub(super) fn idle_states(folder: impl AsRef<Path>) -> impl Iterator<Item = (u64, String)> {
    fs::read_dir(folder).into_iter().flatten().flatten().filter_map(|state| {
        let at = |name: &str| text(state.path().join(name));
        let exit = at("latency").and_then(|micros| micros.parse().ok()).unwrap_or(0);
        (at("disable").as_deref() != Some("1")).then(|| (exit, at("name").unwrap_or_default()))
    })
}

fn idle() -> Finding {
    const NAME: &str = "cpu_idle";
    let driver = text("/sys/devices/system/cpu/cpuidle/current_driver").unwrap_or_else(|| "none".into());
    let states = idle_states("/sys/devices/system/cpu/cpu0/cpuidle");
    let deepest = states.max_by_key(|state| state.0).unwrap_or_else(|| (0, "none".into()));
    let value = format!("driver {driver}, deepest enabled state {} (exit {} µs)", deepest.1, deepest.0);
    if deepest.0 <= IDLE_EXIT_MAX_MICROS {
        return Finding::ok(NAME, value, "waking up costs little; the spin margin covers it");
    }
    Finding::warn(
        NAME,
        value,
        "waking from it takes longer than the usual spin margin: the margin grows and with it the CPU time",
        "disable the deep states while armed: cpupower idle-set -D 50, or hold /dev/cpu_dma_latency",
    )
}

fn governor() -> Finding {
    const NAME: &str = "cpu_governor";
    match text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") {
        None => {
            Finding::ok(NAME, "none", "the CPU's frequency is not governed here (usual in a virtual machine)")
        }
        Some(name) if matches!(name.as_str(), "performance" | "schedutil") => {
            Finding::ok(NAME, name, "the frequency follows the load at once")
        }
        Some(name) => Finding::warn(
            NAME,
            name,
            "a slow CPU makes the hand-over to the port slower and uneven",
            "choose the performance governor: cpupower frequency-set -g performance",
        ),
    }
}

fn timer_slack() -> Finding {
    const NAME: &str = "timer_slack";
    let meaning =
        "ordinary threads wake up later by as much; ktsnd sets 1 ns for its worker, FIFO threads have none";
    match rustix::thread::current_timer_slack() {
        Ok(nanos) => Finding::ok(NAME, format!("{nanos} ns"), meaning),
        Err(error) => Finding::warn(NAME, error.to_string(), meaning, "allow prctl(2) in the sandbox"),
    }
}

fn clock_source() -> Finding {
    const NAME: &str = "clock_source";
    let folder = Path::new("/sys/devices/system/clocksource/clocksource0");
    let Some(current) = text(folder.join("current_clocksource")) else {
        return Finding::warn(NAME, UNKNOWN, "how much reading the clock costs is unknown", "mount /sys");
    };
    if matches!(current.as_str(), "tsc" | "arch_sys_counter" | "kvm-clock" | "hyperv_clocksource_tsc_page") {
        return Finding::ok(NAME, current, "the clock is read without a system call");
    }
    let choice = text(folder.join("available_clocksource")).unwrap_or_default();
    Finding::warn(
        NAME,
        current,
        "reading the clock is a slow device access: each frame leaves later by as much",
        format!("boot with clocksource=tsc where the hardware allows (available here: {choice})"),
    )
}

fn clock() -> Vec<Finding> {
    const SYNCHRONISED: &str = "clock_synchronised";
    const OFFSET: &str = "tai_offset";
    let discipline = match ktsn_measure::clock::clock_state() {
        Ok(discipline) => discipline,
        Err(error) => {
            return vec![Finding::warn(
                SYNCHRONISED,
                format!("adjtimex: {error}"),
                "whether the clock is synchronised is unknown",
                "allow adjtimex(2) in the sandbox",
            )];
        }
    };
    let synchronised = if discipline.synchronised {
        Finding::ok(
            SYNCHRONISED,
            format!("yes, greatest error {} µs", discipline.error_max_micros),
            "instants mean the same on all synchronised machines",
        )
    } else {
        Finding::warn(
            SYNCHRONISED,
            "no",
            "TxTimes hold on this machine; between machines they are off by the clocks' difference, and latencies \
             measured between two machines are wrong",
            "run ptp4l and phc2sys (linuxptp), or chrony, on all machines",
        )
    };
    let offset = discipline.tai_offset_seconds;
    let value = format!("TAI - UTC = {offset} s");
    let offset = match offset {
        37.. => Finding::ok(OFFSET, value, "CLOCK_TAI is TAI"),
        0 => Finding::warn(
            OFFSET,
            value,
            "CLOCK_TAI reads UTC here: TxTimes from a machine with the right offset lie 37 s ahead and are refused as \
             beyond_horizon",
            "set the offset on all machines or on none: phc2sys -w, or chrony with leapsectz right/UTC",
        ),
        _ => Finding::warn(
            OFFSET,
            value,
            "no TAI - UTC offset since 2017 is other than 37 s",
            "let phc2sys or chrony set it, and look at what else does (adjtimex, ADJ_TAI)",
        ),
    };
    vec![synchronised, offset]
}

/// A guest's clock that follows its host's (vPTP).
fn guest_clock(follower: &Snapshot) -> Finding {
    const NAME: &str = "guest_clock";
    const MEANING: &str = "instants of this guest mean the same as its host's, up to the bound";
    match follower.state() {
        "following" => Finding::ok(NAME, follower.line(), MEANING),
        "hold-over" => Finding::warn(
            NAME,
            follower.line(),
            "the host's page is late: the clock goes on at its rate, and the bound grows",
            "look at `ktsn clock publish` on the host: has it ended, or is the host overloaded?",
        ),
        _ => Finding::warn(
            NAME,
            follower.line(),
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
    fn versions_are_compared_as_numbers() {
        assert_eq!(version_of("6.18.44-fc-v669"), Some((6, 18)));
        assert_eq!(version_of("5.4"), Some((5, 4)));
        assert_eq!(version_of("unknown"), None);
        assert!(version_of("10.0.1").unwrap() > KERNEL_MIN);
        assert!(version_of("5.4.0").unwrap() < KERNEL_MIN);
    }
}
