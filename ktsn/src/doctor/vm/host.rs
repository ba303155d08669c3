// SPDX-License-Identifier: Apache-2.0
//! What a host withholds from its guests.
//!
//! In: facts. Out: findings. Guests are processes of QEMU, found by their program's name; what is said of several guests is one finding.

use std::collections::BTreeMap;

use super::arguments::{Card, Qemu};
use super::facts::{Facts, Guest, Processes, Thread};
use super::guest::list;
use crate::doctor::finding::{Finding, Look};

const PRINTS: &str = "`ktsn vm config` prints a definition that has it";

/// All findings about a host.
pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![guests(facts), accelerator(facts), clock(facts)];
    if !facts.guests.is_empty() {
        findings.extend([
            pinning(facts),
            isolation(facts),
            priority(facts),
            vhost(facts),
            vhost_threads(facts),
        ]);
        findings.extend([queues(facts), offloads(facts), huge_pages(facts)]);
    }
    findings
}

/// What a guest is called in findings.
fn name(guest: &Guest) -> String {
    let name = guest.qemu().and_then(|qemu| qemu.name).filter(|name| !name.is_empty());
    format!("{} (process {})", name.as_deref().unwrap_or("guest"), guest.pid)
}

/// Its virtual CPUs: threads that QEMU names `CPU n/KVM` or `CPU n/TCG`.
fn vcpus(guest: &Guest) -> Vec<&Thread> {
    guest
        .threads
        .iter()
        .filter(|thread| thread.name.starts_with("CPU ") && thread.name.contains('/'))
        .collect()
}

/// The CPUs of vCPUs that may run on one only.
fn pinned(vcpus: &[&Thread]) -> Vec<u32> {
    vcpus.iter().filter(|thread| thread.cpus.len() == 1).map(|thread| thread.cpus[0]).collect()
}

/// What is said of one guest.
enum Judged {
    Fine,
    Bad(String),
    NotKnown(String),
}

/// Its vCPUs are fine unless `problem` names one; threads without names say nothing.
fn of_vcpus(guest: &Guest, problem: impl Fn(&[&Thread]) -> Option<String>) -> Judged {
    let vcpus = vcpus(guest);
    if vcpus.is_empty() {
        let why = "its vCPUs are not known, because its threads have no names (QEMU -name debug-threads=on)";
        return Judged::NotKnown(why.to_owned());
    }
    problem(&vcpus).map_or(Judged::Fine, Judged::Bad)
}

/// A finding about all guests, of which there is one at least: label and source, what is fine, what it means, the remedy.
struct Subject<'a> {
    look: Look,
    fine: &'a str,
    meaning: &'a str,
    remedy: &'a str,
}

impl Subject<'_> {
    /// Bad if one guest is; else not known if one is not known.
    fn judge(&self, facts: &Facts, judge: impl Fn(&Guest) -> Judged) -> Finding {
        let (mut bad, mut unknown) = (Vec::new(), Vec::new());
        for guest in &facts.guests {
            match judge(guest) {
                Judged::Fine => {}
                Judged::Bad(what) => bad.push(format!("{}: {what}", name(guest))),
                Judged::NotKnown(what) => unknown.push(format!("{}: {what}", name(guest))),
            }
        }
        match (bad.is_empty(), unknown.is_empty()) {
            (true, true) if facts.guests.is_empty() => {
                self.look.not_known("no guest", self.meaning, self.remedy)
            }
            (true, true) => self.look.ok(self.fine, self.meaning),
            (true, false) => self.look.not_known(unknown.join("; "), self.meaning, self.remedy),
            _ => self.look.warn([bad, unknown].concat().join("; "), self.meaning, self.remedy),
        }
    }
}

fn guests(facts: &Facts) -> Finding {
    const LOOK: Look = Look::at("vm_guests", "/proc/PID/exe, else comm, and cmdline of each process");
    const MEANING: &str = "what follows about guests is read from QEMU's processes";
    const REMEDY: &str = "run doctor as root, in the host's own process namespace, while the guest runs";
    let Processes { count, hidden } = facts.processes;
    let unreadable = facts.guests.iter().filter(|guest| guest.arguments.is_none()).count();
    let names: Vec<String> = facts.guests.iter().map(name).collect();
    if facts.guests.is_empty() {
        let hidden =
            if hidden > 0 { format!("; {hidden} of them hide their program") } else { String::new() };
        let value = format!("no QEMU among the {count} processes seen here{hidden}");
        return LOOK.not_known(value, "only the host itself is judged", REMEDY);
    }
    if unreadable > 0 {
        return LOOK.not_known(format!("{unreadable} of {} cannot be read", names.len()), MEANING, REMEDY);
    }
    LOOK.ok(names.join(", "), MEANING)
}

/// Whether KVM runs the guest: its descriptors say it; else its threads' names; else its arguments, where they leave no choice.
fn uses_kvm(guest: &Guest) -> Option<bool> {
    let ends = |word: &str| vcpus(guest).iter().any(|thread| thread.name.ends_with(word));
    match (guest.has_kvm_machine, ends("/KVM"), ends("/TCG")) {
        // Two sources that contradict each other say nothing.
        (Some(false), true, _) | (_, true, true) => return None,
        (Some(has), ..) => return Some(has),
        (None, is_kvm, is_tcg) if is_kvm || is_tcg => return Some(is_kvm),
        _ => {}
    }
    let qemu = guest.qemu()?;
    match qemu.accelerators.as_slice() {
        [] if guest.program.trim_end_matches("-wrapped").ends_with("kvm") => None,
        [] => Some(false),
        [first, rest @ ..] => match first.as_str() {
            "tcg" => Some(false),
            "kvm" if rest.iter().all(|next| next == "kvm") => Some(true),
            _ => None,
        },
    }
}

fn accelerator(facts: &Facts) -> Finding {
    const LOOK: Look = Look::at("vm_kvm", "/proc/PID/fd, thread names and arguments of QEMU; /dev/kvm");
    const MEANING: &str = "by KVM the processor runs a guest; QEMU's interpreter (TCG) is many times slower, and its times say nothing";
    if !facts.guests.is_empty() {
        let subject = Subject {
            look: LOOK,
            fine: "KVM runs each guest",
            meaning: MEANING,
            remedy: "start the guest with -accel kvm, as a user who may open /dev/kvm",
        };
        return subject.judge(facts, |guest| match uses_kvm(guest) {
            Some(true) => Judged::Fine,
            Some(false) => Judged::Bad("interpreted".to_owned()),
            None => Judged::NotKnown("neither its descriptors nor its threads say it".to_owned()),
        });
    }
    if facts.has_kvm {
        return LOOK.ok("/dev/kvm is here", MEANING);
    }
    LOOK.warn(
        "there is no /dev/kvm",
        MEANING,
        "turn virtualisation on in the firmware, then modprobe kvm_intel or kvm_amd; in a virtual machine, nested virtualisation; \
         `ktsn vm run --kind uml` (User-mode Linux) needs no KVM",
    )
}

fn clock(facts: &Facts) -> Finding {
    const LOOK: Look = Look::at("vm_host_clock_source", "/sys/devices/system/clocksource/clocksource0");
    const MEANING: &str =
        "guests read the host's clock by ptp_kvm only while the host itself uses its counter";
    match facts.clock_source.as_deref() {
        Some(source @ ("tsc" | "arch_sys_counter")) => LOOK.ok(source, MEANING),
        Some(source) => LOOK.warn(format!("{source} (available: {})", facts.clock_sources.join(" ")),
            MEANING,
            "boot the host with clocksource=tsc where its counter is stable; else use the clock page: `ktsn vm config --clock page`",
        ),
        None => LOOK.not_known("unknown", MEANING, "mount /sys"),
    }
}

const THREADS: &str = "threads of QEMU: /proc/PID/task/*/comm, stat and status";

fn pinning(facts: &Facts) -> Finding {
    let mut users: BTreeMap<u32, usize> = BTreeMap::new();
    for cpu in facts.guests.iter().flat_map(|guest| pinned(&vcpus(guest))) {
        *users.entry(cpu).or_default() += 1;
    }
    let subject = Subject {
        look: Look::at("vm_pinning", THREADS),
        fine: "each vCPU has a CPU of the host for itself",
        meaning: "a vCPU that moves, or shares its CPU, is stopped for as long as the host likes",
        remedy: "give each vCPU a CPU: libvirt <vcpupin>; KubeVirt dedicatedCpuPlacement; QEMU debug-threads=on, then taskset for each thread \
                 (`ktsn vm config --pin` prints all of them)",
    };
    subject.judge(facts, |guest| {
        of_vcpus(guest, |vcpus| {
            let is_free = |thread: &&&Thread| thread.cpus.len() != 1;
            let free: Vec<&str> = vcpus.iter().filter(is_free).map(|thread| thread.name.as_str()).collect();
            if !free.is_empty() {
                return Some(format!("not on one CPU: {}", free.join(", ")));
            }
            let shared: Vec<u32> = pinned(vcpus).into_iter().filter(|cpu| users[cpu] > 1).collect();
            (!shared.is_empty()).then(|| format!("shares CPU {} with another vCPU", list(&shared)))
        })
    })
}

fn isolation(facts: &Facts) -> Finding {
    let subject = Subject {
        look: Look::at("vm_host_isolation", "threads of QEMU in /proc, /sys/devices/system/cpu/isolated"),
        fine: "the vCPUs' CPUs are isolated",
        meaning: "other programs and the kernel's own threads run on the vCPUs' CPUs, too",
        remedy: "boot the host with isolcpus=managed_irq,domain,LIST nohz_full=LIST rcu_nocbs=LIST, LIST being the vCPUs' CPUs",
    };
    subject.judge(facts, |guest| {
        of_vcpus(guest, |vcpus| {
            let mut open = pinned(vcpus);
            if open.is_empty() {
                return Some("no vCPU is pinned".to_owned());
            }
            open.retain(|cpu| !facts.isolated.contains(cpu));
            open.sort_unstable();
            open.dedup();
            (!open.is_empty()).then(|| format!("CPU {} not isolated", list(&open)))
        })
    })
}

fn priority(facts: &Facts) -> Finding {
    let subject = Subject {
        look: Look::at("vm_priority", THREADS),
        fine: "vCPUs are real-time threads",
        meaning: "every ordinary program of the host may take a vCPU's turn",
        remedy: "make the pinned vCPUs FIFO threads: libvirt <vcpusched scheduler='fifo'>; KubeVirt realtime; else chrt --fifo -p 1 TID",
    };
    subject.judge(facts, |guest| {
        of_vcpus(guest, |vcpus| {
            let is_ordinary = |thread: &&&Thread| thread.priority == 0;
            let ordinary: Vec<&str> =
                vcpus.iter().filter(is_ordinary).map(|thread| thread.name.as_str()).collect();
            (!ordinary.is_empty()).then(|| format!("ordinary threads: {}", ordinary.join(", ")))
        })
    })
}

/// What QEMU's arguments do not say, where something of them could not be read.
fn unread(guest: &Guest) -> Result<Qemu, Judged> {
    let Some(qemu) = guest.qemu() else {
        return Err(Judged::NotKnown("its arguments cannot be read".to_owned()));
    };
    if qemu.unread.is_empty() {
        return Ok(qemu);
    }
    Err(Judged::NotKnown(format!("not read: {}", qemu.unread.join(", "))))
}

/// Back ends whose frames threads of another program carry, or none.
const ELSEWHERE: [&str; 3] = ["vhost-user", "vhost-vdpa", "af-xdp"];

fn vhost(facts: &Facts) -> Finding {
    let subject = Subject {
        look: Look::at("vm_vhost", "arguments of QEMU (-netdev, -nic, -net, -readconfig)"),
        fine: "vhost carries frames",
        meaning: "without vhost QEMU's own thread carries the guest's frames, after all else that it does",
        remedy: "-netdev tap,vhost=on; or vhost-user",
    };
    subject.judge(facts, |guest| {
        let qemu = match unread(guest) {
            Ok(qemu) => qemu,
            Err(judged) => return judged,
        };
        let mut ends = qemu.back_ends.iter().filter(|end| end.kind != "hubport").peekable();
        if ends.peek().is_none() {
            return Judged::NotKnown("its arguments name no network back end".to_owned());
        }
        let without = ends.find(|end| !end.has_vhost && !ELSEWHERE.contains(&end.kind.as_str()));
        without.map_or(Judged::Fine, |end| Judged::Bad(format!("no vhost ({})", end.kind)))
    })
}

fn vhost_threads(facts: &Facts) -> Finding {
    let subject = Subject {
        look: Look::at("vm_vhost_threads", "threads named vhost-PID: /proc/PID/task/*/stat and status"),
        fine: "frames do not wait for ordinary threads",
        meaning: "these threads carry the guest's frames: while they wait for a CPU, frames wait",
        remedy: "make them FIFO, away from the vCPUs' CPUs: chrt --fifo -p 1 TID, taskset -cp LIST TID",
    };
    subject.judge(facts, |guest| {
        let ordinary = guest.vhost.iter().filter(|thread| thread.priority == 0).count();
        if guest.vhost.is_empty() {
            return Judged::NotKnown("no thread of vhost is seen".to_owned());
        }
        if ordinary > 0 {
            return Judged::Bad(format!(
                "{ordinary} of {} vhost threads are ordinary ones",
                guest.vhost.len()
            ));
        }
        let pinned = pinned(&vcpus(guest));
        let beside = guest.vhost.iter().flat_map(|thread| &thread.cpus).find(|cpu| pinned.contains(cpu));
        beside
            .map_or(Judged::Fine, |cpu| Judged::Bad(format!("a vhost thread may run on CPU {cpu}, a vCPU's")))
    })
}

/// Cards that have one queue, whatever their options.
const SINGLE: [&str; 8] =
    ["e1000", "e1000-82544gc", "e1000-82545em", "rtl8139", "pcnet", "ne2k_pci", "ne2k_isa", "usb-net"];

fn queues(facts: &Facts) -> Finding {
    let remedy = format!("give the device a queue for each traffic class: {PRINTS}");
    let subject = Subject {
        look: Look::at(
            "vm_host_queues",
            "arguments of QEMU (-device, -nic, -net, -netdev, -global, -set, -readconfig)",
        ),
        fine: "network devices have several queues",
        meaning: "taprio and mqprio in the guest take no device with one queue",
        remedy: &remedy,
    };
    subject.judge(facts, |guest| {
        let qemu = match unread(guest) {
            Ok(qemu) => qemu,
            Err(judged) => return judged,
        };
        if qemu.cards.is_empty() {
            return Judged::NotKnown("its arguments name no network device".to_owned());
        }
        let is_single = |card: &&Card| {
            let is_virtio_single =
                card.is_virtio() && (card.flag("mq") != Some(true) || card.queues == Some(1));
            is_virtio_single || SINGLE.contains(&card.model.as_str())
        };
        let single = qemu.cards.iter().filter(is_single).count();
        if single > 0 {
            return Judged::Bad(format!("{single} of {} network devices with one queue", qemu.cards.len()));
        }
        let is_known = |card: &&Card| card.is_virtio() && card.queues.is_some();
        match qemu.cards.iter().find(|card| !is_known(card)) {
            Some(card) => Judged::NotKnown(format!("how many queues {} has", card.model)),
            None => Judged::Fine,
        }
    })
}

fn offloads(facts: &Facts) -> Finding {
    const LOOK: Look = Look::at("vm_offloads", "QEMU's arguments, the list of devices with XDP programs");
    const MEANING: &str = "XDP carries no frame whose checksum or segments are left to the device: such frames are lost or leave damaged";
    let Some(with_xdp) = &facts.with_xdp else {
        return LOOK.not_known("devices cannot be listed", MEANING, "allow netlink sockets in the sandbox");
    };
    if with_xdp.is_empty() {
        return LOOK.ok("no device has an XDP program", MEANING);
    }
    let devices = with_xdp.join(", ");
    let fine = format!("XDP on {devices}; guests have no offloads");
    let remedy = format!(
        "csum=off,gso=off,guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ufo=off at the guest's device: {PRINTS} (tap-xdp)"
    );
    let subject = Subject { look: LOOK, fine: &fine, meaning: MEANING, remedy: &remedy };
    subject.judge(facts, |guest| {
        let qemu = match unread(guest) {
            Ok(qemu) => qemu,
            Err(judged) => return judged,
        };
        let mut virtio = qemu.cards.iter().filter(|card| card.is_virtio()).peekable();
        if virtio.peek().is_none() {
            return Judged::NotKnown("its arguments name no virtio-net device".to_owned());
        }
        let is_off = |card: &Card, key: &str| card.flag(key) == Some(false);
        if virtio.any(|card| !is_off(card, "csum") || !is_off(card, "guest_csum")) {
            return Judged::Bad(format!("offloads are on, and XDP on {devices}"));
        }
        Judged::Fine
    })
}

fn huge_pages(facts: &Facts) -> Finding {
    let shown = facts.huge_pages.map_or("unknown".to_owned(), |(all, free)| format!("{free} of {all} free"));
    let fine = format!("guests' memory is in huge pages ({shown})");
    let subject = Subject {
        look: Look::at("vm_hugepages", "HugetlbPages in /proc/PID/status, /proc/meminfo"),
        fine: &fine,
        meaning: "with small pages the processor looks up addresses more often, and vhost-user switches with DPDK take no such memory",
        remedy: "reserve pages (hugepagesz=2M hugepages=N, or vm.nr_hugepages), and back the guest with them: -object memory-backend-memfd,hugetlb=on",
    };
    subject.judge(facts, |guest| match guest.huge_kib {
        Some(0) => Judged::Bad(format!("no huge page (on this host: {shown})")),
        Some(_) => Judged::Fine,
        None => Judged::NotKnown("its status does not say".to_owned()),
    })
}
