// SPDX-License-Identifier: Apache-2.0
//! A client that speaks the control messages by hand, and wrongly where a test wants that.
//!
//! In: a run directory, octets and descriptors. Out: what the daemon answers.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::UdpSocket;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use ktsn_ring::control::{Hello, HelloReply};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::bed::within;

/// The ring ABI that this client speaks.
pub const ABI: u16 = ktsn_ring::layout::ABI as u16;

/// One message and the descriptors that came with it.
pub type Said = (Vec<u8>, Vec<OwnedFd>);

/// A connection.
#[derive(Debug)]
pub struct Raw(OwnedFd);

/// An accepted client.
#[derive(Debug)]
pub struct Accepted {
    /// Its connection.
    pub raw: Raw,
    /// The region.
    pub region: OwnedFd,
    /// The doorbell.
    pub doorbell: OwnedFd,
}

impl Raw {
    /// Connects; a listener whose queue is full refuses at once.
    ///
    /// # Errors
    /// The kernel's.
    pub fn connect(run_dir: &Path) -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::net::connect(&fd, &SocketAddrUnix::new(run_dir.join("client/ktsn.sock"))?)?;
        set_socket_timeout(&fd, Timeout::Recv, Some(Duration::from_secs(10)))?;
        rustix::io::ioctl_fionbio(&fd, false)?;
        Ok(Self(fd))
    }

    /// Sends octets with descriptors, without waiting.
    ///
    /// # Errors
    /// The kernel's; `PIPE` when the daemon has ended the connection.
    pub fn send(&self, octets: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        rustix::net::sendmsg(&self.0, &[IoSlice::new(octets)], &mut ancillary, flags).map(|_| ())
    }

    /// One message with its descriptors; `None` when the daemon has ended the connection.
    ///
    /// # Errors
    /// `AGAIN` when nothing came within three seconds.
    pub fn receive(&self) -> Result<Option<Said>, Errno> {
        let mut octets = [0; 256];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut octets)];
        let received = rustix::net::recvmsg(&self.0, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC);
        let count = match received {
            Ok(received) => received.bytes,
            Err(Errno::CONNRESET) => 0,
            Err(error) => return Err(error),
        };
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                descriptors.extend(fds);
            }
        }
        Ok((count > 0).then(|| (octets[..count].to_vec(), descriptors)))
    }

    /// Whether the daemon ends the connection within three seconds, whatever it says before.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        loop {
            match self.receive() {
                Ok(None) => return true,
                Ok(Some(_)) => {}
                Err(_) => return false,
            }
        }
    }

    /// Says Hello with a UDP socket of `namespace`; the answer and its descriptors.
    ///
    /// # Panics
    /// When there is no answer.
    #[must_use]
    pub fn hello(&self, namespace: &str, (abi_min, abi_max): (u16, u16)) -> (HelloReply, Vec<OwnedFd>) {
        let socket = udp(namespace);
        self.send(Hello { abi_min, abi_max, interface_index: 0 }.encode().as_slice(), &[socket.as_fd()])
            .expect("Hello");
        let (octets, descriptors) = self.receive().expect("an answer").expect("an answer");
        (HelloReply::parse(&octets).expect("HelloReply"), descriptors)
    }

    /// The connection's descriptor.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A UDP socket of a namespace.
///
/// # Panics
/// When it cannot be made.
#[must_use]
pub fn udp(namespace: &str) -> UdpSocket {
    within(namespace, || UdpSocket::bind("0.0.0.0:0")).expect("UDP socket")
}

/// A client that attached in the ordinary way.
///
/// # Panics
/// When it is not accepted.
#[must_use]
pub fn accepted(run_dir: &Path, namespace: &str) -> Accepted {
    let raw = Raw::connect(run_dir).expect("connection");
    let (reply, mut descriptors) = raw.hello(namespace, (ABI, ABI));
    assert_eq!(reply.status, ktsn_ring::control::HelloStatus::Attached);
    let (region, doorbell) = (descriptors.remove(0), descriptors.remove(0));
    Accepted { raw, region, doorbell }
}
