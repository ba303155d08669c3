// SPDX-License-Identifier: Apache-2.0
//! What a client and its sockets are answered: pure functions of the attachment, the tables and the facts.

use std::net::{IpAddr, Ipv6Addr};

use ktsn_model::BypassReason;
use ktsn_resolve::{
    AttachmentIndex, AttachmentTables, Tables, Verdict, destinations, link_frame_max, link_rules,
};
use ktsn_ring::{
    Destination, DestinationAction, Layout, LinkFacts, StreamCode, StreamStatus, layout, stream_flags,
};

use super::directory::ServedAttachment;
use super::socket::SocketFacts;
use super::streams::PAGE_OCTETS;
use crate::limits;
use crate::worker::{Client, ClientTables};

/// Slots that every client gets, where its attachment's `slots` and `octets_max` allow so many.
const SLOTS_LEAST: u32 = 64;

/// The layout of a client's region: the configured number of slots, less if they do not fit into `octets_max` or into `memory`
/// octets of ktsnd ([`memory_of`]). Lack of memory never makes it fewer than [`SLOTS_LEAST`]. A slot holds the interface's MTU.
pub(super) fn layout_for<P>(
    served: &ServedAttachment<P>,
    memory: u64,
) -> Result<Layout, ktsn_ring::LayoutError> {
    // A packet socket's frame has its Ethernet header and a tag in the slot too.
    let wanted = layout::SLOT_HEADER_OCTETS as u32 + served.mtu.saturating_add(18);
    let slot_octets = wanted.next_power_of_two().clamp(layout::SLOT_OCTETS_MIN, layout::SLOT_OCTETS_MAX);
    let fitting =
        u32::try_from(served.attachment.clients.octets_max / u64::from(slot_octets)).unwrap_or(u32::MAX);
    let most = served.attachment.clients.slots.min(fitting).clamp(1, layout::SLOTS_MAX);
    let of = |slots| Layout::new(slots, slot_octets, limits::STREAMS_MAX, layout::DESTINATIONS_MAX);
    // The most that fits lies in `low..high`, unless even `low` does not fit.
    let (mut low, mut high) = (most.min(SLOTS_LEAST), most + 1);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if memory_of(&of(middle)?) <= memory { low = middle } else { high = middle }
    }
    of(low)
}

/// Octets of ktsnd's memory that a client with such a region has at most: the region, private copies of all that can be queued,
/// the first page of its streams ([`super::streams`]), and what the kernel keeps for it.
pub(super) fn memory_of(layout: &Layout) -> u64 {
    let own = Client::private_octets(layout.slots_count(), layout.payload_max());
    (layout.shared_octets() + own) as u64 + PAGE_OCTETS + limits::CLIENT_KERNEL_OCTETS
}

/// Whether a socket can be a stream of this attachment. One that is bound to another address than its interface's is
/// not: what it sends keeps that source, which headers made here could not have. Nor is one that is bound to an address
/// of the interface that was not given to the attachment (`not_allowed`).
pub(super) fn judge<P>(served: &ServedAttachment<P>, tables: &Tables, facts: &SocketFacts) -> StreamCode {
    if facts.netns_cookie != served.netns_cookie {
        StreamCode::NotAttached
    } else if !(facts.udp || facts.link.is_some())
        || facts.mark != 0
        || (facts.interface != 0 && facts.interface != served.interface_index)
        || is_bound_elsewhere(tables.attachment(served.index), facts)
    {
        StreamCode::Unsupported
    } else if is_withheld(tables.attachment(served.index), facts) {
        StreamCode::Refused
    } else {
        StreamCode::Registered
    }
}

/// Whether the socket is bound to an address that the interface has and that was not given.
fn is_withheld(tables: Option<&AttachmentTables>, facts: &SocketFacts) -> bool {
    let local = facts.local.ip().to_canonical();
    tables.is_some_and(|tables| tables.withheld().binary_search(&local).is_ok())
}

/// Whether the socket's address is one of the namespace's, but not of the attachment's interface. While the tables do
/// not know the address at all it may be new.
fn is_bound_elsewhere(tables: Option<&AttachmentTables>, facts: &SocketFacts) -> bool {
    let local = facts.local.ip().to_canonical();
    tables.is_some_and(|tables| {
        let is_interfaces =
            tables.interface().has_address(local) || tables.withheld().binary_search(&local).is_ok();
        !is_interfaces && tables.own().binary_search(&local).is_ok()
    })
}

/// [`StreamCode::Unsupported`] while a socket has a source that the interface does not have: a foreign one (IP_FREEBIND,
/// IP_TRANSPARENT, `ip_nonlocal_bind`), one that is gone, or a new one that the tables will have soon.
pub(super) fn code_for(tables: Option<&AttachmentTables>, local: IpAddr) -> StreamCode {
    let local = local.to_canonical();
    let is_known = |tables: &AttachmentTables| tables.interface().has_address(local);
    if local.is_unspecified() || tables.is_none_or(is_known) {
        StreamCode::Registered
    } else {
        StreamCode::Unsupported
    }
}

/// What is granted to every stream of an attachment ([`stream_flags`]).
pub(super) fn flags_of<P>(served: &ServedAttachment<P>) -> u16 {
    let tai = if served.attachment.clients.allow_tai { stream_flags::TAI_GRANTED } else { 0 };
    tai | served.attachment.clients.take_from.map_or(0, stream_flags::takes_untimed_from)
}

/// The answer to a UDP socket; `code`: that of [`code_for`].
pub(super) fn status_of(
    (token, flags, code): (u32, u16, StreamCode),
    table: &[Destination],
    peer: Option<IpAddr>,
) -> StreamStatus {
    let Answer { limit, bypass, is_asked } = peer.map_or(Answer::default(), |peer| lookup(table, peer));
    StreamStatus { token, flags, code, limit, bypass, is_asked }
}

/// The answer to a packet socket: its greatest frame, or the bypass reason while the interface is away.
pub(super) fn link_status_of(
    token: u32,
    flags: u16,
    tables: &Tables,
    attachment: AttachmentIndex,
) -> StreamStatus {
    let limit = tables.attachment(attachment).map_or(0, link_frame_max);
    let bypass = if limit == 0 { BypassReason::NotAttached.number() } else { 0 };
    StreamStatus { token, flags, code: StreamCode::Registered, limit, bypass, is_asked: false }
}

/// What packet sockets of an attachment need to know; nothing is served while the interface is down, so that the
/// kernel answers for it.
fn link_facts(tables: &AttachmentTables) -> LinkFacts {
    let rules = link_rules(tables);
    LinkFacts {
        is_served: tables.interface().is_up(),
        if_index: tables.interface().if_index(),
        source: rules.source,
        is_ip_listed: rules.is_ip_listed,
        is_mac_listed: rules.is_mac_listed,
        vlan: rules.vlan,
        is_source_judged: rules.is_source_judged,
    }
}

/// The interface's IPv4 address where it has one only, else zeros.
fn sole_v4(tables: &AttachmentTables) -> [u8; 4] {
    let mut own = tables.interface().addresses().iter().filter_map(|(address, _)| match address {
        IpAddr::V4(address) => Some(address.octets()),
        IpAddr::V6(_) => None,
    });
    match (own.next(), own.next()) {
        (Some(address), None) => address,
        _ => [0; 4],
    }
}

fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// What a table says about one address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Answer {
    limit: u32,
    bypass: u16,
    is_asked: bool,
}

impl Answer {
    fn take(limit: u16) -> Self {
        Self { limit: u32::from(limit), ..Self::default() }
    }

    fn leave(reason: BypassReason) -> Self {
        Self { bypass: reason.number(), ..Self::default() }
    }
}

/// First match wins, as in the client.
fn lookup(table: &[Destination], address: IpAddr) -> Answer {
    let address = mapped(address).to_bits();
    let hit = table.iter().find(|d| {
        let prefix = u128::from_be_bytes(d.address);
        (address ^ prefix).leading_zeros() >= u32::from(d.prefix_bits)
    });
    match hit.map(|d| (d.action, d.payload_max)) {
        // Connecting to a broadcast address needed SO_BROADCAST.
        Some((DestinationAction::Take | DestinationAction::Broadcast, payload_max)) => {
            Answer::take(payload_max)
        }
        Some((DestinationAction::Asked, 0)) => Answer::leave(BypassReason::OverMtu),
        Some((DestinationAction::Asked, payload_max)) => {
            Answer { is_asked: true, ..Answer::take(payload_max) }
        }
        Some((DestinationAction::OwnAddress, _)) => Answer::leave(BypassReason::OwnAddress),
        Some((DestinationAction::RoutingRules, _)) => Answer::leave(BypassReason::RoutingRules),
        _ => Answer::leave(BypassReason::NotAllowed),
    }
}

/// The tables that every client of an attachment gets.
pub(super) fn client_tables(tables: &Tables, attachment: AttachmentIndex) -> ClientTables {
    let named = tables.attachment(attachment).map_or(&[][..], AttachmentTables::named);
    let mut table = destination_table(tables, attachment);
    table.extend(named.iter().map(|mac| Destination::named(mac.0)));
    let sources = tables.attachment(attachment).into_iter().flat_map(AttachmentTables::sources);
    table.extend(sources.map(|address| Destination::source(mapped(address).octets())));
    let link = tables.attachment(attachment).map(link_facts).unwrap_or_default();
    let sole_v4 = tables.attachment(attachment).map_or([0; 4], sole_v4);
    ClientTables { table, link, sole_v4, others: Vec::new() }
}

fn destination_table(tables: &Tables, attachment: AttachmentIndex) -> Vec<Destination> {
    let rules = destinations(tables, attachment);
    rules
        .iter()
        .map(|rule| {
            let (address, prefix_bits) = rule.prefix.mapped();
            let (action, payload_max) = match rule.verdict {
                Verdict::Take { payload_max } => (DestinationAction::Take, payload_max),
                Verdict::Broadcast { payload_max } => (DestinationAction::Broadcast, payload_max),
                Verdict::Bypass(BypassReason::OwnAddress) => (DestinationAction::OwnAddress, 0),
                Verdict::Asked { payload_max } => (DestinationAction::Asked, payload_max),
                Verdict::Bypass(BypassReason::RoutingRules) => (DestinationAction::RoutingRules, 0),
                Verdict::Bypass(_) => (DestinationAction::NotAllowed, 0),
            };
            Destination { address: address.octets(), prefix_bits, action, payload_max }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::fuzzing::served;
    use crate::config::ClientLimits;
    use proptest::prelude::*;

    fn entry(prefix: &str, action: DestinationAction, payload_max: u16) -> Destination {
        let (address, prefix_bits) = prefix.parse::<ktsn_model::IpPrefix>().unwrap().mapped();
        Destination { address: address.octets(), prefix_bits, action, payload_max }
    }

    #[test]
    fn the_first_match_wins() {
        let table = [
            entry("10.244.0.5/32", DestinationAction::OwnAddress, 0),
            entry("10.244.0.0/16", DestinationAction::Take, 1422),
            entry("10.0.0.0/8", DestinationAction::RoutingRules, 0),
            entry("12.0.0.0/8", DestinationAction::Asked, 1372),
        ];
        let at = |text: &str| lookup(&table, text.parse().unwrap());
        assert_eq!(at("10.244.0.5"), Answer::leave(BypassReason::OwnAddress));
        assert_eq!(at("10.244.1.5"), Answer::take(1422));
        assert_eq!(at("10.245.1.5"), Answer::leave(BypassReason::RoutingRules));
        assert_eq!(at("12.245.1.5"), Answer { is_asked: true, ..Answer::take(1372) });
        assert_eq!(at("11.245.1.5"), Answer::leave(BypassReason::NotAllowed));
        assert_eq!(at("fd00::1"), Answer::leave(BypassReason::NotAllowed));
    }

    proptest! {
        /// A region holds what was asked for, and never more octets than allowed.
        #[test]
        fn regions_fit(
            slots in 64u32..=4096,
            octets_max in 1u64 << 17..1 << 28,
            mtu in 68u32..=65_535,
            memory in 0u64..1 << 24,
        ) {
            let (worker, ..) = crate::worker::queues::<ktsn_port::AnyPort>().unwrap();
            let clients = ClientLimits { slots, octets_max, ..ClientLimits::default() };
            let served = served(AttachmentIndex(0), mtu, clients, worker);
            let layout = layout_for(&served, u64::MAX).unwrap();
            prop_assert!(layout.slots_count() <= slots as usize);
            let octets = (layout.slots_count() * layout.slot_octets()) as u64;
            prop_assert!(octets <= octets_max || layout.slots_count() == 1);
            // The largest datagram that leaves in one frame has room.
            let room = (mtu as usize).min(65_536 - layout::SLOT_HEADER_OCTETS);
            prop_assert!(layout.payload_max() >= room);
            let smaller = layout_for(&served, memory).unwrap();
            prop_assert!(memory_of(&smaller) <= memory || smaller.slots_count() == layout.slots_count().min(64));
            prop_assert!(smaller.slots_count() <= layout.slots_count() && smaller.slot_octets() == layout.slot_octets());
        }
    }
}
