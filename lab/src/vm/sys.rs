// SPDX-License-Identifier: Apache-2.0
//! Processes of a guest that is a program of this machine: none of them outlives the one that was started.
//!
//! In: a command. Out: the same, to be started below two processes that only wait, in namespaces of its own.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, Signal, WaitOptions, getegid, geteuid, kill_process, set_parent_process_death_signal, wait,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::ffi::CStr;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Linux's `struct mount_attr`.
#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

const MOUNT_ATTR_RDONLY: u64 = 1;

/// Makes `command` start in namespaces of its own: of processes, so that all of its processes end when the one that is started ends; of
/// mounts, in which nothing of this machine's file tree can be written, and `/dev/shm` is empty; without root also of users. The started
/// process waits for the command and ends as it does: with its exit status, or 128 and the number of its signal.
pub(super) fn isolate(command: &mut Command) {
    let maps = (!geteuid().is_root()).then(|| {
        let (user, group) = (geteuid().as_raw(), getegid().as_raw());
        [
            ("/proc/self/setgroups", "deny".to_owned()),
            ("/proc/self/uid_map", format!("{user} {user} 1")),
            ("/proc/self/gid_map", format!("{group} {group} 1")),
        ]
    });
    // SAFETY: the closure runs in the child between fork and exec, which has one thread; it makes plain system calls on values that it owns.
    unsafe {
        command.pre_exec(move || {
            let mut flags = UnshareFlags::NEWPID | UnshareFlags::NEWNS;
            if maps.is_some() {
                flags |= UnshareFlags::NEWUSER;
            }
            // Nothing shares a table of descriptors with this process.
            unshare_unsafe(flags)?;
            for (path, text) in maps.iter().flatten() {
                std::fs::File::options().write(true).open(path)?.write_all(text.as_bytes())?;
            }
            protect_files()?;
            second_of_its_namespace()
        });
    }
}

/// Makes all mounts read-only and private, and `/dev/shm` a file system of its own, in which User-mode Linux has its memory.
fn protect_files() -> io::Result<()> {
    const ROOT: &CStr = c"/";
    let attributes = MountAttributes {
        set: MOUNT_ATTR_RDONLY,
        clear: 0,
        propagation: libc::MS_PRIVATE,
        user_namespace: 0,
    };
    // SAFETY: the kernel reads a string and a structure of the given length, which outlive the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            ROOT.as_ptr(),
            libc::AT_RECURSIVE,
            &raw const attributes,
            size_of::<MountAttributes>(),
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    let flags = rustix::mount::MountFlags::NOSUID | rustix::mount::MountFlags::NODEV;
    Ok(rustix::mount::mount(c"tmpfs", c"/dev/shm", c"tmpfs", flags, c"mode=1777,size=0")?)
}

/// Returns in a grandchild of the calling process: the child is the first process of the namespace, and both wait.
fn second_of_its_namespace() -> io::Result<()> {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    mask(libc::SIG_BLOCK);
    if let Some(first) = fork()? {
        // Held until this process ends.
        wait_for(first, write.as_raw_fd());
    }
    drop(write);
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have ended before the call above. Its process number is not visible in here, but its end of the pipe is.
    let mut polled = [PollFd::new(&read, PollFlags::IN)];
    if poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? > 0 {
        return Err(rustix::io::Errno::SRCH.into());
    }
    drop(read);
    if let Some(second) = fork()? {
        wait_for(second, -1);
    }
    mask(libc::SIG_UNBLOCK);
    Ok(())
}

/// A copy of this process: `None` in it, its number here.
fn fork() -> io::Result<Option<Pid>> {
    const NOTHING: libc::c_ulong = 0;
    let flags = libc::c_long::from(libc::SIGCHLD);
    // SAFETY: as fork(2) does, without the C library's handlers: this process has one thread, and takes no lock of the library's.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, NOTHING, NOTHING, NOTHING, NOTHING) };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(i32::try_from(pid).ok().and_then(Pid::from_raw))
}

/// Every signal.
fn all_signals() -> libc::sigset_t {
    // SAFETY: `sigset_t` is a plain structure of numbers, for which all zeros is a value; the call writes one.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        all
    }
}

/// Blocks all signals, or unblocks them.
fn mask(how: libc::c_int) {
    let all = all_signals();
    // SAFETY: the call reads one set of signals, which outlives it. It cannot fail with these arguments.
    unsafe { libc::sigprocmask(how, &raw const all, std::ptr::null_mut()) };
}

/// Waits until the child ends, then ends as it did; SIGTERM kills the child. All signals are blocked. Holds no descriptor but `held`.
fn wait_for(child: Pid, held: RawFd) -> ! {
    let (all, held) = (all_signals(), u32::try_from(held).ok());
    // SAFETY: this process never returns to code that owns a descriptor.
    unsafe {
        if let Some(before) = held.and_then(|held| held.checked_sub(1)) {
            libc::syscall(libc::SYS_close_range, 0, before, 0);
        }
        libc::syscall(libc::SYS_close_range, held.map_or(0, |held| held + 1), u32::MAX, 0);
    }
    let status = loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == child => {
                let signal = status.terminating_signal().map(|signal| 128 + signal);
                break status.exit_status().or(signal).unwrap_or(1);
            }
            // An orphan of the namespace.
            Ok(Some(_)) => continue,
            Ok(None) => {}
            Err(_) => break 1,
        }
        // SAFETY: the call reads one set of signals, which outlives it.
        if unsafe { libc::sigwaitinfo(&raw const all, std::ptr::null_mut()) } == libc::SIGTERM {
            // One that has ended is waited for next.
            let _ = kill_process(child, Signal::KILL);
        }
    };
    // SAFETY: ends this process at once, without handlers that its parent may have registered.
    unsafe { libc::_exit(status) }
}

/// Ends a guest that [`isolate`] keeps together. When its started process is waited for, none of its processes is left.
pub(super) fn end(process: u32) {
    if let Some(process) = i32::try_from(process).ok().and_then(Pid::from_raw) {
        // One that has ended by itself is waited for next.
        let _ = kill_process(process, Signal::TERM);
    }
}
