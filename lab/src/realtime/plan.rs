// SPDX-License-Identifier: Apache-2.0
//! What is measured. In: systems, profiles, how long, how hard. Out: a checked [`Plan`], and the CPUs of probe and load.

use crate::error::LabError;
use crate::experiment::none_twice;
use crate::remote::Remote;
use crate::tools::Tools;
use crate::vm::{Accelerator, Cache};
use ktsn_realtime::verdict::Share;
use ktsn_realtime::{Profile, Requirement};
use ktsn_time::Nanos;
use std::path::PathBuf;

ktsn_model::words! {
    /// Where the probe runs.
    pub enum System {
        /// On the machine itself, SCHED_FIFO.
        Host = "host",
        /// In a container as they usually are: an ordinary thread, no CPUs of its own.
        Container = "container",
        /// In a container under SCHED_FIFO, and with CPUs of its own beside neighbours.
        ContainerFifo = "container-fifo",
        /// In a usual container with a quota of one CPU.
        ContainerQuota = "container-quota",
        /// In a container as the kubelet's static CPU manager makes it: a CPU of its own, an ordinary thread.
        ContainerStatic = "container-static",
        /// In a Linux guest under QEMU.
        Qemu = "qemu",
        /// In a guest that is a User-mode Linux.
        Uml = "uml",
        /// In a FreeRTOS guest under QEMU.
        Rtos = "rtos",
        /// On another machine, SCHED_FIFO. Its name in results is that of the machine.
        Ssh = "ssh",
    }
}

impl System {
    /// Whether the probe may be a SCHED_FIFO thread of this machine.
    #[must_use]
    pub const fn is_fifo(self) -> bool {
        matches!(self, Self::Host | Self::ContainerFifo)
    }

    /// Whether the probe runs in a container.
    #[must_use]
    pub const fn is_container(self) -> bool {
        matches!(self, Self::Container | Self::ContainerFifo | Self::ContainerQuota | Self::ContainerStatic)
    }

    /// Whether the probe's container has a CPU set of its own, and everything beside it runs on the other CPUs.
    #[must_use]
    pub const fn has_own_cpu(self, profile: Profile) -> bool {
        match self {
            Self::ContainerStatic => true,
            Self::ContainerFifo => profile.has_neighbours(),
            _ => false,
        }
    }

    /// Whether the probe runs under a Linux of its own.
    #[must_use]
    pub const fn is_linux_guest(self) -> bool {
        matches!(self, Self::Qemu | Self::Uml)
    }

    /// Whether the probe runs under a kernel of its own.
    #[must_use]
    pub const fn is_guest(self) -> bool {
        self.is_linux_guest() || matches!(self, Self::Rtos)
    }

    /// The system in words.
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Host => "the machine itself, SCHED_FIFO",
            Self::Container => "a container, an ordinary thread",
            Self::ContainerFifo => "a container with SCHED_FIFO, and a CPU set of its own beside neighbours",
            Self::ContainerQuota => "a container with a quota of one CPU, an ordinary thread",
            Self::ContainerStatic => {
                "a container as a pod under the kubelet's static CPU manager: a CPU of its own, an ordinary thread"
            }
            Self::Qemu => "a Linux guest under QEMU, SCHED_FIFO in the guest",
            Self::Uml => "a User-mode Linux, SCHED_FIFO in the guest",
            Self::Rtos => "a FreeRTOS guest under QEMU (riscv64), its task of the highest priority",
            Self::Ssh => "another machine by ssh, SCHED_FIFO",
        }
    }
}

/// What guests are made of.
#[derive(Clone, Debug)]
pub struct Parts {
    /// The programs that a Linux guest gets, or why they are not here and what to do.
    pub tools: Result<Tools, String>,
    /// The images of Linux guests.
    pub cache: Cache,
    /// How Linux guests run; `None`: by KVM where a guest boots with it.
    pub accelerator: Option<Accelerator>,
    /// The source tree with `virtio-net/`.
    pub workspace: PathBuf,
}

/// How the other machine is reached.
#[derive(Clone, Debug)]
pub struct Other {
    /// The machine, and its ktsn.
    pub remote: Remote,
    /// What `--version` says here.
    pub version: String,
}

/// A run of systems under profiles.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The systems.
    pub systems: Vec<System>,
    /// The profiles.
    pub profiles: Vec<Profile>,
    /// The probe's period: whole microseconds.
    pub period: Nanos,
    /// How long each cell is measured.
    pub duration: Nanos,
    /// A wake-up later than this is an excursion.
    pub limit: Nanos,
    /// What the cells are held against.
    pub requirements: Vec<Requirement>,
    /// The share of a requirement that processing may use.
    pub share: Share,
    /// Workers of each kind (square roots, memory) of the load, all together.
    pub workers: u32,
    /// Memory of one worker, in MiB.
    pub worker_mib: u64,
    /// The CPU of a pinned probe; `None`: the last one.
    pub cpu: Option<u32>,
    /// Where records and results are kept.
    pub out: PathBuf,
    /// Goes on where an earlier run stopped.
    pub resume: bool,
    /// The machine's measuring lock, if it is to be held.
    pub lock: Option<PathBuf>,
    /// What guests are made of.
    pub guests: Parts,
    /// The other machine of [`System::Ssh`].
    pub other: Option<Other>,
    /// The command that repeats the run.
    pub command: Vec<String>,
}

/// The paper's load: workers of each kind.
pub const WORKERS: u32 = 10;
/// The paper's load: memory of one worker.
pub const WORKER_MIB: u64 = 64;
/// From this duration on a cell is measured in [`SLICES`] slices, the cells by turns.
const SLICED_FROM: Nanos = Nanos::from_seconds(3600);
const SLICES: u64 = 8;

impl Plan {
    /// # Errors
    /// [`LabError::Usage`] with the value at fault.
    pub fn check(&self) -> Result<(), LabError> {
        let usage = |text: String| Err(LabError::Usage(text));
        let period = self.period.get();
        if !(100_000..=1_000_000_000).contains(&period) || period % 1000 != 0 {
            return usage(format!("period {period} ns: expected whole microseconds, from 100 µs to 1 s"));
        }
        if self.samples() < 8 || self.duration > Nanos::from_seconds(30 * 24 * 3600) {
            return usage(format!("duration {} ns: expected 8 periods to 30 days", self.duration.get()));
        }
        if self.limit <= Nanos::ZERO {
            return usage(format!("excursion limit {} ns: expected more than 0", self.limit.get()));
        }
        if !(2..=10_000).contains(&self.workers) || !(1..=1024 * 1024).contains(&self.worker_mib) {
            let (workers, mib) = (self.workers, self.worker_mib);
            return usage(format!("{workers} workers of {mib} MiB: expected 2 to 10000, of 1 MiB to 1 TiB"));
        }
        if self.systems.is_empty() || self.profiles.is_empty() || self.requirements.is_empty() {
            return usage("expected a system, a profile and a requirement at least".to_owned());
        }
        if self.systems.contains(&System::Ssh) != self.other.is_some() {
            return usage("--system ssh:HOST: expected with its host, and once".to_owned());
        }
        none_twice("--system", &self.systems)?;
        none_twice("--profile", &self.profiles)
    }

    /// A system's name in results: of another machine `ssh:HOST`.
    #[must_use]
    pub fn name(&self, system: System) -> String {
        match (&self.other, system) {
            (Some(other), System::Ssh) => other.remote.target.to_string(),
            _ => system.word().to_owned(),
        }
    }

    /// Samples of one cell: so many that their periods are as long as the duration at least.
    #[must_use]
    pub fn samples(&self) -> u64 {
        let duration = u64::try_from(self.duration.get()).unwrap_or(0);
        duration.div_ceil(u64::try_from(self.period.get()).unwrap_or(0).max(1))
    }

    /// How many samples a cell has after each of its slices.
    pub(super) fn slices(&self) -> Vec<u64> {
        let slices = if self.duration >= SLICED_FROM { SLICES } else { 1 };
        (1..=slices).map(|slice| self.samples() * slice / slices).collect()
    }
}

/// CPUs of probe and load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cpus {
    /// All that we may use, in order.
    pub(super) all: Vec<u32>,
    /// The CPU of a pinned probe.
    pub(super) probe: u32,
}

impl Cpus {
    /// Chooses among `all`.
    pub(super) fn choose(all: Vec<u32>, asked: Option<u32>) -> Result<Self, LabError> {
        let last = *all.last().ok_or_else(|| LabError::Usage("no CPU is allowed".to_owned()))?;
        let probe = asked.unwrap_or(last);
        if !all.contains(&probe) {
            return Err(LabError::Usage(format!("--cpu {probe}: expected one of {}", list(&all))));
        }
        Ok(Self { all, probe })
    }

    /// All but the probe's.
    pub(super) fn others(&self) -> Vec<u32> {
        self.all.iter().copied().filter(|&cpu| cpu != self.probe).collect()
    }
}

/// CPUs as `taskset` and control groups read them.
pub(super) fn list(cpus: &[u32]) -> String {
    cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_chosen_and_checked() {
        let cpus = Cpus::choose(vec![0, 1, 5], None).unwrap();
        assert_eq!((cpus.probe, cpus.others()), (5, vec![0, 1]));
        assert_eq!(Cpus::choose(vec![0, 1], Some(0)).unwrap().others(), [1]);
        let error = Cpus::choose(vec![0, 1], Some(9)).unwrap_err().to_string();
        assert!(error.contains("--cpu 9") && error.contains("0,1"), "{error}");
    }

    #[test]
    fn long_runs_are_sliced_and_every_sample_belongs_to_a_slice() {
        let plan = |seconds| Plan {
            period: Nanos::from_millis(10),
            duration: Nanos::from_seconds(seconds),
            ..super::super::tests::plan(std::path::Path::new("/nowhere"))
        };
        assert_eq!(plan(10).slices(), [1000]);
        let slices = plan(8 * 3600).slices();
        assert_eq!((slices.len(), slices[0], slices[7]), (8, 360_000, 2_880_000));
    }

    /// Only 8 h say "fit", whatever the period is.
    #[test]
    fn a_cell_is_measured_for_the_whole_duration() {
        for period in [Nanos::from_millis(7), Nanos::from_micros(1009), Nanos::from_millis(10)] {
            let duration = Nanos::from_seconds(8 * 3600);
            let plan =
                Plan { period, duration, ..super::super::tests::plan(std::path::Path::new("/nowhere")) };
            let period = u64::try_from(period.get()).unwrap();
            let measured = plan.samples() * period;
            assert!(measured >= ktsn_realtime::verdict::FIT_AFTER.as_nanos(), "{measured}");
            assert!(measured - ktsn_realtime::verdict::FIT_AFTER.as_nanos() < period, "{measured}");
            assert_eq!(plan.slices().last(), Some(&plan.samples()));
        }
    }

    #[test]
    fn wrong_plans_are_named() {
        let good = super::super::tests::plan(std::path::Path::new("/nowhere"));
        good.check().unwrap();
        let says = |plan: Plan, word: &str| {
            let error = plan.check().unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        };
        says(Plan { period: Nanos::new(1_000_500), ..good.clone() }, "period 1000500 ns");
        says(Plan { duration: Nanos::from_millis(1), ..good.clone() }, "8 periods");
        says(Plan { limit: Nanos::ZERO, ..good.clone() }, "excursion limit");
        says(Plan { workers: 0, ..good.clone() }, "0 workers");
        says(Plan { systems: vec![System::Host, System::Host], ..good.clone() }, "host is named twice");
        says(Plan { systems: vec![System::Ssh], ..good.clone() }, "ssh:HOST");
        says(Plan { profiles: Vec::new(), ..good }, "a profile");
    }
}
