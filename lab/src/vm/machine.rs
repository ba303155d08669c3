// SPDX-License-Identifier: Apache-2.0
//! The machine of a guest, as QEMU's arguments.
//!
//! In: what the user asks for. Out: arguments, or what cannot be had. Pure.

use super::kind::Kind;
use super::network::{Address, Datapath, NO_OFFLOADS, TAP};
use super::pin::Cpus;
use crate::error::LabError;
use std::fmt;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

/// QEMU's program, of Debian's package qemu-system-x86.
pub(super) const QEMU: &str = "qemu-system-x86_64";
/// The name of the guest's port to its host.
pub(super) const PORT: &str = "ktsn.run";
/// Under this tag the guest finds the host's file tree.
pub(super) const HOST_TAG: &str = "host";
const CPUS_MAX: u32 = 16;
const QUEUES_MAX: u32 = 16;
/// Below this the file tree of the image does not fit.
const MEMORY_MIB_MIN: u32 = 256;
const MEMORY_MIB_MAX: u32 = 65_536;
/// What the kernel takes for itself.
const KERNEL_MIB: u64 = 128;

/// How the guest's instructions run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// By the processor.
    Kvm,
    /// By QEMU, many times slower: no timing of such a guest says anything about a real one.
    Tcg,
    /// By the processor, below User-mode Linux: a kernel that is a program of this machine.
    Uml,
}

impl fmt::Display for Accelerator {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
            Self::Uml => "uml",
        })
    }
}

/// A guest's machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Virtual CPUs.
    pub cpus: u32,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Where the network device leads.
    pub datapath: Datapath,
    /// Queue pairs of the network device.
    pub queues: u32,
    /// The network device's address, which the guest's first process sets.
    pub address: Option<Address>,
    /// The CPUs of all of the guest's threads; `None`: those of the caller.
    pub pin: Option<Cpus>,
    /// A socket of QEMU's monitor (QMP), for others.
    pub monitor: Option<PathBuf>,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            cpus: 1,
            memory_mib: 1024,
            datapath: Datapath::None,
            queues: 1,
            address: None,
            pin: None,
            monitor: None,
        }
    }
}

/// A path inside a value of QEMU's, where a single comma would begin the next part.
pub(super) fn escaped(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

/// What the guest's process inherits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptors<'a> {
    /// The files of the guest, as an archive.
    pub(super) files: RawFd,
    /// The other end of the guest's port.
    pub(super) port: RawFd,
    /// What the network device's other end is, as [`super::network::Attachment`] has it.
    pub(super) network: &'a [RawFd],
}

impl Machine {
    /// # Errors
    /// [`LabError::Usage`] names what cannot be had.
    pub fn check(&self) -> Result<(), LabError> {
        let within = |name: &str, value: u32, least: u32, most: u32| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(LabError::Usage(format!("--{name} {value}: expected {least} to {most}")))
        };
        within("cpus", self.cpus, 1, CPUS_MAX)?;
        within("memory", self.memory_mib, MEMORY_MIB_MIN, MEMORY_MIB_MAX)?;
        within("queues", self.queues, 1, QUEUES_MAX)?;
        self.check_network()?;
        self.pin.as_ref().map_or(Ok(()), Cpus::check)
    }

    /// Linux unpacks its first files into at most half of the memory that their archive leaves. Beyond that it drops files, and boots.
    ///
    /// # Errors
    /// [`LabError::Usage`]: the files do not fit.
    pub(super) fn check_files(&self, octets: u64) -> Result<(), LabError> {
        let files_mib = octets.div_ceil(1 << 20);
        let least = 3 * files_mib + KERNEL_MIB;
        if u64::from(self.memory_mib) >= least {
            return Ok(());
        }
        Err(LabError::Usage(format!(
            "--memory {}: the guest's files take {files_mib} MiB; expected {least} or more",
            self.memory_mib
        )))
    }

    /// QEMU's arguments. `host_tree`: the guest may read the host's files.
    pub(super) fn arguments(
        &self,
        accelerator: Accelerator,
        kernel: &Path,
        descriptors: Descriptors<'_>,
        host_tree: bool,
    ) -> Vec<String> {
        let is_kvm = accelerator == Accelerator::Kvm;
        let accelerator = match accelerator {
            Accelerator::Kvm => "kvm",
            Accelerator::Tcg | Accelerator::Uml => "tcg,thread=multi",
        };
        // tsc=reliable: under TCG the kernel would take the hpet instead, whose every reading leaves the guest.
        let boot = "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable rdinit=/usr/bin/ktsn-bench -- vm guest";
        let mut arguments: Vec<String> = [
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
            "-M",
            "q35",
            "-cpu",
            "max",
            "-serial",
            "stdio",
            "-device",
            "virtio-serial-pci",
            "-device",
            "virtio-rng-pci",
        ]
        .map(str::to_owned)
        .into();
        let mut add = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
        add("-accel", accelerator.to_owned());
        add("-smp", self.cpus.to_string());
        add("-m", self.memory_mib.to_string());
        // A comma would begin the next part of a value; `-kernel` has none.
        add("-kernel", kernel.display().to_string());
        add("-initrd", format!("/proc/self/fd/{}", descriptors.files));
        add("-append", boot.to_owned());
        add("-chardev", format!("socket,id=run,fd={}", descriptors.port));
        add("-device", format!("virtserialport,chardev=run,name={PORT}"));
        if host_tree {
            add(
                "-virtfs",
                format!("local,path=/,mount_tag={HOST_TAG},security_model=none,readonly=on,multidevs=remap"),
            );
        }
        // The threads of the virtual CPUs get names, by which `ktsn rt run` finds them.
        add("-name", "ktsn,debug-threads=on".to_owned());
        if let Some(socket) = &self.monitor {
            let socket = escaped(socket);
            add("-chardev", format!("socket,id=monitor,path={socket},server=on,wait=off"));
            add("-mon", "chardev=monitor,mode=control".to_owned());
        }
        arguments.extend(self.network_arguments(is_kvm, descriptors.network));
        arguments
    }
}

impl Machine {
    /// # Errors
    /// [`LabError::Usage`] names what the datapath cannot have.
    pub(super) fn check_network(&self) -> Result<(), LabError> {
        let device = match self.datapath {
            Datapath::None => "there is no device without --datapath",
            Datapath::User => "the device of --datapath user has one queue",
            Datapath::Opened(_) => "an opened device has one queue",
            _ => "",
        };
        if self.queues > 1 && !device.is_empty() {
            return Err(LabError::Usage(format!("--queues {}: {device}; use --datapath tap", self.queues)));
        }
        let device = match self.datapath {
            Datapath::None => "there is no device without --datapath",
            Datapath::User => "the device of --datapath user has the address that QEMU's network expects",
            _ => "",
        };
        match self.address {
            Some(address) if !device.is_empty() => {
                Err(LabError::Usage(format!("--address {address}: {device}; use --datapath tap or bridge")))
            }
            _ => Ok(()),
        }
    }

    /// The MAC address: it follows from the address if there is one, so that the same guest has the same again.
    pub(super) fn mac(&self) -> String {
        use std::hash::{BuildHasher as _, RandomState};
        let octets = match self.address.map(|address| address.address()) {
            Some(IpAddr::V4(address)) => address.octets(),
            Some(IpAddr::V6(address)) => std::array::from_fn(|at| address.octets()[12 + at]),
            None => std::array::from_fn(|at| RandomState::new().hash_one(at).to_le_bytes()[0]),
        };
        let [a, b, c, d] = octets;
        format!("02:4b:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
    }

    /// QEMU's arguments for the network device; `ends`: the descriptors of its [`super::network::Attachment`].
    pub(super) fn network_arguments(&self, is_kvm: bool, ends: &[RawFd]) -> Vec<String> {
        let queues = self.queues;
        let vectors = if queues > 1 { format!(",mq=on,vectors={}", 2 * queues + 2) } else { String::new() };
        let mac = if self.datapath.is_shared() { format!(",mac={}", self.mac()) } else { String::new() };
        let device = format!("virtio-net-pci,netdev=net,romfile={mac}");
        match &self.datapath {
            Datapath::None => vec![],
            Datapath::User => ["-netdev", "user,id=net", "-device", &device].map(str::to_owned).into(),
            Datapath::Tap => vec![
                "-netdev".to_owned(),
                format!("tap,id=net,ifname={TAP},script=no,downscript=no,vhost=off,queues={queues}"),
                "-device".to_owned(),
                format!("{device}{vectors}"),
            ],
            Datapath::Opened(opened) => {
                opened_tap(ends, format!("{device}{}", if opened.offloads { "" } else { NO_OFFLOADS }))
            }
            Datapath::Bridge(_) => opened_tap(ends, format!("{device}{vectors}")),
            Datapath::VhostUser(socket) => {
                // QEMU 7.2 under TCG ends by a segmentation fault when a vhost-user device uses MSI-X.
                let vectors = if is_kvm {
                    vectors
                } else {
                    format!("{},vectors=0", if queues > 1 { ",mq=on" } else { "" })
                };
                let socket = escaped(socket);
                vec![
                    "-object".to_owned(),
                    format!("memory-backend-memfd,id=memory,size={}M,share=on", self.memory_mib),
                    "-numa".to_owned(),
                    "node,memdev=memory".to_owned(),
                    "-chardev".to_owned(),
                    format!("socket,id=switch,path={socket},server=on,wait=off"),
                    "-netdev".to_owned(),
                    format!("vhost-user,id=net,chardev=switch,queues={queues}"),
                    "-device".to_owned(),
                    format!("{device}{vectors}"),
                ]
            }
        }
    }
}

/// QEMU's arguments for a tap device that it inherits as these descriptors.
fn opened_tap(ends: &[RawFd], device: String) -> Vec<String> {
    let ends: Vec<String> = ends.iter().map(ToString::to_string).collect();
    let key = if ends.len() > 1 { "fds" } else { "fd" };
    let netdev = format!("tap,id=net,vhost=off,{key}={}", ends.join(":"));
    vec!["-netdev".to_owned(), netdev, "-device".to_owned(), device]
}

impl Accelerator {
    /// The kind of guest whose instructions run so.
    #[must_use]
    pub const fn kind(self) -> Kind {
        match self {
            Self::Kvm | Self::Tcg => Kind::Qemu,
            Self::Uml => Kind::Uml,
        }
    }
}
