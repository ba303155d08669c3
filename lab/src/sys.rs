// SPDX-License-Identifier: Apache-2.0
//! The system calls of the lab: entering a namespace in a child, waiting with its CPU time, asking for SCHED_FIFO.
//!
//! In: plain values. Out: plain values or the kernel's errno. No state.

use crate::error::LabError;
use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

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

/// How a child ended, and the CPU time it used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    /// The raw wait status.
    pub(crate) status: i32,
    /// User and system time.
    pub(crate) cpu: Duration,
}

/// Waits for one child; `None` when it still runs and `block` is false.
pub(crate) fn wait(pid: u32, block: bool) -> io::Result<Option<Ended>> {
    let pid = i32::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut status = 0;
    loop {
        // SAFETY: rusage is plain data for which all-zero is valid; both out-pointers live across the call.
        let (waited, usage) = unsafe {
            let mut usage: libc::rusage = mem::zeroed();
            let options = if block { 0 } else { libc::WNOHANG };
            (libc::wait4(pid, &raw mut status, options, &raw mut usage), usage)
        };
        match waited {
            0 => return Ok(None),
            -1 => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            _ => {
                let cpu = span(usage.ru_utime) + span(usage.ru_stime);
                return Ok(Some(Ended { status, cpu }));
            }
        }
    }
}

fn span(time: libc::timeval) -> Duration {
    let micros = u64::try_from(time.tv_usec).unwrap_or(0);
    Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0)) + Duration::from_micros(micros)
}

/// Sends `signal` to a child that was not waited for yet.
pub(crate) fn signal(pid: u32, signal: i32) -> io::Result<()> {
    let pid = i32::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: kill takes two integers and touches no memory.
    checked(unsafe { libc::kill(pid, signal) })
}

/// Whether a process of this number exists.
pub(crate) fn exists(pid: u32) -> bool {
    // Signal 0 only asks; "not permitted" means that somebody is there.
    signal(pid, 0).map_or_else(|error| error.raw_os_error() == Some(libc::EPERM), |()| true)
}

fn checked(status: libc::c_int) -> io::Result<()> {
    if status == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
