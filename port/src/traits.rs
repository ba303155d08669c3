// SPDX-License-Identifier: Apache-2.0
//! The edge itself: [`Port`] and the words it speaks.

use crate::error::{SendError, StageError};

/// An occupied transmit buffer of one port. Used up by [`Port::commit`] or [`Port::abandon`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StageId(pub(crate) u16);

impl StageId {
    /// The buffer's index, below [`Capabilities::stage_count`]: lets a caller keep a table beside the port.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Writes one frame (destination MAC first, no FCS) to the slice's start and returns its length in octets, or
/// `None` when there is nothing to send after all. The slice holds the octets of some earlier frame.
pub type Builder<'a> = dyn FnMut(&mut [u8]) -> Option<usize> + 'a;

/// What an opened port can do; constant while it is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// The adapter's name as in the configuration: `af_xdp`, `af_packet`, `vhost_user`, `memory`; `deferred` is chosen by the daemon.
    pub adapter: &'static str,
    /// The interface's index; 0 when there is none.
    pub ifindex: u32,
    /// The device's own address, all zero when there is none.
    pub mac: [u8; 6],
    /// The device's MTU when it was opened, in octets.
    pub mtu_octets: usize,
    /// Longest frame with an 802.1Q tag, in octets without FCS. Untagged frames may have four less.
    pub frame_octets_max: usize,
    /// How many frames can be staged or in flight at once.
    pub stage_count: u16,
}

/// Where the port's buffers are. `free + staged + in_flight` is always the count of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Occupancy {
    /// Ready for [`Port::stage`].
    pub free: usize,
    /// Staged, not committed.
    pub staged: usize,
    /// Committed; the kernel or the device still owns the octets.
    pub in_flight: usize,
}

impl Occupancy {
    /// All buffers.
    #[must_use]
    pub const fn total(self) -> usize {
        self.free + self.staged + self.in_flight
    }
}

/// Frames since the port was opened. `staged = committed + failed + abandoned + still staged`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Frames built into a buffer.
    pub staged_count: u64,
    /// Frames that the port accepted for the wire.
    pub committed_count: u64,
    /// Committed frames that a thread of the port hands over later ([`crate::deferred`]).
    pub deferred_count: u64,
    /// Frames that a commit refused with an error; they did not go out.
    pub failed_count: u64,
    /// Deferred frames that the device refused in the end: `committed_count` includes them.
    pub deferred_dropped_count: u64,
    /// Frames that the backend of a vhost-user port had not taken when it went away: `committed_count` includes them.
    pub lost_count: u64,
    /// Frames given back unsent.
    pub abandoned_count: u64,
    /// Buffers that came back from the kernel, transmitted or dropped by the device.
    pub completed_count: u64,
    /// Completions for buffers that were not in flight: the kernel broke its word. Always 0.
    pub stray_completion_count: u64,
}

/// One network device, open for transmission. One worker owns it; no method blocks or allocates.
pub trait Port {
    /// Builds one frame into a free buffer. Nothing leaves yet.
    ///
    /// # Errors
    /// A [`StageError`]; no buffer stays occupied.
    fn stage(&mut self, build: &mut Builder<'_>) -> Result<StageId, StageError>;

    /// The octets of a staged frame, `None` when the stage is not occupied by one.
    fn staged_frame(&self, stage: StageId) -> Option<&[u8]>;

    /// Puts a staged frame onto the wire now. The stage is used up whatever the result. `Ok` means that the
    /// kernel has the frame.
    ///
    /// # Errors
    /// A [`SendError`]: the frame did not go out and never will.
    fn commit(&mut self, stage: StageId) -> Result<(), SendError>;

    /// Runs the code of a commit without a frame, so that the commit that follows finds code and data in the caches. Nothing
    /// leaves. The default does nothing.
    fn warm_up(&mut self) {}

    /// Gives a staged frame's buffer back unsent. Anything else than a staged frame is left alone.
    fn abandon(&mut self, stage: StageId);

    /// Takes back buffers whose transmission is complete, at most all buffers. Returns how many came back.
    fn reap(&mut self) -> usize;

    /// What the port can do.
    fn capabilities(&self) -> &Capabilities;

    /// Whether the link carries frames now. Asks the kernel: not for the hot path.
    fn link_up(&self) -> bool;

    /// Where the buffers are.
    fn occupancy(&self) -> Occupancy;

    /// What has happened so far.
    fn counters(&self) -> Counters;

    /// Stages a copy of `frame`.
    ///
    /// # Errors
    /// A [`StageError`]; no buffer stays occupied.
    fn stage_copy(&mut self, frame: &[u8]) -> Result<StageId, StageError> {
        let octets_max = self.capabilities().frame_octets_max;
        if frame.len() > octets_max {
            return Err(StageError::TooLong { octets: frame.len(), octets_max });
        }
        self.stage(&mut |buffer| {
            buffer.get_mut(..frame.len())?.copy_from_slice(frame);
            Some(frame.len())
        })
    }
}
