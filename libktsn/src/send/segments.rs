// SPDX-License-Identifier: Apache-2.0
//! Into which frames a payload is cut: UDP_SEGMENT of the call, or of the socket.
//!
//! In: a payload's length, what the call asks for, what the daemon takes. Out: the length of each frame's part, or why the kernel sends it.

use ktsn_model::BypassReason;

use crate::call::control_messages::Parsed;
use crate::process::kernel;
use crate::send::verdict::SendCall;

impl SendCall {
    /// Into frames of how many octets a payload is cut (UDP_SEGMENT); or the kernel has the errno for it, or more
    /// room.
    #[inline(always)]
    pub(crate) fn segment_octets(
        self,
        octets: usize,
        control: &Parsed,
        payload_max: usize,
        slots_count: usize,
    ) -> Result<usize, BypassReason> {
        let asked = control.segment_octets.unwrap_or_else(|| self.stream.options().segment_octets);
        let segment = if asked == 0 { octets.max(1) } else { usize::from(asked) };
        // Older kernels refuse segments over the MTU also where the datagram is a short one.
        let is_refused = segment > payload_max && asked != 0 && !kernel::takes_short_of_long_segments();
        if octets.min(segment) > payload_max || is_refused {
            return Err(BypassReason::OverMtu);
        }
        // Unread outcomes may hold half of the slots for good: a datagram that needs more than the rest would wait for ever.
        if octets.div_ceil(segment) > kernel::segments_max().min((slots_count / 2).max(1)) {
            return Err(BypassReason::UnsupportedOption);
        }
        Ok(segment)
    }
}
