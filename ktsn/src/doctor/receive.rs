// SPDX-License-Identifier: Apache-2.0
//! Expected arrivals: attachments that grant them to no program, and programs that a CPU quota stops.
//!
//! In: what ktsnd lists, /proc and the CPU controllers of the programs' control groups. Out: findings. Where ktsnd cannot be asked, or
//! no attachment has `receive = "expect"`, there is none.

use std::path::Path;

use ktsn_proto::v1::{AttachmentState, ListRequest};

use super::finding::{Finding, Look};
use super::machine::text;
use crate::control;

const LOOK: Look = Look::at("receive_expect", "ktsnd's List");
const QUOTA: Look = Look::at("receive_cpu_quota", "ktsnd's List, cpu.stat of the programs' control groups");

/// All findings about expected arrivals.
pub(super) fn findings(run_dir: &Path) -> Vec<Finding> {
    let asked = control::runtime().ok().and_then(|runtime| {
        let list = runtime.block_on(async {
            let mut client = control::connect(run_dir).await?;
            control::answer(run_dir, client.list(ListRequest {})).await
        });
        list.ok()
    });
    let attachments = asked.map(|list| list.attachments).unwrap_or_default();
    let groups = |pid: u32| text(format!("/proc/{pid}/cgroup"));
    let mut findings: Vec<Finding> = used(&attachments).into_iter().collect();
    findings.extend(quota(&attachments, groups, Path::new("/sys/fs/cgroup")));
    findings
}

/// Whether programs use what attachments grant.
fn used(attachments: &[AttachmentState]) -> Option<Finding> {
    let granting: Vec<_> = attachments.iter().filter(|state| state.fields()["receive"] == "expect").collect();
    let is_used = |state: &&&AttachmentState| state.clients.iter().any(|client| !client.listeners.is_empty());
    let unused: Vec<&str> =
        granting.iter().filter(|state| !is_used(state)).map(|state| state.name.as_str()).collect();
    if granting.is_empty() {
        return None;
    }
    let meaning = "a program that waits for periodic frames is awake when they come";
    Some(if unused.is_empty() {
        LOOK.ok(format!("{} attachments, all with programs that use it", granting.len()), meaning)
    } else {
        LOOK.warn(format!("receive = \"expect\", and no program uses it: {}", unused.join(", ")),
            meaning,
            "start the program with KTSN_RECEIVE=expect (`ktsn run --receive expect`); it must wait in a blocking call, or in poll, \
             select or epoll, on a UDP or packet socket",
        )
    })
}

/// Programs that expect arrivals and were stopped by a CPU quota; `groups` gives the text of a process's /proc/PID/cgroup.
fn quota(
    attachments: &[AttachmentState],
    groups: impl Fn(u32) -> Option<String>,
    root: &Path,
) -> Option<Finding> {
    let clients = attachments.iter().flat_map(|state| &state.clients);
    let pids =
        clients.filter(|client| client.pid != 0 && !client.listeners.is_empty()).map(|client| client.pid);
    let mut throttled: Vec<String> = pids
        .filter_map(|pid| {
            let (group, times) = throttled_group(&groups(pid)?, root)?;
            Some(format!("process {pid}: {times} times, by the quota of {group}"))
        })
        .collect();
    throttled.sort();
    throttled.dedup();
    (!throttled.is_empty()).then(|| {
        QUOTA.warn(throttled.join("; "),
            "a quota that is used up stops the program until its next period, so it spins less and frames that come then wait",
            "raise the container's CPU limit (cpu.max, cpu.cfs_quota_us), or leave it away: the share that ktsnd grants bounds the \
             spinning",
        )
    })
}

/// The nearest group of a process with a CPU quota that has stopped it, and how often.
fn throttled_group(groups: &str, root: &Path) -> Option<(String, u64)> {
    groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let path = path.trim_start_matches('/');
        // Of version 2 the list of controllers is empty; of version 1 it holds `cpu`, and the hierarchy lies in a directory of its own.
        let hierarchies: &[&str] = match controllers {
            "" => &["", "unified"],
            _ if controllers.split(',').any(|name| name == "cpu") => &["cpu,cpuacct", "cpu"],
            _ => return None,
        };
        hierarchies.iter().find_map(|hierarchy| {
            let top = if hierarchy.is_empty() { root.to_owned() } else { root.join(hierarchy) };
            let ancestors = Path::new(path).ancestors().map(|group| top.join(group));
            ancestors.filter(|group| group.is_dir()).find_map(|group| Some((shown(&group), stopped(&group)?)))
        })
    })
}

fn shown(group: &Path) -> String {
    group.display().to_string()
}

/// How often a group's quota has stopped its processes; `None` without a quota, or where it never did.
fn stopped(group: &Path) -> Option<u64> {
    let file = |name: &str| text(group.join(name));
    let has_quota = file("cpu.max").is_some_and(|max| !max.starts_with("max"))
        || file("cpu.cfs_quota_us").is_some_and(|quota| !quota.starts_with('-'));
    let stat = file("cpu.stat").filter(|_| has_quota)?;
    let times = stat.lines().find_map(|line| line.strip_prefix("nr_throttled ")?.parse().ok())?;
    (times > 0).then_some(times)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::State;
    use ktsn_proto::v1::{Client, Listener};

    fn attachment(name: &str, receive: &str, pids: &[u32]) -> AttachmentState {
        let client =
            |pid: &u32| Client { pid: *pid, listeners: vec![Listener::default()], ..Client::default() };
        AttachmentState {
            name: name.to_owned(),
            attachment: serde_json::json!({ "name": name, "receive": receive }).to_string(),
            clients: pids.iter().map(client).collect(),
            ..AttachmentState::default()
        }
    }

    #[test]
    fn a_grant_that_no_program_uses_is_a_warning() {
        assert_eq!(used(&[]), None);
        assert_eq!(used(&[attachment("a", "kernel", &[])]), None);
        let finding = used(&[attachment("a", "expect", &[7])]).unwrap();
        assert_eq!(finding.state, State::Ok);
        let finding = used(&[attachment("a", "expect", &[7]), attachment("b", "expect", &[])]).unwrap();
        assert!(finding.state == State::Warn && finding.value.ends_with("uses it: b"), "{finding:?}");
        assert!(finding.remedy.unwrap().contains("KTSN_RECEIVE=expect"));
    }

    #[test]
    fn a_quota_that_stopped_a_listener_is_found_in_any_ancestor() {
        let root = tempfile::tempdir().unwrap();
        let group = |path: &str, max: &str, times: u64| {
            let group = root.path().join(path);
            std::fs::create_dir_all(&group).unwrap();
            std::fs::write(group.join("cpu.max"), max).unwrap();
            std::fs::write(group.join("cpu.stat"), format!("usage_usec 7\nnr_throttled {times}\n")).unwrap();
        };
        group("pods/limited", "20000 100000\n", 3);
        group("pods/limited/container", "max 100000\n", 0);
        group("pods/idle", "20000 100000\n", 0);
        group("pods/free", "max 100000\n", 9);
        let at =
            |path: &str| throttled_group(&format!("0::/pods/{path}\n"), root.path()).map(|(_, times)| times);
        assert_eq!(
            [at("limited"), at("limited/container"), at("idle"), at("free"), at("gone")],
            [Some(3), Some(3), None, None, None]
        );
        let old = root.path().join("cpu,cpuacct/docker/c");
        std::fs::create_dir_all(&old).unwrap();
        for (name, value) in [("cpu.cfs_quota_us", "5000"), ("cpu.stat", "nr_periods 9\nnr_throttled 5\n")] {
            std::fs::write(old.join(name), value).unwrap();
        }
        let groups = "5:memory:/docker/c\n4:cpu,cpuacct:/docker/c\n";
        assert_eq!(throttled_group(groups, root.path()).unwrap().1, 5);
        std::fs::write(old.join("cpu.cfs_quota_us"), "-1").unwrap();
        assert_eq!(throttled_group(groups, root.path()), None);

        let of = |pid: u32| Some(format!("0::/pods/{}\n", if pid == 7 { "limited" } else { "free" }));
        let finding = quota(&[attachment("a", "expect", &[7, 8])], of, root.path()).unwrap();
        assert!(finding.value.starts_with("process 7: 3 times, by the quota of "), "{finding:?}");
        assert!(!finding.value.contains("process 8"), "{finding:?}");
        assert_eq!(quota(&[attachment("a", "expect", &[8])], of, root.path()), None);
    }
}
