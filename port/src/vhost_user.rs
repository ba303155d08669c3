// SPDX-License-Identifier: Apache-2.0
//! A backend of virtio network devices behind a Unix socket (vhost-user): a virtual switch, as OVS-DPDK.
//!
//! In: staged frames in this process's memory. Out: a copy of each in a ring that the backend reads: no system call, unless the
//! backend asks for notifications. Nothing is received: one receive buffer is posted in each queue and never read.
//!
//! ```text
//!  worker ── port ── link (rings) ═══ shared memory ═══ backend
//!              ▲ │ new, ended links                        ▲
//!              │ ▼                                         │
//!            keeper: a thread that listens, negotiates, waits for the hang-up
//! ```
//! This end listens; the backend connects, so both may be started again in any order. A frame that is committed while there is no
//! backend fails with [`SendError::LinkDown`]. A frame that lies in the ring when the backend goes away is lost and counted.
//!
//! A frame's queue follows from the priority in its 802.1Q tag: equal shares of the eight priorities, the lowest in queue 0. A frame
//! without a tag takes queue 0. So frames of one priority stay in order.

mod keeper;

use std::sync::Arc;

use std::path::Path;

use ktsn_virtio_net::{FRAME_OCTETS_MAX, SendError as LinkError};

use crate::device::{Device, Options, in_namespace, look_up_ethernet};
use crate::error::{OpenError, SendError, StageError};
use crate::limits::{ETHERNET_HEADER_OCTETS, ETHERTYPE_VLAN, VLAN_TAG_OCTETS};
use crate::stages::Stages;
use crate::traits::{Builder, Capabilities, Counters, Occupancy, Port, StageId};
use keeper::Keeper;

/// Largest MTU: a frame lies in one buffer of the ring.
pub const MTU_OCTETS_MAX: usize = FRAME_OCTETS_MAX - ETHERNET_HEADER_OCTETS - VLAN_TAG_OCTETS;
/// Priorities that a tag can name.
const PRIORITIES: u16 = 8;

/// Where a port listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Socket<'a> {
    /// The socket's path, 107 octets at most.
    pub path: &'a Path,
    /// Transmit queues, 1 to 8. The backend must have as many.
    pub queues: u16,
}

/// A port to a backend. Dropping it closes the connection and removes the socket.
#[derive(Debug)]
pub struct VhostUser {
    keeper: Keeper,
    stages: Stages,
    frames: Box<[u8]>,
    slot_octets: usize,
    capabilities: Capabilities,
}

impl VhostUser {
    /// Listens at `socket`. Address and MTU are those of `device`, for which this port sends; `None`: no address, and the largest MTU.
    /// [`Options::queue`] has no meaning here. The link is down until a backend has connected.
    ///
    /// # Errors
    /// An [`OpenError`]; nothing stays open.
    pub fn open(
        device: Option<&Device<'_>>,
        socket: &Socket<'_>,
        options: &Options,
    ) -> Result<Self, OpenError> {
        let stages = Stages::new(options.stage_count)?;
        let link = match device {
            Some(device) => {
                Some(in_namespace(device.netns, || look_up_ethernet(device.ifname).map(|(_, link)| link))?)
            }
            None => None,
        };
        let mtu_octets = link.map_or(MTU_OCTETS_MAX, |link| link.mtu_octets.min(MTU_OCTETS_MAX));
        let frame_octets_max = mtu_octets + ETHERNET_HEADER_OCTETS + VLAN_TAG_OCTETS;
        let slot_octets = frame_octets_max.next_multiple_of(64);
        // Written once, so that no page is missing when a frame is due.
        let frames = vec![1; usize::from(options.stage_count) * slot_octets].into_boxed_slice();
        let capabilities = Capabilities {
            adapter: "vhost_user",
            ifindex: link.map_or(0, |link| link.ifindex),
            mac: link.map_or([0; 6], |link| link.mac),
            mtu_octets,
            frame_octets_max,
            stage_count: options.stage_count,
        };
        Ok(Self { keeper: Keeper::start(socket)?, stages, frames, slot_octets, capabilities })
    }

    /// The port's state, for other threads.
    #[must_use]
    pub fn status(&self) -> Status {
        Status(self.keeper.shared())
    }

    /// Sends the frame of a launched stage.
    #[inline]
    fn send(&mut self, stage: StageId, octets: usize) -> Result<(), SendError> {
        let lost = &mut self.stages.counters.lost_count;
        let Some(link) = self.keeper.link(lost) else { return Err(SendError::LinkDown) };
        let start = stage.index() * self.slot_octets;
        let frame = &self.frames[start..start + octets];
        let queue = queue_of(frame, link.queues());
        match link.send(queue, frame) {
            Ok(()) => Ok(()),
            Err(LinkError::Full) => Err(SendError::Busy),
            Err(LinkError::Length { .. } | LinkError::NoQueue { .. }) => Err(SendError::TooLong),
            Err(LinkError::Broken(_)) => {
                self.keeper.retire(lost);
                Err(SendError::LinkDown)
            }
        }
    }
}

/// A port's state, readable by any thread while the port lives and after.
#[derive(Debug, Clone)]
pub struct Status(Arc<keeper::Shared>);

impl Status {
    /// Whether a backend is connected.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.0.is_up()
    }

    /// Backends that were served so far.
    #[must_use]
    pub fn served_count(&self) -> u64 {
        self.0.served_count()
    }

    /// Backends that connected and did not get as far as a link: they closed, lied or were silent.
    #[must_use]
    pub fn failed_count(&self) -> u64 {
        self.0.failed_count()
    }

    /// Why the last one of these came to nothing; `None` when a later one is or was served.
    #[must_use]
    pub fn last_fault(&self) -> Option<String> {
        self.0.last_fault()
    }
}

/// The queue of a frame's priority, of `queues`.
#[inline]
fn queue_of(frame: &[u8], queues: u16) -> u16 {
    match frame.get(12..15) {
        Some(&[high, low, tag]) if [high, low] == ETHERTYPE_VLAN => u16::from(tag >> 5) * queues / PRIORITIES,
        _ => 0,
    }
}

impl Port for VhostUser {
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
        match self.send(stage, octets) {
            Ok(()) => {
                self.stages.deliver(stage);
                Ok(())
            }
            Err(error) => {
                self.stages.withdraw(stage);
                Err(error)
            }
        }
    }

    /// Takes back what the backend has sent, in the queue of frames without a tag. A send does that first; here it is done before the
    /// time of a frame.
    fn warm_up(&mut self) {
        if let Some(link) = self.keeper.link(&mut self.stages.counters.lost_count) {
            link.warm_up(0);
        }
    }

    /// Looks for a new backend, and counts what an ended one has not taken. No buffer is ever in flight.
    fn reap(&mut self) -> usize {
        self.keeper.link(&mut self.stages.counters.lost_count);
        0
    }

    fn link_up(&self) -> bool {
        self.keeper.is_up()
    }

    crate::stages::stage_methods!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_share_the_queues_in_their_order() {
        let tagged = |priority: u8| {
            let mut frame = [0; 60];
            frame[12..16].copy_from_slice(&[0x81, 0, priority << 5 | 1, 2]);
            frame
        };
        let queues = |queues| (0..8).map(|priority| queue_of(&tagged(priority), queues)).collect::<Vec<_>>();
        assert_eq!(queues(1), [0; 8]);
        assert_eq!(queues(2), [0, 0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(queues(3), [0, 0, 0, 1, 1, 1, 2, 2]);
        assert_eq!(queues(8), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!((queue_of(&[0x81; 60], 8), queue_of(&[0; 14], 8)), (0, 0));
    }
}
