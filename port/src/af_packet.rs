// SPDX-License-Identifier: Apache-2.0
//! AF_PACKET with `PACKET_QDISC_BYPASS`: where AF_XDP can't be had.
//!
//! In: staged frames in this process's memory. Out: one `sendto` a frame, which copies it and calls the device's
//! transmit function: no qdisc, no routing. The socket's protocol is 0, so it receives nothing.
//! A frame is complete when `sendto` has returned: nothing is ever in flight, and a refused frame is lost with an
//! error, never retried here: the caller decides.

#[allow(unsafe_code)]
mod sys;
#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socket_with};

use crate::device::{
    Device, LinkState, LinkWatch, Options, in_namespace, look_up_ethernet, widen_send_buffer,
};
use crate::error::{OpenError, SendError, StageError};
use crate::stages::Stages;
use crate::traits::{Builder, Capabilities, Counters, Occupancy, Port, StageId};

/// Buffers start on a cache line of their own.
const SLOT_ALIGNMENT: usize = 64;

impl AfPacket {
    /// Opens `device` for transmission; [`Options::queue`] has no meaning here.
    ///
    /// # Errors
    /// An [`OpenError`]; nothing stays open.
    pub fn open(device: &Device<'_>, options: &Options) -> Result<Self, OpenError> {
        in_namespace(device.netns, || open_here(device.ifname, options))
    }
}

fn open_here(ifname: &str, options: &Options) -> Result<AfPacket, OpenError> {
    let stages = Stages::new(options.stage_count)?;
    let (watch, link) = look_up_ethernet(ifname)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)
        .map_err(|errno| OpenError::os("socket(AF_PACKET)", errno))?;
    sys::set_qdisc_bypass(socket.as_fd())
        .map_err(|errno| OpenError::os("setsockopt(PACKET_QDISC_BYPASS)", errno))?;
    widen_send_buffer(&socket, usize::from(options.stage_count), link.frame_octets_max());
    sys::bind_for_sending(socket.as_fd(), link.ifindex).map_err(|errno| match errno {
        Errno::NODEV => OpenError::NoDevice { ifname: ifname.to_owned() },
        other => OpenError::os("bind(AF_PACKET)", other),
    })?;
    let slot_octets = link.frame_octets_max().next_multiple_of(SLOT_ALIGNMENT);
    let capabilities = link.capabilities("af_packet", options.stage_count);
    Ok(AfPacket::new(Socket { socket, watch }, stages, slot_octets, capabilities))
}

/// Sends whole frames.
pub trait Wire {
    /// Sends one frame without blocking.
    fn send(&mut self, frame: &[u8]) -> Result<(), Errno>;
    /// The state of the device's link.
    fn link_state(&self) -> LinkState;
}

/// A bound packet socket and its device.
#[derive(Debug)]
pub struct Socket {
    socket: OwnedFd,
    watch: LinkWatch,
}

impl Wire for Socket {
    #[inline]
    fn send(&mut self, frame: &[u8]) -> Result<(), Errno> {
        // A packet socket takes a frame whole or not at all.
        rustix::net::send(&self.socket, frame, SendFlags::DONTWAIT).map(drop)
    }

    fn link_state(&self) -> LinkState {
        self.watch.state()
    }
}

/// A transmit-only packet socket. Dropping it releases the memory and the namespace.
#[derive(Debug)]
pub struct AfPacket<W = Socket> {
    wire: W,
    stages: Stages,
    frames: Box<[u8]>,
    slot_octets: usize,
    capabilities: Capabilities,
}

impl<W: Wire> AfPacket<W> {
    fn new(wire: W, stages: Stages, slot_octets: usize, capabilities: Capabilities) -> Self {
        let octets = usize::from(capabilities.stage_count) * slot_octets;
        let mut frames = vec![0; octets].into_boxed_slice();
        // Written once, so that no page is missing when a frame is due.
        frames.fill(1);
        Self { wire, stages, frames, slot_octets, capabilities }
    }

    /// What the kernel's answer means. ENOBUFS is its word for both "the device's queue is full" and "no
    /// carrier": it has freed the frame in either case.
    #[cold]
    fn error(&self, errno: Errno) -> SendError {
        match errno {
            Errno::NETDOWN => SendError::LinkDown,
            Errno::NXIO | Errno::NODEV => SendError::DeviceGone,
            Errno::MSGSIZE => SendError::TooLong,
            Errno::AGAIN => SendError::Busy,
            Errno::NOMEM => SendError::NoMemory,
            Errno::NOBUFS | Errno::BUSY => LinkWatch::reason(self.wire.link_state()),
            other => SendError::Os { errno: other.raw_os_error() },
        }
    }
}

impl<W: Wire> Port for AfPacket<W> {
    fn stage(&mut self, build: &mut Builder<'_>) -> Result<StageId, StageError> {
        let start = usize::from(self.stages.next_free()?) * self.slot_octets;
        let buffer = &mut self.frames[start..start + self.slot_octets];
        self.stages.build(buffer, build, self.capabilities.frame_octets_max)
    }

    fn staged_frame(&self, stage: StageId) -> Option<&[u8]> {
        let octets = self.stages.staged_octets(stage)?;
        let start = stage.index() * self.slot_octets;
        self.frames.get(start..start + octets)
    }

    #[inline]
    fn commit(&mut self, stage: StageId) -> Result<(), SendError> {
        let octets = self.stages.launch(stage)?;
        let start = stage.index() * self.slot_octets;
        let sent = self.wire.send(&self.frames[start..start + octets]);
        match sent {
            Ok(()) => {
                self.stages.deliver(stage);
                Ok(())
            }
            Err(errno) => {
                self.stages.withdraw(stage);
                Err(self.error(errno))
            }
        }
    }

    /// A call without octets: the kernel refuses it as it has done the work of a call.
    #[inline]
    fn warm_up(&mut self) {
        let _refused = self.wire.send(&[]);
    }

    fn reap(&mut self) -> usize {
        0
    }

    fn link_up(&self) -> bool {
        self.wire.link_state() == LinkState::Up
    }

    crate::stages::stage_methods!();
}
