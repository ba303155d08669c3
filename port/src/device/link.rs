// SPDX-License-Identifier: Apache-2.0
//! Links by rtnetlink: what the kernel answers about a device's name, and what it announces about the device afterwards.
//!
//! In: a name; the announcements of the namespace's links. Out: [`Link`]; a [`LinkState`]. A question may wait for the
//! kernel's RTNL lock, so a worker never asks one: it only reads announcements, which waits for nothing. No request here
//! makes Linux load a module for a name that does not exist, as the ioctls of netdevice(7) do. Messages that are not the
//! kernel's are ignored: a pod's root may write to the sockets of its namespace.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recvfrom, send, socket_with,
};

use super::{Device, LinkState, sys};
use crate::error::OpenError;

/// `struct nlmsghdr` and `struct ifinfomsg`, octets.
const HEADER_OCTETS: usize = 16;
const LINK_OCTETS: usize = 32;
/// RTMGRP_LINK: the group of announcements about links, as a bit.
const GROUP_LINK: u32 = 1;
/// The kernel answers with at most one page, and a device with many properties with a few more.
const ANSWER_OCTETS_MAX: usize = 32 << 10;
/// Announcements that one question for the state reads: a pod that changes its interface all the time costs no more.
const READ_MAX: usize = 16;
/// IFF_LOWER_UP (linux/if.h): there is carrier.
const LOWER_UP: u32 = 1 << 16;
/// RTEXT_FILTER_SKIP_STATS (linux/rtnetlink.h).
const SKIP_STATS: u32 = 1 << 3;
const NEW_LINK: u16 = libc::RTM_NEWLINK;
const DEL_LINK: u16 = libc::RTM_DELLINK;

/// What the kernel says about one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) ifindex: u32,
    pub(super) hardware_type: u16,
    pub(super) flags: u32,
    pub(super) mtu_octets: usize,
    /// The first six octets of the device's address.
    pub(super) mac: [u8; 6],
}

/// One message about a link: its fixed part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fixed {
    kind: u16,
    family: u8,
    hardware_type: u16,
    ifindex: u32,
    flags: u32,
}

fn u16_at(octets: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(octets.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(octets: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(octets.get(at..at + 4)?.try_into().ok()?))
}

impl Fixed {
    fn parse(message: &[u8]) -> Option<Self> {
        Some(Self {
            kind: u16_at(message, 4)?,
            family: *message.get(HEADER_OCTETS)?,
            hardware_type: u16_at(message, HEADER_OCTETS + 2)?,
            ifindex: u32_at(message, HEADER_OCTETS + 4)?,
            flags: u32_at(message, HEADER_OCTETS + 8)?,
        })
    }

    /// The state that the message tells of this device; `None`: it is about something else. A bridge announces its ports in a
    /// family of its own.
    fn state_of(&self, ifindex: u32) -> Option<LinkState> {
        if self.family != 0 || self.ifindex != ifindex {
            return None;
        }
        match self.kind {
            NEW_LINK => Some(state(self.flags)),
            DEL_LINK => Some(LinkState::Gone),
            _ => None,
        }
    }
}

fn state(flags: u32) -> LinkState {
    let up = libc::IFF_UP as u32 | LOWER_UP;
    if flags & up == up { LinkState::Up } else { LinkState::Down }
}

/// The answer to a question for a link.
fn parse(answer: &[u8]) -> Result<Link, Errno> {
    let kind = u16_at(answer, 4).ok_or(Errno::IO)?;
    if i32::from(kind) == libc::NLMSG_ERROR {
        let code = u32_at(answer, HEADER_OCTETS).ok_or(Errno::IO)?.cast_signed();
        return Err(Errno::from_raw_os_error(code.saturating_neg()));
    }
    let fixed = Fixed::parse(answer).filter(|fixed| fixed.kind == NEW_LINK).ok_or(Errno::IO)?;
    let Fixed { hardware_type, ifindex, flags, .. } = fixed;
    let mut link = Link { ifindex, hardware_type, flags, ..Link::default() };
    let length = u32_at(answer, 0).ok_or(Errno::IO)? as usize;
    let mut rest = answer.get(LINK_OCTETS..length.min(answer.len())).unwrap_or_default();
    while let (Some(octets), Some(attribute)) = (u16_at(rest, 0), u16_at(rest, 2)) {
        let Some(value) = rest.get(4..usize::from(octets)) else { break };
        match attribute {
            libc::IFLA_MTU => link.mtu_octets = u32_at(value, 0).ok_or(Errno::IO)? as usize,
            libc::IFLA_ADDRESS => {
                for (to, from) in link.mac.iter_mut().zip(value) {
                    *to = *from;
                }
            }
            _ => {}
        }
        rest = rest.get(usize::from(octets).next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(link)
}

/// RTM_GETLINK for one name.
fn question(ifname: &str) -> Vec<u8> {
    let mut message = vec![0; LINK_OCTETS];
    let mut attribute = |kind: u16, value: &[u8]| {
        let length = (4 + value.len()) as u16;
        message.extend(length.to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend(value);
        message.resize(message.len().next_multiple_of(4), 0);
    };
    attribute(libc::IFLA_EXT_MASK, &SKIP_STATS.to_ne_bytes());
    attribute(libc::IFLA_IFNAME, &[ifname.as_bytes(), &[0]].concat());
    let length = message.len() as u32;
    message[..4].copy_from_slice(&length.to_ne_bytes());
    message[4..6].copy_from_slice(&libc::RTM_GETLINK.to_ne_bytes());
    message[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    message[8..12].copy_from_slice(&1u32.to_ne_bytes());
    message
}

/// Knows one device's state, by index (a renamed device is the same device). It holds a socket in the device's namespace:
/// dropped with the port.
#[derive(Debug)]
pub struct LinkWatch {
    socket: OwnedFd,
    ifindex: u32,
    state: AtomicU8,
}

const UP: u8 = 0;
const DOWN: u8 = 1;
const GONE: u8 = 2;
/// Announcements were lost: none has come since.
const UNKNOWN: u8 = 3;
/// Announcements were lost: older ones are still to be read.
const LOSING: u8 = 4;

impl LinkWatch {
    /// The watch of a device in the caller's namespace. It may wait for the kernel's RTNL lock.
    ///
    /// # Errors
    /// [`OpenError::NoDevice`], [`OpenError::Ifname`], the kernel's.
    pub fn open(device: &Device<'_>) -> Result<Self, OpenError> {
        super::in_namespace(device.netns, || Ok(super::look_up(device.ifname)?.0))
    }

    /// Looks the device up in the calling thread's namespace. It may wait for the kernel's RTNL lock.
    pub(super) fn look_up(ifname: &str) -> Result<(Self, Link), (&'static str, Errno)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)
            .map_err(|errno| ("socket(NETLINK_ROUTE)", errno))?;
        // Announcements first: what changes after the answer is announced.
        bind(&socket, &SocketAddrNetlink::new(0, GROUP_LINK))
            .map_err(|errno| ("bind(NETLINK_ROUTE)", errno))?;
        let link = ask(&socket, ifname).map_err(|errno| ("RTM_GETLINK", errno))?;
        // Others' announcements would fill the socket.
        sys::hear_only(socket.as_fd(), link.ifindex).map_err(|errno| ("SO_ATTACH_FILTER", errno))?;
        let state = AtomicU8::new(if state(link.flags) == LinkState::Up { UP } else { DOWN });
        Ok((Self { socket, ifindex: link.ifindex, state }, link))
    }

    /// The state as far as it was announced. It never waits.
    pub fn state(&self) -> LinkState {
        for _ in 0..READ_MAX {
            let mut message = [0; LINK_OCTETS];
            match recvfrom(&self.socket, &mut message, RecvFlags::DONTWAIT) {
                // What is left in the socket after a loss is older than what was lost.
                Ok((_, _, sender)) if is_kernel(sender.as_ref()) && self.load() != LOSING => {
                    let announced = Fixed::parse(&message).and_then(|fixed| fixed.state_of(self.ifindex));
                    match announced {
                        Some(LinkState::Up) => self.store(UP),
                        Some(LinkState::Down) => self.store(DOWN),
                        Some(LinkState::Gone) => self.store(GONE),
                        Some(LinkState::Unknown) | None => {}
                    }
                }
                Ok(_) => {}
                Err(Errno::NOBUFS) => self.store(LOSING),
                Err(_) => {
                    if self.load() == LOSING {
                        self.store(UNKNOWN);
                    }
                    break;
                }
            }
        }
        match self.load() {
            UP => LinkState::Up,
            DOWN => LinkState::Down,
            GONE => LinkState::Gone,
            _ => LinkState::Unknown,
        }
    }

    fn load(&self) -> u8 {
        self.state.load(Relaxed)
    }

    fn store(&self, state: u8) {
        self.state.store(state, Relaxed);
    }
}

fn is_kernel(sender: Option<&rustix::net::SocketAddrAny>) -> bool {
    sender
        .and_then(|sender| SocketAddrNetlink::try_from(sender.clone()).ok())
        .is_some_and(|sender| sender.pid() == 0)
}

/// Asks, and reads the answer: the kernel has put it into the socket when the question is sent.
fn ask(socket: &OwnedFd, ifname: &str) -> Result<Link, Errno> {
    send(socket, &question(ifname), SendFlags::empty())?;
    let mut answer = vec![0; ANSWER_OCTETS_MAX];
    loop {
        let (octets, _, sender) = match recvfrom(socket, &mut answer[..], RecvFlags::DONTWAIT) {
            Ok(received) => received,
            Err(Errno::INTR | Errno::NOBUFS) => continue,
            Err(Errno::AGAIN) => return Err(Errno::NODEV),
            Err(errno) => return Err(errno),
        };
        let message = &answer[..octets.min(ANSWER_OCTETS_MAX)];
        // Announcements have the number 0.
        if is_kernel(sender.as_ref()) && u32_at(message, 8) == Some(1) {
            return parse(message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(kind: u16, family: u8, ifindex: u32, flags: u32) -> [u8; LINK_OCTETS] {
        let mut message = [0; LINK_OCTETS];
        message[4..6].copy_from_slice(&kind.to_ne_bytes());
        message[16] = family;
        message[20..24].copy_from_slice(&ifindex.to_ne_bytes());
        message[24..28].copy_from_slice(&flags.to_ne_bytes());
        message
    }

    #[test]
    fn an_announcement_tells_of_its_own_device_alone() {
        let up = libc::IFF_UP as u32 | LOWER_UP;
        let says = |kind, family, ifindex, flags| {
            Fixed::parse(&message(kind, family, ifindex, flags)).unwrap().state_of(7)
        };
        assert_eq!(says(NEW_LINK, 0, 7, up), Some(LinkState::Up));
        assert_eq!(says(NEW_LINK, 0, 7, libc::IFF_UP as u32), Some(LinkState::Down));
        assert_eq!(says(NEW_LINK, 0, 7, LOWER_UP), Some(LinkState::Down));
        assert_eq!(says(DEL_LINK, 0, 7, up), Some(LinkState::Gone));
        assert_eq!(says(NEW_LINK, 0, 8, up), None);
        // A device that leaves its bridge is not gone.
        assert_eq!(says(DEL_LINK, libc::AF_BRIDGE as u8, 7, up), None);
        assert_eq!(says(libc::RTM_NEWADDR, 0, 7, up), None);
    }

    #[test]
    fn a_device_that_does_not_exist_has_its_own_error() {
        let missing = LinkWatch::look_up("none-such").unwrap_err();
        assert_eq!(missing, ("RTM_GETLINK", Errno::NODEV));
        let (watch, link) = LinkWatch::look_up("lo").unwrap();
        assert_eq!((link.ifindex, link.hardware_type), (1, libc::ARPHRD_LOOPBACK));
        assert!(matches!(watch.state(), LinkState::Up | LinkState::Down));
    }

    proptest! {
        #[test]
        fn any_octets_are_read(octets in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&octets);
            let _ = Fixed::parse(&octets);
        }
    }
}
