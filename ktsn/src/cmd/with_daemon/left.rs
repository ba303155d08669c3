// SPDX-License-Identifier: Apache-2.0
//! Processes that a program left behind when it went to the background, as daemon(3) does.
//!
//! In: /proc. Out: a wait that ends with them. A process counts if it descends from us, has a session of its own (a job in a shell's background
//! has not), and has libktsn mapped. Others are not waited for.

use std::collections::HashMap;
use std::io;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, waitpid};

use super::Daemon;
use crate::sys::Signals;

/// Between two looks: nothing tells of the end of another process's child.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Looks, and the pause between them, for which a child of a program that ended may be without a session of its own.
const SESSION_LOOKS_MAX: u32 = 30;
const SESSION_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// From now on, processes whose parents end become our children, so that they can be found.
///
/// # Errors
/// The kernel's; none is expected.
pub(super) fn adopt() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// What /proc/PID/stat says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Process {
    name: String,
    is_zombie: bool,
    parent: i32,
    session: i32,
}

impl Process {
    /// The name is in brackets and may hold any character.
    fn read(stat: &str) -> Option<Self> {
        let (_, rest) = stat.split_once('(')?;
        let (name, rest) = rest.rsplit_once(')')?;
        let mut fields = rest.split_whitespace();
        let is_zombie = matches!(fields.next()?, "Z" | "X");
        let parent = fields.next()?.parse().ok()?;
        let session = fields.nth(1)?.parse().ok()?;
        Some(Self { name: name.to_owned(), is_zombie, parent, session })
    }
}

fn processes() -> HashMap<i32, Process> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| {
        let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
        Some((pid, Process::read(&String::from_utf8_lossy(&stat))?))
    })
    .collect()
}

/// The descendants of `ancestor` whose session `is_meant`; not `except`, nor what descends from it.
fn descendants(
    all: &HashMap<i32, Process>,
    ancestor: i32,
    is_meant: impl Fn(i32) -> bool,
    except: i32,
) -> Vec<i32> {
    let descends = |pid: i32| {
        let mut at = pid;
        // As deep as there are processes: the parents of a moment may form a ring.
        for _ in 0..all.len() {
            match all.get(&at).map(|process| process.parent) {
                _ if at == except => return false,
                Some(parent) if parent == ancestor => return true,
                Some(parent) => at = parent,
                None => return false,
            }
        }
        false
    };
    let mut found: Vec<i32> = all
        .iter()
        .filter(|(_, process)| !process.is_zombie && is_meant(process.session))
        .map(|(pid, _)| *pid)
        .filter(|pid| descends(*pid))
        .collect();
    found.sort_unstable();
    found
}

/// Whether libktsn is in a process's memory; one whose map cannot be read may have it.
fn has_library(pid: i32) -> bool {
    std::fs::read(format!("/proc/{pid}/maps")).map_or_else(
        |error| error.kind() == io::ErrorKind::PermissionDenied,
        |maps| String::from_utf8_lossy(&maps).contains("/libktsn.so"),
    )
}

fn left(daemon: i32) -> Left {
    let (all, us) = (processes(), getpid().as_raw_nonzero().get());
    // Those that ended as our children wait for us.
    for (pid, _) in
        all.iter().filter(|(pid, process)| process.is_zombie && process.parent == us && **pid != daemon)
    {
        let _ = waitpid(Pid::from_raw(*pid), WaitOptions::NOHANG);
    }
    // 0 where its first process is outside our PID namespace: ours and our jobs' alike.
    let session = all.get(&us).map_or(0, |process| process.session);
    let of = |is_own: bool| descendants(&all, us, |other| (other == session) == is_own, daemon);
    let found = of(false).into_iter().filter(|pid| has_library(*pid));
    Left {
        processes: found.filter_map(|pid| Some((Pid::from_raw(pid)?, all[&pid].name.clone()))).collect(),
        has_jobs: of(true).into_iter().any(has_library),
    }
}

/// What a program left behind.
struct Left {
    /// In sessions of their own: number and name.
    processes: Vec<(Pid, String)>,
    /// Others are in our session: jobs in a shell's background, or one that has not got its session yet.
    has_jobs: bool,
}

/// Waits until the processes are gone that the program left behind. Signals go to them; a second one ends the wait.
pub(super) fn wait(daemon: &mut Daemon, signals: &Signals) {
    let number = i32::try_from(daemon.child.id()).unwrap_or(0);
    let (mut is_told, mut signals_count) = (false, 0);
    // The parent ends before its child asks for a session (daemon(3)).
    for _ in 0..SESSION_LOOKS_MAX {
        let now = left(number);
        if !now.processes.is_empty() || !now.has_jobs {
            break;
        }
        let _ = poll(&mut [PollFd::new(&daemon.ended, PollFlags::IN)], Some(&SESSION_PAUSE));
    }
    loop {
        let left = left(number).processes;
        if left.is_empty() || signals_count > 1 || !matches!(daemon.child.try_wait(), Ok(None)) {
            return;
        }
        if !is_told {
            let shown: Vec<String> =
                left.iter().map(|(pid, name)| format!("{name} (process {pid})")).collect();
            eprintln!(
                "ktsn run: the program went to the background: {} still runs, and ktsnd serves it until it ends; a signal to \
                 this process ends it",
                shown.join(", ")
            );
            is_told = true;
        }
        let mut watched = [PollFd::new(signals, PollFlags::IN), PollFd::new(&daemon.ended, PollFlags::IN)];
        let _ = poll(&mut watched, Some(&PAUSE));
        while let Some(signal) = signals.next().and_then(|arrived| Signal::from_named_raw(arrived.signal)) {
            signals_count += u32::from(signal != Signal::WINCH);
            for (pid, _) in &left {
                let _ = kill_process(*pid, signal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_descends_from_us_in_a_session_of_its_own_is_left() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560";
        let read = Process::read(stat).unwrap();
        assert_eq!((read.name.as_str(), read.parent, read.session, read.is_zombie), ("a) b (c", 1, 7, false));
        assert!(Process::read("7 (a) Z 1 7 7").unwrap().is_zombie);
        assert_eq!(Process::read("7 a S 1"), None);
        let of = |parent: i32, session: i32, is_zombie: bool| Process {
            name: String::new(),
            is_zombie,
            parent,
            session,
        };
        let all = HashMap::from([
            (100, of(1, 50, false)),
            // ktsnd and a child of its own.
            (101, of(100, 60, false)),
            (102, of(101, 60, false)),
            // A job in the background of our session, and a process of it that has its own.
            (103, of(100, 50, false)),
            (104, of(103, 104, false)),
            (105, of(100, 105, false)),
            (106, of(100, 106, true)),
            // Others', one of them in a ring.
            (107, of(1, 107, false)),
            (108, of(109, 108, false)),
            (109, of(108, 109, false)),
        ]);
        assert_eq!(descendants(&all, 100, |session| session != 50, 101), [104, 105]);
        assert_eq!(descendants(&all, 100, |session| session == 50, 101), [103]);
    }
}
