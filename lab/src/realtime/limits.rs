// SPDX-License-Identifier: Apache-2.0
//! What this machine allows, looked at before anything runs. In: a plan. Out: a [`Machine`]; what limits a run, in words; and why a cell
//! cannot be measured here.

use super::commands::WRITTEN_MIB;
use super::groups::Hierarchy;
use super::guests::{Guests, Rtos};
use super::other;
use super::plan::{Cpus, Plan, System};
use crate::error::LabError;
use ktsn_host::cyclictest;
pub(super) use ktsn_host::cyclictest::FIFO_MAX;
pub(super) use ktsn_host::is_installed;
use ktsn_realtime::Profile;
use ktsn_realtime::profile::Load;
use ktsn_realtime::results::Skip;
use std::fs::read_to_string;
use std::path::Path;

/// A load may use this much of the memory that is free.
const MEMORY_SHARE: f64 = 0.8;
/// Room that records and a disk load need, in MiB.
const DISK_MIB: u64 = 256 + 4 * WRITTEN_MIB;

/// What this machine has.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    pub(super) cpus: Cpus,
    /// The highest priority that we may use, or why there is none.
    pub(super) fifo: Result<u8, String>,
    pub(super) hierarchy: Option<Hierarchy>,
    /// `stress`, else `stress-ng`.
    pub(super) stress: Option<&'static str>,
    pub(super) has_iperf3: bool,
    pub(super) has_fio: bool,
    pub(super) guests: Guests,
    /// The other machine, or why it cannot be had.
    pub(super) other: Option<Result<other::Host, Skip>>,
    available_mib: u64,
    is_root: bool,
}

impl Machine {
    /// Looks; `watch` hears what takes long.
    ///
    /// # Errors
    /// There is no `cyclictest`; the plan asks for a CPU that we may not use; the disk is too small.
    pub(super) fn look(plan: &Plan, watch: &mut dyn FnMut(&str)) -> Result<Self, LabError> {
        check_disk(plan, plan.samples())?;
        Self::look_at_rest(plan, watch)
    }

    /// As [`Self::look`], on a machine that keeps no records.
    pub(super) fn look_without_records(plan: &Plan) -> Result<Self, LabError> {
        if plan.profiles.iter().any(|profile| profile.load() == Load::Disk) {
            check_disk(plan, 0)?;
        }
        Self::look_at_rest(plan, &mut |_| ())
    }

    fn look_at_rest(plan: &Plan, watch: &mut dyn FnMut(&str)) -> Result<Self, LabError> {
        if plan.systems.iter().any(|system| !matches!(system, System::Rtos | System::Ssh))
            && !is_installed("cyclictest")
        {
            return Err(LabError::Impossible {
                what: "the probe `cyclictest` is not installed".to_owned(),
                remedy: "`make setup`, or apt-get install rt-tests".to_owned(),
            });
        }
        let allowed = rustix::thread::sched_getaffinity(None)
            .map_err(|error| LabError::system("sched_getaffinity")(error.into()))?;
        let all = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
        let meminfo = read_to_string("/proc/meminfo").unwrap_or_default();
        let available =
            meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.split_whitespace().next());
        Ok(Self {
            cpus: Cpus::choose(all.filter_map(|cpu| u32::try_from(cpu).ok()).collect(), plan.cpu)?,
            fifo: cyclictest::fifo(),
            hierarchy: Hierarchy::find(),
            stress: ["stress", "stress-ng"].into_iter().find(|name| is_installed(name)),
            has_iperf3: is_installed("iperf3"),
            has_fio: is_installed("fio"),
            guests: Guests::find(plan, watch)?,
            other: other::find(plan, watch)?,
            available_mib: available.and_then(|word| word.parse::<u64>().ok()).unwrap_or(0) / 1024,
            is_root: rustix::process::geteuid().is_root(),
        })
    }

    /// What a system's probe runs on, in words; `None`: this machine itself.
    pub(super) fn environment(&self, system: System) -> Option<String> {
        match (&self.other, system) {
            (Some(Ok(other)), System::Ssh) => Some(other.environment.clone()),
            _ => self.guests.environment(system),
        }
    }

    /// What limits real-time threads here, in words.
    pub(super) fn notices(&self) -> Vec<String> {
        let mut notices = Vec::new();
        let sysctl = |name: &str| {
            read_to_string(Path::new("/proc/sys/kernel").join(name)).ok()?.trim().parse::<i64>().ok()
        };
        match (sysctl("sched_rt_runtime_us"), sysctl("sched_rt_period_us")) {
            (Some(runtime), Some(period)) if runtime >= 0 => notices.push(format!(
                "real-time threads of a CPU may use {} of {} ms; beyond that the kernel stops them (sched_rt_runtime_us)",
                runtime / 1000,
                period / 1000
            )),
            _ => {}
        }
        match &self.fifo {
            Ok(FIFO_MAX) => {}
            Ok(priority) => notices.push(format!("the highest priority allowed is {priority} of {FIFO_MAX}")),
            Err(reason) => notices.push(format!("no SCHED_FIFO: {reason}")),
        }
        if let [cpu] = self.cpus.all[..] {
            notices.push(format!(
                "CPU {cpu} is the only one: profiles that keep probe and load apart are skipped"
            ));
        }
        notices
    }

    /// Why a cell cannot be measured here; `None` when it can.
    pub(super) fn skip(&self, plan: &Plan, system: System, profile: Profile) -> Option<Skip> {
        let skip = |kind: &str, reason: String| Some(Skip { kind: kind.to_owned(), reason });
        match (&self.other, system) {
            (Some(Ok(other)), System::Ssh) => return other.skip(profile).cloned(),
            (Some(Err(missing)), System::Ssh) => return Some(missing.clone()),
            _ => {}
        }
        if let Some(missing) = self.guests.missing(system) {
            return Some(missing.clone());
        }
        if let Some(skip) = (system == System::Rtos).then(|| Rtos::skip(plan, profile)).flatten() {
            return Some(skip);
        }
        if system == System::Uml && profile.load() == Load::Inside && profile.is_pinned() {
            let reason = "User-mode Linux has one CPU: probe and load share it";
            return skip("too_few_cpus", reason.to_owned());
        }
        if system == System::ContainerStatic {
            if profile.load() == Load::Inside && profile.is_pinned() {
                let reason = "the container has one CPU: probe and load share it";
                return skip("too_few_cpus", reason.to_owned());
            }
            if self.cpus.others().is_empty() {
                let reason = "the container's CPU is its own, and the other processes need one: this process may use one only";
                return skip("too_few_cpus", reason.to_owned());
            }
        }
        // cyclictest starts nowhere without the right, even as an ordinary thread. A guest grants it itself.
        if let (Err(reason), false) = (&self.fifo, system.is_guest()) {
            return skip("no_fifo_right", reason.clone());
        }
        let has_own_load = profile.load() == Load::Inside && system.is_guest();
        let needs_namespaces = system.is_container() || (profile.load() != Load::None && !has_own_load);
        if needs_namespaces && !self.is_root {
            return skip("no_root_right", "containers and loads need root's rights: run as root".to_owned());
        }
        if (system.is_container() || profile.has_neighbours()) && self.hierarchy.is_none() {
            let reason = "no control groups with the controllers cpu and cpuset: mount them";
            return skip("no_control_group", reason.to_owned());
        }
        let is_apart = profile.is_pinned() || system.has_own_cpu(profile);
        if is_apart && profile.load() != Load::None && self.cpus.others().is_empty() {
            let reason = "probe and load need a CPU each: this process may use one only";
            return skip("too_few_cpus", reason.to_owned());
        }
        self.skip_for_load(plan, system, profile)
    }

    /// Why there is no such load here, or no memory for it.
    fn skip_for_load(&self, plan: &Plan, system: System, profile: Profile) -> Option<Skip> {
        let skip = |kind: &str, reason: String| Some(Skip { kind: kind.to_owned(), reason });
        let guest_mib = self.guests.linux(system).map_or(0, |guest| guest.memory_mib(plan, Profile::ALL[0]));
        match profile.load() {
            Load::Inside if system == System::Rtos => {}
            Load::None | Load::Inside | Load::Neighbours => {
                let load_mib = u64::from(plan.workers) * plan.worker_mib;
                let needed = match profile.load() {
                    Load::None => guest_mib,
                    Load::Neighbours => 3 * guest_mib + load_mib,
                    _ => guest_mib + load_mib,
                };
                if profile.load() != Load::None && self.stress.is_none() {
                    return skip(
                        "program_missing",
                        "neither stress nor stress-ng is installed: `make setup`".to_owned(),
                    );
                }
                if needed as f64 > self.available_mib as f64 * MEMORY_SHARE {
                    let available = self.available_mib;
                    let reason = format!(
                        "guest and load take {needed} MiB, {available} MiB are free: lower --worker-mib or --workers"
                    );
                    return skip("too_little_memory", reason);
                }
            }
            Load::Network if !self.has_iperf3 => {
                return skip("program_missing", "iperf3 is not installed: `make setup`".to_owned());
            }
            Load::Network | Load::Disk => {}
        }
        None
    }
}

/// # Errors
/// The plan's directory has no room for so many samples of each cell, and for a load's files.
fn check_disk(plan: &Plan, samples: u64) -> Result<(), LabError> {
    let free_mib = rustix::fs::statvfs(&plan.out)
        .map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize) / (1 << 20))
        .map_err(|error| LabError::file(&plan.out)(error.into()))?;
    // A latency takes less than 12 octets. A late one takes some 200 more, and how many there will be cannot be known: a full disk ends
    // the run, and it goes on with --resume.
    let cells = (plan.systems.len() * plan.profiles.len()) as u64;
    let needed_mib = DISK_MIB + samples.saturating_mul(12 * cells) / (1 << 20);
    if free_mib < needed_mib {
        return Err(LabError::Impossible {
            what: format!("{} has {free_mib} MiB free; this run needs {needed_mib} MiB", plan.out.display()),
            remedy: "make room, or choose another directory with --out".to_owned(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine {
            cpus: Cpus::choose(vec![0, 1], None).unwrap(),
            fifo: Ok(99),
            hierarchy: Some(Hierarchy::V2("/nowhere".into())),
            stress: Some("stress"),
            has_iperf3: true,
            has_fio: true,
            guests: Guests::default(),
            other: None,
            available_mib: 1000,
            is_root: true,
        }
    }

    #[test]
    fn each_missing_thing_is_a_typed_skip() {
        let plan = super::super::tests::plan(Path::new("/nowhere"));
        let kind = |machine: &Machine, system, profile: usize| {
            machine.skip(&plan, system, Profile::ALL[profile - 1]).map(|skip| skip.kind)
        };
        let (host, fifo, plain) = (System::Host, System::ContainerFifo, System::Container);
        for profile in 1..=8 {
            for system in System::ALL {
                // These have one CPU.
                let has_one = matches!(system, System::Rtos | System::Uml | System::ContainerStatic);
                let expected = (has_one && profile == 4).then_some("too_few_cpus");
                assert_eq!(kind(&machine(), system, profile).as_deref(), expected);
            }
        }
        let is = |found: Option<String>, expected: &str| assert_eq!(found.as_deref(), Some(expected));
        let no_fifo = Machine { fifo: Err("why".into()), ..machine() };
        is(kind(&no_fifo, host, 1), "no_fifo_right");
        is(kind(&no_fifo, plain, 1), "no_fifo_right");
        assert!(no_fifo.notices().iter().any(|line| line.contains("no SCHED_FIFO: why")));
        let one = Machine { cpus: Cpus::choose(vec![3], None).unwrap(), ..machine() };
        is(kind(&one, host, 4), "too_few_cpus");
        is(kind(&one, fifo, 5), "too_few_cpus");
        is(kind(&one, System::ContainerStatic, 1), "too_few_cpus");
        assert_eq!((kind(&one, host, 2), kind(&one, host, 5)), (None, None));
        let small = Machine { available_mib: 10, ..machine() };
        is(kind(&small, host, 3), "too_little_memory");
        is(kind(&Machine { stress: None, ..machine() }, host, 5), "program_missing");
        is(kind(&Machine { has_iperf3: false, ..machine() }, host, 7), "program_missing");
        is(kind(&Machine { hierarchy: None, ..machine() }, plain, 1), "no_control_group");
        is(kind(&Machine { is_root: false, ..machine() }, plain, 1), "no_root_right");
    }

    #[test]
    fn a_cpu_that_is_not_there_is_refused() {
        let plan = Plan { cpu: Some(4000), ..super::super::tests::plan(Path::new("/tmp")) };
        let error = Machine::look(&plan, &mut |_| ()).map(drop).unwrap_err();
        assert!(error.to_string().contains("--cpu 4000"), "{error}");
        assert_eq!(error.exit_status(), 2);
    }
}
