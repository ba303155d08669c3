// SPDX-License-Identifier: Apache-2.0
//! What this process may do: capabilities, real-time scheduling, locked memory.
//!
//! In: this process's credentials, limits and control group. Out: findings. Real-time scheduling is tried on a thread
//! that ends at once: limits, capabilities and control groups decide together, and only the kernel knows how.

use std::io;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};
use rustix::thread::CapabilitySet;

use super::finding::{Finding, Look};
use super::machine::text;
use crate::sys;

/// ktsnd's worker (docs/interfaces.md, Port: priority).
const WORKER_PRIORITY: i32 = 50;
/// ktsnd with one client, and a little.
const MEMLOCK_OCTETS_MIN: u64 = 64 << 20;

/// All findings about rights; `daemon_elsewhere` when a ktsnd serves already, so that we need none ourselves.
pub(super) fn findings(daemon_elsewhere: bool) -> Vec<Finding> {
    let held = rustix::thread::capabilities(None).map(|sets| sets.effective);
    let mut findings: Vec<Finding> = capabilities(&held.map_err(io::Error::from));
    let held = held.unwrap_or(CapabilitySet::empty());
    findings.push(fifo(held));
    findings.push(throttling());
    findings.push(control_group());
    findings.push(locked_memory(held));
    findings.into_iter().map(|finding| finding.milder_if(daemon_elsewhere)).collect()
}

fn capabilities(held: &io::Result<CapabilitySet>) -> Vec<Finding> {
    let one = |id: &'static str, bit: CapabilitySet, needed: bool, meaning: &str| {
        let (look, name) = (Look::at(id, "capget: the effective set of this process"), id.to_uppercase());
        let held = match held {
            Ok(held) => held,
            Err(error) => {
                return look.not_known(format!("capget: {error}"), meaning, "allow capget(2) in the sandbox");
            }
        };
        if held.contains(bit) {
            return look.ok("held", meaning);
        }
        let remedy = format!(
            "run ktsnd as root, or give it {name} (systemd: AmbientCapabilities=); programs under libktsn need none"
        );
        let finding = look.fail("not held", meaning, remedy);
        finding.milder_if(!needed)
    };
    vec![
        one(
            "cap_net_admin",
            CapabilitySet::NET_ADMIN,
            true,
            "ktsnd binds AF_XDP and enters pods' namespaces with it",
        ),
        one("cap_net_raw", CapabilitySet::NET_RAW, true, "ktsnd opens its ports with it"),
        one(
            "cap_ipc_lock",
            CapabilitySet::IPC_LOCK,
            false,
            "ktsnd locks its memory, so that no page fault delays a frame",
        ),
        one("cap_sys_nice", CapabilitySet::SYS_NICE, false, "ktsnd's worker becomes SCHED_FIFO with it"),
    ]
}

fn fifo(held: CapabilitySet) -> Finding {
    const LOOK: Look =
        Look::at("sched_fifo", "sched_setscheduler on a thread that ends at once, getrlimit(RLIMIT_RTPRIO)");
    let limit = getrlimit(Resource::Rtprio).current.unwrap_or(u64::MAX);
    let tried = std::thread::spawn(|| {
        // Ordinary again before anything else happens: two system calls are all that runs under FIFO.
        sys::set_fifo(WORKER_PRIORITY).and_then(|()| sys::set_ordinary())
    });
    match tried.join() {
        Ok(Ok(())) => LOOK
            .ok(format!("priority {WORKER_PRIORITY} was granted"), "the worker runs before ordinary threads"),
        Ok(Err(error)) => LOOK.warn(
            format!("priority {WORKER_PRIORITY}: {error} (RLIMIT_RTPRIO {limit})"),
            "the worker is an ordinary thread: under load frames leave late, and are counted as overrun",
            if held.contains(CapabilitySet::SYS_NICE) {
                "the control group has no real-time budget: see rt_budget"
            } else {
                "grant CAP_SYS_NICE to ktsnd, or raise RLIMIT_RTPRIO to 50 (systemd: LimitRTPRIO=50)"
            },
        ),
        Err(_) => LOOK.not_known(
            "the trial ended early",
            "whether the worker can be a FIFO thread is unknown",
            "report it: this is a fault of doctor",
        ),
    }
}

fn throttling() -> Finding {
    const LOOK: Look = Look::at(
        "rt_throttling",
        "/proc/sys/kernel/sched_rt_runtime_us, /proc/sys/kernel/sched_rt_period_us",
    );
    let read =
        |name: &str| text(format!("/proc/sys/kernel/{name}")).and_then(|text| text.parse::<i64>().ok());
    let (Some(runtime), Some(period)) = (read("sched_rt_runtime_us"), read("sched_rt_period_us")) else {
        return LOOK.not_known(
            "unknown",
            "how much CPU time real-time threads get is unknown",
            "mount /proc",
        );
    };
    let value = format!("{runtime} of {period} µs");
    match runtime {
        0 => LOOK.warn(value,
            "no real-time thread may run at all",
            "sysctl -w kernel.sched_rt_runtime_us=950000",
        ),
        _ if runtime >= 0 && runtime < period * 85 / 100 => LOOK.warn(value,
            "less than the worker's spin duty (80 %) and the listeners need: real-time threads pause each period",
            "sysctl -w kernel.sched_rt_runtime_us=950000, or lower spin_duty_max",
        ),
        _ => LOOK.ok(value, "enough for a worker whose spin duty is capped at 80 %"),
    }
}

fn control_group() -> Finding {
    const LOOK: Look = Look::at("rt_budget", "/proc/self/cgroup, /proc/self/mountinfo, cpu.rt_runtime_us");
    let (Some(groups), Some(mounts)) = (text("/proc/self/cgroup"), text("/proc/self/mountinfo")) else {
        let meaning = "whether this control group limits real-time threads is unknown";
        return LOOK.not_known("unknown", meaning, "mount /proc");
    };
    let Some(folder) = rt_group(&groups, &mounts) else {
        return LOOK.ok(
            "no control group v1 cpu controller",
            "real-time time is limited by rt_throttling only (sched_fifo tells whether it is granted)",
        );
    };
    let file = folder.join("cpu.rt_runtime_us");
    match text(&file).and_then(|text| text.parse::<i64>().ok()) {
        None if file.exists() => LOOK.not_known(
            format!("{} cannot be read", file.display()),
            "whether threads of this control group may be SCHED_FIFO is unknown",
            "run doctor as a user who may read it",
        ),
        None if !folder.is_dir() => LOOK.not_known(
            format!("{} is not there", folder.display()),
            "whether threads of this control group may be SCHED_FIFO is unknown",
            "run doctor where the control groups are mounted",
        ),
        None => LOOK.ok("groups have no real-time budgets", "only rt_throttling limits real-time threads"),
        Some(0) => LOOK.warn(
            format!("{} is 0", file.display()),
            "no thread of this control group may be SCHED_FIFO",
            format!("echo 800000 > {} (its parents need as much first)", file.display()),
        ),
        Some(micros) => LOOK.ok(
            format!("{micros} µs a period in {}", folder.display()),
            "threads of this group may be SCHED_FIFO",
        ),
    }
}

/// The folder of our group in the v1 hierarchy of the cpu controller.
fn rt_group(groups: &str, mounts: &str) -> Option<PathBuf> {
    let group = groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let controllers = parts.next()?;
        let path = parts.next()?;
        controllers.split(',').any(|name| name == "cpu").then(|| path.to_owned())
    })?;
    // "36 25 0:31 / /sys/fs/cgroup/cpu rw … - cgroup cgroup rw,cpu": the root that is mounted, and where.
    let (root, place) = mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        let is_v1 = right.next() == Some("cgroup");
        let has_cpu = right.nth(1).is_some_and(|options| options.split(',').any(|option| option == "cpu"));
        let left: Vec<&str> = left.split(' ').collect();
        (is_v1 && has_cpu).then(|| Some(((*left.get(3)?).to_owned(), (*left.get(4)?).to_owned())))?
    })?;
    let below = group.strip_prefix(root.trim_end_matches('/')).unwrap_or("/");
    // Collected again, for joining an empty path would leave a slash at the end.
    Some(Path::new(&place).join(below.trim_start_matches('/')).components().collect())
}

fn locked_memory(held: CapabilitySet) -> Finding {
    const LOOK: Look = Look::at("locked_memory", "getrlimit(RLIMIT_MEMLOCK), capget");
    let meaning = "ktsnd locks its memory and the clients' regions";
    let limit = getrlimit(Resource::Memlock).current;
    let shown = limit.map_or_else(|| "unlimited".to_owned(), |octets| format!("{} KiB", octets / 1024));
    if held.contains(CapabilitySet::IPC_LOCK) {
        return LOOK.ok(format!("limit {shown}, CAP_IPC_LOCK held"), meaning);
    }
    if limit.is_none_or(|octets| octets >= MEMLOCK_OCTETS_MIN) {
        return LOOK.ok(format!("limit {shown}"), meaning);
    }
    LOOK.warn(
        format!("limit {shown}"),
        format!("{meaning}; page faults may delay frames"),
        "grant CAP_IPC_LOCK to ktsnd, or raise RLIMIT_MEMLOCK to 64 MiB (systemd: LimitMEMLOCK=64M)",
    )
}

#[cfg(test)]
mod tests {
    use super::super::finding::State;
    use super::*;

    #[test]
    fn missing_capabilities_are_told_by_weight() {
        let states: Vec<State> =
            capabilities(&Ok(CapabilitySet::empty())).iter().map(|finding| finding.state).collect();
        assert_eq!(states, [State::Fail, State::Fail, State::Warn, State::Warn]);
        let blind = capabilities(&Err(io::ErrorKind::PermissionDenied.into()));
        assert!(blind.iter().all(|finding| finding.state == State::NotKnown), "{blind:?}");
        assert!(capabilities(&Ok(CapabilitySet::all())).iter().all(|finding| finding.state == State::Ok));
    }

    #[test]
    fn the_groups_folder_is_found() {
        let mounts = "30 1 0:9 / /sys rw - sysfs sysfs rw\n\
                      31 30 0:27 / /sys/fs/cgroup/unified rw shared:1 - cgroup2 cgroup2 rw\n\
                      36 30 0:31 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct";
        let groups = "3:cpuset:/\n2:cpuacct,cpu:/docker/ab\n0::/";
        assert_eq!(rt_group(groups, mounts).unwrap(), Path::new("/sys/fs/cgroup/cpu,cpuacct/docker/ab"));
        // In a container the group itself is mounted.
        let inside = mounts.replace("0:31 /", "0:31 /docker/ab");
        assert_eq!(rt_group(groups, &inside).unwrap(), Path::new("/sys/fs/cgroup/cpu,cpuacct"));
        assert_eq!(rt_group("0::/user.slice", mounts), None);
        assert_eq!(rt_group("", ""), None);
    }
}
