// SPDX-License-Identifier: Apache-2.0
//! Guests of User-mode Linux (UML): a kernel that is a program of this machine.
//!
//! In: a machine, the kernel of an image, descriptors. Out: what such a guest cannot have, and the command that boots it. Its first files are
//! an archive in memory, as a QEMU guest's; its port is a serial line. It has one CPU, and a network device with one queue.

use super::machine::{Descriptors, Machine};
use super::network::Datapath;
use super::protocol::Clock;
use super::sys;
use crate::error::LabError;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command};

/// What the guest is called in a list of processes. There is no such program: UML starts itself again by this name when its guest reboots.
const NAME: &str = "ktsn-uml";
/// The guest's end of its port.
pub(super) const PORT: &str = "/dev/ttyS0";
/// The guest's network device, as UML names it.
pub(super) const DEVICE: &str = "vec0";

impl Machine {
    /// # Errors
    /// [`LabError::Usage`] names what a guest of User-mode Linux cannot have.
    pub fn check_uml(&self, clock: Clock) -> Result<(), LabError> {
        let refused = |option: String, why: &str| {
            Err(LabError::Usage(format!("{option} with --kind uml: {why}; use --kind qemu")))
        };
        if self.cpus > 1 {
            return refused(format!("--cpus {}", self.cpus), "its kernel runs on one CPU");
        }
        if self.queues > 1 {
            let why = "its device has one queue; several are on a veth pair that the guest makes";
            return refused(format!("--queues {}", self.queues), why);
        }
        match clock {
            Clock::None => {}
            Clock::Vptp => {
                let why = "it has no shared memory with this machine; its clock counts as this machine's CLOCK_MONOTONIC does";
                return refused(format!("--clock {clock}"), why);
            }
            Clock::Kvm => return refused(format!("--clock {clock}"), "it does not run under KVM"),
            Clock::Chrony => {
                let why = "its clock counts as this machine's CLOCK_MONOTONIC does";
                return refused(format!("--clock {clock}"), why);
            }
        }
        if let Some(socket) = &self.monitor {
            return refused(format!("--qmp {}", socket.display()), "that monitor is QEMU's");
        }
        match &self.datapath {
            Datapath::None | Datapath::Tap | Datapath::Bridge(_) => Ok(()),
            Datapath::User => refused(format!("--datapath {}", self.datapath), "that network is QEMU's"),
            Datapath::VhostUser(_) | Datapath::Opened(_) => {
                refused(format!("--datapath {}", self.datapath), "its device is no virtio device")
            }
        }
    }

    /// What boots the guest.
    pub(super) fn uml(&self, kernel: &Path, descriptors: Descriptors<'_>) -> Command {
        let mut command = Command::new(kernel);
        command.arg0(NAME).args(self.uml_arguments(descriptors));
        // A panic signals the whole group of processes. UML has one of its own, but not from its first instruction on.
        command.env_clear().process_group(0);
        command
    }

    /// The kernel's command line.
    pub(super) fn uml_arguments(&self, descriptors: Descriptors<'_>) -> Vec<String> {
        let mut arguments = vec![
            format!("mem={}M", self.memory_mib),
            format!("initrd=/proc/self/fd/{}", descriptors.files),
            "rdinit=/usr/bin/ktsn-bench".to_owned(),
            "con=null".to_owned(),
            "con0=null,fd:1".to_owned(),
            "ssl=null".to_owned(),
            format!("ssl0=fd:{}", descriptors.port),
            "quiet".to_owned(),
            "panic=-1".to_owned(),
            // UML puts its own behind the words for the first process otherwise.
            "root=0".to_owned(),
            "console=tty0".to_owned(),
            // No directory can be made there, so there is no socket for a console of UML's own.
            "uml_dir=/dev/null/".to_owned(),
        ];
        // Single reads and writes: a tap device's descriptor is no socket.
        arguments.extend(
            descriptors
                .network
                .iter()
                .map(|end| format!("{DEVICE}:transport=fd,fd={end},vec=0,gro=0,mac={}", self.mac())),
        );
        arguments.extend(["--", "vm", "guest", "--kind", "uml"].map(str::to_owned));
        arguments
    }
}

/// Keeps the guest's processes together, and from this machine's files.
pub(super) fn isolate(command: &mut Command) {
    sys::isolate(command);
}

/// Ends the guest, all of it; the process has to be waited for.
pub(super) fn end(process: &mut Child) {
    // The number of one that was waited for may be another process's.
    if matches!(process.try_wait(), Ok(None)) {
        sys::end(process.id());
    }
}

/// The error of a guest that cannot be started.
pub(super) fn not_started(kernel: &Path, source: &std::io::Error) -> LabError {
    let remedy = match source.raw_os_error() {
        Some(libc::EACCES) => {
            "name a cache on a file system that programs may run from (KTSN_VM_CACHE, --cache)"
        }
        Some(libc::EPERM | libc::ENOSPC | libc::EUSERS | libc::EINVAL) => {
            "allow namespaces: run the command as root, or set the sysctl user.max_user_namespaces above 0; or use --kind qemu"
        }
        _ => "`ktsn vm image --kind uml --rebuild`, or use --kind qemu",
    };
    LabError::Impossible {
        what: format!("{} in namespaces of its own: {source}", kernel.display()),
        remedy: remedy.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::Opened;
    use std::sync::Arc;

    #[test]
    fn a_guest_gets_what_it_can_have() {
        let descriptors = |network| Descriptors { files: 7, port: 8, network };
        let words = Machine::default().uml_arguments(descriptors(&[])).join(" ");
        for expected in ["mem=1024M", "initrd=/proc/self/fd/7", "ssl0=fd:8", "-- vm guest --kind uml"] {
            assert!(words.contains(expected), "{expected}: {words}");
        }
        // UML adds its own behind the guest's words where these are missing.
        assert!(
            words.contains(" root=") && words.contains(" console=") && !words.contains(DEVICE),
            "{words}"
        );
        let address = Some("10.0.0.2/24".parse().unwrap());
        let machine = Machine { datapath: Datapath::Tap, address, ..Machine::default() };
        machine.check_uml(Clock::None).unwrap();
        let words = machine.uml_arguments(descriptors(&[9])).join(" ");
        assert!(
            words.contains("vec0:transport=fd,fd=9,vec=0") && words.contains("mac=02:4b:0a:00:00:02"),
            "{words}"
        );
    }

    #[test]
    fn what_it_cannot_have_is_refused_by_its_option() {
        let machine = Machine::default();
        let tap = Machine { datapath: Datapath::Tap, ..machine.clone() };
        let end = std::fs::File::open("/dev/null").unwrap();
        let opened = Opened { end: Arc::new(end.into()), offloads: true };
        for (machine, clock, words) in [
            (Machine { cpus: 2, ..machine.clone() }, Clock::None, "--cpus 2 with --kind uml: its kernel"),
            (
                Machine { queues: 4, ..tap.clone() },
                Clock::None,
                "--queues 4 with --kind uml: its device has one queue",
            ),
            (tap.clone(), Clock::Vptp, "--clock vptp with --kind uml: it has no shared memory"),
            (tap.clone(), Clock::Kvm, "--clock kvm with --kind uml"),
            (tap, Clock::Chrony, "--clock chrony with --kind uml: its clock counts"),
            (
                Machine { monitor: Some("/q".into()), ..machine.clone() },
                Clock::None,
                "--qmp /q with --kind uml: that monitor",
            ),
            (Machine { datapath: Datapath::User, ..machine.clone() }, Clock::None, "--datapath user with"),
            (
                Machine { datapath: Datapath::VhostUser("/s".into()), ..machine.clone() },
                Clock::None,
                "--datapath vhost-user:/s",
            ),
            (
                Machine { datapath: Datapath::Opened(opened), ..machine },
                Clock::None,
                "--datapath opened with --kind uml: its device is no virtio device",
            ),
        ] {
            let error = machine.check_uml(clock).unwrap_err();
            assert!(error.to_string().contains(words) && error.exit_status() == 2, "{error}");
            assert!(error.to_string().ends_with("use --kind qemu"), "{error}");
        }
    }
}
