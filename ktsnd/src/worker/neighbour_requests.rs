// SPDX-License-Identifier: Apache-2.0
//! The missing neighbours of an attachment that the node was asked for lately.
//!
//! In: a neighbour without a MAC address. Out: whether to ask for it now. It must never allocate: workers call it.

use ktsn_resolve::NextHop;
use ktsn_time::Monotonic;

use crate::limits::{NEIGHBOURS_REQUESTED, NEWS_PAUSE};

/// Each neighbour that was requested, with the instant of the last request.
#[derive(Clone, Debug)]
pub struct NeighbourRequests([Option<(NextHop, Monotonic)>; NEIGHBOURS_REQUESTED]);

impl Default for NeighbourRequests {
    fn default() -> Self {
        Self([None; NEIGHBOURS_REQUESTED])
    }
}

impl NeighbourRequests {
    /// True when the neighbour is to be requested now: each at most once in [`NEWS_PAUSE`], and in that time no more of them than
    /// there is room for.
    pub(super) fn should_request(&mut self, next_hop: NextHop, now: Monotonic) -> bool {
        let is_over =
            |asked: &Option<(NextHop, Monotonic)>| asked.is_none_or(|(_, at)| now.since(at) >= NEWS_PAUSE);
        let its = self.0.iter().position(|asked| asked.is_some_and(|(hop, _)| hop == next_hop));
        let place = match its {
            Some(its) => Some(its).filter(|its| is_over(&self.0[*its])),
            None => self.0.iter().position(is_over),
        };
        if let Some(place) = place {
            self.0[place] = Some((next_hop, now));
        }
        place.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use ktsn_resolve::Side;
    use ktsn_time::Nanos;

    use super::*;

    #[test]
    fn each_is_requested_once_in_a_pause_and_no_flood_of_them() {
        let hop =
            |number: u32| NextHop { side: Side::Uplink, address: IpAddr::V4(Ipv4Addr::from_bits(number)) };
        let mut asked = NeighbourRequests::default();
        let begin = Monotonic::from_nanos(1_000_000_000);
        let at = |pauses: i64| begin.saturating_add(NEWS_PAUSE.saturating_mul(pauses));
        let most = NEIGHBOURS_REQUESTED as u32;
        assert!((0..most).all(|number| asked.should_request(hop(number), at(0))));
        assert!(
            (0..most + 5)
                .all(|number| !asked.should_request(hop(number), at(1).saturating_add(Nanos::new(-1))))
        );
        // Those that found no room before have their turn, and so have the others.
        assert!((most..most + 5).all(|number| asked.should_request(hop(number), at(1))));
        assert_eq!(
            (0..most).filter(|number| asked.should_request(hop(*number), at(1))).count(),
            NEIGHBOURS_REQUESTED - 5
        );
    }
}
