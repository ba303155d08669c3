// SPDX-License-Identifier: Apache-2.0
//! As much routing netlink as doctor's trials need: make a pair of devices, ask for a qdisc, list qdiscs.
//!
//! In: names. Out: the kernel's answer. Works in the network namespace of the thread that opened it; the trials
//! that change something run in a namespace that nobody else sees.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_CREATE_EXCL: u16 = 0x600;
const RTM_NEWLINK: u16 = 16;
const RTM_NEWQDISC: u16 = 36;
const RTM_GETQDISC: u16 = 38;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const TCA_KIND: u16 = 1;
const TC_H_ROOT: u32 = 0xffff_ffff;
const IFF_UP: u32 = 1;
const NLA_TYPE_MASK: u16 = 0x3fff;
/// struct nlmsghdr.
const HEADER_OCTETS: usize = 16;
/// struct tcmsg.
const TC_OCTETS: usize = 20;

/// A socket of this thread's network namespace.
#[derive(Debug)]
pub(super) struct Netlink(OwnedFd);

/// A qdisc of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Qdisc {
    /// The device.
    pub(super) interface_index: i32,
    /// `etf`, `fq`, …
    pub(super) kind: String,
}

impl Netlink {
    /// # Errors
    /// The kernel's.
    pub(super) fn open() -> io::Result<Self> {
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        Ok(Self(socket))
    }

    /// Makes a pair of veth devices, the first of this name.
    ///
    /// # Errors
    /// The kernel's: EOPNOTSUPP without veth, EPERM without CAP_NET_ADMIN.
    pub(super) fn make_veth(&self, name: &str) -> io::Result<()> {
        let mut body = interface_message(0, 0);
        put_attribute(&mut body, IFLA_IFNAME, &zero_ended(name));
        let mut kind = Vec::new();
        put_attribute(&mut kind, IFLA_INFO_KIND, b"veth");
        put_attribute(&mut body, IFLA_LINKINFO, &kind);
        self.acknowledged(RTM_NEWLINK, NLM_F_CREATE_EXCL, &body)
    }

    /// # Errors
    /// The kernel's.
    pub(super) fn set_up(&self, interface_index: i32) -> io::Result<()> {
        self.acknowledged(RTM_NEWLINK, 0, &interface_message(interface_index, IFF_UP))
    }

    /// Whether the kernel has this kind of qdisc. It is asked for without its parameters: a kernel that has it
    /// complains of those, one that lacks it of the name.
    pub(super) fn has_qdisc(&self, interface_index: i32, kind: &str) -> io::Result<bool> {
        let mut body = tc_message(interface_index, TC_H_ROOT);
        put_attribute(&mut body, TCA_KIND, &zero_ended(kind));
        match self.acknowledged(RTM_NEWQDISC, NLM_F_CREATE_EXCL, &body) {
            Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => Ok(false),
            Err(error) if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) => Err(error),
            _ => Ok(true),
        }
    }

    /// All qdiscs of this namespace.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn qdiscs(&self) -> io::Result<Vec<Qdisc>> {
        self.send(RTM_GETQDISC, NLM_F_DUMP, &tc_message(0, 0))?;
        let mut found = Vec::new();
        loop {
            let datagram = self.receive()?;
            for (kind, body) in messages(&datagram) {
                match kind {
                    NLMSG_DONE => return Ok(found),
                    NLMSG_ERROR => return Err(error_of(body)),
                    RTM_NEWQDISC => found.extend(qdisc_of(body)),
                    _ => {}
                }
            }
        }
    }

    fn acknowledged(&self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        self.send(kind, flags | NLM_F_ACK, body)?;
        let datagram = self.receive()?;
        match messages(&datagram).next() {
            Some((NLMSG_ERROR, body)) if body.get(..4) == Some(&[0; 4]) => Ok(()),
            Some((NLMSG_ERROR, body)) => Err(error_of(body)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn send(&self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        let octets = u32::try_from(HEADER_OCTETS + body.len()).map_err(io::Error::other)?;
        let mut message = octets.to_ne_bytes().to_vec();
        message.extend_from_slice(&kind.to_ne_bytes());
        message.extend_from_slice(&(flags | NLM_F_REQUEST).to_ne_bytes());
        message.extend_from_slice(&[0; 8]);
        message.extend_from_slice(body);
        sendto(&self.0, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        Ok(())
    }

    fn receive(&self) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0_u8; 64 * 1024];
        let (octets, _) = recv(&self.0, &mut buffer[..], RecvFlags::empty())?;
        buffer.truncate(octets);
        Ok(buffer)
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// struct ifinfomsg.
fn interface_message(index: i32, flags: u32) -> Vec<u8> {
    let mut body = vec![0_u8; 4];
    body.extend_from_slice(&index.to_ne_bytes());
    body.extend_from_slice(&flags.to_ne_bytes());
    body.extend_from_slice(&flags.to_ne_bytes());
    body
}

/// struct tcmsg.
fn tc_message(index: i32, parent: u32) -> Vec<u8> {
    let mut body = vec![0_u8; 4];
    body.extend_from_slice(&index.to_ne_bytes());
    body.extend_from_slice(&[0; 4]);
    body.extend_from_slice(&parent.to_ne_bytes());
    body.extend_from_slice(&[0; 4]);
    body
}

fn zero_ended(text: &str) -> Vec<u8> {
    [text.as_bytes(), &[0]].concat()
}

fn put_attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    // Only the short constants above are ever put.
    let octets = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    body.extend_from_slice(&octets.to_ne_bytes());
    body.extend_from_slice(&kind.to_ne_bytes());
    body.extend_from_slice(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// Type and body of each message in a datagram; stops at the first that does not fit.
fn messages(mut datagram: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let octets = u32::from_ne_bytes(*datagram.first_chunk::<4>()?) as usize;
        let kind = u16::from_ne_bytes(*datagram.get(4..)?.first_chunk::<2>()?);
        let body = datagram.get(HEADER_OCTETS..octets)?;
        datagram = datagram.get(octets.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, body))
    })
}

fn error_of(body: &[u8]) -> io::Error {
    let number = body.first_chunk::<4>().map_or(0, |octets| i32::from_ne_bytes(*octets));
    io::Error::from_raw_os_error(number.saturating_neg())
}

fn qdisc_of(body: &[u8]) -> Option<Qdisc> {
    let interface_index = i32::from_ne_bytes(*body.get(4..)?.first_chunk::<4>()?);
    let mut attributes = body.get(TC_OCTETS..)?;
    loop {
        let octets = usize::from(u16::from_ne_bytes(*attributes.first_chunk::<2>()?));
        let kind = u16::from_ne_bytes(*attributes.get(2..)?.first_chunk::<2>()?) & NLA_TYPE_MASK;
        let value = attributes.get(4..octets)?;
        if kind == TCA_KIND {
            let name = value.split(|octet| *octet == 0).next()?;
            return Some(Qdisc { interface_index, kind: String::from_utf8_lossy(name).into_owned() });
        }
        attributes = attributes.get(octets.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qdiscs_are_read() {
        let mut body = tc_message(7, 0);
        put_attribute(&mut body, 2, &[1, 2, 3]);
        put_attribute(&mut body, TCA_KIND, b"etf\0");
        assert_eq!(qdisc_of(&body), Some(Qdisc { interface_index: 7, kind: "etf".into() }));
        for end in 0..body.len() - 4 {
            assert_eq!(qdisc_of(&body[..end]), None, "cut at {end}");
        }
    }

    #[test]
    fn broken_datagrams_end() {
        assert_eq!(messages(&[]).count(), 0);
        assert_eq!(messages(&[0; 64]).count(), 0);
        assert_eq!(messages(&[255; 64]).count(), 0);
    }

    #[test]
    fn the_kernel_lists_our_qdiscs() {
        Netlink::open().unwrap().qdiscs().unwrap();
    }
}
