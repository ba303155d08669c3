// SPDX-License-Identifier: Apache-2.0
//! Device requests (ethtool) and the packet socket of a check.
//!
//! In: a device's name, frames, transmit times. Out: plain values or the kernel's errno. The socket uses libc's own functions, so that
//! whatever is preloaded sees its calls.

use ktsn_traffic::socket::send_at;
use std::io;
use std::mem;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

const ETHTOOL_GSET: u32 = 0x01;
const ETHTOOL_SSET: u32 = 0x02;
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETHTOOL_SCHANNELS: u32 = 0x3d;

/// `struct ethtool_channels`: what the device can have at most, and what it has.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Channels {
    cmd: u32,
    /// Receive, transmit, other, combined.
    most: [u32; 4],
    now: [u32; 4],
}

/// The places of transmit and of combined channels among the kinds.
const TRANSMIT: usize = 1;
const COMBINED: usize = 3;

/// `struct ethtool_cmd`; what is not read is passed back as it came.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    cmd: u32,
    modes: [u32; 2],
    speed: u16,
    duplex: u8,
    ports: [u8; 5],
    packets: [u32; 2],
    speed_high: u16,
    crossover: [u8; 2],
    rest: [u32; 3],
}

/// `struct ethtool_drvinfo`, of which only the driver's name is read.
#[repr(C)]
struct Driver {
    cmd: u32,
    name: [u8; 32],
    rest: [u32; 40],
}
const _: () = assert!(size_of::<Link>() == 44 && size_of::<Channels>() == 36 && size_of::<Driver>() == 196);

fn checked(status: i32) -> io::Result<()> {
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    checked(fd)?;
    // SAFETY: the caller has just made `fd`, and passes it to no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// An `ifreq` with the device's name. The name was checked: a longer one is cut.
fn named(device: &str) -> libc::ifreq {
    // SAFETY: `ifreq` is plain data, for which all zeros is valid.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (to, from) in request.ifr_name[..libc::IFNAMSIZ - 1].iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    request
}

fn ask(request: &mut libc::ifreq, code: libc::Ioctl) -> io::Result<()> {
    // SAFETY: socket takes integers only.
    let socket = owned(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the codes of this file take an `ifreq`, which the kernel uses during the call only; the callers keep alive what it points to.
    checked(unsafe { libc::ioctl(socket.as_raw_fd(), code, std::ptr::from_mut(request)) })
}

fn ethtool<T>(device: &str, command: &mut T) -> io::Result<()> {
    let mut request = named(device);
    request.ifr_ifru.ifru_data = std::ptr::from_mut(command).cast();
    ask(&mut request, libc::SIOCETHTOOL as libc::Ioctl)
}

/// The device's index.
///
/// # Errors
/// `ENODEV`: there is no such device in this network namespace.
pub(super) fn ifindex(device: &str) -> io::Result<u32> {
    let mut request = named(device);
    ask(&mut request, libc::SIOCGIFINDEX as libc::Ioctl)?;
    // SAFETY: SIOCGIFINDEX succeeded, so the kernel filled `ifru_ifindex`.
    u32::try_from(unsafe { request.ifr_ifru.ifru_ifindex }).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// The device's MAC address; `None` if it is no Ethernet device.
///
/// # Errors
/// There is no such device.
pub(super) fn mac(device: &str) -> io::Result<Option<[u8; 6]>> {
    let mut request = named(device);
    ask(&mut request, libc::SIOCGIFHWADDR as libc::Ioctl)?;
    // SAFETY: SIOCGIFHWADDR succeeded, so the kernel filled `ifru_hwaddr`.
    let address = unsafe { request.ifr_ifru.ifru_hwaddr };
    let mut mac = [0; 6];
    for (to, from) in mac.iter_mut().zip(address.sa_data) {
        *to = from as u8;
    }
    Ok((address.sa_family == libc::ARPHRD_ETHER).then_some(mac))
}

/// The driver's name, such as `virtio_net`.
///
/// # Errors
/// `EOPNOTSUPP`: the driver has none.
pub(super) fn driver(device: &str) -> io::Result<String> {
    let mut driver = Driver { cmd: ETHTOOL_GDRVINFO, name: [0; 32], rest: [0; 40] };
    ethtool(device, &mut driver)?;
    let name = driver.name.split(|&octet| octet == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(name).into_owned())
}

/// How many queue pairs the device can have, and how many it has; of a device without combined channels (veth), transmit queues.
///
/// # Errors
/// `EOPNOTSUPP`: the driver knows no channels.
pub(super) fn queues(device: &str) -> io::Result<(u32, u32)> {
    let mut channels = Channels { cmd: ETHTOOL_GCHANNELS, ..Channels::default() };
    ethtool(device, &mut channels)?;
    match channels.most[COMBINED] {
        0 => Ok((channels.most[TRANSMIT], channels.now[TRANSMIT])),
        most => Ok((most, channels.now[COMBINED])),
    }
}

/// Gives the device this number of queue pairs, or of transmit queues where it has no pairs.
///
/// # Errors
/// The driver's refusal.
pub(super) fn set_queues(device: &str, count: u32) -> io::Result<()> {
    let mut channels = Channels { cmd: ETHTOOL_GCHANNELS, ..Channels::default() };
    ethtool(device, &mut channels)?;
    channels.cmd = ETHTOOL_SCHANNELS;
    let kind = if channels.most[COMBINED] == 0 { TRANSMIT } else { COMBINED };
    channels.now[kind] = count;
    ethtool(device, &mut channels)
}

/// The link's speed in Mbit/s as the driver says it (`u32::MAX`: unknown), and its duplex.
///
/// # Errors
/// The driver's refusal.
pub(super) fn link(device: &str) -> io::Result<(u32, u8)> {
    let mut link = Link { cmd: ETHTOOL_GSET, ..Link::default() };
    ethtool(device, &mut link)?;
    Ok((u32::from(link.speed_high) << 16 | u32::from(link.speed), link.duplex))
}

/// Sets what [`link`] returns.
///
/// # Errors
/// The driver's refusal.
pub(super) fn set_link(device: &str, speed: u32, duplex: u8) -> io::Result<()> {
    let mut link = Link { cmd: ETHTOOL_GSET, ..Link::default() };
    ethtool(device, &mut link)?;
    let [a, b, c, d] = speed.to_ne_bytes();
    let halves = [u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d])];
    let (low, high) =
        if cfg!(target_endian = "little") { (halves[0], halves[1]) } else { (halves[1], halves[0]) };
    ethtool(device, &mut Link { cmd: ETHTOOL_SSET, speed: low, speed_high: high, duplex, ..link })
}

fn flags(device: &str) -> io::Result<libc::c_short> {
    let mut request = named(device);
    ask(&mut request, libc::SIOCGIFFLAGS as libc::Ioctl)?;
    // SAFETY: SIOCGIFFLAGS succeeded, so the kernel filled `ifru_flags`.
    Ok(unsafe { request.ifr_ifru.ifru_flags })
}

/// Whether the device is up.
///
/// # Errors
/// There is no such device.
pub(super) fn is_up(device: &str) -> io::Result<bool> {
    Ok(flags(device)? & libc::IFF_UP as libc::c_short != 0)
}

/// Takes the device up or down.
///
/// # Errors
/// The kernel's refusal.
pub(super) fn set_up(device: &str, is_up: bool) -> io::Result<()> {
    let (up, flags) = (libc::IFF_UP as libc::c_short, flags(device)?);
    let mut request = named(device);
    request.ifr_ifru.ifru_flags = if is_up { flags | up } else { flags & !up };
    ask(&mut request, libc::SIOCSIFFLAGS as libc::Ioctl)
}

/// What a timed frame's sender learns afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The frame with this number was handed to the device: nanoseconds of `CLOCK_REALTIME`.
    Left(u32, u64),
    /// The frame with this transmit time was dropped: the kernel's code of the reason (1 invalid, 2 missed).
    Dropped(u64, u8),
}

/// A packet socket whose frames have transmit times.
#[derive(Debug)]
pub(super) struct TimedSocket(OwnedFd);

/// The kernel's `struct sock_txtime`.
#[repr(C)]
struct SockTxTime {
    clock: i32,
    flags: u32,
}

/// Room for control messages, aligned as `cmsghdr` needs it.
#[repr(C, align(8))]
struct Control([u8; 512]);

fn set<T>(fd: RawFd, name: i32, value: &T) -> io::Result<()> {
    let length = mem::size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is valid for `length` octets across the call.
    checked(unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, name, std::ptr::from_ref(value).cast(), length) })
}

impl TimedSocket {
    /// A socket on this device (`ifindex`), with transmit times on `CLOCK_TAI`, reports of drops, and a stamp for each frame that leaves.
    ///
    /// # Errors
    /// The kernel's refusal: `EPERM` without CAP_NET_RAW or CAP_NET_ADMIN.
    pub(super) fn new(ifindex: u32, priority: u8) -> io::Result<Self> {
        const REPORT_ERRORS: u32 = 2;
        // SAFETY: socket takes integers only. Protocol 0: nothing is received.
        let fd = owned(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) })?;
        // SAFETY: `sockaddr_ll` is plain data, for which all zeros is valid.
        let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
        address.sll_family = libc::AF_PACKET as libc::c_ushort;
        address.sll_ifindex = i32::try_from(ifindex).map_err(|_| io::ErrorKind::InvalidInput)?;
        let length = mem::size_of_val(&address) as libc::socklen_t;
        // SAFETY: `address` is valid for `length` octets across the call.
        checked(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) })?;
        set(fd.as_raw_fd(), libc::SO_PRIORITY, &i32::from(priority))?;
        set(fd.as_raw_fd(), libc::SO_TXTIME, &SockTxTime { clock: libc::CLOCK_TAI, flags: REPORT_ERRORS })?;
        let stamps = libc::SOF_TIMESTAMPING_TX_SOFTWARE
            | libc::SOF_TIMESTAMPING_SOFTWARE
            | libc::SOF_TIMESTAMPING_OPT_ID
            | libc::SOF_TIMESTAMPING_OPT_TSONLY;
        set(fd.as_raw_fd(), libc::SO_TIMESTAMPING, &stamps)?;
        Ok(Self(fd))
    }

    /// Sends a frame that leaves at `tx_time`, nanoseconds of `CLOCK_TAI`.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn send_at(&self, frame: &[u8], tx_time: u64) -> io::Result<()> {
        send_at(self.0.as_fd(), frame, tx_time).map(drop)
    }

    /// The next entry of the error queue that says what became of a frame; `None` where the queue is empty.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn next_fate(&self) -> io::Result<Option<Fate>> {
        loop {
            let mut data = [0_u8; 256];
            let mut part = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: data.len() };
            let mut control = Control([0; 512]);
            // SAFETY: msghdr is plain data for which all-zero is valid.
            let mut message: libc::msghdr = unsafe { mem::zeroed() };
            message.msg_iov = &raw mut part;
            message.msg_iovlen = 1;
            message.msg_control = control.0.as_mut_ptr().cast();
            message.msg_controllen = control.0.len() as _;
            let wanted = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
            // SAFETY: recvmsg writes into `data` and `control` only, within the lengths given; both outlive the call.
            if unsafe { libc::recvmsg(self.0.as_raw_fd(), &raw mut message, wanted) } < 0 {
                let error = io::Error::last_os_error();
                return match error.kind() {
                    io::ErrorKind::WouldBlock => Ok(None),
                    io::ErrorKind::Interrupted => continue,
                    _ => Err(error),
                };
            }
            // SAFETY: the kernel has filled `message`, and its buffers live.
            if let Some(fate) = unsafe { fate_of(&message) } {
                return Ok(Some(fate));
            }
        }
    }
}

/// What an entry of the error queue says.
///
/// # Safety
/// `message` was filled by recvmsg, and its control buffer lives.
unsafe fn fate_of(message: &libc::msghdr) -> Option<Fate> {
    const ORIGIN_TIMESTAMPING: u8 = 4;
    const ORIGIN_TXTIME: u8 = 6;
    let (mut stamp, mut report) = (None, None);
    // SAFETY: by the caller's promise the headers and their data lie in the control buffer; the kernel has given each its length, which
    // CMSG_NXTHDR checks against the buffer's. Types are read only where the header says that they are there.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(std::ptr::from_ref(message));
        while let Some(one) = header.as_ref() {
            let (data, octets) = (libc::CMSG_DATA(header), one.cmsg_len);
            let holds = |size: usize| octets >= libc::CMSG_LEN(size as u32) as usize;
            if one.cmsg_level == libc::SOL_SOCKET && one.cmsg_type == libc::SCM_TIMESTAMPING {
                if holds(mem::size_of::<libc::timespec>()) {
                    stamp = Some(std::ptr::read_unaligned(data.cast::<libc::timespec>()));
                }
            } else if holds(mem::size_of::<libc::sock_extended_err>()) {
                report = Some(std::ptr::read_unaligned(data.cast::<libc::sock_extended_err>()));
            }
            header = libc::CMSG_NXTHDR(std::ptr::from_ref(message), header);
        }
    }
    let report = report?;
    match (report.ee_origin, stamp) {
        (ORIGIN_TXTIME, _) => {
            Some(Fate::Dropped(u64::from(report.ee_data) << 32 | u64::from(report.ee_info), report.ee_code))
        }
        // `ee_info` 0: a stamp of the hand-over to the device, not of a queue before it.
        (ORIGIN_TIMESTAMPING, Some(stamp)) if report.ee_info == 0 => {
            let seconds = u64::try_from(stamp.tv_sec).ok()?;
            Some(Fate::Left(report.ee_data, seconds * 1_000_000_000 + u64::try_from(stamp.tv_nsec).ok()?))
        }
        _ => None,
    }
}
