// SPDX-License-Identifier: Apache-2.0
//! Snapshots and configuration → one attachment's tables.
//!
//! In: a [`TrackedAttachment`], the pod's and the daemon's namespace. Out: [`AttachmentTables`], or
//! why not; and which neighbours this attachment needs.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use ktsn_model::IpPrefix;
use ktsn_resolve::limits::{NEIGHBOURS_MAX, ROUTES_MAX};
use ktsn_resolve::{
    AskedFamilies, AttachmentTables, Link, LinkTable, Overlay, Route, Side, TableError, Via, VxlanBridged,
};
use ktsn_wire::MacAddress;

use super::delivery::{self, Arrival};
use super::pod::Pod;
use super::uplinks::Uplinks;
use super::{forwarding, given};
use crate::config::{self, Ethernet};
use crate::tables::error::TablesError;
use crate::tables::kernel::ends::End;
use crate::tables::kernel::rules::Origin;
use crate::tables::kernel::snapshot::Snapshot;
use crate::tables::kernel::space::Space;
use crate::tables::kernel::xfrm::Policies;
use crate::tables::overlay::state::{self, Inputs, OverlayState};
use crate::tables::overlay::underlay::Underlay;
use crate::tables::tracked::TrackedAttachment;

/// Gateways of one attachment whose MAC addresses are kept fresh unasked.
const GATEWAYS_MAX: usize = 16;

/// Where messages of routers were lost.
const EVERY_FAMILY: AskedFamilies = AskedFamilies { is_v4: true, is_v6: true };

/// The tables of an attachment whose interface was found, and its overlay to show. `others`: the interfaces of the namespace's other
/// attachments.
pub(super) fn tables(
    tracked: &TrackedAttachment,
    others: &[u32],
    pod: &Pod,
    node: &mut Space,
    uplinks: &mut Uplinks,
    inputs: Inputs<'_>,
) -> Result<(AttachmentTables, Option<OverlayState>), TablesError> {
    let made = tables_now(tracked, others, pod, node, uplinks, inputs)?;
    // What the kernel says of its tunnel ends decides on the uplink's routes, and which peers are left to the kernel.
    let Some(tunnel) = made.0.overlay().tunnel() else { return Ok(made) };
    let (local, port) = (tunnel.local, tunnel.port);
    let ends = known_ends(made.0.overlay()).map(|vtep| End { vtep, local, port });
    if !node.ask_ends(ends)? {
        return Ok(made);
    }
    tables_now(tracked, others, pod, node, uplinks, inputs)
}

/// [`tables`] by what is known of the node now.
fn tables_now(
    tracked: &TrackedAttachment,
    others: &[u32],
    pod: &Pod,
    node: &Space,
    uplinks: &mut Uplinks,
    inputs: Inputs<'_>,
) -> Result<(AttachmentTables, Option<OverlayState>), TablesError> {
    let (inside, host) = (&pod.space.snapshot, &node.snapshot);
    let mut link =
        inside.link(tracked.interface_index, tracked.interface_port).ok_or_else(|| TablesError::Device {
            field: "interface",
            device: tracked.interface.clone(),
            place: tracked.attachment.netns.display().to_string(),
        })?;
    let withheld = given::withhold(tracked, &mut link);
    let path_mtus = except(&mut link, inside);
    let filtered = inside.filter.destinations(&tracked.interface, &link.addresses);
    let vxlan = tracked.attachment.overlay.routed();
    let mut state = vxlan.map(|vxlan| state::routed(vxlan, inputs, host, &tracked.uplink, &link.addresses));
    let mut segment = tracked.attachment.overlay.bridged().cloned();
    if let Some(from) = tracked.attachment.overlay.bridged_from() {
        let of_segment = state::segment(from, inputs.learner, host, &tracked.uplink);
        segment = state::bridged(from, &of_segment, inputs.learner, host)?;
        state = Some(of_segment);
    }
    // What a device that is away knew last stays known, but nothing leaves.
    let is_away = segment.is_some() && state.as_ref().is_some_and(|state| state.fault.is_some());
    let (overlay, arrival) = match (segment, &state) {
        (Some(segment), _) => {
            let arrival = Arrival::bridged(&segment);
            (Overlay::VxlanBridged(VxlanBridged::new(segment)?), Some(arrival))
        }
        (None, Some(state)) if vxlan.is_some() => (state::tables(state, host)?, Arrival::routed(state, host)),
        (None, _) => (Overlay::None, None),
    };
    check_segment(&overlay, tracked, host, inputs.policies)?;
    let left = state.iter().flat_map(|state| &state.peers).filter(|peer| peer.left.is_some());
    // The kernel knows better: `not_allowed`. It stands before the pod's own route for the same prefix.
    let left = left.map(|peer| Route { prefix: peer.prefix, via: Via::Elsewhere, source: None });
    link.routes.splice(0..0, left.collect::<Vec<_>>());
    let uplink = uplink(tracked, node, uplinks, is_away, &overlay)?;
    let forwarding = forwarding::forwarding(tracked, &link, host, inputs.policies);
    let device = inside.devices.get(&tracked.interface_index);
    let (is_up, hop_limit) = device.map_or((false, None), |device| (device.up, device.hop_limit_v6));
    let tables = AttachmentTables::new(
        LinkTable::new(link)?.with_state(is_up).with_hop_limit_v6(hop_limit).with_path_mtus(path_mtus),
        uplink,
        overlay,
        tracked.attachment.allowed(),
    )?;
    let tables = tables
        .with_own(inside.own())?
        .with_vlan(tracked.attachment.tag)?
        .with_routes_of_others(inside.routes_by(others))
        .with_local(inside.local())?
        .with_filtered(filtered)?
        .asking(if pod.space.is_unsure { EVERY_FAMILY } else { inside.routing.asked(Origin::Own) });
    let is_asked = pod.space.is_unsure
        || inside.is_asked()
        || tables.interface().routes().any(|route| route.via == Via::Asked);
    let tables = tables.with_answers_of(if is_asked { pod.space.answers } else { 0 });
    let arrival = arrival.filter(|_| tracked.attachment.is_short());
    let delivery =
        arrival.and_then(|of| delivery::of(of, (tracked.interface_index, pod.number), &tables, host));
    let tables = tables.delivered(delivery);
    let tables = match withheld {
        Some(withheld) => tables.withholding(withheld)?,
        None => tables,
    };
    let tables = tables.forwarded(forwarding)?;
    let unrouted = forwarding::unrouted(tracked, &tables, host);
    let tables = tables.with_left_to_kernel(unrouted)?;
    let tables = tables.naming(
        tracked.attachment.destination_macs.clone(),
        tracked.attachment.ethernet == Ethernet::Listed,
    )?;
    Ok((tables, state))
}

/// Makes what routers said of single destinations the kernel's to answer; the MTUs that they named.
fn except(link: &mut Link, inside: &Snapshot) -> Vec<(IpPrefix, u32)> {
    let excepted: Vec<_> = inside.routing.exceptions.by(link.if_index).collect();
    let route = |&(to, _): &(IpAddr, _)| Route { prefix: IpPrefix::host(to), via: Via::Asked, source: None };
    link.routes.splice(0..0, excepted.iter().map(route).collect::<Vec<_>>());
    excepted.iter().filter_map(|(to, exception)| Some((IpPrefix::host(*to), exception.mtu?))).collect()
}

/// A segment has one path only: when the kernel would encrypt a part of it, all of it is the kernel's.
fn check_segment(
    overlay: &Overlay,
    tracked: &TrackedAttachment,
    host: &Snapshot,
    policies: Option<&Policies>,
) -> Result<(), TablesError> {
    let (Overlay::VxlanBridged(segment), Some(policies)) = (overlay, policies) else { return Ok(()) };
    let underlay =
        Underlay::new(host, policies, &tracked.uplink, segment.tunnel().local, segment.tunnel().port);
    let ends: HashSet<IpAddr> = overlay.ends().collect();
    ends.into_iter()
        .find_map(|end| underlay.why_left(end))
        .map_or(Ok(()), |why| Err(TablesError::Encrypted(why)))
}

/// Checks at the time of attaching what later is only waited for.
pub(in crate::tables) fn check_devices(
    attachment: &config::Attachment,
    uplink: &str,
    host: &Snapshot,
) -> Result<(), TablesError> {
    // A device to learn from is waited for.
    let vxlan = attachment.overlay.routed().filter(|overlay| !overlay.is_learnt);
    let devices = [("uplink", Some(uplink)), ("overlay.vxlan.device", vxlan.map(|overlay| &*overlay.device))];
    for (field, device) in devices {
        let Some(device) = device else { continue };
        if host.device(device).is_none_or(|(_, found)| found.mac.is_none()) {
            let place = "the daemon's network namespace".to_owned();
            return Err(TablesError::Device { field, device: device.to_owned(), place });
        }
    }
    Ok(())
}

/// The uplink's table: that of all its attachments, but where it is too large.
fn uplink(
    tracked: &TrackedAttachment,
    node: &Space,
    uplinks: &mut Uplinks,
    is_away: bool,
    overlay: &Overlay,
) -> Result<Arc<LinkTable>, TableError> {
    let host = &node.snapshot;
    let found = host.device(&tracked.uplink).filter(|(_, device)| device.mac.is_some() && !is_away);
    let Some((index, _)) = found else { return LinkTable::new(unplugged(tracked)).map(Arc::new) };
    let link = || {
        let link = host.link(index, tracked.uplink_port).unwrap_or_else(|| unplugged(tracked));
        straight(link, tracked, host)
    };
    if host.routing.main.len() + host.ends.len() > ROUTES_MAX
        || host.neighbours_of(index).count() > NEIGHBOURS_MAX
    {
        return LinkTable::new(for_tunnel_ends(link(), overlay)).map(Arc::new);
    }
    uplinks.of(tracked, node.revision, link)
}

/// The uplink without what leads to tunnel devices instead, where the attachment wants that skipped.
fn straight(mut uplink: Link, tracked: &TrackedAttachment, host: &Snapshot) -> Link {
    if tracked.attachment.allow_policy_bypass {
        let tunnelled: HashSet<_> = host.tunnelled().collect();
        uplink.routes.retain(|route| !tunnelled.contains(&route.prefix));
    }
    uplink
}

/// Where a node's tables are larger than ours, only what leads to tunnel ends matters on the uplink.
fn for_tunnel_ends(mut uplink: Link, overlay: &Overlay) -> Link {
    if uplink.routes.len() <= ROUTES_MAX && uplink.neighbours.len() <= NEIGHBOURS_MAX {
        return uplink;
    }
    let ends: HashSet<IpAddr> = known_ends(overlay).collect();
    uplink.routes.retain(|route| ends.iter().any(|vtep| route.prefix.contains(*vtep)));
    let gateways: HashSet<IpAddr> = uplink.routes.iter().filter_map(gateway).collect();
    uplink.neighbours.retain(|n| gateways.contains(&n.address) || ends.contains(&n.address));
    uplink
}

/// The overlay's tunnel ends, without the unspecified address that stands for an end that is not known now.
fn known_ends(overlay: &Overlay) -> impl Iterator<Item = IpAddr> {
    overlay.ends().filter(|end| !end.is_unspecified())
}

fn gateway(route: &Route) -> Option<IpAddr> {
    match route.via {
        Via::Gateway(gateway) => Some(gateway),
        _ => None,
    }
}

/// The uplink while its device is away: no routes, so nothing leaves by it (`no_route`).
fn unplugged(tracked: &TrackedAttachment) -> Link {
    Link {
        port: tracked.uplink_port,
        if_index: 0,
        mac: MacAddress([0; 6]),
        mtu: 1500,
        addresses: Vec::new(),
        routes: Vec::new(),
        neighbours: Vec::new(),
    }
}

/// The neighbours that an attachment's frames will need: next hops of the tunnel ends, gateways of the pod.
pub(super) fn next_hops(tables: &AttachmentTables) -> Vec<(Side, IpAddr)> {
    let mut hops = Vec::new();
    for end in known_ends(tables.overlay()) {
        match tables.uplink().route(end).map(|route| route.via) {
            Some(Via::OnLink) => hops.push((Side::Uplink, end)),
            Some(Via::Gateway(gateway)) => hops.push((Side::Uplink, gateway)),
            Some(Via::Elsewhere | Via::Asked) | None => {}
        }
    }
    hops.extend(forwarded_hops(tables).map(|hop| (Side::Uplink, hop)));
    let gateways = tables.interface().routes().filter_map(gateway).take(GATEWAYS_MAX);
    hops.extend(gateways.map(|gateway| (Side::Interface, gateway)));
    hops.sort_unstable();
    hops.dedup();
    hops
}

/// Where the node forwards for a pod: the routers of its routes to allowed destinations.
fn forwarded_hops(tables: &AttachmentTables) -> impl Iterator<Item = IpAddr> {
    let node = tables.forwarding();
    let covers = |a: IpPrefix, b: IpPrefix| a.bits() <= b.bits() && a.contains(b.address());
    let routes = tables.uplink().routes().filter(|_| node.is_v4 || node.is_v6);
    let routes = routes.filter(|route| route.prefix.bits() > 0);
    let meets =
        move |prefix| tables.allowed().any(|allowed| covers(allowed, prefix) || covers(prefix, allowed));
    routes.filter(move |route| meets(route.prefix)).filter_map(gateway)
}
