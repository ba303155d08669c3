// SPDX-License-Identifier: Apache-2.0
//! System calls: entering a namespace in a child or a thread, passing descriptors on.
//!
//! In: plain values. Out: plain values or the kernel's errno. No state.

use crate::error::HostError;
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal, test_kill_process};
use rustix::thread::{
    CpuSet, LinkNameSpaceType, UnshareFlags, move_into_link_name_space, sched_setaffinity, unshare_unsafe,
};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Makes `command` start in the named namespace (`/run/netns/NAME`).
///
/// # Errors
/// There is no such namespace.
pub fn enter_namespace(command: &mut Command, name: &str) -> Result<(), HostError> {
    let path = format!("/run/netns/{name}");
    let namespace = File::open(&path).map_err(HostError::file(&path))?;
    // SAFETY: the closure runs in the child between fork and exec and makes one system call on a descriptor that it
    // owns; it neither allocates nor locks.
    unsafe { command.pre_exec(move || enter(&namespace)) };
    Ok(())
}

/// Runs `work` on a thread of its own inside the named namespace; sockets made there stay of that namespace.
///
/// # Errors
/// There is no such namespace, or the kernel refuses to enter it.
pub fn within<T: Send>(name: &str, work: impl FnOnce() -> io::Result<T> + Send) -> Result<T, HostError> {
    let path = format!("/run/netns/{name}");
    let namespace = File::open(&path).map_err(HostError::file(&path))?;
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            enter(&namespace)?;
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).map_err(HostError::file(path))
    })
}

/// Makes `command` start in a new network namespace, which ends with its processes.
pub fn leave_network(command: &mut Command) {
    // SAFETY: the closure runs in the child between fork and exec and makes one system call; the child has one thread and shares no
    // table of descriptors.
    unsafe { command.pre_exec(|| Ok(unshare_unsafe(UnshareFlags::NEWNET)?)) };
}

/// Runs `work` on a thread of its own in a new network namespace, which ends with what was made there.
///
/// # Errors
/// The kernel refuses a new namespace, or `work`'s.
pub fn in_new_network<T: Send>(work: impl FnOnce() -> Result<T, HostError> + Send) -> Result<T, HostError> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            // SAFETY: the call concerns the calling thread only, and no table of descriptors.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
                .map_err(|error| HostError::system("a network namespace")(error.into()))?;
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Makes `command` and all its threads run on these CPUs.
pub fn pin(command: &mut Command, cpus: &[usize]) {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|&cpu| set.set(cpu));
    // SAFETY: the closure runs in the child between fork and exec and makes one system call on a value that it owns.
    unsafe { command.pre_exec(move || Ok(sched_setaffinity(None, &set)?)) };
}

/// Lets `command` inherit the descriptors under the same numbers, and be killed when its parent thread ends.
pub fn inherit(command: &mut Command, fds: &[RawFd]) {
    let (parent, fds) = (getpid(), fds.to_vec());
    // SAFETY: the closure runs in the child between fork and exec and makes plain system calls only; `fds` are numbers
    // that the caller keeps open until after the spawn.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            if getppid() != Some(parent) {
                return Err(Errno::SRCH.into());
            }
            fds.iter().try_for_each(|&fd| Ok(fcntl_setfd(BorrowedFd::borrow_raw(fd), FdFlags::empty())?))
        });
    }
}

/// Whether a process of this number exists.
pub fn exists(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    // "Not permitted" means that there is one.
    pid.is_some_and(|pid| matches!(test_kill_process(pid), Ok(()) | Err(Errno::PERM)))
}

/// Takes the calling thread into the namespace.
fn enter(namespace: &File) -> io::Result<()> {
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
}
