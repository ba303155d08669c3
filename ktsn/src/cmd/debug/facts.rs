// SPDX-License-Identifier: Apache-2.0
//! Facts about the kernel and its network devices.
//!
//! In: named files below /proc and /sys. Out: JSON. Only what is listed here is read: no process, no neighbour, no address, no key.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

/// One value each.
const VALUES: [&str; 26] = [
    "/proc/sys/kernel/osrelease",
    "/proc/sys/kernel/version",
    "/proc/sys/kernel/sched_rt_period_us",
    "/proc/sys/kernel/sched_rt_runtime_us",
    "/proc/sys/kernel/timer_migration",
    "/proc/sys/kernel/unprivileged_bpf_disabled",
    "/proc/sys/kernel/panic_on_oops",
    "/proc/sys/net/core/bpf_jit_enable",
    "/proc/sys/net/core/busy_poll",
    "/proc/sys/net/core/busy_read",
    "/proc/sys/net/core/netdev_budget",
    "/proc/sys/net/core/netdev_budget_usecs",
    "/proc/sys/net/core/rmem_max",
    "/proc/sys/net/core/wmem_max",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/vm/swappiness",
    "/sys/devices/system/clocksource/clocksource0/available_clocksource",
    "/sys/devices/system/clocksource/clocksource0/current_clocksource",
    "/sys/devices/system/cpu/isolated",
    "/sys/devices/system/cpu/nohz_full",
    "/sys/devices/system/cpu/online",
    "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
    "/sys/devices/system/cpu/cpuidle/current_driver",
    "/sys/kernel/debug/sched/preempt",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/kernel/realtime",
];
/// Words of the kernel's command line that are shown with their values. Others may hold a secret: only their names are.
const BOOT: [&str; 15] = [
    "clocksource",
    "hugepages",
    "hugepagesz",
    "idle",
    "intel_idle.max_cstate",
    "intel_pstate",
    "irqaffinity",
    "isolcpus",
    "mitigations",
    "nohz_full",
    "nosmt",
    "preempt",
    "processor.max_cstate",
    "rcu_nocbs",
    "tsc",
];
/// Files of a network device.
const DEVICE: [&str; 9] =
    ["operstate", "carrier", "carrier_changes", "mtu", "speed", "duplex", "flags", "tx_queue_len", "type"];
/// The columns of /proc/net/dev.
const COUNTERS: [&str; 16] = [
    "rx_bytes",
    "rx_packets",
    "rx_errs",
    "rx_drop",
    "rx_fifo",
    "rx_frame",
    "rx_compressed",
    "rx_multicast",
    "tx_bytes",
    "tx_packets",
    "tx_errs",
    "tx_drop",
    "tx_fifo",
    "tx_colls",
    "tx_carrier",
    "tx_compressed",
];
/// Tables that are taken whole.
pub(super) const TABLES: [&str; 4] =
    ["/proc/interrupts", "/proc/softirqs", "/proc/net/softnet_stat", "/proc/meminfo"];

/// A file's text without its end.
fn value(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// The kernel's settings, by their files; `null` for one that is not there or cannot be read.
pub(super) fn kernel() -> Value {
    let values: BTreeMap<&str, Option<String>> = VALUES.iter().map(|path| (*path, value(path))).collect();
    json!({ "values": values, "boot": value("/proc/cmdline").map(|line| boot(&line)) })
}

/// The words of a command line; values only of those that are known.
fn boot(line: &str) -> Vec<String> {
    let shown = |word: &str| match word.split_once('=') {
        Some((name, _)) if !BOOT.contains(&name) => format!("{name}=…"),
        _ => word.to_owned(),
    };
    // Behind `--` are words for the first process.
    words(line).into_iter().take_while(|word| *word != "--").map(|word| shown(&word)).collect()
}

/// The words as the kernel parts them: a space in double quotes parts nothing.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut is_quoted, mut is_open) = (Vec::<String>::new(), false, false);
    for c in line.chars() {
        is_quoted ^= c == '"';
        if c.is_whitespace() && !is_quoted {
            is_open = false;
            continue;
        }
        if !is_open {
            words.push(String::new());
            is_open = true;
        }
        if let Some(word) = words.last_mut() {
            word.push(c);
        }
    }
    words
}

/// The network devices of this process's namespace with their counters; settings, driver and queues too if /sys shows the same namespace.
pub(super) fn devices() -> Value {
    let table = fs::read_to_string("/proc/net/dev").unwrap_or_default();
    let rows: BTreeMap<&str, &str> =
        table.lines().filter_map(|line| line.split_once(':')).map(|(name, row)| (name.trim(), row)).collect();
    let folder = Path::new("/sys/class/net");
    // A /sys that was mounted in another namespace shows the devices of that one, under names that may be the same.
    // A device that has just gone says nothing.
    let is_shown =
        |name: &str, index: u32| value(folder.join(name).join("ifindex")) == Some(index.to_string());
    let is_ours = rows.keys().all(|name| index(name).is_none_or(|index| is_shown(name, index)));
    let device = |(name, row): (&&str, &&str)| {
        let counters: Vec<u64> = row.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let settings = is_ours.then(|| device(&folder.join(name)));
        ((*name).to_owned(), json!({ "counters": counters, "sysfs": settings }))
    };
    let devices: BTreeMap<String, Value> = rows.iter().map(device).collect();
    json!({ "counters": COUNTERS, "devices": devices })
}

/// The index of a device of this process's namespace.
fn index(name: &str) -> Option<u32> {
    use rustix::net::{AddressFamily, SocketType, netdevice, socket};
    netdevice::name_to_index(socket(AddressFamily::INET, SocketType::DGRAM, None).ok()?, name).ok()
}

fn device(folder: &Path) -> Value {
    let driver = fs::read_link(folder.join("device/driver")).ok();
    let settings: BTreeMap<&str, Option<String>> =
        DEVICE.iter().map(|name| (*name, value(folder.join(name)))).collect();
    let queues = fs::read_dir(folder.join("queues")).into_iter().flatten().flatten();
    let mut queues: Vec<String> =
        queues.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    queues.sort();
    let driver = driver.and_then(|path| path.file_name().map(|name| name.to_string_lossy().into_owned()));
    json!({ "settings": settings, "driver": driver, "queues": queues })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_words_of_the_command_line_lose_their_values() {
        let line = "root=/dev/vda isolcpus=1 quiet luks.key=hunter2 pass=\"a hunter2\" \"pass=b hunter2\"  nohz_full=1 -- init=hunter2";
        assert_eq!(
            boot(line),
            ["root=…", "isolcpus=1", "quiet", "luks.key=…", "pass=…", "\"pass=…", "nohz_full=1"]
        );
    }
}
