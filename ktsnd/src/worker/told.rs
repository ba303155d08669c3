// SPDX-License-Identifier: Apache-2.0
//! Which neighbours of an attachment were asked for lately.
//!
//! In: a neighbour whose MAC address is missing. Out: whether to ask for it now. Must never allocate: workers call it.

use ktsn_resolve::NextHop;
use ktsn_time::Monotonic;

use crate::limits::{NEIGHBOURS_TOLD, NEWS_PAUSE};

/// See the module.
#[derive(Clone, Debug)]
pub struct NeighboursTold([Option<(NextHop, Monotonic)>; NEIGHBOURS_TOLD]);

impl Default for NeighboursTold {
    fn default() -> Self {
        Self([None; NEIGHBOURS_TOLD])
    }
}

impl NeighboursTold {
    /// Each at most once in [`NEWS_PAUSE`], and in that time no more than there is room for.
    pub(super) fn is_to_tell(&mut self, next_hop: NextHop, now: Monotonic) -> bool {
        let is_over =
            |told: &Option<(NextHop, Monotonic)>| told.is_none_or(|(_, at)| now.since(at) >= NEWS_PAUSE);
        let its = self.0.iter().position(|told| told.is_some_and(|(of, _)| of == next_hop));
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
    fn each_is_told_once_in_a_pause_and_no_flood_of_them() {
        let hop =
            |number: u32| NextHop { side: Side::Uplink, address: IpAddr::V4(Ipv4Addr::from_bits(number)) };
        let mut told = NeighboursTold::default();
        let begin = Monotonic::from_nanos(1_000_000_000);
        let at = |pauses: i64| begin.saturating_add(NEWS_PAUSE.saturating_mul(pauses));
        let most = NEIGHBOURS_TOLD as u32;
        assert!((0..most).all(|number| told.is_to_tell(hop(number), at(0))));
        assert!(
            (0..most + 5).all(|number| !told.is_to_tell(hop(number), at(1).saturating_add(Nanos::new(-1))))
        );
        // Those that did not come in before have their turn, and so have the others.
        assert!((most..most + 5).all(|number| told.is_to_tell(hop(number), at(1))));
        assert_eq!(
            (0..most).filter(|number| told.is_to_tell(hop(*number), at(1))).count(),
            NEIGHBOURS_TOLD - 5
        );
    }
}
