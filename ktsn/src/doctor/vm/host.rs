// SPDX-License-Identifier: Apache-2.0
//! What a host withholds from its guests.
//!
//! In: facts. Out: findings. Guests are processes of QEMU, found by their program's name; what is said of several guests is one finding.

use std::collections::BTreeMap;

use super::facts::{Facts, Guest, Thread};
use super::guest::list;
use crate::doctor::finding::Finding;

const PRINTS: &str = "`ktsn vm config` prints a definition that has it";

/// All findings about a host.
pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![guests(facts), accelerator(facts), clock(facts)];
    if !facts.guests.is_empty() {
        findings.extend([pinning(facts), isolation(facts), priority(facts), vhost(facts), queues(facts)]);
        findings.extend([offloads(facts), huge_pages(facts)]);
    }
    findings
}

/// What a guest is called in findings.
fn name(guest: &Guest) -> String {
    let words = guest.arguments.iter().flatten();
    let given =
        words.clone().zip(words.skip(1)).find(|(option, _)| *option == "-name").map(|(_, value)| value);
    let first = given.map(|value| value.split(',').next().unwrap_or_default().trim_start_matches("guest="));
    format!("{} (process {})", first.filter(|name| !name.is_empty()).unwrap_or("guest"), guest.pid)
}

/// Its virtual CPUs: threads that QEMU names `CPU n/KVM` or `CPU n/TCG`.
fn vcpus(guest: &Guest) -> Vec<&Thread> {
    guest
        .threads
        .iter()
        .filter(|thread| thread.name.starts_with("CPU ") && thread.name.contains('/'))
        .collect()
}

/// Its network devices of kind virtio-net, as arguments.
fn devices(guest: &Guest) -> Vec<&str> {
    let words = guest.arguments.iter().flatten();
    words.filter(|word| word.contains("virtio-net")).map(String::as_str).collect()
}

/// Whether an argument sets a property, in QEMU's own form or as JSON.
fn has(argument: &str, key: &str, is_on: bool) -> bool {
    let (word, value) = if is_on { ("on", "true") } else { ("off", "false") };
    let is_plain = argument.split(',').any(|part| part.strip_prefix(key) == Some(&format!("={word}")));
    is_plain || argument.contains(&format!("\"{key}\":{value}"))
}

/// One finding about all guests: `problem` says what is wrong with one.
fn about_each(
    facts: &Facts,
    finding: (&str, &str, &str, &str),
    problem: impl Fn(&Guest) -> Option<String>,
) -> Finding {
    let (label, fine, meaning, remedy) = finding;
    let problems: Vec<String> = facts
        .guests
        .iter()
        .filter_map(|guest| Some(format!("{}: {}", name(guest), problem(guest)?)))
        .collect();
    if problems.is_empty() {
        return Finding::ok(label, fine, meaning);
    }
    Finding::warn(label, problems.join("; "), meaning, remedy)
}

fn guests(facts: &Facts) -> Finding {
    const NAME: &str = "vm_guests";
    const MEANING: &str = "what follows about guests is read from QEMU's processes";
    let unreadable = facts.guests.iter().filter(|guest| guest.arguments.is_none()).count();
    let names: Vec<String> = facts.guests.iter().map(name).collect();
    if facts.guests.is_empty() {
        return Finding::ok(NAME, "no QEMU runs here", "without a guest only the host itself is judged");
    }
    if unreadable > 0 {
        let remedy = "run doctor as root, in the host's own process namespace";
        return Finding::warn(
            NAME,
            format!("{unreadable} of {} cannot be read", names.len()),
            MEANING,
            remedy,
        );
    }
    Finding::ok(NAME, names.join(", "), MEANING)
}

fn accelerator(facts: &Facts) -> Finding {
    const NAME: &str = "vm_kvm";
    let is_interpreted = |guest: &&Guest| vcpus(guest).iter().any(|thread| thread.name.ends_with("/TCG"));
    let interpreted: Vec<String> = facts.guests.iter().filter(is_interpreted).map(name).collect();
    let meaning = "by KVM the processor runs a guest; QEMU's interpreter (TCG) is many times slower, and its times say nothing";
    if !interpreted.is_empty() {
        let remedy = "start the guest with -accel kvm, as a user who may open /dev/kvm";
        return Finding::warn(NAME, format!("interpreted: {}", interpreted.join(", ")), meaning, remedy);
    }
    if facts.has_kvm {
        return Finding::ok(NAME, "/dev/kvm is here", meaning);
    }
    Finding::warn(
        NAME,
        "there is no /dev/kvm",
        meaning,
        "turn virtualisation on in the firmware, then modprobe kvm_intel or kvm_amd; in a virtual machine, nested virtualisation; \
         `ktsn vm run --kind uml` (User-mode Linux) needs no KVM",
    )
}

fn clock(facts: &Facts) -> Finding {
    const NAME: &str = "vm_host_clock_source";
    const MEANING: &str =
        "guests read the host's clock by ptp_kvm only while the host itself uses its counter";
    match facts.clock_source.as_deref() {
        Some(source @ ("tsc" | "arch_sys_counter")) => Finding::ok(NAME, source, MEANING),
        Some(source) => Finding::warn(
            NAME,
            format!("{source} (available: {})", facts.clock_sources.join(" ")),
            MEANING,
            "boot the host with clocksource=tsc where its counter is stable; else use the clock page: `ktsn vm config --clock page`",
        ),
        None => Finding::warn(NAME, "unknown", MEANING, "mount /sys"),
    }
}

fn pinning(facts: &Facts) -> Finding {
    let mut users: BTreeMap<u32, usize> = BTreeMap::new();
    for thread in facts.guests.iter().flat_map(vcpus).filter(|thread| thread.cpus.len() == 1) {
        *users.entry(thread.cpus[0]).or_default() += 1;
    }
    about_each(
        facts,
        (
            "vm_pinning",
            "each vCPU has a CPU of the host for itself",
            "a vCPU that moves, or shares its CPU, is stopped for as long as the host likes",
            "give each vCPU a CPU: libvirt <vcpupin>; KubeVirt dedicatedCpuPlacement; QEMU debug-threads=on, then taskset for each thread \
             (`ktsn vm config --pin` prints all of them)",
        ),
        |guest| {
            let vcpus = vcpus(guest);
            if vcpus.is_empty() {
                return Some("its vCPUs are not known, because its threads have no names".to_owned());
            }
            let free: Vec<&str> = vcpus
                .iter()
                .filter(|thread| thread.cpus.len() != 1)
                .map(|thread| thread.name.as_str())
                .collect();
            if !free.is_empty() {
                return Some(format!("not on one CPU: {}", free.join(", ")));
            }
            let shared: Vec<u32> =
                vcpus.iter().map(|thread| thread.cpus[0]).filter(|cpu| users[cpu] > 1).collect();
            (!shared.is_empty()).then(|| format!("shares CPU {} with another vCPU", list(&shared)))
        },
    )
}

fn isolation(facts: &Facts) -> Finding {
    about_each(
        facts,
        (
            "vm_host_isolation",
            "the vCPUs' CPUs are isolated",
            "other programs and the kernel's own threads run on the vCPUs' CPUs, too",
            "boot the host with isolcpus=managed_irq,domain,LIST nohz_full=LIST rcu_nocbs=LIST, LIST being the vCPUs' CPUs",
        ),
        |guest| {
            let pinned =
                vcpus(guest).into_iter().filter(|thread| thread.cpus.len() == 1).map(|thread| thread.cpus[0]);
            let mut open: Vec<u32> = pinned.filter(|cpu| !facts.isolated.contains(cpu)).collect();
            open.sort_unstable();
            open.dedup();
            let is_pinned = vcpus(guest).iter().any(|thread| thread.cpus.len() == 1);
            if !is_pinned {
                return Some("no vCPU is pinned".to_owned());
            }
            (!open.is_empty()).then(|| format!("CPU {} not isolated", list(&open)))
        },
    )
}

fn priority(facts: &Facts) -> Finding {
    about_each(
        facts,
        (
            "vm_priority",
            "vCPUs are real-time threads",
            "every ordinary program of the host may take a vCPU's turn",
            "make the pinned vCPUs FIFO threads: libvirt <vcpusched scheduler='fifo'>; KubeVirt realtime; else chrt --fifo -p 1 TID",
        ),
        |guest| {
            let ordinary: Vec<&str> = vcpus(guest)
                .iter()
                .filter(|thread| thread.priority == 0)
                .map(|thread| thread.name.as_str())
                .collect();
            (!ordinary.is_empty()).then(|| format!("ordinary threads: {}", ordinary.join(", ")))
        },
    )
}

fn vhost(facts: &Facts) -> Finding {
    about_each(
        facts,
        (
            "vm_vhost",
            "frames do not wait for ordinary threads",
            "these threads carry the guest's frames: while they wait for a CPU, frames wait",
            "vhost=on, its threads FIFO and away from the vCPUs' CPUs: chrt --fifo -p 1 TID, taskset -cp LIST TID; or vhost-user",
        ),
        |guest| {
            let words = guest.arguments.iter().flatten();
            let is_tap = |word: &&String| word.starts_with("tap,") || word.contains("\"type\":\"tap\"");
            let mut taps = words.filter(is_tap);
            if guest.vhost.is_empty() {
                let without = taps.any(|word| !has(word, "vhost", true));
                return without.then(|| "no vhost: QEMU's own thread carries the frames".to_owned());
            }
            let ordinary = guest.vhost.iter().filter(|thread| thread.priority == 0).count();
            if ordinary > 0 {
                return Some(format!("{ordinary} of {} vhost threads are ordinary ones", guest.vhost.len()));
            }
            let pinned: Vec<u32> = vcpus(guest)
                .into_iter()
                .filter(|thread| thread.cpus.len() == 1)
                .map(|thread| thread.cpus[0])
                .collect();
            let beside = guest.vhost.iter().flat_map(|thread| &thread.cpus).find(|cpu| pinned.contains(cpu));
            beside.map(|cpu| format!("a vhost thread may run on CPU {cpu}, a vCPU's"))
        },
    )
}

fn queues(facts: &Facts) -> Finding {
    let remedy = format!("give the device a queue for each traffic class: {PRINTS}");
    about_each(
        facts,
        (
            "vm_host_queues",
            "network devices have several queues",
            "taprio and mqprio in the guest take no device with one queue",
            &remedy,
        ),
        |guest| {
            let devices = devices(guest);
            let single = devices.iter().filter(|device| !has(device, "mq", true)).count();
            (single > 0).then(|| format!("{single} of {} virtio-net devices with one queue", devices.len()))
        },
    )
}

fn offloads(facts: &Facts) -> Finding {
    const NAME: &str = "vm_offloads";
    const MEANING: &str = "XDP carries no frame whose checksum or segments are left to the device: such frames are lost or leave damaged";
    let Some(with_xdp) = &facts.with_xdp else {
        return Finding::warn(
            NAME,
            "devices cannot be listed",
            MEANING,
            "allow netlink sockets in the sandbox",
        );
    };
    if with_xdp.is_empty() {
        return Finding::ok(NAME, "no device has an XDP program", MEANING);
    }
    let devices = with_xdp.join(", ");
    let fine = format!("XDP on {devices}; guests have no offloads");
    let remedy = format!(
        "csum=off,gso=off,guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ufo=off at the guest's device: {PRINTS} (tap-xdp)"
    );
    about_each(facts, (NAME, &fine, MEANING, &remedy), |guest| {
        let with_offloads = self::devices(guest)
            .iter()
            .any(|device| !has(device, "csum", false) || !has(device, "guest_csum", false));
        with_offloads.then(|| format!("offloads are on, and XDP on {devices}"))
    })
}

fn huge_pages(facts: &Facts) -> Finding {
    let shown = facts.huge_pages.map_or("unknown".to_owned(), |(all, free)| format!("{free} of {all} free"));
    let fine = format!("guests' memory is in huge pages ({shown})");
    about_each(
        facts,
        (
            "vm_hugepages",
            &fine,
            "with small pages the processor looks up addresses more often, and vhost-user switches with DPDK take no such memory",
            "reserve pages (hugepagesz=2M hugepages=N, or vm.nr_hugepages), and back the guest with them: -object memory-backend-memfd,hugetlb=on",
        ),
        |guest| match guest.huge_kib {
            Some(0) => Some(format!("no huge page (on this host: {shown})")),
            Some(_) => None,
            None => Some("not known".to_owned()),
        },
    )
}
