// SPDX-License-Identifier: Apache-2.0
//! The answer for one datagram: port, headers and largest payload, or why not.
//!
//! In: [`Tables`] and a [`Flow`]. Out: [`Resolved`] or [`Refusal`]. Must never allocate or panic: workers call it.

use core::net::IpAddr;

use ktsn_model::{BypassReason, DropReason, IpPrefix};
use ktsn_wire::{HeaderTemplate, MacAddress};

use crate::datagram::{Datagram, Departure};
use crate::flow::{
    Egress, FORBIDDEN, Flow, InterfaceRoute, NO_ROUTE, NOT_ALLOWED, ROUTING_RULES, Refusal, Replica,
    RouteAnswer, needs_scope,
};
use crate::link::{LinkTable, PortIndex};
use crate::path::{Path, path_to, payload_max_within};
use crate::table::{AttachmentIndex, Tables};

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

/// Applies the rules to one datagram. Where it leaves as several frames, this is the first that can leave.
///
/// # Errors
/// [`Refusal`]: `Bypass` for own, not allowed and foreign-scope destinations and for a bound address that is not the
/// interface's; `Drop` with `no_route` (also: the hop limit ends here, no source of the family), `no_neighbour`,
/// `network_policy`. `Unanswered` where the kernel must be asked.
pub fn resolve(tables: &Tables, flow: &Flow) -> Result<Resolved, Refusal> {
    resolve_replica(tables, flow, Replica::First)
}

/// Applies the rules to one of the frames that a datagram leaves as.
///
/// # Errors
/// Those of [`resolve`]; `no_route` for a copy that the tables know no more.
pub fn resolve_replica(tables: &Tables, flow: &Flow, replica: Replica) -> Result<Resolved, Refusal> {
    decide(tables, flow, replica, None, None)
}

/// Applies the rules to a datagram about whose route the kernel was asked. The answer counts only where the tables have none.
///
/// # Errors
/// Those of [`resolve`]; `Bypass` with `routing_rules` where the kernel would not send it by the interface, or from an address that
/// is not the interface's.
pub fn resolve_answered(tables: &Tables, flow: &Flow, answer: &RouteAnswer) -> Result<Resolved, Refusal> {
    decide(tables, flow, Replica::First, None, Some(answer))
}

/// What [`resolve`] will say once the MAC addresses are known for want of which it refuses with a [`NextHop`](crate::NextHop): port,
/// lengths, first copy. The same for a flow that the kernel has not answered for, as if it left by the interface. The template has
/// zeros in their place, so no frame may be made of it.
///
/// # Errors
/// Those of [`resolve`]; `no_neighbour` also where the MAC address is needed to know the port (bridged overlays).
pub fn resolve_ahead(
    tables: &Tables,
    flow: &Flow,
    answer: Option<&RouteAnswer>,
) -> Result<Resolved, Refusal> {
    decide(tables, flow, Replica::First, Some(MacAddress::default()), answer)
}

fn decide(
    tables: &Tables,
    flow: &Flow,
    replica: Replica,
    unknown: Option<MacAddress>,
    answer: Option<&RouteAnswer>,
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
    let asked = match (path, answer) {
        (Path::Asked(_), Some(RouteAnswer::Interface(route))) => Some(*route),
        (Path::Asked(_), Some(RouteAnswer::Elsewhere)) => return Err(ROUTING_RULES),
        // For its lengths every answer is as good.
        (Path::Asked(_), None) if unknown.is_some() => {
            let source = tables.interface.addresses().iter().map(|&(own, _)| own);
            let source = source.into_iter().find(|own| own.is_ipv4() == destination.is_ipv4());
            Some(InterfaceRoute { source, ..InterfaceRoute::default() })
        }
        (Path::Asked(_), None) => return Err(Refusal::Unanswered),
        _ => None,
    };
    let datagram = Datagram { tables, flow, destination, bound, asked, unknown };
    let leaves = match path {
        Path::Asked(_) if replica != Replica::First => return Err(NO_ROUTE),
        Path::Group => datagram.group(replica)?,
        Path::Unicast | Path::Bypass(_) | Path::Asked(None) => datagram.unicast(replica)?,
        Path::Tunnel(..) | Path::Forwarded if replica != Replica::First => return Err(NO_ROUTE),
        Path::Tunnel(vxlan, peer) | Path::Asked(Some((vxlan, peer))) => datagram.tunnel(vxlan, peer)?,
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
    let mtu = asked.and_then(|route| route.mtu).unwrap_or(u32::MAX).min(tables.interface.mtu());
    let payload_max = payload_max_within(tables, &path, destination.is_ipv4(), mtu);
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
