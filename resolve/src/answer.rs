// SPDX-License-Identifier: Apache-2.0
//! The answer for one datagram: port, headers and largest payload, or why not.
//!
//! In: [`Tables`] and a [`Flow`]. Out: [`Resolved`] or [`Refusal`]. Must never allocate or panic: workers call it.

use core::net::IpAddr;

use ktsn_model::{BypassReason, DropReason, IpPrefix};
use ktsn_wire::{HeaderTemplate, MacAddress};

use crate::datagram::{Datagram, Departure};
use crate::link::{LinkTable, PortIndex};
use crate::path::{Path, path_to, payload_max};
use crate::table::{AttachmentIndex, Tables};

/// A datagram's addresses and marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// The attachment that sends it.
    pub attachment: AttachmentIndex,
    /// The socket's local address when it has a specific one (bound or chosen by `connect`).
    pub bound: Option<IpAddr>,
    /// The socket's local port.
    pub source_port: u16,
    /// Destination address; IPv4-mapped IPv6 counts as IPv4.
    pub destination: IpAddr,
    /// Destination port.
    pub destination_port: u16,
    /// Device number that a link-local IPv6 destination is meant on; 0: this attachment's interface.
    pub scope: u32,
    /// Type of service (IPv4) or traffic class (IPv6).
    pub traffic_class: u8,
    /// TTL or hop limit; 0: the default, 64, for multicast 1.
    pub hop_limit: u8,
}

/// How a frame leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Egress {
    /// Straight onto the node's uplink.
    Uplink,
    /// Out of the pod's own interface.
    Interface,
}

/// Where and how a datagram leaves.
#[derive(Clone, Copy, Debug)]
pub struct Resolved {
    /// The port to hand it to.
    pub port: PortIndex,
    /// Its headers.
    pub template: HeaderTemplate,
    /// Largest payload, octets (rule 7).
    pub payload_max: u16,
    /// How it leaves.
    pub egress: Egress,
    /// Set when the datagram leaves as several frames: which of them this is. The next is [`next_replica`]'s.
    pub replica: Option<Replica>,
    /// Copies before this one that cannot leave, for want of a route or a neighbour.
    pub skipped: u16,
}

/// One of the frames that a datagram to a group, or to an unknown station, leaves as (head-end replication).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Replica {
    /// The first that can leave, or the only one.
    #[default]
    First,
    /// The copy to this tunnel end.
    Vtep(IpAddr),
    /// The copy for the stations on this node: by the interface, after all others.
    Interface,
}

/// Which of an attachment's two links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// The pod's interface.
    Interface,
    /// The node's uplink.
    Uplink,
}

/// A neighbour whose MAC address is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NextHop {
    /// On which link.
    pub side: Side,
    /// Its address.
    pub address: IpAddr,
}

/// Why a datagram does not leave here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// It is the kernel's business.
    Bypass(BypassReason),
    /// It cannot leave now; with the neighbour that the kernel should resolve.
    Drop(DropReason, Option<NextHop>),
}

pub(crate) const NO_ROUTE: Refusal = Refusal::Drop(DropReason::NoRoute, None);
pub(crate) const FORBIDDEN: Refusal = Refusal::Drop(DropReason::NetworkPolicy, None);
const NOT_ALLOWED: Refusal = Refusal::Bypass(BypassReason::NotAllowed);

/// Applies the rules to one datagram. Where it leaves as several frames, this is the first that can leave.
///
/// # Errors
/// [`Refusal`]: `Bypass` for own, not allowed and foreign-scope destinations and for a bound address that is not the
/// interface's; `Drop` with `no_route` (also: the hop limit ends here, no source of the family), `no_neighbour`,
/// `network_policy`.
pub fn resolve(tables: &Tables, flow: &Flow) -> Result<Resolved, Refusal> {
    resolve_replica(tables, flow, Replica::First)
}

/// Applies the rules to one of the frames that a datagram leaves as.
///
/// # Errors
/// Those of [`resolve`]; `no_route` for a copy that the tables know no more.
pub fn resolve_replica(tables: &Tables, flow: &Flow, replica: Replica) -> Result<Resolved, Refusal> {
    decide(tables, flow, replica, None)
}

/// What [`resolve`] will say once the MAC addresses are known for want of which it refuses with a [`NextHop`]: port, lengths,
/// first copy. The template has zeros in their place, so no frame may be made of it.
///
/// # Errors
/// Those of [`resolve`]; `no_neighbour` also where the MAC address is needed to know the port (bridged overlays).
pub fn resolve_ahead(tables: &Tables, flow: &Flow) -> Result<Resolved, Refusal> {
    decide(tables, flow, Replica::First, Some(MacAddress::default()))
}

fn decide(
    tables: &Tables,
    flow: &Flow,
    replica: Replica,
    unknown: Option<MacAddress>,
) -> Result<Resolved, Refusal> {
    let Some(tables) = tables.attachment(flow.attachment) else {
        return Err(Refusal::Bypass(BypassReason::NotAttached));
    };
    let destination = flow.destination.to_canonical();
    let path = path_to(tables, IpPrefix::host(destination));
    if let Path::Bypass(reason) = path {
        return Err(Refusal::Bypass(reason));
    }
    if needs_scope(destination) && flow.scope != 0 && flow.scope != tables.interface.if_index() {
        return Err(NOT_ALLOWED);
    }
    let bound = bound_source(&tables.interface, flow.bound, destination)?;
    let datagram = Datagram { tables, flow, destination, bound, unknown };
    let leaves = match path {
        Path::Group => datagram.group(replica)?,
        Path::Unicast | Path::Bypass(_) => datagram.unicast(replica)?,
        Path::Tunnel(..) | Path::Forwarded if replica != Replica::First => return Err(NO_ROUTE),
        Path::Tunnel(vxlan, peer) => datagram.tunnel(vxlan, peer)?,
        Path::Forwarded => datagram.forwarded()?,
    };
    let Departure { egress, repr, replica, skipped } = leaves;
    if egress == Egress::Uplink && !tables.permits(Some(destination)) {
        return Err(FORBIDDEN);
    }
    let port = match egress {
        Egress::Uplink => tables.uplink.port(),
        Egress::Interface => tables.interface.port(),
    };
    let template = HeaderTemplate::new(&repr).map_err(|_| Refusal::Drop(DropReason::Bug, None))?;
    let payload_max = payload_max(tables, &path, destination.is_ipv4());
    Ok(Resolved { port, template, payload_max, egress, replica, skipped })
}

/// The copy after this one of a frame that leaves as several. Each tunnel end gets one, even if the tables change between
/// two copies: what counts is which ends come after the last one.
#[must_use]
pub fn next_replica(tables: &Tables, attachment: AttachmentIndex, after: Replica) -> Option<Replica> {
    let bridged = tables.attachment(attachment)?.overlay.bridged()?;
    let Replica::Vtep(last) = after else { return None };
    let later = bridged.flood().partition_point(|&vtep| vtep <= last);
    match bridged.flood().get(later) {
        Some(&vtep) => Some(Replica::Vtep(vtep)),
        None => bridged.flood_interface().then_some(Replica::Interface),
    }
}

/// Destinations whose scope identifier counts in Linux (RFC 4007): link-local unicast, multicast of scopes 1 and 2.
pub(crate) fn needs_scope(destination: IpAddr) -> bool {
    match destination {
        IpAddr::V4(_) => false,
        IpAddr::V6(a) => {
            a.is_unicast_link_local() || (a.is_multicast() && matches!(a.segments()[0] & 0xf, 1 | 2))
        }
    }
}

/// The bound address when it is specific; a foreign one, or one of another family, is refused.
fn bound_source(
    interface: &LinkTable,
    bound: Option<IpAddr>,
    destination: IpAddr,
) -> Result<Option<IpAddr>, Refusal> {
    match bound.map(|address| address.to_canonical()) {
        None => Ok(None),
        Some(address) if address.is_unspecified() => Ok(None),
        Some(address) if address.is_ipv4() == destination.is_ipv4() && interface.has_address(address) => {
            Ok(Some(address))
        }
        Some(_) => Err(NOT_ALLOWED),
    }
}
