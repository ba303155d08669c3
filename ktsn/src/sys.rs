// SPDX-License-Identifier: Apache-2.0
//! System calls that no safe wrapper offers.
//!
//! In: plain values. Out: plain values or the kernel's error. Nothing here decides anything, and nothing outlives
//! the call except what a returned value owns.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::thread::{UnshareFlags, unshare_unsafe};

fn checked(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Moves the calling thread, and it alone, into a new network namespace. It ends with the thread.
///
/// # Errors
/// EPERM without CAP_SYS_ADMIN.
pub(crate) fn enter_new_network_namespace() -> io::Result<()> {
    // SAFETY: only the network namespace is left; descriptors stay shared with the other threads.
    Ok(unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?)
}

/// Makes the calling thread SCHED_FIFO with this priority.
///
/// # Errors
/// EPERM without CAP_SYS_NICE or RLIMIT_RTPRIO, or in a control group without a real-time budget.
pub(crate) fn set_fifo(priority: i32) -> io::Result<()> {
    set_scheduler(libc::SCHED_FIFO, priority)
}

/// Makes the calling thread an ordinary one again.
///
/// # Errors
/// The kernel's; none is expected.
pub(crate) fn set_ordinary() -> io::Result<()> {
    set_scheduler(libc::SCHED_OTHER, 0)
}

fn set_scheduler(policy: i32, priority: i32) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: thread 0 is the calling one, and the parameters live across the call.
    checked(unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) }).map(drop)
}

/// `ETHTOOL_GCHANNELS`.
const ETHTOOL_GCHANNELS: u32 = 0x0000_003c;

/// The kernel's `struct ethtool_channels`.
#[repr(C)]
#[derive(Default)]
struct Channels {
    cmd: u32,
    /// Receive, transmit, other, combined.
    max: [u32; 4],
    now: [u32; 4],
}

/// The most queue pairs that a network device can have.
///
/// # Errors
/// ENODEV; EOPNOTSUPP where the driver does not say it; EINVAL for a name that is none.
pub(crate) fn queue_pairs_max(ifname: &str) -> io::Result<u32> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    let mut channels = Channels { cmd: ETHTOOL_GCHANNELS, ..Channels::default() };
    // SAFETY: ifreq is plain data, for which zeros are a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if ifname.is_empty() || ifname.len() >= request.ifr_name.len() {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(ifname.bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_data = (&raw mut channels).cast();
    let raw = std::os::fd::AsRawFd::as_raw_fd(&socket);
    // SAFETY: the request is NUL-terminated (checked above) and points to `channels`; both live across the call.
    checked(unsafe { libc::ioctl(raw, libc::SIOCETHTOOL, &raw mut request) })?;
    let [receive, transmit, _, combined] = channels.max;
    Ok(combined + receive.min(transmit))
}

/// A signal that was sent to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrived {
    /// The number of the signal.
    pub(crate) signal: i32,
    /// Sent by the terminal to the whole foreground group, so our child has it already.
    pub(crate) by_terminal: bool,
}

/// Signals that are read instead of ending this process.
pub(crate) struct Signals {
    fd: OwnedFd,
    mask_before: libc::sigset_t,
}

impl Signals {
    /// From now on these signals wait here. A child inherits that, unless [`Signals::unhold_in`] spares it.
    ///
    /// # Errors
    /// The kernel's; out of descriptors is the only one expected.
    pub(crate) fn hold(signals: &[i32]) -> io::Result<Self> {
        // SAFETY: all-zero is storage for a set; sigemptyset makes it one before it is used.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: the set lives across the calls, and sigaddset refuses numbers that are no signal.
        unsafe { libc::sigemptyset(&raw mut set) };
        for signal in signals {
            // SAFETY: as above.
            checked(unsafe { libc::sigaddset(&raw mut set, *signal) })?;
        }
        // SAFETY: all-zero is storage for a set, which the next call fills in.
        let mut mask_before: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: both sets live across the call.
        checked(unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, &raw mut mask_before) })?;
        // SAFETY: a valid set; −1 asks for a new descriptor.
        let fd =
            checked(unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) })?;
        // SAFETY: the kernel just made this descriptor for us.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) }, mask_before })
    }

    /// The child starts with the signal mask that we were started with.
    pub(crate) fn unhold_in(&self, command: &mut Command) {
        let mask = self.mask_before;
        // SAFETY: a valid set that the closure owns; the current mask is not asked for.
        let restore =
            move || unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const mask, std::ptr::null_mut()) };
        // SAFETY: the closure makes one system call and allocates nothing.
        unsafe { command.pre_exec(move || checked(restore()).map(drop)) };
    }

    /// The next one that waits, if any.
    pub(crate) fn next(&self) -> Option<Arrived> {
        const OCTETS: usize = size_of::<libc::signalfd_siginfo>();
        let mut octets = [0_u8; OCTETS];
        let read = rustix::io::read(&self.fd, &mut octets[..]).ok()?;
        let word = |at| i32::from_ne_bytes([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]]);
        // struct signalfd_siginfo begins with ssi_signo, ssi_errno, ssi_code.
        (read == OCTETS).then(|| Arrived { signal: word(0), by_terminal: word(8) == libc::SI_KERNEL })
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Sends a signal to a child of ours that was not waited for yet. A child that has ended is no error.
pub(crate) fn send_signal(child: &std::process::Child, signal: i32) {
    let Ok(pid) = i32::try_from(child.id()) else { return };
    // SAFETY: kill touches no memory; the child was not waited for, so its number is still its own.
    unsafe { libc::kill(pid, signal) };
}

/// The child gets SIGTERM when this thread ends, however it ends.
pub(crate) fn end_with_us(command: &mut Command) {
    let parent = rustix::process::getpid();
    let before_exec = move || {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
        // Between fork and the line above we may have lost the parent already.
        if rustix::process::getppid() == Some(parent) {
            Ok(())
        } else {
            Err(io::ErrorKind::BrokenPipe.into())
        }
    };
    // SAFETY: the closure makes two system calls and allocates nothing.
    unsafe { command.pre_exec(before_exec) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gets_a_namespace_of_its_own() {
        let inode = || std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        let outside = inode();
        let inside =
            std::thread::spawn(move || enter_new_network_namespace().map(|()| inode())).join().unwrap();
        if let Ok(inside) = inside {
            assert_ne!(inside, outside);
        }
        assert_eq!(inode(), outside);
    }
}
