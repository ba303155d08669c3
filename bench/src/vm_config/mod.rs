// SPDX-License-Identifier: Apache-2.0
//! A guest's definition for the user's own hypervisor: QEMU, libvirt or KubeVirt.
//!
//! In: a [`Request`]. Out: the definition as text with comments, or the option that cannot be served. Pure: no file is read, nothing is
//! looked up on this machine.

mod kubevirt;
mod libvirt;
mod notes;
mod qemu;
mod text;

#[cfg(test)]
mod tests;

use clap::ValueEnum;
use ktsn_host::cpus_of;
pub(crate) use ktsn_lab::datapaths::path::Path as Datapath;
use ktsn_model::TrafficClass;
use ktsn_schedule::Schedule;

/// The most vCPUs of a definition.
const CPUS_MAX: u32 = 64;
const MEMORY_MIB_MIN: u32 = 128;
const MEMORY_MIB_MAX: u32 = 4 * 1024 * 1024;
/// Linux' limit of a CPU's number is far below it.
const CPU_NUMBER_MAX: usize = 8191;
/// Linux' longest interface name, in octets.
const INTERFACE_MAX: usize = 15;
/// The longest path of a Unix socket, in octets.
const SOCKET_MAX: usize = 107;

/// The language of a definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A shell script that starts QEMU, pins its threads, and stops it.
    Qemu,
    /// A domain in libvirt's XML.
    Libvirt,
    /// A VirtualMachine of KubeVirt in YAML.
    Kubevirt,
}

/// What carries frames between guest and host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backend {
    Tap,
    Macvtap,
    VhostUser,
    Device,
}

/// How the guest gets the host's time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// Not at all.
    None,
    /// By KVM's hypercall, the guest's driver ptp_kvm.
    PtpKvm,
    /// By the page that `ktsn clock publish` writes to this file.
    Page(String),
}

/// How the guest's instructions run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Accelerator {
    /// By the processor.
    Kvm,
    /// By QEMU's interpreter, many times slower: to try a definition.
    Tcg,
}

/// The guest's memory on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pages {
    /// Pages of 1 GiB.
    #[value(name = "1G")]
    Huge1G,
    /// Pages of 2 MiB.
    #[value(name = "2M")]
    Huge2M,
    /// Ordinary pages.
    None,
}

impl Pages {
    const fn mib(self) -> Option<u32> {
        match self {
            Self::Huge1G => Some(1024),
            Self::Huge2M => Some(2),
            Self::None => None,
        }
    }
}

/// The format of the guest's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DiskFormat {
    /// QEMU's own.
    Qcow2,
    /// The disk's octets.
    Raw,
}

impl DiskFormat {
    const fn name(self) -> &'static str {
        match self {
            Self::Qcow2 => "qcow2",
            Self::Raw => "raw",
        }
    }
}

/// The host's CPUs for the guest's threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    /// One CPU of the host for each vCPU.
    pub(crate) vcpus: Vec<u32>,
    /// CPUs of the host for QEMU's other threads and for vhost's.
    pub(crate) emulator: Vec<u32>,
    /// The priority of vCPUs and of vhost's threads (SCHED_FIFO); none: ordinary threads.
    pub(crate) priority: Option<u8>,
}

/// The traffic classes of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Classes {
    /// What the schedule is called: its name, else its file.
    pub(crate) schedule: String,
    /// The classes to which a priority leads, ascending: number and name.
    pub(crate) labels: Vec<String>,
}

impl Classes {
    /// The classes of a schedule from this file.
    pub(crate) fn of(schedule: &Schedule, file: &str) -> Self {
        let classes = (0..8).filter_map(|number| TrafficClass::new(number).ok());
        let labels = classes.filter(|class| schedule.is_class_used(*class));
        Self {
            schedule: schedule.name.clone().unwrap_or_else(|| file.to_owned()),
            labels: labels.map(|class| schedule.class_label(class)).collect(),
        }
    }
}

/// What a definition is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) name: String,
    pub(crate) format: Format,
    pub(crate) datapath: Datapath,
    pub(crate) classes: Classes,
    /// vCPUs; none: one for each queue.
    pub(crate) cpus: Option<u32>,
    pub(crate) memory_mib: u32,
    pub(crate) pages: Pages,
    pub(crate) accelerator: Accelerator,
    pub(crate) clock: Clock,
    pub(crate) placement: Option<Placement>,
    /// A file of the host; for KubeVirt a PersistentVolumeClaim.
    pub(crate) disk: Option<String>,
    pub(crate) disk_format: DiskFormat,
    /// The bridge of tap-bridge and of Open vSwitch.
    pub(crate) bridge: String,
    /// The tap or macvtap device to make.
    pub(crate) tap: String,
    /// macvtap: an interface of the host; vfio: a PCI address.
    pub(crate) device: Option<String>,
    /// The socket of vhost-user.
    pub(crate) socket: Option<String>,
    /// KubeVirt: the NetworkAttachmentDefinition.
    pub(crate) network: String,
}

/// An option that cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("--{field} {value}: expected {expected}")]
pub(crate) struct Refused {
    pub(crate) field: &'static str,
    pub(crate) value: String,
    pub(crate) expected: String,
}

fn refused(field: &'static str, value: impl std::fmt::Display, expected: impl Into<String>) -> Refused {
    Refused { field, value: value.to_string().escape_debug().to_string(), expected: expected.into() }
}

/// The definition.
///
/// # Errors
/// [`Refused`] names the first option that cannot be served.
pub(crate) fn definition(request: &Request) -> Result<String, Refused> {
    request.check()?;
    Ok(match request.format {
        Format::Qemu => qemu::script(request),
        Format::Libvirt => libvirt::domain(request),
        Format::Kubevirt => kubevirt::virtual_machine(request),
    })
}

impl Request {
    /// What carries frames between guest and host. A tap has all of its queues only once the guest has enabled them, which is too late for
    /// AF_XDP: so the guest's port of `ovs-afxdp` is vhost-user here, as in the publication.
    const fn backend(&self) -> Backend {
        match self.datapath {
            Datapath::TapBridge | Datapath::TapXdp | Datapath::TapOvs => Backend::Tap,
            Datapath::Macvtap => Backend::Macvtap,
            Datapath::OvsAfxdp | Datapath::OvsDpdk => Backend::VhostUser,
            Datapath::Vfio => Backend::Device,
        }
    }

    /// Queue pairs: one for each class. taprio and mqprio need a device with several.
    fn queues(&self) -> u32 {
        u32::try_from(self.classes.labels.len()).unwrap_or(u32::MAX).max(2)
    }

    fn cpus(&self) -> u32 {
        self.cpus.unwrap_or_else(|| self.queues())
    }

    /// One interrupt for each direction of a queue pair, one for the configuration, one for the control queue.
    fn vectors(&self) -> u32 {
        2 * self.queues() + 2
    }

    fn socket(&self) -> String {
        self.socket.clone().unwrap_or_else(|| format!("/run/ktsn-vm/{}.sock", self.name))
    }

    /// A locally administered address that depends on the name only (FNV-1a), so that two guests differ.
    fn mac(&self) -> String {
        let hash = self
            .name
            .bytes()
            .fold(0x811c_9dc5_u32, |hash, octet| (hash ^ u32::from(octet)).wrapping_mul(0x0100_0193));
        let [a, b, c, d] = hash.to_be_bytes();
        format!("52:54:00:{:02x}:{:02x}:{:02x}", a ^ d, b, c)
    }

    fn check(&self) -> Result<(), Refused> {
        self.check_name()?;
        within("cpus", self.cpus(), 1, CPUS_MAX)?;
        within("memory", self.memory_mib, MEMORY_MIB_MIN, MEMORY_MIB_MAX)?;
        if let Some(mib) = self.pages.mib().filter(|mib| !self.memory_mib.is_multiple_of(*mib)) {
            return Err(refused("memory", self.memory_mib, format!("a multiple of {mib} (--hugepages)")));
        }
        self.check_network()?;
        if let Some(disk) = &self.disk {
            if self.format == Format::Kubevirt {
                text::check_subdomain("disk", disk, "the name of a PersistentVolumeClaim")?;
            } else {
                text::check_path("disk", disk)?;
            }
        }
        self.check_clock()?;
        self.check_placement()?;
        if self.format == Format::Kubevirt { self.check_kubevirt() } else { Ok(()) }
    }

    fn check_name(&self) -> Result<(), Refused> {
        if self.format == Format::Kubevirt {
            return text::check_subdomain("name", &self.name, "the name of a Kubernetes object");
        }
        let is_allowed = |octet: u8| octet.is_ascii_alphanumeric() || b"-_.".contains(&octet);
        let is_name = self.name.bytes().all(is_allowed)
            && self.name.starts_with(|first: char| first.is_ascii_alphanumeric());
        if is_name && self.name.len() <= 50 {
            return Ok(());
        }
        Err(refused(
            "name",
            &self.name,
            "1 to 50 of A-Z, a-z, 0-9, '-', '_' and '.', a letter or digit first",
        ))
    }

    fn check_network(&self) -> Result<(), Refused> {
        let is_kubevirt = self.format == Format::Kubevirt;
        match self.backend() {
            _ if is_kubevirt => text::check_network_name("network", &self.network)?,
            Backend::Tap => {
                check_interface("tap", &self.tap)?;
                check_interface("bridge", &self.bridge)?;
            }
            Backend::Macvtap => check_interface("tap", &self.tap)?,
            Backend::VhostUser => {
                check_interface("bridge", &self.bridge)?;
                let socket = self.socket();
                text::check_path("socket", &socket)?;
                if socket.len() > SOCKET_MAX {
                    return Err(refused("socket", socket, format!("a path of at most {SOCKET_MAX} octets")));
                }
            }
            Backend::Device => {}
        }
        match (self.datapath, &self.device) {
            (_, Some(device)) if is_kubevirt => {
                Err(refused("device", device, "no device with --format kubevirt: --network names it"))
            }
            (Datapath::Macvtap, Some(device)) => check_interface("device", device),
            (Datapath::Vfio, Some(device)) if parse_pci(device).is_some() => Ok(()),
            (Datapath::Vfio, Some(device)) => {
                Err(refused("device", device, "a PCI address, such as 0000:03:10.0"))
            }
            (Datapath::Macvtap, None) if !is_kubevirt => {
                Err(refused("device", "(missing)", "the host's interface below the macvtap device"))
            }
            (Datapath::Vfio, None) if !is_kubevirt => {
                Err(refused("device", "(missing)", "the PCI address of the device to pass through"))
            }
            (_, Some(device)) => Err(refused("device", device, "no device: only macvtap and vfio have one")),
            (_, None) => Ok(()),
        }
    }

    fn check_clock(&self) -> Result<(), Refused> {
        match &self.clock {
            Clock::PtpKvm if self.accelerator == Accelerator::Tcg => {
                Err(refused("clock", "ptp-kvm", "none or page: with --accelerator tcg there is no KVM"))
            }
            Clock::Page(file) if self.format == Format::Kubevirt => Err(refused(
                "clock-page",
                file,
                "no page: KubeVirt has no shared memory device; use --clock ptp-kvm",
            )),
            Clock::Page(file) => text::check_path("clock-page", file),
            Clock::None | Clock::PtpKvm => Ok(()),
        }
    }

    fn check_placement(&self) -> Result<(), Refused> {
        let Some(placement) = &self.placement else { return Ok(()) };
        let lists = [("pin", &placement.vcpus), ("emulator-cpus", &placement.emulator)];
        if self.format == Format::Kubevirt {
            let shown = text::cpu_list(&placement.vcpus);
            return Err(refused("pin", shown, "no list with --format kubevirt: the kubelet chooses CPUs"));
        }
        for (field, list) in lists {
            if let Some(twice) = list.iter().enumerate().find(|(at, cpu)| list[..*at].contains(cpu)) {
                return Err(refused(field, text::cpu_list(list), format!("CPU {} once", twice.1)));
            }
        }
        let (pinned, cpus) = (placement.vcpus.len(), self.cpus());
        if u32::try_from(pinned) != Ok(cpus) {
            let expected = format!("{cpus} CPUs, one for each vCPU (--cpus)");
            return Err(refused("pin", text::cpu_list(&placement.vcpus), expected));
        }
        if placement.emulator.is_empty() {
            return Err(refused("emulator-cpus", "(missing)", "CPUs for QEMU's other threads, with --pin"));
        }
        if let Some(both) = placement.emulator.iter().find(|cpu| placement.vcpus.contains(cpu)) {
            let expected =
                format!("no CPU of --pin: a vCPU would wait for QEMU's other threads on CPU {both}");
            return Err(refused("emulator-cpus", text::cpu_list(&placement.emulator), expected));
        }
        match placement.priority {
            Some(priority) if !(1..=98).contains(&priority) => {
                Err(refused("priority", priority, "1 to 98: the kernel's own threads have 99"))
            }
            _ => Ok(()),
        }
    }

    fn check_kubevirt(&self) -> Result<(), Refused> {
        match self.backend() {
            Backend::VhostUser => Err(refused(
                "datapath",
                self.datapath,
                "tap-bridge, tap-ovs, macvtap or vfio: KubeVirt has no vhost-user interface",
            )),
            _ if self.datapath == Datapath::TapXdp => Err(refused(
                "datapath",
                self.datapath,
                "tap-bridge, tap-ovs, macvtap or vfio: KubeVirt makes the tap device itself, with offloads",
            )),
            _ if self.accelerator == Accelerator::Tcg => {
                Err(refused("accelerator", "tcg", "kvm: KubeVirt's interpreter is a setting of the cluster"))
            }
            _ if self.pages == Pages::None => {
                Err(refused("hugepages", "none", "2M or 1G: KubeVirt's real-time guests need huge pages"))
            }
            Backend::Tap | Backend::Macvtap if self.cpus() < self.queues() => Err(refused(
                "cpus",
                self.cpus(),
                format!("{} or more: KubeVirt gives a guest one queue for each vCPU", self.queues()),
            )),
            _ => Ok(()),
        }
    }
}

fn within(field: &'static str, value: u32, least: u32, most: u32) -> Result<(), Refused> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(refused(field, value, format!("{least} to {most}")))
}

fn check_interface(field: &'static str, name: &str) -> Result<(), Refused> {
    let is_allowed = |octet: u8| octet.is_ascii_graphic() && !b"/:,'\"\\%".contains(&octet);
    let is_name = !name.is_empty() && name.len() <= INTERFACE_MAX && name.bytes().all(is_allowed);
    if is_name && !name.starts_with(['-', '.']) {
        return Ok(());
    }
    Err(refused(field, name, format!("an interface name of 1 to {INTERFACE_MAX} octets")))
}

/// Domain, bus, slot and function of `0000:03:10.0`; the domain may be left away.
fn parse_pci(address: &str) -> Option<[u32; 4]> {
    let (rest, function) = address.rsplit_once('.')?;
    let mut parts: Vec<&str> = rest.split(':').collect();
    if parts.len() == 2 {
        parts.insert(0, "0000");
    }
    let [domain, bus, slot] = parts[..] else { return None };
    let number = |text: &str, digits: usize, most: u32| {
        let is_number = text.len() == digits && text.bytes().all(|octet| octet.is_ascii_hexdigit());
        u32::from_str_radix(text, 16).ok().filter(|number| is_number && *number <= most)
    };
    Some([number(domain, 4, 0xffff)?, number(bus, 2, 0xff)?, number(slot, 2, 0x1f)?, number(function, 1, 7)?])
}

/// CPUs of a list such as `2,4-6`.
///
/// # Errors
/// What was expected.
pub(crate) fn parse_cpu_list(list: &str) -> Result<Vec<u32>, String> {
    let cpus = cpus_of(list, CPU_NUMBER_MAX).ok_or("expected CPUs such as 2,4-6")?;
    Ok(cpus.into_iter().map(|cpu| cpu as u32).collect())
}
