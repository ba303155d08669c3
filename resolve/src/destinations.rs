// SPDX-License-Identifier: Apache-2.0
//! The table by which a client decides before it sends: taken, or left to the kernel.
//!
//! In: [`Tables`]. Out: at most [`DESTINATION_RULES_MAX`] rules, longest prefix first; the first one that covers a
//! destination counts, no match means `not_allowed`. Runs in the control thread; allocates.
//!
//! Prefixes are nested or disjoint, never crossing. So the prefixes that the rules look at cut the addresses into
//! regions with one answer each: ask `path_to` once for each region, then leave out a region that says the same as the enclosing one
//! and join halves that say the same.
//! A client compares IPv4 as IPv4-mapped IPv6, so here one space holds both; `0.0.0.0/0` (`::ffff:0:0/96`) is a
//! region of its own, which keeps an IPv6 rule from catching IPv4.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ktsn_model::{BypassReason, IpPrefix};

use crate::limits::DESTINATION_RULES_MAX;
use crate::path::{Path, is_broadcast, path_to, payload_max, prefixes_that_matter};
use crate::prefixes::canonical;
use crate::table::{AttachmentIndex, AttachmentTables, Tables};

/// What a client does with a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Take it when its payload is no longer; else leave it to the kernel as `over_mtu`.
    Take {
        /// Largest payload, octets.
        payload_max: u16,
    },
    /// Take a datagram to a subnet's broadcast address, from a socket with SO_BROADCAST only. The kernel refuses the others.
    Broadcast {
        /// Largest payload, octets.
        payload_max: u16,
    },
    /// Take it if ktsnd can hand it to the kernel at its transmit time: the kernel knows the route, for each flow another one.
    Asked {
        /// Largest payload, octets.
        payload_max: u16,
    },
    /// Leave it to the kernel.
    Bypass(BypassReason),
}

/// One rule of the client's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DestinationRule {
    /// Which destinations. `0.0.0.0/0` is `::ffff:0:0/96` to the client ([`IpPrefix::mapped`]).
    pub prefix: IpPrefix,
    /// What happens to them.
    pub verdict: Verdict,
}

/// The client's table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DestinationTable {
    /// First match wins.
    pub rules: Vec<DestinationRule>,
    /// How many rules found no room. Their destinations go to the kernel (or an own address outside of the allowed
    /// prefixes is called `not_allowed`); nothing is ever taken that should not be.
    pub left_out: usize,
}

/// The verdict without any rule.
const NO_MATCH: Verdict = Verdict::Bypass(BypassReason::NotAllowed);

/// The rules of an attachment's clients; empty when there is no such attachment.
#[must_use]
pub fn destinations(tables: &Tables, attachment: AttachmentIndex) -> Vec<DestinationRule> {
    destination_table(tables, attachment).rules
}

/// The rules of an attachment's clients, and how many of them found no room.
#[must_use]
pub fn destination_table(tables: &Tables, attachment: AttachmentIndex) -> DestinationTable {
    table(tables, attachment, true)
}

/// The rules for frames that the pod's own packet filter has passed already (kernel capture).
#[must_use]
pub fn captured_destinations(tables: &Tables, attachment: AttachmentIndex) -> Vec<DestinationRule> {
    table(tables, attachment, false).rules
}

fn table(tables: &Tables, attachment: AttachmentIndex, is_filtered: bool) -> DestinationTable {
    let Some(tables) = tables.attachment(attachment) else {
        return DestinationTable::default();
    };
    let mut regions = regions(tables, is_filtered);
    loop {
        let before = regions.len();
        regions = without_redundant(&regions);
        regions = with_halves_joined(regions);
        if regions.len() == before {
            break;
        }
    }
    let wanted = regions.len();
    // MAC addresses that packet sockets may name, and addresses that they may come from, share the client's table.
    let others = tables.named().len() + tables.sources().count();
    shrink(&mut regions, DESTINATION_RULES_MAX.saturating_sub(others));
    let left_out = wanted - regions.len();
    regions.sort_by_key(|region| (u8::MAX - region.bits, region.start));
    DestinationTable { rules: regions.iter().filter_map(Region::rule).collect(), left_out }
}

/// A prefix in the joint space of 128-bit addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Region {
    start: u128,
    bits: u8,
    verdict: Verdict,
}

impl Region {
    fn covers(&self, other: &Self) -> bool {
        self.bits <= other.bits && (self.start ^ other.start).leading_zeros() >= u32::from(self.bits)
    }
    fn rule(&self) -> Option<DestinationRule> {
        let prefix = IpPrefix::new(IpAddr::V6(Ipv6Addr::from_bits(self.start)), self.bits).ok()?;
        Some(DestinationRule { prefix: canonical(prefix), verdict: self.verdict })
    }
    /// The other half of the prefix one bit shorter.
    fn sibling_start(&self) -> Option<u128> {
        let bit = 128_u32.checked_sub(u32::from(self.bits)).filter(|_| self.bits > 0)?;
        Some(self.start ^ 1_u128.checked_shl(bit)?)
    }
    fn is_v4(&self) -> bool {
        self.bits >= 96 && self.start >> 32 == 0xffff
    }
}

/// All regions with their verdicts, enclosing ones before what they enclose.
fn regions(tables: &AttachmentTables, is_filtered: bool) -> Vec<Region> {
    let all_v4 = IpPrefix::covering(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
    let mut regions: Vec<Region> = prefixes_that_matter(tables)
        .chain(all_v4)
        .map(|prefix| {
            let (start, bits) = prefix.mapped();
            let path = path_to(tables, prefix);
            let verdict = match path {
                Path::Bypass(reason) => Verdict::Bypass(reason),
                _ if is_filtered && tables.filters(prefix) => Verdict::Bypass(BypassReason::RoutingRules),
                Path::Asked(_) => Verdict::Asked { payload_max: payload_max(tables, &path, prefix) },
                _ => {
                    let payload_max = payload_max(tables, &path, prefix);
                    if is_broadcast(tables, prefix) {
                        Verdict::Broadcast { payload_max }
                    } else {
                        Verdict::Take { payload_max }
                    }
                }
            };
            Region { start: start.to_bits(), bits, verdict }
        })
        .collect();
    regions.sort_by_key(|region| (region.start, region.bits));
    regions.dedup_by_key(|region| (region.start, region.bits));
    regions
}

/// Leaves out regions that say what their enclosing one says. In and out: enclosing ones first.
fn without_redundant(regions: &[Region]) -> Vec<Region> {
    let mut kept: Vec<Region> = Vec::new();
    let mut open: Vec<Region> = Vec::new();
    for region in regions {
        while open.last().is_some_and(|last| !last.covers(region)) {
            open.pop();
        }
        if open.last().map_or(NO_MATCH, |last| last.verdict) != region.verdict {
            kept.push(*region);
            open.push(*region);
        }
    }
    kept
}

/// Joins two halves with one verdict into the prefix one bit shorter, family by family.
fn with_halves_joined(mut regions: Vec<Region>) -> Vec<Region> {
    for bits in (1..=128_u8).rev() {
        let mut joined = Vec::new();
        let halves: Vec<Region> = regions.iter().filter(|region| region.bits == bits).copied().collect();
        for pair in halves.windows(2) {
            let [low, high] = pair else { continue };
            let whole = Region { bits: bits - 1, ..*low };
            let is_pair = low.start < high.start && low.sibling_start() == Some(high.start);
            let families = [low.is_v4(), high.is_v4(), whole.is_v4()];
            if is_pair && low.verdict == high.verdict && families.iter().all(|v4| *v4 == families[0]) {
                joined.push((*low, *high, whole));
            }
        }
        for (low, high, whole) in joined {
            // The halves fill the whole, so the verdict of the whole itself applied to no address.
            regions.retain(|region| {
                *region != low && *region != high && (region.start, region.bits) != (whole.start, whole.bits)
            });
            regions.push(whole);
        }
    }
    regions.sort_by_key(|region| (region.start, region.bits));
    regions
}

/// Takes out rules until the table fits, never so that more is taken: first reasons without an effect (a bypass
/// inside of a bypass), then what would have been taken inside of a bypass with all that it encloses.
fn shrink(regions: &mut Vec<Region>, rules_max: usize) {
    while regions.len() > rules_max {
        let parent = |at: usize| {
            let region = regions.get(at)?;
            regions.iter().take(at).rev().find(|candidate| candidate.covers(region))
        };
        let in_bypass =
            |at: &usize| matches!(parent(*at).map_or(NO_MATCH, |parent| parent.verdict), Verdict::Bypass(_));
        let is_bypass =
            |at: &usize| regions.get(*at).is_some_and(|region| matches!(region.verdict, Verdict::Bypass(_)));
        let last = (0..regions.len()).rev();
        let victim = last.clone().find(|at| is_bypass(at) && in_bypass(at));
        let Some(victim) = victim.or_else(|| last.clone().find(|at| !is_bypass(at) && in_bypass(at))) else {
            regions.clear(); // cannot be: the outermost rule is inside of no_match, a bypass
            return;
        };
        let Some(gone) = regions.get(victim).copied() else { return };
        match gone.verdict {
            Verdict::Bypass(_) => {
                regions.remove(victim);
            }
            Verdict::Take { .. } | Verdict::Broadcast { .. } | Verdict::Asked { .. } => {
                regions.retain(|region| !gone.covers(region));
            }
        }
    }
}
