// SPDX-License-Identifier: Apache-2.0
//! The system calls of the lab: entering a namespace in a child or a thread, passing descriptors on.
//!
//! In: plain values. Out: plain values or the kernel's errno. No state.

use crate::error::LabError;
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal, test_kill_process};
use rustix::thread::{
    CpuSet, LinkNameSpaceType, UnshareFlags, move_into_link_name_space, sched_setaffinity, unshare_unsafe,
};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
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
    unsafe { command.pre_exec(move || enter(&namespace)) };
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
            enter(&namespace)?;
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).map_err(LabError::file(path))
    })
}

/// Makes `command` start in a new network namespace, which ends with its processes.
pub(crate) fn leave_network(command: &mut Command) {
    // SAFETY: the closure runs in the child between fork and exec and makes one system call; the child has one thread and shares no
    // table of descriptors.
    unsafe { command.pre_exec(|| Ok(unshare_unsafe(UnshareFlags::NEWNET)?)) };
}

/// Runs `work` on a thread of its own in a new network namespace, which ends with what was made there.
///
/// # Errors
/// The kernel refuses a new namespace, or `work`'s.
pub(crate) fn in_new_network<T: Send>(
    work: impl FnOnce() -> Result<T, LabError> + Send,
) -> Result<T, LabError> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            // SAFETY: the call concerns the calling thread only, and no table of descriptors.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
                .map_err(|error| LabError::system("a network namespace")(error.into()))?;
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Makes `command` and all its threads run on these CPUs.
pub(crate) fn pin(command: &mut Command, cpus: &[usize]) {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|&cpu| set.set(cpu));
    // SAFETY: the closure runs in the child between fork and exec and makes one system call on a value that it owns.
    unsafe { command.pre_exec(move || Ok(sched_setaffinity(None, &set)?)) };
}

/// Makes a tap device in the calling thread's network namespace: its name (in `name` a `%d` becomes the first free number), and a
/// descriptor for each queue. The device is gone when the last descriptor is closed. `has_header`: a virtio header precedes each frame.
///
/// # Errors
/// The kernel's.
pub(crate) fn open_tap(name: &str, queues: u32, has_header: bool) -> io::Result<(String, Vec<OwnedFd>)> {
    // SAFETY: `ifreq` is a plain structure of numbers, for which all zeros is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{name:?} is too long for a device"),
        ));
    }
    for (to, octet) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = octet.cast_signed();
    }
    let many = if queues > 1 { libc::IFF_MULTI_QUEUE } else { 0 };
    let header = if has_header { libc::IFF_VNET_HDR } else { 0 };
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | header | many;
    let mut ends = Vec::new();
    for _ in 0..queues {
        let end = File::options().read(true).write(true).open("/dev/net/tun")?;
        // The kernel fills in the name's number and writes flags of its own.
        request.ifr_ifru.ifru_flags = flags.try_into().map_err(|_| io::Error::from(Errno::INVAL))?;
        // SAFETY: the descriptor is open, and the kernel reads and writes one `ifreq`, which outlives the call.
        let status = unsafe { libc::ioctl(end.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
        if status != 0 {
            return Err(io::Error::last_os_error());
        }
        ends.push(end.into());
    }
    let octets = request.ifr_name.iter().map(|octet| octet.cast_unsigned());
    let name: Vec<u8> = octets.take_while(|&octet| octet != 0).collect();
    Ok((String::from_utf8_lossy(&name).into_owned(), ends))
}

/// Lets `command` inherit the descriptors under the same numbers, and be killed when its parent thread ends.
pub(crate) fn inherit(command: &mut Command, fds: &[RawFd]) {
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
pub(crate) fn exists(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    // "Not permitted" means that there is one.
    pid.is_some_and(|pid| matches!(test_kill_process(pid), Ok(()) | Err(Errno::PERM)))
}

/// Takes the calling thread into the namespace.
fn enter(namespace: &File) -> io::Result<()> {
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
}
