// SPDX-License-Identifier: Apache-2.0
//! Network devices by name: which one, in which namespace, what the kernel says about it.
//!
//! In: an interface name and perhaps a namespace's file. Out: [`LinkInfo`], or a socket that an adapter opens
//! there. The caller's thread never changes namespace: a thread of its own enters, opens and ends; sockets keep
//! the namespace they were made in.

mod link;
#[allow(unsafe_code)]
mod sys;

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use crate::error::{OpenError, SendError};
use crate::limits::{IFNAME_OCTETS_MAX, STAGE_COUNT_DEFAULT, VLAN_TAG_OCTETS};
use crate::traits::Capabilities;
use link::Link;
pub use link::LinkWatch;

/// Ethernet and the loopback device speak Ethernet headers (`ARPHRD_ETHER`, `ARPHRD_LOOPBACK`).
const HARDWARE_TYPES: [u16; 2] = [libc::ARPHRD_ETHER, libc::ARPHRD_LOOPBACK];
/// What the kernel charges a socket for one small frame beyond its octets, generously.
const FRAME_OVERHEAD_OCTETS: usize = 2048;

/// A network device: its name, and the namespace it lives in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Device<'a> {
    /// Interface name.
    pub ifname: &'a str,
    /// The namespace's file (`/run/netns/NAME`, `/proc/PID/ns/net`); `None` is the caller's own.
    pub netns: Option<&'a Path>,
}

/// How a port is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Transmit buffers, a power of two up to [`crate::STAGE_COUNT_MAX`]. Each is pinned memory of 2 or 4 KiB.
    pub stage_count: u16,
    /// The device's queue that AF_XDP binds to.
    pub queue: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { stage_count: STAGE_COUNT_DEFAULT, queue: 0 }
    }
}

/// What the kernel says about a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkInfo {
    /// Interface index in its namespace.
    pub ifindex: u32,
    /// Maximum transmission unit in octets, without the Ethernet header.
    pub mtu_octets: usize,
    /// The device's own address.
    pub mac: [u8; 6],
    /// `ARPHRD_*`.
    pub hardware_type: u16,
    /// Administrative state and carrier.
    pub state: LinkState,
    /// Link speed in bit/s, when the driver knows one.
    pub link_speed: Option<u64>,
}

/// Whether frames can leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    /// Up, with carrier.
    Up,
    /// Administratively down, or no carrier.
    Down,
    /// No such device in this namespace any more.
    Gone,
    /// Announcements about the device were lost: not known until the next one.
    Unknown,
}

impl LinkInfo {
    /// Longest frame without FCS, with one 802.1Q tag, in octets.
    pub(crate) fn frame_octets_max(&self) -> usize {
        self.mtu_octets + crate::ETHERNET_HEADER_OCTETS + VLAN_TAG_OCTETS
    }

    /// What a port on this device says of itself, when it leaves the instant of transmission to its caller.
    pub(crate) fn capabilities(&self, adapter: &'static str, stage_count: u16) -> Capabilities {
        Capabilities {
            adapter,
            ifindex: self.ifindex,
            mac: self.mac,
            mtu_octets: self.mtu_octets,
            frame_octets_max: self.frame_octets_max(),
            stage_count,
        }
    }
}

/// What the kernel says about `device`.
///
/// # Errors
/// [`OpenError::Namespace`], [`OpenError::NoDevice`], [`OpenError::Ifname`].
pub fn link_info(device: &Device<'_>) -> Result<LinkInfo, OpenError> {
    in_namespace(device.netns, || Ok(look_up(device.ifname)?.1))
}

/// The device's speed in bit/s; `None` when there is no such device or its speed is unknown.
#[must_use]
pub fn link_speed(device: &Device<'_>) -> Option<u64> {
    link_info(device).ok()?.link_speed
}

/// Runs `f` with the calling thread's view of the network being `netns`.
///
/// With a namespace, `f` runs on a thread of its own that ends with it, so nothing has to be restored and no
/// failure can leave the caller in the wrong place.
///
/// # Errors
/// [`OpenError::Namespace`] when it cannot be entered, otherwise what `f` returns.
pub fn in_namespace<T: Send>(
    netns: Option<&Path>,
    f: impl FnOnce() -> Result<T, OpenError> + Send,
) -> Result<T, OpenError> {
    let Some(path) = netns else { return f() };
    let failed = |errno: Errno| OpenError::Namespace { path: path.to_owned(), errno: errno.raw_os_error() };
    let namespace = rustix::fs::open(
        path,
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )
    .map_err(failed)?;
    std::thread::scope(|scope| {
        let entered = std::thread::Builder::new().name("ktsn-netns".to_owned()).spawn_scoped(scope, || {
            rustix::thread::move_into_link_name_space(
                namespace.as_fd(),
                Some(rustix::thread::LinkNameSpaceType::Network),
            )
            .map_err(failed)?;
            f()
        });
        match entered {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(error) => Err(OpenError::Os { step: "clone", errno: error.raw_os_error().unwrap_or(0) }),
        }
    })
}

/// Looks `ifname` up in the calling thread's namespace.
pub(crate) fn look_up(ifname: &str) -> Result<(LinkWatch, LinkInfo), OpenError> {
    let bad_name = ifname.is_empty()
        || ifname.len() > IFNAME_OCTETS_MAX
        || ifname.bytes().any(|octet| matches!(octet, 0 | b'/'));
    if bad_name {
        return Err(OpenError::Ifname { ifname: ifname.to_owned() });
    }
    let (watch, link) = LinkWatch::look_up(ifname).map_err(|(step, errno)| match errno {
        Errno::NODEV => OpenError::NoDevice { ifname: ifname.to_owned() },
        other => OpenError::os(step, other),
    })?;
    let state = watch.state();
    let Link { ifindex, mtu_octets, mac, hardware_type, .. } = link;
    let info = LinkInfo { ifindex, mtu_octets, mac, hardware_type, state, link_speed: speed_here(ifname) };
    Ok((watch, info))
}

/// The speed in bit/s of a device that exists; the ioctl is asked of no other, as Linux would look for a module of that name.
/// It may wait for the kernel's RTNL lock.
fn speed_here(ifname: &str) -> Option<u64> {
    // Any socket carries this request; this family has no state of its own and needs no right.
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok()?;
    sys::link_speed(socket.as_fd(), ifname)
}

/// Looks `ifname` up and refuses what does not speak Ethernet.
pub(crate) fn look_up_ethernet(ifname: &str) -> Result<(LinkWatch, LinkInfo), OpenError> {
    let (watch, info) = look_up(ifname)?;
    if !HARDWARE_TYPES.contains(&info.hardware_type) {
        return Err(OpenError::NotEthernet { ifname: ifname.to_owned(), hardware_type: info.hardware_type });
    }
    Ok((watch, info))
}

/// Lets a device hold every buffer of a port before the socket's send buffer is exhausted. The limit that stays
/// where this is refused only makes [`SendError::Busy`] likelier.
pub(crate) fn widen_send_buffer(socket: &OwnedFd, stage_count: usize, frame_octets_max: usize) {
    let octets = stage_count * (frame_octets_max + FRAME_OVERHEAD_OCTETS);
    if sockopt::set_socket_send_buffer_size_force(socket, octets).is_err() {
        let _unprivileged = sockopt::set_socket_send_buffer_size(socket, octets);
    }
}

impl LinkWatch {
    /// Why the device refused a frame without saying why.
    pub(crate) fn reason(state: LinkState) -> SendError {
        match state {
            LinkState::Up | LinkState::Unknown => SendError::Dropped,
            LinkState::Down => SendError::LinkDown,
            LinkState::Gone => SendError::DeviceGone,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_device_is_known() {
        let info = link_info(&Device { ifname: "lo", netns: None }).unwrap();
        assert_eq!((info.ifindex, info.mac, info.hardware_type), (1, [0; 6], libc::ARPHRD_LOOPBACK));
        assert!(info.mtu_octets >= 1500);
        assert_eq!(info.link_speed, None, "the loopback has no speed");
    }

    #[test]
    fn wrong_names_are_named() {
        for ifname in ["", "sixteen-octets-x", "a/b", "a\0b"] {
            let got = link_info(&Device { ifname, netns: None });
            assert_eq!(got, Err(OpenError::Ifname { ifname: ifname.to_owned() }));
        }
        let got = link_info(&Device { ifname: "none-such", netns: None });
        assert_eq!(got, Err(OpenError::NoDevice { ifname: "none-such".to_owned() }));
    }

    #[test]
    fn a_missing_or_wrong_namespace_is_named() {
        for (path, errno) in [("/none/such", libc::ENOENT), ("/dev/null", libc::EINVAL)] {
            let path = Path::new(path);
            let got = link_info(&Device { ifname: "lo", netns: Some(path) });
            assert_eq!(got, Err(OpenError::Namespace { path: path.to_owned(), errno }));
        }
    }
}
