// SPDX-License-Identifier: Apache-2.0
//! The system calls of the lab: entering a namespace in a child or a thread, passing descriptors on.
//!
//! In: plain values. Out: plain values or the kernel's errno. No state.

use crate::error::LabError;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Makes `command` start in the named namespace (`/run/netns/NAME`).
///
/// # Errors
/// There is no such namespace.
pub(crate) fn enter_namespace(command: &mut Command, name: &str) -> Result<(), LabError> {
    let path = format!("/run/netns/{name}");
    let namespace = File::open(&path).map_err(LabError::file(&path))?;
    // SAFETY: the closure runs in the child between fork and exec and makes one system call on a descriptor that it
    // owns; it neither allocates nor locks.
    unsafe {
        command.pre_exec(move || checked(libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET)));
    }
    Ok(())
}

/// Runs `work` on a thread of its own inside the named namespace; sockets made there stay of that namespace.
///
/// # Errors
/// There is no such namespace, or the kernel refuses to enter it.
pub(crate) fn within<T: Send>(
    name: &str,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> Result<T, LabError> {
    let path = format!("/run/netns/{name}");
    let namespace = File::open(&path).map_err(LabError::file(&path))?;
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            // SAFETY: setns takes two integers and changes this thread only, which ends with the closure.
            checked(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) })?;
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).map_err(LabError::file(path))
    })
}

/// Lets `command` inherit `fd` under the same number, and be killed when its parent thread ends.
pub(crate) fn inherit(command: &mut Command, fd: Option<RawFd>) {
    let parent = std::process::id();
    // SAFETY: the closure runs in the child between fork and exec and makes plain system calls only; `fd` is a number
    // that the caller keeps open until after the spawn.
    unsafe {
        command.pre_exec(move || {
            checked(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
            if u32::try_from(libc::getppid()) != Ok(parent) {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            fd.map_or(Ok(()), |fd| checked(libc::fcntl(fd, libc::F_SETFD, 0)))
        });
    }
}

/// Whether a process of this number exists.
pub(crate) fn exists(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    // "Not permitted" means that there is one.
    pid.is_some_and(|pid| matches!(test_kill_process(pid), Ok(()) | Err(Errno::PERM)))
}

fn checked(status: libc::c_int) -> io::Result<()> {
    if status == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
