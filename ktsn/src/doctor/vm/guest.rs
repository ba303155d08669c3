// SPDX-License-Identifier: Apache-2.0
//! What a guest lacks.
//!
//! In: facts. Out: findings.

use super::facts::{Device, Facts};
use crate::doctor::finding::{Finding, Look};

/// Stolen time above this share of the CPUs' time is a warning: 0.1 %.
const STOLEN_PER_MILLE_MAX: u64 = 1;
/// Clock sources that stop or that cost an exit to the hypervisor.
const SLOW: [&str; 4] = ["hpet", "acpi_pm", "jiffies", "refined-jiffies"];

/// All findings about a guest.
pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    vec![queues(facts), clock(facts), clock_source(facts), qdiscs(facts), isolation(facts), stolen(facts)]
}

fn queues(facts: &Facts) -> Finding {
    const LOOK: Look = Look::at("vm_queues", "/sys/class/net/*/queues, ETHTOOL_GCHANNELS");
    const MEANING: &str =
        "taprio and mqprio give each traffic class a queue of its own; a device with one queue takes neither";
    let shown = |device: &Device| {
        let most = device.queues_max.map_or("?".to_owned(), |most| most.to_string());
        format!("{} ({}): {} of {most}", device.name, device.driver, device.queues)
    };
    let value = facts.devices.iter().map(shown).collect::<Vec<_>>().join(", ");
    if facts.devices.is_empty() {
        let remedy = "give the guest a device: `ktsn vm config` prints a definition with one";
        return LOOK.warn("no device with a driver", MEANING, remedy);
    }
    if facts.devices.iter().any(|device| device.queues > 1) {
        return LOOK.ok(value, MEANING);
    }
    match facts.devices.iter().find(|device| device.queues_max.is_some_and(|most| most > 1)) {
        Some(device) => {
            let most = device.queues_max.unwrap_or_default();
            let remedy = format!("turn the queues on: ethtool -L {} combined {most}", device.name);
            LOOK.warn(value, MEANING, remedy)
        }
        None if facts.is_user_mode => LOOK.warn(value,
            MEANING,
            "a device of User-mode Linux has one queue: make a veth pair with more (`ip link add tsn0 numtxqueues 4 numrxqueues 4 type veth peer \
             name tsn1`), and a bridge of tsn1 and the device; or use a guest of QEMU's",
        ),
        None => LOOK.warn(value,
            MEANING,
            "give the device a queue for each traffic class: QEMU mq=on and queues=N; libvirt <driver queues='N'/>; KubeVirt \
             networkInterfaceMultiqueue (`ktsn vm config` prints it)",
        ),
    }
}

fn clock(facts: &Facts) -> Finding {
    const LOOK: Look = Look::at("vm_clock", "/sys/class/ptp, PCI devices, the state of `ktsn clock follow`");
    const MEANING: &str =
        "transmit times of this guest mean the same as its host's only if the guest follows the host's clock";
    let is_hosts =
        |name: &&String| name.contains("KVM") || name.contains("vmclock") || name.contains("hyperv");
    let hosts: Vec<&str> = facts.phcs.iter().filter(is_hosts).map(String::as_str).collect();
    if !hosts.is_empty() {
        return LOOK.ok(format!("the host's clock as a PTP device: {}", hosts.join(", ")), MEANING);
    }
    if facts.shared_memories > 0 {
        let value = format!(
            "{} shared memory device(s), which may hold the host's clock page; follower: {}",
            facts.shared_memories,
            facts.follower.as_deref().unwrap_or("none")
        );
        let remedy = "`ktsn clock follow --discipline self` in the guest, `ktsn clock publish` on its host";
        return match facts.follower.as_deref() {
            Some("following") => LOOK.ok(value, MEANING),
            _ => LOOK.warn(value, MEANING, remedy),
        };
    }
    if !facts.phcs.is_empty() {
        let value = format!("PTP hardware clock: {}", facts.phcs.join(", "));
        return LOOK.ok(value, "ptp4l with a passed-through network card needs no clock of the host");
    }
    let source = facts.clock_source.as_deref().unwrap_or("unknown");
    if facts.is_user_mode {
        return LOOK.warn(format!("that of User-mode Linux (clock source {source})"),
            "it counts as the host's CLOCK_MONOTONIC does, from an instant that is not exactly the host's; it hears of no step and no TAI offset",
            "use a guest of QEMU's with the host's clock page: `ktsn vm run --clock vptp`",
        );
    }
    LOOK.warn(format!("no clock of the host: neither a PTP device nor shared memory (clock source {source})"),
        "a clock source, kvm-clock too, only counts: nothing corrects this clock but the network, by some 100 µs",
        "modprobe ptp_kvm (needs KVM, and tsc as the host's clock source); else give the guest the host's clock page: `ktsn vm config --clock page`",
    )
}

fn clock_source(facts: &Facts) -> Finding {
    const LOOK: Look = Look::at("vm_clock_source", "/sys/devices/system/clocksource/clocksource0");
    const INVARIANT: &str = "give the guest a processor with an invariant counter (QEMU -cpu host,+invtsc; libvirt feature invtsc), and boot it \
                             with tsc=reliable if the host's counter is stable";
    let Some(current) = &facts.clock_source else {
        return LOOK.not_known("unknown", "how the clock is read is unknown", "mount /sys");
    };
    let value = format!("{current} (available: {})", facts.clock_sources.join(" "));
    if SLOW.contains(&current.as_str()) {
        let meaning = "each reading of the clock leaves the guest: it costs microseconds";
        return LOOK.warn(value, meaning, INVARIANT);
    }
    let has_counter = |name: &str| facts.clock_sources.iter().any(|source| source == name);
    if current == "kvm-clock" && !has_counter("tsc") {
        let meaning = "the counter is not among the sources: the kernel found it unstable, or the hypervisor does not promise that it is invariant";
        return LOOK.warn(value, meaning, INVARIANT);
    }
    if ["tsc", "kvm-clock", "arch_sys_counter", "xen", "riscv_clocksource"].contains(&current.as_str())
        || current.starts_with("hyperv_clocksource")
    {
        return LOOK.ok(value, "the clock is read in the guest");
    }
    LOOK.not_known(value, "what reading this clock source costs is not known to doctor", INVARIANT)
}

fn qdiscs(facts: &Facts) -> Finding {
    const LOOK: Look = Look::at(
        "vm_qdiscs",
        "requests for each in a network namespace of its own (the kernel may load its module)",
    );
    const MEANING: &str =
        "without them the guest's kernel cannot send by transmit times or gates; ktsnd in the guest can";
    let all = facts.qdiscs.iter();
    let unknown: Vec<String> = all
        .clone()
        .filter_map(|(kind, answer)| Some(format!("{kind}: {}", answer.as_ref().err()?)))
        .collect();
    let missing: Vec<&str> =
        all.filter(|(_, answer)| matches!(answer, Ok(false))).map(|(kind, _)| kind.as_str()).collect();
    if !unknown.is_empty() {
        let remedy = "run doctor as root: it asks the kernel in a network namespace of its own";
        return LOOK.not_known(format!("not known: {}", unknown.join(", ")), MEANING, remedy);
    }
    if facts.qdiscs.is_empty() {
        return LOOK.not_known("none was asked for", MEANING, "run doctor as root");
    }
    if missing.is_empty() {
        let kinds: Vec<&str> = facts.qdiscs.iter().map(|(kind, _)| kind.as_str()).collect();
        return LOOK.ok(format!("available: {}", kinds.join(" ")), MEANING);
    }
    LOOK.warn(format!("missing: {}", missing.join(" ")),
        MEANING,
        "use a kernel with CONFIG_NET_SCH_ETF, CONFIG_NET_SCH_TAPRIO and CONFIG_NET_SCH_MQPRIO (Debian's linux-image-amd64 and -rt-amd64, not \
         -cloud-), or run ktsnd in the guest",
    )
}

fn isolation(facts: &Facts) -> Finding {
    const LOOK: Look = Look::at("vm_isolation", "/sys/devices/system/cpu/isolated");
    let value = format!("{} vCPU(s), isolated: {}", facts.cpus.len(), list(&facts.isolated));
    if !facts.isolated.is_empty() {
        return LOOK.ok(value, "a program on an isolated vCPU shares it with no other");
    }
    let (meaning, remedy) = if facts.cpus.len() < 2 {
        (
            "interrupts and other programs of the guest delay its timed program",
            "give the guest two vCPUs or more",
        )
    } else {
        (
            "the guest's own threads and interrupts may delay its timed program",
            "boot the guest with isolcpus=managed_irq,domain,LIST nohz_full=LIST, and run the program there: taskset -c LIST",
        )
    };
    LOOK.warn(value, meaning, remedy)
}

fn stolen(facts: &Facts) -> Finding {
    const LOOK: Look = Look::at("vm_steal", "/proc/stat, twice");
    const MEANING: &str =
        "while the host takes a vCPU away, nothing in the guest runs, and its transmit times pass";
    let Some((first, last)) = facts.ticks else {
        return LOOK.not_known("unknown", MEANING, "mount /proc");
    };
    let since_boot = share(last.stolen, last.all);
    let now = share(last.stolen.saturating_sub(first.stolen), last.all.saturating_sub(first.all));
    let shown = |per_mille: u64| format!("{}.{} %", per_mille / 10, per_mille % 10);
    let value = format!("{} of the time since boot, {} now", shown(since_boot), shown(now));
    if last.stolen == 0 {
        let remedy =
            "look at the host: `ktsn doctor --vm` there; a vCPU with a CPU of its own is never stopped";
        return LOOK.not_known(format!("{value}; not every hypervisor reports it"), MEANING, remedy);
    }
    if since_boot <= STOLEN_PER_MILLE_MAX && now <= STOLEN_PER_MILLE_MAX {
        return LOOK.ok(value, MEANING);
    }
    LOOK.warn(value,
        MEANING,
        "on the host: a CPU of its own for each vCPU, isolated, and FIFO vCPU threads (`ktsn vm config --pin`; `ktsn doctor --vm` there)",
    )
}

/// `part` of `whole`, per mille, rounded up: what was stolen is never shown as nothing.
fn share(part: u64, whole: u64) -> u64 {
    (part.saturating_mul(1000)).div_ceil(whole.max(1))
}

pub(super) fn list(cpus: &[u32]) -> String {
    if cpus.is_empty() {
        return "none".to_owned();
    }
    cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}
