// SPDX-License-Identifier: Apache-2.0
//! Header fields that Linux draws: IPv4 identifications and automatic IPv6 flow labels.
//!
//! In: addresses and ports. Out: the next identification of an address pair, the flow label of a flow. No other host can tell
//! beforehand what they are: both begin with secrets of this process. Memory is allocated when the worker is made.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::LazyLock;

use ktsn_resolve::Flow;

/// Drawn when the first worker is made.
static SECRET: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// Counters of identifications: a power of two.
const COUNTERS: usize = 1 << COUNTERS_BITS;
const COUNTERS_BITS: u32 = 12;

/// Of automatic flow labels: the upper half of the label space, as `net.ipv6.flowlabel_state_ranges` asks for by default. So a
/// label is never 0.
const STATELESS: u32 = 0x8_0000;
/// A flow label has 20 bits.
const LABEL: u32 = 0xf_ffff;

/// The next identification for each pair of IPv4 addresses (RFC 6864 4.2). As in Linux pairs share counters, so that the table
/// is bounded: the identifications of one pair repeat after 65,535 frames of all pairs that share its counter.
#[derive(Debug)]
pub(super) struct Identifications {
    counters: Box<[u16]>,
    /// Odd: a multiplication by it spreads the pairs over the counters.
    spread: u64,
}

impl Identifications {
    /// Counters with secret beginnings.
    pub(super) fn new() -> Self {
        let counters = (0..COUNTERS).map(|at| SECRET.hash_one(at) as u16).collect();
        Self { counters, spread: SECRET.hash_one("spread") | 1 }
    }

    /// The identification of the next frame between these addresses: never 0, because Linux replaces a 0 in some places.
    #[inline]
    pub(super) fn next(&mut self, pair: u64) -> u16 {
        // Hosts of one network differ in a few bits: one multiplication by an unlucky number leaves them a few counters.
        let mixed = pair.wrapping_mul(self.spread);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(self.spread);
        let at = mixed >> (u64::BITS - COUNTERS_BITS);
        let Some(counter) = self.counters.get_mut(at as usize) else { return 1 };
        *counter = counter.wrapping_add(1).max(1);
        *counter
    }
}

/// The automatic flow label of a socket's datagrams to one destination (RFC 6437 3): the same for all of them.
pub(super) fn flow_label(flow: &Flow) -> u32 {
    let socket = (flow.attachment, flow.bound.map(|bound: IpAddr| bound.to_canonical()), flow.source_port);
    let hash = SECRET.hash_one((socket, flow.destination, flow.destination_port));
    hash as u32 & LABEL | STATELESS
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use ktsn_resolve::{AttachmentIndex, Marks};

    use super::*;

    /// [RFC 6864 4.2] What one pair of addresses gets is neither constant nor repeated, whatever others get between.
    #[test]
    fn identifications_of_a_pair_do_not_repeat() {
        let mut identifications = Identifications::new();
        let mut seen: BTreeMap<u64, BTreeSet<u16>> = BTreeMap::new();
        for round in 0..20_000 {
            for pair in [0, 1, 1 << 32, u64::MAX, round] {
                let identification = identifications.next(pair);
                let is_new = seen.entry(pair).or_default().insert(identification);
                assert!(identification != 0 && (is_new || pair == round), "{pair} {round}");
            }
        }
    }

    #[test]
    fn a_counter_passes_over_0() {
        let mut identifications = Identifications::new();
        assert!((0..70_000).all(|_| identifications.next(7) != 0));
    }

    /// By the first three numbers one multiplication alone gave the hosts of a network 32 to 46 counters.
    #[test]
    fn pairs_use_many_counters_whatever_is_drawn() {
        let unlucky = [0x83a8_9501_a5ef_ffff, 0xac83_bd56_1a97_ffff, 0xffb8_374c_b4c2_8f5d];
        for spread in unlucky.into_iter().chain([Identifications::new().spread]) {
            let mut identifications = Identifications { spread, ..Identifications::new() };
            let before = identifications.counters.clone();
            (0..4096_u64).for_each(|host| _ = identifications.next(0x0100_000a | host << 40));
            let used = before.iter().zip(&identifications.counters).filter(|(a, b)| a != b).count();
            assert!(used > 1000, "{used} by {spread:#x}");
        }
    }

    #[test]
    fn a_flow_keeps_its_label_and_flows_differ() {
        let flow = |port, last| Flow {
            attachment: AttachmentIndex(1),
            uid: 0,
            is_connected: false,
            bound: None,
            source_port: port,
            destination: std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last).into(),
            destination_port: 6000,
            scope: 0,
            traffic_class: 0,
            hop_limit: 0,
            marks: Marks::default(),
        };
        let labels: BTreeSet<u32> = (0..1000).map(|port| flow_label(&flow(port, 1))).collect();
        assert!(labels.len() > 990 && labels.iter().all(|label| (STATELESS..=LABEL).contains(label)));
        assert_eq!(flow_label(&flow(5, 1)), flow_label(&flow(5, 1)));
        let marked = Flow { traffic_class: 3, hop_limit: 9, ..flow(5, 1) };
        assert_eq!(
            flow_label(&marked),
            flow_label(&flow(5, 1)),
            "the label is the socket's, not the datagram's"
        );
        assert_ne!(flow_label(&flow(5, 2)), flow_label(&flow(5, 1)));
    }
}
