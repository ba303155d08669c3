// SPDX-License-Identifier: Apache-2.0
//! System calls of the micro-benchmarks: `poll`, and bpf(2) for a program of two instructions that drops every frame a device receives.
//!
//! In: a socket; a device of the calling thread's network namespace. Out: an answer; a descriptor, and closing it removes the program.

use std::ffi::CString;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// `poll` by the C library, which libktsn serves, until a datagram is there. Returns how many descriptors are ready.
pub(super) fn poll(socket: RawFd) -> io::Result<usize> {
    let mut entry = libc::pollfd { fd: socket, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, which lives across the call.
    let ready = unsafe { libc::poll(&raw mut entry, 1, -1) };
    usize::try_from(ready).map_err(|_| io::Error::last_os_error())
}

const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_LINK_CREATE: libc::c_int = 28;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
/// `r0 = XDP_DROP; exit`, as the kernel's `struct bpf_insn` (code, registers, offset, immediate).
const DROP: [u64; 2] = [0xb7 | (1 << 32), 0x95];
/// The program calls nothing, so no licence matters to the verifier.
const LICENCE: &std::ffi::CStr = c"Apache-2.0";

/// The head of `union bpf_attr` for BPF_PROG_LOAD; what follows may be left out.
#[repr(C)]
struct Load {
    prog_type: u32,
    insn_count: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
}

/// The head of `union bpf_attr` for BPF_LINK_CREATE.
#[repr(C)]
struct Link {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
}

/// Drops all that `device` receives, as early as its driver can, until the descriptor is closed.
pub(super) fn drop_all(device: &str) -> io::Result<OwnedFd> {
    let name = CString::new(device)?;
    // SAFETY: `name` is a terminated string that lives across the call.
    let target_ifindex = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if target_ifindex == 0 {
        return Err(io::Error::last_os_error());
    }
    let load = Load {
        prog_type: BPF_PROG_TYPE_XDP,
        insn_count: 2,
        insns: DROP.as_ptr() as u64,
        license: LICENCE.as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log_buf: 0,
        kern_version: 0,
        prog_flags: 0,
    };
    let program = bpf(BPF_PROG_LOAD, &load)?;
    let prog_fd = u32::try_from(program.as_raw_fd()).map_err(io::Error::other)?;
    bpf(BPF_LINK_CREATE, &Link { prog_fd, target_ifindex, attach_type: BPF_XDP, flags: 0 })
}

fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: `attributes` is a plain repr(C) value of the size given, without padding (const assertions below), and
    // lives across the call; the pointers in it are to statics. The kernel only reads it.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, &raw const *attributes, mem::size_of::<T>()) };
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: both commands return a new descriptor that has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

const _: () = assert!(mem::size_of::<Load>() == 48 && mem::size_of::<Link>() == 16);
