// SPDX-License-Identifier: Apache-2.0
//! The source address of a datagram.
//!
//! In: the interface's addresses, what the socket is bound to, the route. Out: one of the interface's own addresses,
//! or none: a datagram never leaves with a source that the attachment does not own.

use core::net::IpAddr;

use crate::link::LinkTable;

/// Whether an address means something on its link only: link-local unicast, or multicast of that scope or less.
fn is_link_scoped(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(a) => a.is_unicast_link_local() || (a.is_multicast() && a.segments()[0] & 0xf <= 2),
    }
}

/// Leading bits that two addresses share, as far as the prefix of the first goes (RFC 6724 2.2 for IPv6; for IPv4
/// that makes all addresses of one subnet equal, so that the primary wins, as in Linux).
fn shared_bits((own, bits): (IpAddr, u8), target: IpAddr) -> u32 {
    match (own, target) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros().min(u32::from(bits)),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros().min(u32::from(bits)),
        _ => 0,
    }
}

/// The source that an unbound socket gets: the route's preferred one when it is the interface's, else the
/// interface's first address that shares the longest prefix with the next hop (with the destination, where the next
/// hop is of another family or scope), link-local ones only for link-scoped destinations unless there is no other.
/// Groups have no next hop: the first fitting address.
pub(crate) fn choose(
    interface: &LinkTable,
    preferred: Option<IpAddr>,
    next_hop: Option<IpAddr>,
    destination: IpAddr,
) -> Option<IpAddr> {
    let of_family = |own: IpAddr| own.is_ipv4() == destination.is_ipv4();
    if let Some(preferred) = preferred.filter(|&own| of_family(own) && interface.has_address(own)) {
        return Some(preferred);
    }
    let target = match next_hop {
        Some(hop) if of_family(hop) && is_link_scoped(hop) == is_link_scoped(destination) => Some(hop),
        Some(_) => Some(destination),
        None => None,
    };
    let scoped = is_link_scoped(destination);
    let mut best: Option<((bool, u32), IpAddr)> = None;
    for &(own, bits) in interface.addresses().iter().filter(|entry| of_family(entry.0)) {
        let shared = target.map_or(0, |target| shared_bits((own, bits), target));
        let rank = (is_link_scoped(own) == scoped, shared);
        if best.is_none_or(|(best_rank, _)| rank > best_rank) {
            best = Some((rank, own));
        }
    }
    best.map(|(_, own)| own)
}
