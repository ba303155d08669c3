// SPDX-License-Identifier: Apache-2.0
//! What is read of this machine, before anything is judged.
//!
//! In: the root of a file tree with /proc and /sys, and the kernel's answers about network devices. Out: facts. What cannot be read is
//! `None`, never a guess.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use ktsn_host::cpus_of;

use super::arguments::{self, Qemu};
use crate::doctor::machine::text;
use crate::doctor::{netlink, network};
use crate::{files, sys};

/// How long the processor's stolen time is watched.
const WATCH: Duration = Duration::from_millis(300);
/// Shared memory of QEMU: vendor and device.
const IVSHMEM: [&str; 2] = ["0x1af4", "0x1110"];

/// Ticks of all CPUs since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ticks {
    pub(super) all: u64,
    pub(super) stolen: u64,
}

/// A network device with hardware, real or virtual, behind it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::doctor) struct Device {
    pub(in crate::doctor) name: String,
    /// The driver's name.
    pub(in crate::doctor) driver: String,
    /// Active transmit queues.
    pub(in crate::doctor) queues: usize,
    /// Queue pairs that the device could have; none: the driver does not say.
    pub(in crate::doctor) queues_max: Option<u32>,
}

/// A thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Thread {
    pub(super) name: String,
    /// 0: an ordinary thread; else its priority as a SCHED_FIFO or SCHED_RR one.
    pub(super) priority: u32,
    /// The CPUs on which it may run.
    pub(super) cpus: Vec<u32>,
}

/// Processes of the machine, as far as they can be seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Processes {
    pub(super) count: usize,
    /// Those whose program cannot be read.
    pub(super) hidden: usize,
}

/// A process of QEMU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Guest {
    pub(super) pid: u32,
    /// Its program: the last part of /proc/PID/exe.
    pub(super) program: String,
    /// Its arguments; none: they cannot be read.
    pub(super) arguments: Option<Vec<String>>,
    /// Files that its arguments name by -readconfig, with their texts.
    pub(super) configs: Vec<(String, String)>,
    /// Whether it has a virtual machine of KVM open; none: its descriptors cannot be read.
    pub(super) has_kvm_machine: Option<bool>,
    pub(super) threads: Vec<Thread>,
    /// Threads of vhost, its own or the kernel's.
    pub(super) vhost: Vec<Thread>,
    /// KiB in huge pages; none: the kernel does not say.
    pub(super) huge_kib: Option<u64>,
}

impl Guest {
    /// What its arguments say; none: they cannot be read.
    pub(super) fn qemu(&self) -> Option<Qemu> {
        let file =
            |name: &str| self.configs.iter().find(|(file, _)| file == name).map(|(_, text)| text.clone());
        Some(arguments::read(self.arguments.as_ref()?, file))
    }
}

/// Everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// Whether the processor says that it is virtual; none: it has no flags (not x86).
    pub(super) hypervisor_flag: Option<bool>,
    pub(super) is_user_mode: bool,
    /// Maker and product in the firmware's tables.
    pub(super) dmi: Option<String>,
    pub(super) cpus: Vec<u32>,
    pub(super) isolated: Vec<u32>,
    pub(super) clock_source: Option<String>,
    pub(super) clock_sources: Vec<String>,
    /// The names of PTP hardware clocks, as their drivers give them.
    pub(super) phcs: Vec<String>,
    /// Devices ivshmem.
    pub(super) shared_memories: usize,
    /// The state of a `ktsn clock follow`; none: there is none.
    pub(super) follower: Option<String>,
    /// At the beginning and the end of a short time.
    pub(super) ticks: Option<(Ticks, Ticks)>,
    pub(super) devices: Vec<Device>,
    /// Names of devices with an XDP program; none: the kernel did not list devices.
    pub(super) with_xdp: Option<Vec<String>>,
    /// Whether the kernel has a queueing discipline; or why it is not known.
    pub(super) qdiscs: Vec<(String, Result<bool, String>)>,
    /// Huge pages of this machine: all and free ones.
    pub(super) huge_pages: Option<(u64, u64)>,
    pub(super) has_kvm: bool,
    pub(super) guests: Vec<Guest>,
    pub(super) processes: Processes,
}

pub(in crate::doctor) fn names(directory: impl AsRef<Path>) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// More CPUs than Linux can have.
const CPU_MAX: usize = (1 << 16) - 1;

/// CPUs of the kernel's own lists; empty if it is none.
pub(super) fn cpu_list(list: &str) -> Vec<u32> {
    let cpus = cpus_of(list.trim(), CPU_MAX).unwrap_or_default();
    cpus.into_iter().map(|cpu| cpu as u32).collect()
}

impl Facts {
    /// Reads all of it; takes a third of a second.
    pub(super) fn capture(root: &Path) -> Self {
        let (proc, sys) = (root.join("proc"), root.join("sys"));
        let first = ticks(&proc);
        std::thread::sleep(WATCH);
        let cpu = |name: &str| cpu_list(&text(sys.join("devices/system/cpu").join(name)).unwrap_or_default());
        let sources = sys.join("devices/system/clocksource/clocksource0");
        let processor = text(proc.join("cpuinfo")).unwrap_or_default();
        let (guests, processes) = guests(&proc);
        let flags = processor.lines().find_map(|line| line.strip_prefix("flags").map(str::to_owned));
        Self {
            hypervisor_flag: flags.map(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor")),
            is_user_mode: processor.contains("User Mode Linux"),
            dmi: dmi(&sys),
            cpus: cpu("online"),
            isolated: cpu("isolated"),
            clock_source: text(sources.join("current_clocksource")),
            clock_sources: text(sources.join("available_clocksource"))
                .map(|list| list.split_whitespace().map(str::to_owned).collect())
                .unwrap_or_default(),
            phcs: names(sys.join("class/ptp"))
                .iter()
                .filter_map(|name| text(sys.join("class/ptp").join(name).join("clock_name")))
                .collect(),
            shared_memories: shared_memories(&sys),
            follower: crate::cmd::clock::follower().map(|follower| follower.state().to_owned()),
            ticks: first.zip(ticks(&proc)),
            devices: devices(&sys),
            with_xdp: netlink::Netlink::open().and_then(|netlink| netlink.with_xdp()).ok(),
            qdiscs: qdiscs(),
            huge_pages: huge_pages(&proc),
            has_kvm: root.join("dev/kvm").exists(),
            guests,
            processes,
        }
    }
}

fn dmi(sys: &Path) -> Option<String> {
    let of = |name: &str| text(sys.join("class/dmi/id").join(name)).filter(|text| !text.is_empty());
    let parts: Vec<String> = [of("sys_vendor"), of("product_name")].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(" "))
}

fn ticks(proc: &Path) -> Option<Ticks> {
    let stat = text(proc.join("stat"))?;
    let numbers: Vec<u64> = stat
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_whitespace()
        .filter_map(|part| part.parse().ok())
        .collect();
    // user, nice, system, idle, iowait, irq, softirq, steal; guest time is part of user time.
    Some(Ticks { all: numbers.iter().take(8).sum(), stolen: *numbers.get(7)? })
}

fn shared_memories(sys: &Path) -> usize {
    let all = sys.join("bus/pci/devices");
    let is_one = |name: &&String| {
        let read = |file: &str| text(all.join(name).join(file)).unwrap_or_default();
        [read("vendor"), read("device")] == IVSHMEM
    };
    names(&all).iter().filter(is_one).count()
}

pub(in crate::doctor) fn devices(sys: &Path) -> Vec<Device> {
    let all = sys.join("class/net");
    let with_hardware = |name: &String| {
        let driver = fs::read_link(all.join(name).join("device/driver")).ok()?;
        let queues =
            names(all.join(name).join("queues")).iter().filter(|queue| queue.starts_with("tx-")).count();
        Some(Device {
            name: name.clone(),
            driver: driver.file_name()?.to_string_lossy().into_owned(),
            queues,
            queues_max: sys::queue_pairs_max(name).ok(),
        })
    };
    names(&all).iter().filter_map(with_hardware).collect()
}

fn qdiscs() -> Vec<(String, Result<bool, String>)> {
    const WANTED: [&str; 3] = ["etf", "taprio", "mqprio"];
    let say = |error: &io::Error| error.to_string();
    match network::qdiscs(&WANTED) {
        Ok(answers) => answers
            .into_iter()
            .map(|(kind, answer)| (kind.to_owned(), answer.map_err(|error| say(&error))))
            .collect(),
        Err(error) => WANTED.map(|kind| (kind.to_owned(), Err(say(&error)))).into(),
    }
}

fn huge_pages(proc: &Path) -> Option<(u64, u64)> {
    let memory = text(proc.join("meminfo"))?;
    let of = |name: &str| {
        memory
            .lines()
            .find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse::<u64>().ok())
    };
    Some((of("HugePages_Total:")?, of("HugePages_Free:")?))
}

/// Whether a program of this name is QEMU's: `qemu-system-x86_64`, `qemu-kvm`, `kvm`, or the one that a wrapper starts
/// (`.qemu-system-x86_64-wrapped`). qemu-ga, qemu-img and others run no guest.
fn is_qemu(program: &str) -> bool {
    let name = program.strip_prefix('.').unwrap_or(program);
    let name = name.strip_suffix("-wrapped").unwrap_or(name);
    name.starts_with("qemu-system") || matches!(name, "qemu-kvm" | "kvm")
}

/// The last part of a process's program; the kernel marks one whose file was replaced.
fn program(folder: &Path) -> io::Result<String> {
    let path = fs::read_link(folder.join("exe"))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(name.strip_suffix(" (deleted)").unwrap_or(&name).to_owned())
}

fn guests(proc: &Path) -> (Vec<Guest>, Processes) {
    let mut processes = Processes::default();
    let (mut found, mut kernels) = (Vec::new(), Vec::new());
    for pid in names(proc).into_iter().filter_map(|name| name.parse::<u32>().ok()) {
        let folder = proc.join(pid.to_string());
        let Some(comm) = text(folder.join("comm")) else { continue };
        processes.count += 1;
        match program(&folder) {
            Ok(program) if is_qemu(&program) => found.push((pid, program)),
            Ok(_) => {}
            // A thread of the kernel has no program.
            Err(error) if error.kind() == io::ErrorKind::NotFound => kernels.push((pid, comm)),
            // Its name is all that is left: cut off behind 15 octets, and its own choice.
            Err(_) if is_qemu(&comm) => found.push((pid, comm)),
            Err(_) => processes.hidden += 1,
        }
    }
    let guests = found.into_iter().map(|(pid, program)| guest(proc, pid, program, &kernels)).collect();
    (guests, processes)
}

fn guest(proc: &Path, pid: u32, program: String, kernels: &[(u32, String)]) -> Guest {
    let folder = proc.join(pid.to_string());
    let words = |octets: Vec<u8>| {
        let words = octets.split(|octet| *octet == 0).map(|word| String::from_utf8_lossy(word).into_owned());
        words.filter(|word| !word.is_empty()).collect::<Vec<String>>()
    };
    let arguments = fs::read(folder.join("cmdline")).ok().filter(|octets| !octets.is_empty()).map(words);
    let vhost_name = format!("vhost-{pid}");
    let (vhost, threads) =
        threads(&folder).into_iter().partition(|thread: &Thread| thread.name == vhost_name);
    // Before Linux 6.4 vhost's threads are processes of the kernel, of the same name.
    let of_kernel = kernels.iter().filter(|(_, name)| *name == vhost_name);
    let of_kernel = of_kernel.filter_map(|(pid, _)| thread(&proc.join(pid.to_string())));
    let huge_kib = text(folder.join("status")).and_then(|status| {
        status
            .lines()
            .find_map(|line| line.strip_prefix("HugetlbPages:")?.split_whitespace().next()?.parse().ok())
    });
    let files = arguments.as_deref().map(arguments::config_files).unwrap_or_default();
    let configs = files.into_iter().filter_map(|file| {
        let text = config_text(&folder, &file)?;
        Some((file, text))
    });
    Guest {
        pid,
        program,
        configs: configs.collect(),
        has_kvm_machine: has_kvm_machine(&folder),
        arguments,
        threads,
        vhost: Vec::into_iter(vhost).chain(of_kernel).collect(),
        huge_kib,
    }
}

/// Most that is read of a file that a process names.
const CONFIG_OCTETS_MAX: u64 = 1 << 20;

/// A file as the process names it: from its working directory, in its mounts.
fn config_text(folder: &Path, file: &str) -> Option<String> {
    let named = Path::new(file);
    let path = match named.strip_prefix("/") {
        Ok(inside) => folder.join("root").join(inside),
        Err(_) => folder.join("cwd").join(named),
    };
    files::read_regular(&path, CONFIG_OCTETS_MAX).ok().and_then(|octets| String::from_utf8(octets).ok())
}

fn has_kvm_machine(folder: &Path) -> Option<bool> {
    let descriptors = fs::read_dir(folder.join("fd")).ok()?.flatten();
    let mut links = descriptors.filter_map(|descriptor| fs::read_link(descriptor.path()).ok());
    Some(links.any(|link| link.to_string_lossy() == "anon_inode:kvm-vm"))
}

fn threads(folder: &Path) -> Vec<Thread> {
    names(folder.join("task")).iter().filter_map(|task| thread(&folder.join("task").join(task))).collect()
}

/// A thread's name, priority and CPUs.
fn thread(folder: &Path) -> Option<Thread> {
    let status = text(folder.join("status"))?;
    let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).map(cpu_list);
    // The name is in brackets and may hold any character: numbers are counted from the last bracket, behind which the third one stands.
    let stat = text(folder.join("stat"))?;
    let numbers: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some(Thread {
        name: text(folder.join("comm"))?,
        priority: numbers.get(40 - 3)?.parse().ok()?,
        cpus: cpus.unwrap_or_default(),
    })
}
