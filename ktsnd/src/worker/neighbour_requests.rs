// SPDX-License-Identifier: Apache-2.0
//! The missing neighbours of an attachment that the node was asked for lately, and how many routes.
//!
//! In: a neighbour without a MAC address, a route that only the kernel knows. Out: whether to ask for it now. It must never allocate: workers call it.

use ktsn_resolve::NextHop;
use ktsn_time::Monotonic;

use crate::limits::{NEIGHBOURS_REQUESTED, NEWS_PAUSE, ROUTES_ASKED, ROUTES_ASKED_MAX};

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

/// How many routes of an attachment the kernel was asked about lately.
#[derive(Clone, Copy, Debug, Default)]
pub struct RouteRequests {
    asked: u32,
    since: Monotonic,
}

impl RouteRequests {
    /// True when one more may be asked about: [`ROUTES_ASKED_MAX`] after a quiet time, then [`ROUTES_ASKED`] in each [`NEWS_PAUSE`].
    pub(super) fn may_ask(&mut self, now: Monotonic) -> bool {
        let pauses = now.since(self.since).get() / NEWS_PAUSE.get();
        if pauses > 0 {
            let over = u32::try_from(pauses).unwrap_or(u32::MAX).saturating_mul(ROUTES_ASKED);
            self.asked = self.asked.saturating_sub(over);
            self.since = now;
        }
        self.asked < ROUTES_ASKED_MAX
    }

    /// The kernel is asked about one more.
    pub(super) fn count(&mut self) {
        self.asked = self.asked.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use ktsn_resolve::Side;
    use ktsn_time::Nanos;

    use super::*;

    #[test]
    fn a_flood_of_flows_is_no_flood_of_questions() {
        let mut asked = RouteRequests::default();
        let begin = Monotonic::from_nanos(5_000_000_000);
        let mut burst = |pauses: i64| {
            let now = begin.saturating_add(NEWS_PAUSE.saturating_mul(pauses));
            let mut count = 0;
            while asked.may_ask(now) {
                asked.count();
                count += 1;
            }
            count
        };
        assert_eq!(burst(0), ROUTES_ASKED_MAX);
        assert_eq!((burst(0), burst(1), burst(1), burst(3)), (0, ROUTES_ASKED, 0, 2 * ROUTES_ASKED));
        assert_eq!(burst(1_000_000), ROUTES_ASKED_MAX, "after a quiet time");
    }

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
