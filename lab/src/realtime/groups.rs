// SPDX-License-Identifier: Apache-2.0
//! Control groups of containers. In: limits. Out: a [`Group`] in every hierarchy that these limits need; it is removed with its value, and
//! groups that a killed run left are removed by the next one.
//!
//! Control groups v1 (one hierarchy for each controller) and v2 (one for all, below its root) are served.

use super::plan::list;
use crate::error::LabError;
use crate::sys;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const PREFIX: &str = "ktsn-rt-";
static COUNTER: AtomicU32 = AtomicU32::new(0);
/// The period of a quota, in microseconds.
const QUOTA_PERIOD: u64 = 100_000;
/// A quota of one CPU: all of a period.
pub(super) const ONE_CPU: u64 = QUOTA_PERIOD;
/// What a container's real-time threads may use of a second, in microseconds (control groups v1).
const RT_RUNTIME: u64 = 200_000;

/// Limits of a container.
#[derive(Clone, Debug, Default)]
pub(super) struct Limits {
    /// The only CPUs.
    pub(super) cpus: Option<Vec<u32>>,
    /// CPU time in a period of 100 ms, in microseconds.
    pub(super) quota: Option<u64>,
    /// Whether its threads may be SCHED_FIFO.
    pub(super) is_fifo: bool,
}

/// Where the controllers are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Hierarchy {
    /// Version 1: the folder of `cpu`, and that of `cpuset`.
    V1 { cpu: PathBuf, cpuset: PathBuf },
    /// Version 2: its root.
    V2(PathBuf),
}

impl Hierarchy {
    /// The machine's; `None` where it has none with these controllers.
    pub(super) fn find() -> Option<Self> {
        Self::in_mounts(&fs::read_to_string("/proc/self/mounts").unwrap_or_default(), |root| {
            let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
            ["cpu", "cpuset"].iter().all(|name| controllers.split_whitespace().any(|word| word == *name))
        })
    }

    fn in_mounts(mounts: &str, has_controllers: impl Fn(&Path) -> bool) -> Option<Self> {
        let rows: Vec<Vec<&str>> = mounts.lines().map(|line| line.split(' ').collect()).collect();
        let v1 = |name: &str| {
            let is = |row: &&Vec<&str>| {
                row.get(2) == Some(&"cgroup")
                    && row.get(3).is_some_and(|options| options.split(',').any(|o| o == name))
            };
            rows.iter().find(is).map(|row| PathBuf::from(row[1]))
        };
        if let (Some(cpu), Some(cpuset)) = (v1("cpu"), v1("cpuset")) {
            return Some(Self::V1 { cpu, cpuset });
        }
        let v2 = rows.iter().find(|row| row.get(2) == Some(&"cgroup2")).map(|row| PathBuf::from(row[1]))?;
        has_controllers(&v2).then_some(Self::V2(v2))
    }

    fn roots(&self) -> Vec<&Path> {
        match self {
            Self::V1 { cpu, cpuset } => vec![cpu, cpuset],
            Self::V2(root) => vec![root],
        }
    }

    /// The folder whose `cpu.stat` counts the throttling of this process.
    pub(super) fn own_cpu_stat(&self) -> PathBuf {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let of = |name: &str| {
            groups.lines().find_map(|line| {
                let mut parts = line.splitn(3, ':').skip(1);
                let is = parts.next()?.split(',').any(|controller| controller == name);
                is.then(|| parts.next().unwrap_or("/").trim_start_matches('/').to_owned())
            })
        };
        let (root, below) = match self {
            Self::V1 { cpu, .. } => (cpu, of("cpu")),
            Self::V2(root) => (root, of("")),
        };
        root.join(below.unwrap_or_default()).join("cpu.stat")
    }
}

/// The control group of one container.
#[derive(Debug)]
pub(super) struct Group {
    folders: Vec<PathBuf>,
}

impl Group {
    /// Makes a group with these limits.
    pub(super) fn new(hierarchy: &Hierarchy, limits: &Limits) -> Result<Self, LabError> {
        sweep(hierarchy);
        let name = format!("{PREFIX}{}-{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed));
        if let Hierarchy::V2(root) = hierarchy {
            // Where both are on already, this changes nothing; where they cannot be, the limits below fail.
            let _ = fs::write(root.join("cgroup.subtree_control"), "+cpu +cpuset");
        }
        let mut group = Self { folders: Vec::new() };
        for root in hierarchy.roots() {
            let folder = root.join(&name);
            fs::create_dir(&folder).map_err(LabError::file(&folder))?;
            group.folders.push(folder);
        }
        group.limit(hierarchy, limits)?;
        Ok(group)
    }

    fn limit(&self, hierarchy: &Hierarchy, limits: &Limits) -> Result<(), LabError> {
        let set = |folder: &Path, file: &str, value: String| {
            let path = folder.join(file);
            fs::write(&path, value).map_err(LabError::file(path))
        };
        let (first, last) = (&self.folders[0], &self.folders[self.folders.len() - 1]);
        match hierarchy {
            Hierarchy::V1 { cpuset, .. } => {
                // A new group of version 1 has no CPU and no memory.
                for file in ["cpuset.mems", "cpuset.cpus"] {
                    let path = cpuset.join(file);
                    set(last, file, fs::read_to_string(&path).map_err(LabError::file(path))?)?;
                }
                if let Some(quota) = limits.quota {
                    set(first, "cpu.cfs_period_us", QUOTA_PERIOD.to_string())?;
                    set(first, "cpu.cfs_quota_us", quota.to_string())?;
                }
                // A kernel without budgets for groups has no such file, and needs none.
                if limits.is_fifo && first.join("cpu.rt_runtime_us").exists() {
                    set(first, "cpu.rt_runtime_us", RT_RUNTIME.to_string())?;
                }
            }
            Hierarchy::V2(_) => {
                if let Some(quota) = limits.quota {
                    set(first, "cpu.max", format!("{quota} {QUOTA_PERIOD}"))?;
                }
            }
        }
        limits.cpus.as_ref().map_or(Ok(()), |cpus| set(last, "cpuset.cpus", list(cpus)))
    }

    /// The folders that its processes join.
    pub(super) fn folders(&self) -> &[PathBuf] {
        &self.folders
    }

    /// The file that counts its throttling.
    pub(super) fn cpu_stat(&self) -> PathBuf {
        self.folders[0].join("cpu.stat")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for folder in &self.folders {
            // Its processes are killed; the last of them may just be ending, which takes time on a CPU.
            for (file, none) in [("cpu.cfs_quota_us", "-1"), ("cpu.max", "max")] {
                let file = folder.join(file);
                let _ = file.exists().then(|| fs::write(file, none));
            }
            for _ in 0..1000 {
                match fs::remove_dir(folder) {
                    Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {}
                    _ => break,
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            if folder.exists() {
                eprintln!("warning: control group {} is still used; remove it with rmdir", folder.display());
            }
        }
    }
}

/// Time that a group was throttled, in nanoseconds, as its `cpu.stat` says it.
pub(super) fn throttled_ns(cpu_stat: &str) -> Option<u64> {
    cpu_stat.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        let value: u64 = value.trim().parse().ok()?;
        match name {
            "throttled_time" => Some(value),
            "throttled_usec" => value.checked_mul(1000),
            _ => None,
        }
    })
}

/// Removes groups of runs that no longer exist.
fn sweep(hierarchy: &Hierarchy) {
    for root in hierarchy.roots() {
        for entry in fs::read_dir(root).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse().ok());
            if pid.is_some_and(|pid| !sys::exists(pid)) {
                // Another run may sweep the same group at this moment.
                let _ = fs::remove_dir(entry.path());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_found() {
        let v1 = "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\ncgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n";
        let v2 = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n";
        let expected = Hierarchy::V1 {
            cpu: "/sys/fs/cgroup/cpu,cpuacct".into(),
            cpuset: "/sys/fs/cgroup/cpuset".into(),
        };
        assert_eq!(Hierarchy::in_mounts(&format!("{v2}{v1}"), |_| false), Some(expected));
        assert_eq!(Hierarchy::in_mounts(v2, |_| true), Some(Hierarchy::V2("/sys/fs/cgroup".into())));
        assert_eq!(Hierarchy::in_mounts(v2, |_| false), None);
    }

    #[test]
    fn throttling_is_read_in_both_versions() {
        assert_eq!(throttled_ns("nr_periods 5\nthrottled_time 1234\n"), Some(1234));
        assert_eq!(throttled_ns("usage_usec 9\nthrottled_usec 12\n"), Some(12_000));
        assert_eq!(throttled_ns("usage_usec 9\n"), None);
    }
}
