// SPDX-License-Identifier: Apache-2.0
//! The interface requests that no safe wrapper offers: a device's speed (ethtool), and a socket's filter.
//!
//! In: a socket, and an interface's name or index. Out: plain values. Nothing is changed of a device, only asked.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

const ETHTOOL_GSET: u32 = 0x0000_0001;
/// Where `ifi_index` stands in a message about a link: behind `nlmsghdr` and four octets of `ifinfomsg`.
const INDEX_AT: u32 = 20;
const BITS_PER_MEGABIT: u64 = 1_000_000;

/// `struct ethtool_cmd`, of which only the speed is read.
#[repr(C)]
#[derive(Default)]
struct EthtoolCmd {
    cmd: u32,
    modes: [u32; 2],
    speed: u16,
    ports: [u8; 6],
    packets: [u32; 2],
    speed_hi: u16,
    crossover: [u8; 2],
    rest: [u32; 3],
}
const _: () = assert!(size_of::<EthtoolCmd>() == 44);

fn request() -> libc::ifreq {
    // SAFETY: `ifreq` is a plain C struct of integers, arrays and pointers, for which all zeros is valid.
    unsafe { std::mem::zeroed() }
}

fn named(ifname: &str) -> libc::ifreq {
    let mut request = request();
    // The last octet stays NUL: the caller has checked the length, a longer name is cut here.
    for (to, from) in request.ifr_name[..libc::IFNAMSIZ - 1].iter_mut().zip(ifname.bytes()) {
        *to = from as libc::c_char;
    }
    request
}

fn ask(socket: BorrowedFd<'_>, code: libc::Ioctl, request: &mut libc::ifreq) -> Result<(), Errno> {
    // SAFETY: every code passed by this file takes a pointer to an `ifreq`, which the kernel reads and writes
    // only during the call; where it holds a data pointer, its caller keeps the target alive and exclusive.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), code, std::ptr::from_mut(request)) };
    if result < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    Ok(())
}

/// The speed in bit/s, when the driver says one.
pub(super) fn link_speed(socket: BorrowedFd<'_>, ifname: &str) -> Option<u64> {
    let mut command = EthtoolCmd { cmd: ETHTOOL_GSET, ..EthtoolCmd::default() };
    let mut request = named(ifname);
    request.ifr_ifru.ifru_data = std::ptr::from_mut(&mut command).cast();
    ask(socket, libc::SIOCETHTOOL, &mut request).ok()?;
    let megabits = u32::from(command.speed_hi) << 16 | u32::from(command.speed);
    // 0, 0xffff and 0xffff_ffff all mean that the driver does not know.
    (megabits != 0 && megabits != u32::from(u16::MAX) && megabits != u32::MAX)
        .then(|| u64::from(megabits) * BITS_PER_MEGABIT)
}

/// Has a netlink socket take the messages about one link only: those whose `ifi_index` is this one.
pub(super) fn hear_only(socket: BorrowedFd<'_>, ifindex: u32) -> Result<(), Errno> {
    // BPF loads a word as the network would have it; the kernel's messages are in the machine's order.
    let index = u32::from_be_bytes(ifindex.to_ne_bytes());
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, INDEX_AT),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, index),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the kernel reads a `sock_fprog` of this length and the `len` steps that it points to, both alive here, and
    // copies them during the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            std::ptr::from_ref(&filter).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if result < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    Ok(())
}
