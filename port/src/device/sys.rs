// SPDX-License-Identifier: Apache-2.0
//! The interface requests (netdevice(7), ethtool) that no safe wrapper offers.
//!
//! In: any socket and an interface name or index. Out: plain values. Nothing is changed, only asked.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

const ETHTOOL_GSET: u32 = 0x0000_0001;
const ETHTOOL_GLINK: u32 = 0x0000_000a;
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

/// `struct ethtool_value`.
#[repr(C)]
struct EthtoolValue {
    cmd: u32,
    data: u32,
}

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

/// The MTU in octets.
pub(super) fn mtu(socket: BorrowedFd<'_>, ifname: &str) -> Result<usize, Errno> {
    let mut request = named(ifname);
    ask(socket, libc::SIOCGIFMTU, &mut request)?;
    // SAFETY: SIOCGIFMTU succeeded, so the kernel filled the union's `ifru_mtu`.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    usize::try_from(mtu).map_err(|_| Errno::RANGE)
}

/// `ARPHRD_*` and the first six octets of the device's address.
pub(super) fn hardware_address(socket: BorrowedFd<'_>, ifname: &str) -> Result<(u16, [u8; 6]), Errno> {
    let mut request = named(ifname);
    ask(socket, libc::SIOCGIFHWADDR, &mut request)?;
    // SAFETY: SIOCGIFHWADDR succeeded, so the kernel filled the union's `ifru_hwaddr`.
    let address = unsafe { request.ifr_ifru.ifru_hwaddr };
    let mut mac = [0; 6];
    for (to, from) in mac.iter_mut().zip(address.sa_data) {
        *to = from as u8;
    }
    Ok((address.sa_family, mac))
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

/// Whether the device with this index is up and has carrier.
pub(super) fn state(socket: BorrowedFd<'_>, ifindex: u32) -> Result<bool, Errno> {
    let mut request = request();
    request.ifr_ifru.ifru_ifindex = i32::try_from(ifindex).map_err(|_| Errno::NODEV)?;
    ask(socket, libc::SIOCGIFNAME as libc::Ioctl, &mut request)?;
    ask(socket, libc::SIOCGIFFLAGS, &mut request)?;
    // SAFETY: SIOCGIFFLAGS succeeded, so the kernel filled the union's `ifru_flags`.
    let flags = i32::from(unsafe { request.ifr_ifru.ifru_flags });
    if flags & libc::IFF_UP == 0 {
        return Ok(false);
    }
    // IFF_RUNNING follows the carrier with a delay; ethtool says it at once where the driver offers it.
    let mut carrier = EthtoolValue { cmd: ETHTOOL_GLINK, data: 0 };
    request.ifr_ifru.ifru_data = std::ptr::from_mut(&mut carrier).cast();
    match ask(socket, libc::SIOCETHTOOL, &mut request) {
        Ok(()) => Ok(carrier.data != 0),
        Err(Errno::NODEV) => Err(Errno::NODEV),
        Err(_) => Ok(flags & libc::IFF_RUNNING != 0),
    }
}
