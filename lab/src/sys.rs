// SPDX-License-Identifier: Apache-2.0
//! The system calls of the lab beside those of [`ktsn_host`]: tap devices. In: plain values. Out: plain values or the kernel's errno. No
//! state.

pub(crate) use ktsn_host::{enter_namespace, exists, in_new_network, inherit, leave_network, pin, within};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

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
