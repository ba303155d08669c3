// SPDX-License-Identifier: Apache-2.0
//! Scheduling and memory of this process, a socket's namespace, readiness: what neither std nor rustix nor tokio's safe
//! part offers.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use ktsn_time::Nanos;
use tokio::io::unix::AsyncFd;

/// Gives the calling thread SCHED_FIFO with `priority`; 0 leaves it as it is.
pub(crate) fn set_fifo(priority: u32) -> io::Result<()> {
    if priority == 0 {
        return Ok(());
    }
    let param = libc::sched_param { sched_priority: priority as libc::c_int };
    // SAFETY: `param` is a valid structure for the call; pid 0 is the calling thread.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const param) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Moves the calling thread, and it alone, into a new network namespace. It ends with the thread and what the thread opened in it.
pub(crate) fn enter_new_network_namespace() -> io::Result<()> {
    // SAFETY: only the network namespace is left; descriptors stay shared with the other threads.
    Ok(unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }?)
}

/// Reads a socket's option, or asks by it: what `octets` holds goes in, what the kernel writes comes back. Returns how many octets are
/// valid.
pub(crate) fn socket_option(
    socket: impl AsFd,
    level: libc::c_int,
    name: libc::c_int,
    octets: &mut [u8],
) -> io::Result<usize> {
    let mut length = octets.len() as libc::socklen_t;
    // SAFETY: `octets` is valid for reads and writes of `length` octets and lives through the call; the descriptor is borrowed, so it is
    // open.
    let result = unsafe {
        let place = octets.as_mut_ptr().cast();
        libc::getsockopt(socket.as_fd().as_raw_fd(), level, name, place, &raw mut length)
    };
    if result == 0 { Ok(length as usize) } else { Err(io::Error::last_os_error()) }
}

/// Sets a socket's option.
pub(crate) fn set_socket_option(
    socket: impl AsFd,
    level: libc::c_int,
    name: libc::c_int,
    octets: &[u8],
) -> io::Result<()> {
    let length = octets.len() as libc::socklen_t;
    // SAFETY: as for `socket_option`; the kernel only reads.
    let result =
        unsafe { libc::setsockopt(socket.as_fd().as_raw_fd(), level, name, octets.as_ptr().cast(), length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Attaches a classic BPF program, each of its instructions as code, two jumps and a number: the socket receives what it lets pass.
pub(crate) fn attach_filter(socket: impl AsFd, program: &[(u16, u8, u8, u32)]) -> io::Result<()> {
    let instruction = |&(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k };
    let mut instructions: Vec<libc::sock_filter> = program.iter().map(instruction).collect();
    let program = libc::sock_fprog { len: instructions.len() as u16, filter: instructions.as_mut_ptr() };
    // SAFETY: `program` is a valid structure, and what it points to lives through the call, which copies it.
    let result = unsafe {
        let (place, octets) = ((&raw const program).cast(), size_of::<libc::sock_fprog>() as libc::socklen_t);
        libc::setsockopt(socket.as_fd().as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, place, octets)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// SO_NETNS_COOKIE: which network namespace a socket belongs to; unique until the next boot.
pub(crate) fn netns_cookie(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut cookie = [0; 8];
    socket_option(socket, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, &mut cookie)?;
    Ok(u64::from_ne_bytes(cookie))
}

/// The cookie of the network namespace that the calling thread is in.
pub(crate) fn own_netns_cookie() -> io::Result<u64> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    netns_cookie(socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?.as_fd())
}

/// Readiness of a descriptor, reported by the current runtime.
pub(crate) fn readiness(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: `OwnedFd` owns an open descriptor and gives it out by reference only, so it is neither closed nor
    // replaced while registered.
    unsafe { AsyncFd::register(descriptor) }.map_err(Into::into)
}

/// Larger allocations (a client's payloads, a capture's) return to the kernel when they are freed, and zeros cost no page before
/// they are written. By default glibc learns from the first free to keep such memory, and to write its zeros.
pub(crate) fn give_memory_back() {
    // SAFETY: mallopt takes two numbers; where it refuses, nothing has changed.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10);
    }
}

/// What adjtimex returns and fills in. Nothing is changed.
fn adjtimex() -> (libc::c_int, libc::timex) {
    // SAFETY: all-zero is a valid `timex`, and a call without modes only fills it.
    unsafe {
        let mut timex: libc::timex = std::mem::zeroed();
        (libc::adjtimex(&raw mut timex), timex)
    }
}

/// The kernel's clock discipline: whether it is synchronised, and TAI − UTC in seconds as the kernel knows it.
pub(crate) fn clock_state() -> (bool, i32) {
    let (state, timex) = adjtimex();
    (state >= 0 && state != libc::TIME_ERROR && timex.status & libc::STA_UNSYNC == 0, timex.tai)
}

/// Whether it is synchronised, and the greatest error that its discipliner admits; `None` where the kernel does not tell.
pub(crate) fn clock_discipline() -> Option<(bool, Nanos)> {
    let (state, timex) = adjtimex();
    let is_synchronised = state != libc::TIME_ERROR && timex.status & libc::STA_UNSYNC == 0;
    // `maxerror` is in microseconds.
    (state >= 0).then(|| (is_synchronised, Nanos::from_micros(timex.maxerror.max(0))))
}
