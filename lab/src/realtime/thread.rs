// SPDX-License-Identifier: Apache-2.0
//! The thread that carries a probe. In: the process that was started, and the system. Out: the probe's own thread, or of a guest the thread
//! that is its virtual CPU; how long it was ready without a CPU.

use super::plan::System;
use std::collections::BTreeMap;
use std::fs::{read_dir, read_to_string};
use std::path::PathBuf;

/// The name of a user-mode Linux's processes: its kernel, and one for each address space of a program in it.
const UML: &str = "(kernel)";

/// A thread of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Thread {
    pub(super) pid: u32,
    pub(super) tid: u32,
    /// Whether it is the kernel of a user-mode Linux, which runs by turns with its children: together they are its one CPU.
    has_turns: bool,
}

/// The fields of `/proc/…/stat` behind the name, from `state`.
pub(super) fn fields(stat: &str) -> Option<Vec<&str>> {
    Some(stat.rsplit_once(')')?.1.split_whitespace().collect())
}

/// The field with this number, as proc(5) counts.
pub(super) fn field<T: std::str::FromStr>(fields: &[&str], number: usize) -> Option<T> {
    fields.get(number - 3)?.parse().ok()
}

/// A process, as `/proc/PID/stat` shows it.
struct Process {
    pid: u32,
    parent: u32,
    stat: String,
}

impl Thread {
    /// A thread by its numbers.
    pub(super) const fn of(pid: u32, tid: u32) -> Self {
        Self { pid, tid, has_turns: false }
    }

    /// The calling thread.
    pub(super) fn this() -> Self {
        Self::of(std::process::id(), rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs())
    }

    /// The probe's measuring thread below the process `root`; of a QEMU guest the thread of its last virtual CPU, on which a pinned probe
    /// is, of a user-mode Linux its kernel. `None` while it does not run yet.
    pub(super) fn find(root: u32, system: System) -> Option<Self> {
        let name = match system {
            System::Uml => UML,
            _ if system.is_guest() => "(qemu-system-",
            _ => "(cyclictest)",
        };
        let family = family(root);
        let is_probe = |process: &&Process| process.stat.contains(name);
        let probes: Vec<&Process> = family.iter().filter(is_probe).collect();
        let is_child = |process: &&&Process| probes.iter().any(|other| other.pid == process.parent);
        let pid = probes.iter().find(|process| !is_child(process))?.pid;
        if system == System::Uml {
            return Some(Self { pid, tid: pid, has_turns: true });
        }
        let tasks = read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
        let tasks = tasks.filter_map(|task| task.file_name().to_str()?.parse::<u32>().ok());
        if system.is_guest() {
            // QEMU names the threads of virtual CPUs `CPU 0/TCG`, `CPU 1/KVM`.
            let number = |tid: &u32| {
                let name = read_to_string(format!("/proc/{pid}/task/{tid}/comm")).unwrap_or_default();
                name.strip_prefix("CPU ")?.split('/').next()?.parse::<u32>().ok()
            };
            return tasks
                .filter_map(|tid| Some((number(&tid)?, tid)))
                .max()
                .map(|(_, tid)| Self::of(pid, tid));
        }
        // The second thread measures; the first one prints.
        tasks.filter(|&tid| tid != pid).max().map(|tid| Self::of(pid, tid))
    }

    /// Its folder in `/proc`.
    pub(super) fn folder(self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/task/{}", self.pid, self.tid))
    }

    /// How long it was ready without a CPU since it began, in nanoseconds, by thread: itself, and what it takes turns with.
    pub(super) fn waited_ns(self) -> BTreeMap<u32, u64> {
        let mut folders = BTreeMap::from([(self.tid, self.folder())]);
        if self.has_turns {
            let children = read_to_string(self.folder().join("children")).unwrap_or_default();
            let children = children.split_whitespace().filter_map(|word| word.parse::<u32>().ok());
            folders.extend(children.map(|pid| (pid, PathBuf::from(format!("/proc/{pid}")))));
        }
        let waited = |folder: PathBuf| {
            let schedstat = read_to_string(folder.join("schedstat")).ok()?;
            schedstat.split_whitespace().nth(1)?.parse().ok()
        };
        folders.into_iter().filter_map(|(tid, folder)| Some((tid, waited(folder)?))).collect()
    }
}

/// The processes below `root`, and itself: shell, unshare, shell, probe; five generations with a probe's own processes.
fn family(root: u32) -> Vec<Process> {
    let mut all: Vec<Process> = Vec::new();
    for entry in read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        let Some(pid) = pid else { continue };
        let Ok(stat) = read_to_string(entry.path().join("stat")) else { continue };
        let Some(parent) = fields(&stat).and_then(|fields| field(&fields, 4)) else { continue };
        all.push(Process { pid, parent, stat });
    }
    let mut numbers = vec![root];
    for _ in 0..5 {
        let children = all.iter().filter(|one| numbers.contains(&one.parent) && !numbers.contains(&one.pid));
        let children: Vec<u32> = children.map(|one| one.pid).collect();
        numbers.extend(children);
    }
    all.retain(|one| numbers.contains(&one.pid));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_behind_any_name() {
        let stat = "12 (a) b) S 1 2 3 4 5 6 70 8 90 10";
        let fields = fields(stat).unwrap();
        assert_eq!(
            (field::<u32>(&fields, 4), field::<u64>(&fields, 10), field::<u64>(&fields, 12)),
            (Some(1), Some(70), Some(90))
        );
        assert_eq!(field::<u64>(&fields, 41), None);
    }

    #[test]
    fn a_thread_that_takes_turns_waits_as_all_of_them_do() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let own = Thread::this();
        let alone: Vec<u32> = own.waited_ns().into_keys().collect();
        let together: Vec<u32> = Thread { has_turns: true, ..own }.waited_ns().into_keys().collect();
        let is_in_family = family(std::process::id()).iter().any(|one| one.pid == child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(alone, [own.tid]);
        assert!(together.contains(&own.tid) && together.contains(&child.id()), "{together:?}");
        assert!(is_in_family);
        assert!(Thread::of(u32::MAX, 1).waited_ns().is_empty());
    }
}
