// SPDX-License-Identifier: Apache-2.0
//! Clocks, waiting, and what makes a thread keep time.
//!
//! In: a clock's name, an instant to wait for, a request for real-time rights. Out: instants with a type, and a
//! typed reason with its remedy when the system refuses. Kernel stamps are `CLOCK_REALTIME`; they become TAI
//! here and nowhere else. Nobody in here sets a clock.

mod sys;

use ktsn_time::{Monotonic, Nanos, Now, Offset, Tai, TxTime};
use std::io;
use std::path::PathBuf;

/// The clock a talker schedules in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScheduleClock {
    /// `CLOCK_TAI`: the clock of 802.1Q schedules, etf's clock.
    #[default]
    Tai,
    /// `CLOCK_MONOTONIC`: fq's clock.
    Monotonic,
}

impl ScheduleClock {
    /// The kernel's number of the clock.
    #[must_use]
    pub const fn id(self) -> i32 {
        match self {
            Self::Tai => libc::CLOCK_TAI,
            Self::Monotonic => libc::CLOCK_MONOTONIC,
        }
    }

    /// The clock's instant `nanos` nanoseconds after its zero.
    #[must_use]
    pub const fn at(self, nanos: u64) -> TxTime {
        match self {
            Self::Tai => TxTime::Tai(Tai::from_nanos(nanos)),
            Self::Monotonic => TxTime::Monotonic(Monotonic::from_nanos(nanos)),
        }
    }

    /// Reads the clock.
    #[must_use]
    pub fn now(self) -> TxTime {
        self.at(sys::read(self.id()))
    }
}

/// Nanoseconds of an instant on its own clock: what `SCM_TXTIME` carries.
#[must_use]
pub const fn nanos_of(at: TxTime) -> u64 {
    match at {
        TxTime::Tai(at) => at.as_nanos(),
        TxTime::Monotonic(at) => at.as_nanos(),
    }
}

/// The clock of an instant.
#[must_use]
pub const fn clock_of(at: TxTime) -> ScheduleClock {
    match at {
        TxTime::Tai(_) => ScheduleClock::Tai,
        TxTime::Monotonic(_) => ScheduleClock::Monotonic,
    }
}

/// Reads `CLOCK_TAI`.
#[must_use]
pub fn tai_now() -> Tai {
    Tai::from_nanos(sys::read(libc::CLOCK_TAI))
}

/// Reads `CLOCK_MONOTONIC`.
#[must_use]
pub fn monotonic_now() -> Monotonic {
    Monotonic::from_nanos(sys::read(libc::CLOCK_MONOTONIC))
}

/// Reads TAI and MONOTONIC as one instant: of several attempts the one with the narrowest bracket.
#[must_use]
pub fn both_now() -> Now {
    let mut best: Option<(Nanos, Now)> = None;
    for _ in 0..8 {
        let before = monotonic_now();
        let tai = tai_now();
        let width = monotonic_now().since(before);
        let monotonic = before.saturating_add(Nanos::new(width.get() / 2));
        if best.is_none_or(|(narrowest, _)| width < narrowest) {
            best = Some((width, Now { tai, monotonic }));
        }
    }
    best.map_or_else(Now::default, |(_, now)| now)
}

/// `at` as a TAI instant.
#[must_use]
pub const fn to_tai(at: TxTime, offset: Offset) -> Tai {
    match at {
        TxTime::Tai(at) => at,
        TxTime::Monotonic(at) => offset.tai(at),
    }
}

/// Sleeps until `at`; returns early only when a signal asked the program to stop.
pub fn sleep_until(at: TxTime) {
    while !sys::sleep_until(clock_of(at).id(), nanos_of(at)) {
        if stop_requested() {
            return;
        }
    }
}

/// Spins until `at` and returns the reading that ended it, which is never before `at`.
#[must_use]
pub fn spin_until(at: TxTime) -> TxTime {
    let clock = clock_of(at);
    let target = nanos_of(at);
    loop {
        let now = sys::read(clock.id());
        if now >= target {
            return clock.at(now);
        }
        std::hint::spin_loop();
    }
}

/// CPU time that the calling thread has used.
#[must_use]
pub fn thread_cpu_time() -> Nanos {
    Nanos::new(i64::try_from(sys::read(libc::CLOCK_THREAD_CPUTIME_ID)).unwrap_or(i64::MAX))
}

/// What the kernel says about its clock's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockState {
    /// TAI − UTC in whole seconds; 0 when the kernel was not given one.
    pub tai_offset_seconds: i32,
    /// Whether something disciplines the clock.
    pub synchronised: bool,
    /// Greatest error that the program which disciplines the clock claims, in microseconds.
    pub error_max_micros: i64,
}

/// Asks the kernel for its clock's state; changes nothing.
///
/// # Errors
/// The kernel's, where a sandbox refuses the call.
pub fn clock_state() -> io::Result<ClockState> {
    sys::clock_state()
}

/// Turns the kernel's receive stamps (`CLOCK_REALTIME`) into TAI, and notices when a clock was stepped.
#[derive(Clone, Copy, Debug)]
pub struct StampClock {
    tai_minus_realtime: Nanos,
    realtime_minus_monotonic: Nanos,
}

/// REALTIME and MONOTONIC are slewed together: any change of their difference beyond reading noise is a step.
const STEP_MIN: Nanos = Nanos::from_micros(20);

impl StampClock {
    /// Reads the offsets that hold now.
    #[must_use]
    pub fn now() -> Self {
        let offset = Nanos::from_seconds(i64::from(clock_state().unwrap_or_default().tai_offset_seconds));
        let now = both_now();
        let tai_minus_monotonic = Offset::between(now.tai, now.monotonic).span();
        Self {
            tai_minus_realtime: offset,
            realtime_minus_monotonic: tai_minus_monotonic.saturating_sub(offset),
        }
    }

    /// The TAI instant of a `CLOCK_REALTIME` stamp of `realtime` nanoseconds.
    #[must_use]
    pub const fn tai(&self, realtime: u64) -> Tai {
        Tai::from_nanos(realtime).saturating_add(self.tai_minus_realtime)
    }

    /// Whether a clock was stepped, or its TAI offset changed, between `self` and `later`.
    #[must_use]
    pub fn stepped(&self, later: &Self) -> bool {
        self.tai_minus_realtime != later.tai_minus_realtime
            || later.realtime_minus_monotonic.saturating_sub(self.realtime_minus_monotonic).abs() > STEP_MIN
    }
}

/// CPU, priority and timers of a measuring thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RealTime {
    /// Pin to this CPU.
    pub cpu: Option<usize>,
    /// Run under SCHED_FIFO with this priority (1 to 99).
    pub fifo: Option<u8>,
    /// Ask for timers without slack. A SCHED_FIFO thread has none anyway.
    pub exact_timers: bool,
    /// Keep all memory resident.
    pub lock_memory: bool,
}

/// What the system refused a thread, with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum RealTimeError {
    /// The CPU does not exist or is not ours.
    #[error("cannot run on CPU {cpu}: {source}; choose one of the CPUs that `nproc --all` counts")]
    Cpu {
        /// The CPU asked for.
        cpu: usize,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A cgroup (version 1) without real-time budget holds the process.
    #[error(
        "SCHED_FIFO is refused: the control group {group:?} has no real-time budget; remedy: \
         `echo 950000 > {group:?}/cpu.rt_runtime_us`, or run in a group that has one"
    )]
    GroupBudget {
        /// The group's directory.
        group: PathBuf,
    },
    /// No right to real-time scheduling.
    #[error(
        "SCHED_FIFO {priority} is refused: {source}; remedy: run as root, or grant CAP_SYS_NICE, or raise `ulimit -r`"
    )]
    Fifo {
        /// The priority asked for.
        priority: u8,
        /// The kernel's answer.
        source: io::Error,
    },
    /// No right to lock memory.
    #[error("memory cannot be locked: {0}; remedy: run as root, or grant CAP_IPC_LOCK, or raise `ulimit -l`")]
    Memory(io::Error),
}

impl RealTime {
    /// Applies the wishes to the calling thread, and memory locking to the process.
    ///
    /// # Errors
    /// The first request that the system refuses.
    pub fn apply(&self) -> Result<(), RealTimeError> {
        if self.exact_timers {
            sys::no_timer_slack();
        }
        if let Some(cpu) = self.cpu {
            sys::pin(cpu).map_err(|source| RealTimeError::Cpu { cpu, source })?;
        }
        if self.lock_memory {
            sys::lock_memory().map_err(RealTimeError::Memory)?;
        }
        if let Some(priority) = self.fifo {
            sys::set_fifo(priority).map_err(|source| fifo_error(priority, source))?;
        }
        Ok(())
    }
}

fn fifo_error(priority: u8, source: io::Error) -> RealTimeError {
    match group_without_budget() {
        Some(group) => RealTimeError::GroupBudget { group },
        None => RealTimeError::Fifo { priority, source },
    }
}

/// The process's version 1 `cpu` control group, when its real-time budget is zero.
#[must_use]
pub fn group_without_budget() -> Option<PathBuf> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    let group = cpu_group(&groups, &mounts)?;
    let budget = std::fs::read_to_string(group.join("cpu.rt_runtime_us")).ok()?;
    (budget.trim() == "0").then_some(group)
}

/// Where the version 1 `cpu` controller keeps this process, from `/proc/self/cgroup` and `/proc/self/mounts`.
fn cpu_group(groups: &str, mounts: &str) -> Option<PathBuf> {
    let path = groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next()?;
        controllers.split(',').any(|name| name == "cpu").then(|| fields.next()).flatten()
    })?;
    let mount = mounts.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        let cgroup_v1_cpu =
            fields.get(2) == Some(&"cgroup") && fields.get(3)?.split(',').any(|option| option == "cpu");
        cgroup_v1_cpu.then(|| fields[1])
    })?;
    Some(PathBuf::from(mount).join(path.trim_start_matches('/')))
}

/// Makes SIGINT and SIGTERM ask for a stop instead of ending the process; waits are interrupted.
pub fn stop_on_signals() {
    sys::stop_on_signals();
}

/// Whether a signal asked the program to stop.
#[must_use]
pub fn stop_requested() -> bool {
    sys::stop_requested()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_states_the_state_of_its_clock() {
        let state = clock_state().unwrap();
        assert!((-1..=100).contains(&state.tai_offset_seconds), "{state:?}");
        assert!(state.error_max_micros >= 0);
    }

    #[test]
    fn clocks_agree_with_each_other() {
        let offset = Offset::between(both_now().tai, both_now().monotonic);
        let now = both_now();
        assert!(offset.tai(now.monotonic).since(now.tai).abs() < Nanos::from_millis(50));
    }

    #[test]
    fn sleeping_and_spinning_never_end_early() {
        for clock in [ScheduleClock::Tai, ScheduleClock::Monotonic] {
            let target = clock.now().saturating_add(Nanos::from_millis(2));
            sleep_until(target);
            assert!(nanos_of(clock.now()) >= nanos_of(target));
            let target = clock.now().saturating_add(Nanos::from_micros(200));
            assert!(nanos_of(spin_until(target)) >= nanos_of(target));
        }
    }

    #[test]
    fn a_stamp_becomes_tai_and_a_step_is_seen() {
        let clock = StampClock {
            tai_minus_realtime: Nanos::from_seconds(37),
            realtime_minus_monotonic: Nanos::from_seconds(100),
        };
        assert_eq!(clock.tai(5), Tai::from_nanos(37_000_000_005));
        assert!(!clock.stepped(&clock));
        let noisy = StampClock { realtime_minus_monotonic: Nanos::new(100_000_010_000), ..clock };
        assert!(!clock.stepped(&noisy));
        let stepped = StampClock { realtime_minus_monotonic: Nanos::new(100_000_030_000), ..clock };
        assert!(clock.stepped(&stepped));
        let new_offset = StampClock { tai_minus_realtime: Nanos::from_seconds(38), ..clock };
        assert!(clock.stepped(&new_offset));
    }

    #[test]
    fn the_cpu_group_is_found() {
        let groups = "5:memory:/a\n3:cpu,cpuacct:/pods/one\n0::/\n";
        let mounts = "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n\
                      cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu,cpuacct 0 0\n";
        assert_eq!(cpu_group(groups, mounts), Some(PathBuf::from("/sys/fs/cgroup/cpu/pods/one")));
        assert_eq!(cpu_group("0::/\n", mounts), None);
        assert_eq!(cpu_group("3:cpuset:/x\n", mounts), None);
    }

    #[test]
    fn a_cpu_that_does_not_exist_is_refused() {
        let refused = RealTime { cpu: Some(1000), ..RealTime::default() }.apply();
        assert!(matches!(refused, Err(RealTimeError::Cpu { cpu: 1000, .. })));
    }
}
