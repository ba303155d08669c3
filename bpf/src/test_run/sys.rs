// SPDX-License-Identifier: Apache-2.0
//! BPF_PROG_TEST_RUN: the kernel runs a program on a frame that no device has received.

use std::ffi::c_long;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use crate::sys::{address, bpf, number};

const PROG_TEST_RUN: c_long = 10;

#[repr(C)]
struct TestRun {
    program: u32,
    result: u32,
    octets_in: u32,
    octets_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    context_octets_in: u32,
    context_octets_out: u32,
    context_in: u64,
    context_out: u64,
}

/// Gives the calling thread a network namespace of its own.
pub(crate) fn own_network() -> io::Result<()> {
    // SAFETY: only the network is unshared; descriptors stay common to all threads.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }.map_err(Into::into)
}

/// A device that lives as long as its descriptor.
pub(crate) struct Tap {
    _descriptor: std::fs::File,
    pub(crate) ifindex: u32,
}

/// Makes a tap of this name in the calling thread's network namespace.
pub(crate) fn tap(name: &str) -> io::Result<Tap> {
    let descriptor = std::fs::File::options().read(true).write(true).open("/dev/net/tun")?;
    // SAFETY: ifreq is plain data for which all-zero is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name[..15].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: TUNSETIFF takes an ifreq, which lives through the call; the name ends with a zero.
    let status = unsafe {
        libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&descriptor), libc::TUNSETIFF as _, &raw mut request)
    };
    if status < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the name is a terminated string that outlives the call.
    let ifindex = unsafe { libc::if_nametoindex(request.ifr_name.as_ptr()) };
    Ok(Tap { _descriptor: descriptor, ifindex })
}

/// Runs the program on a frame; `context` is a `struct __sk_buff` or a `struct xdp_md`. What the program returned; the frame as it left it goes into
/// `out`, where that has room.
pub(crate) fn run(program: &OwnedFd, frame: &[u8], context: &[u32], out: &mut Vec<u8>) -> io::Result<i32> {
    let room = out.capacity();
    out.resize(room, 0);
    let mut attributes = TestRun {
        program: number(program.as_fd()),
        result: 0,
        octets_in: frame.len() as u32,
        octets_out: out.len() as u32,
        data_in: address(frame),
        data_out: if out.is_empty() { 0 } else { out.as_mut_ptr() as u64 },
        repeat: 1,
        duration: 0,
        context_octets_in: size_of_val(context) as u32,
        context_octets_out: 0,
        context_in: address(context),
        context_out: 0,
    };
    // SAFETY: this is what BPF_PROG_TEST_RUN takes; it reads frame and context by their lengths and writes at most
    // `octets_out` octets of the frame into `out`, which has as many and is borrowed through the call.
    unsafe { bpf(PROG_TEST_RUN, &mut attributes) }?;
    out.truncate(attributes.octets_out as usize);
    Ok(attributes.result as i32)
}

extern "C" fn nothing(_: libc::c_int) {}

/// What `work` gives, while SIGURG comes to its thread again and again.
pub(crate) fn disturbed<T>(work: impl FnOnce() -> T) -> T {
    use std::sync::atomic::{AtomicBool, Ordering};
    // SAFETY: the handler does nothing, so it may run at any instant; calls that it meets go on (SA_RESTART).
    let thread = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(libc::SIGURG, &raw const action, std::ptr::null_mut()), 0);
        libc::pthread_self()
    };
    let (over, begun) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Acquire) {
                // SAFETY: that thread waits for this one before it ends.
                unsafe { libc::pthread_kill(thread, libc::SIGURG) };
                begun.store(true, Ordering::Release);
            }
        });
        while !begun.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let done = work();
        over.store(true, Ordering::Release);
        done
    })
}
