// SPDX-License-Identifier: Apache-2.0
//! The two ends of a datapath: the stand-in of a virtual machine's network device, and the remote host.
//!
//! In: frames. Out: frames with the kernel's receive stamp where there is one. The stand-in owns what QEMU's backend owns: the descriptor of
//! a tap, with a virtio header in front of each frame, or the front end of a vhost-user socket. Every end is polled; none ever waits.
//! A frame that is refused has a reason.

use super::sys::{self, HEADER_OCTETS, Room};
use crate::error::LabError;
use ktsn_virtio_net::{Link, SendError};
use rustix::io::{Errno, ioctl_fionbio, readv, writev};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd as _, OwnedFd};

/// A virtio header that asks for nothing.
const HEADER: [u8; HEADER_OCTETS] = [0; HEADER_OCTETS];

/// What a frame's sender learns.
pub(crate) type Sent = Result<(), &'static str>;

/// One end.
pub(crate) enum Endpoint {
    /// A tap's descriptor.
    Tap(Tap),
    /// The front end of a vhost-user socket.
    Front(Box<Front>),
    /// The remote host's end of the veth.
    Packet(Packet),
}

/// A tap with virtio headers.
pub(crate) struct Tap {
    file: File,
    room: Room,
}

/// A vhost-user connection.
pub(crate) struct Front {
    link: Link,
}

/// Packet sockets: measured frames have transmit stamps, the load has none.
pub(crate) struct Packet {
    receives: OwnedFd,
    timed: OwnedFd,
    plain: OwnedFd,
    room: Room,
}

impl Tap {
    /// Makes a tap in the calling thread's network namespace. `offloads`: whether the guest takes partial checksums and large segments.
    pub(super) fn open(name: &str, offloads: bool) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open("/dev/net/tun")?;
        Self::of(file, name, offloads)
    }

    /// The tap of an open device node (macvtap).
    pub(super) fn of(file: File, name: &str, offloads: bool) -> io::Result<Self> {
        sys::become_tap(&file, name, if offloads { sys::OFFLOADS } else { 0 })?;
        // As QEMU has it. A tap runs an XDP program in its driver only for a write that may not wait; else the frame has become an skb.
        ioctl_fionbio(&file, true)?;
        Ok(Self { file, room: Room::new() })
    }

    /// The descriptor, for QEMU.
    pub(super) fn into_descriptor(self) -> OwnedFd {
        self.file.into()
    }

    fn poll(&mut self) -> io::Result<Option<&[u8]>> {
        let mut header = [0; HEADER_OCTETS];
        let mut parts = [IoSliceMut::new(&mut header), IoSliceMut::new(self.room.frame())];
        let octets = match readv(&self.file, &mut parts) {
            Ok(octets) => octets,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let octets = octets.saturating_sub(HEADER_OCTETS);
        Ok(Some(&self.room.frame()[..octets]))
    }

    fn send(&self, frame: &[u8]) -> io::Result<Sent> {
        match writev(&self.file, &[IoSlice::new(&HEADER), IoSlice::new(frame)]) {
            Ok(_) => Ok(Ok(())),
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => Ok(Err("tap_full")),
            Err(error) => Err(error.into()),
        }
    }
}

impl Packet {
    /// Opens the sockets on a device of the calling thread's network namespace.
    pub(super) fn open(ifindex: u32) -> io::Result<Self> {
        Ok(Self {
            receives: sys::packet_socket(ifindex, true, false)?,
            timed: sys::packet_socket(ifindex, false, true)?,
            plain: sys::packet_socket(ifindex, false, false)?,
            room: Room::new(),
        })
    }

    fn send(&self, frame: &[u8], timed: bool) -> io::Result<Sent> {
        let socket = if timed { &self.timed } else { &self.plain };
        match rustix::net::send(socket.as_fd(), frame, rustix::net::SendFlags::empty()) {
            Ok(_) => Ok(Ok(())),
            Err(Errno::AGAIN | Errno::NOBUFS) => Ok(Err("device_full")),
            Err(error) => Err(error.into()),
        }
    }
}

impl Endpoint {
    pub(super) fn front(link: Link) -> Self {
        Self::Front(Box::new(Front { link }))
    }

    /// Sends a frame. `timed`: the kernel is asked for a transmit stamp, where the end has one.
    pub(super) fn send(&mut self, frame: &[u8], timed: bool) -> io::Result<Sent> {
        match self {
            Self::Tap(tap) => tap.send(frame),
            Self::Packet(packet) => packet.send(frame, timed),
            Self::Front(front) => match front.link.send(0, frame) {
                Ok(()) => Ok(Ok(())),
                Err(SendError::Full) => Ok(Err("ring_full")),
                Err(error) => Err(io::Error::other(error.to_string())),
            },
        }
    }

    /// The transmit stamp of the timed frame that was sent last (nanoseconds of CLOCK_REALTIME); `None`: this end has none.
    pub(super) fn transmit_stamp(&mut self) -> io::Result<Option<u64>> {
        match self {
            Self::Packet(Packet { timed, room, .. }) => room.transmit_stamp(timed),
            Self::Tap(_) | Self::Front(_) => Ok(None),
        }
    }

    /// Passes what has arrived to `each`, with the kernel's receive stamp where the end has one; returns how many frames.
    pub(super) fn poll(&mut self, each: &mut dyn FnMut(&[u8], Option<u64>)) -> io::Result<usize> {
        match self {
            Self::Tap(tap) => Ok(tap.poll()?.map(|frame| each(frame, None)).map_or(0, |()| 1)),
            Self::Packet(Packet { receives, room, .. }) => {
                let taken = room.receive_frame(receives)?;
                Ok(taken.map(|(frame, stamp)| each(frame, stamp)).map_or(0, |()| 1))
            }
            Self::Front(front) => {
                let polled = front.link.receive(0, &mut |frame| each(frame, None));
                polled.map_err(|error| io::Error::other(error.to_string()))
            }
        }
    }

    /// Frames that the kernel did not keep for this end, since the last call.
    pub(super) fn drops(&self) -> io::Result<u64> {
        match self {
            Self::Packet(packet) => sys::packet_drops(&packet.receives),
            Self::Tap(_) | Self::Front(_) => Ok(0),
        }
    }

    /// What is behind the end, if it can go away by itself.
    ///
    /// # Errors
    /// The switch has closed the connection.
    pub(super) fn check(&self) -> Result<(), LabError> {
        match self {
            Self::Front(front) if front.link.is_hung_up() => Err(LabError::Process {
                name: "ovs-vswitchd".to_owned(),
                problem: "closed the connection of the vhost-user port".to_owned(),
                stderr: String::new(),
            }),
            _ => Ok(()),
        }
    }
}
