// SPDX-License-Identifier: Apache-2.0
//! Windows for what does not go through the queues: frames that another sender hands over, one after the other.

use ktsn_model::{DropReason, TrafficClass};
use ktsn_time::{Nanos, Now, Span};

use super::TimeAware;

impl TimeAware {
    /// How long after `now` a burst may begin that does not go through these queues: from `ahead` on, the gate of `class` is open for as
    /// long as `wire_octets` take. Queues, link and shapers are left out.
    ///
    /// # Errors
    /// `gate_never_fits`; `too_long`: a frame of it has more than queueMaxSDU, `sdu_octets`.
    pub fn burst_in(
        &mut self,
        class: TrafficClass,
        (wire_octets, sdu_octets): (u32, u32),
        ahead: Nanos,
        now: Now,
    ) -> Result<Nanos, DropReason> {
        self.advance(now);
        let class = usize::from(class.get());
        if self.classes[class].queue_max_sdu.is_some_and(|most| sdu_octets > most) {
            return Err(DropReason::TooLong);
        }
        let position = self.gates.position(now.tai);
        let need = self.link.need(wire_octets);
        let fit = self.gates.next_fit(&position, class, Span::not_negative(ahead), need);
        fit.map(|fit| fit.after.to_nanos()).ok_or(DropReason::GateNeverFits)
    }
}
