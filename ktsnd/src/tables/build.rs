// SPDX-License-Identifier: Apache-2.0
//! Snapshots and configuration → one attachment's tables.
//!
//! In: an [`AttachmentSpec`], the snapshots of the pod's and of the daemon's namespace. Out: [`AttachmentTables`], or
//! why not; and which neighbours this attachment needs.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use ktsn_model::IpPrefix;
use ktsn_resolve::limits::{NEIGHBOURS_MAX, ROUTES_MAX};
use ktsn_resolve::{
    Attachment, AttachmentTables, Bridged, Link, LinkTable, Overlay, Route, Side, TableError, Via,
    VxlanBridged,
};
use ktsn_wire::MacAddress;

use super::delivery::{self, Arrival};
use super::given;
use super::overlay::{self, OverlayState, Told};
use super::segment;
use super::snapshot::Snapshot;
use super::underlay::Underlay;
use super::uplinks::Uplinks;
use super::xfrm::Policies;
use super::{AttachmentSpec, TablesError, router};
use crate::config::{self, Ethernet};

/// Gateways of one attachment whose MAC addresses are kept fresh unasked.
const GATEWAYS_MAX: usize = 16;

/// The daemon's own namespace.
pub(super) struct Node<'a> {
    pub(super) host: &'a Snapshot,
    /// Of the snapshot.
    pub(super) revision: u64,
    pub(super) uplinks: &'a mut Uplinks,
}

/// The tables of `spec`, whose interface has the number `interface` in the pod's namespace; and its overlay to show.
/// `others` are the interfaces of that namespace's other attachments.
pub(super) fn attachment(
    spec: &AttachmentSpec,
    interface: u32,
    others: &[u32],
    pod: &Snapshot,
    node: &mut Node<'_>,
    namespace: Option<i32>,
    told: Told<'_>,
) -> Result<(AttachmentTables, Option<OverlayState>), TablesError> {
    let missing =
        |field, device: &str, place: String| TablesError::Device { field, device: device.to_owned(), place };
    let host = node.host;
    let mut link = pod
        .link(interface, spec.interface_port)
        .ok_or_else(|| missing("interface", &spec.interface, spec.attachment.netns.display().to_string()))?;
    let withheld = given::withhold(spec, &mut link);
    let vxlan = spec.attachment.overlay.routed();
    let mut state = vxlan.map(|vxlan| overlay::state(vxlan, told, host, &spec.uplink, &link.addresses));
    let mut segment = spec.attachment.overlay.bridged().cloned();
    if let Some(from) = spec.attachment.overlay.bridged_from() {
        let of_segment = segment::state(from, told.learner, host, &spec.uplink);
        segment = segment::bridged(from, &of_segment, told.learner, host)?;
        state = Some(of_segment);
    }
    if let (Some(segment), Some(policies)) = (&segment, told.policies) {
        check_segment(segment, spec, host, policies)?;
    }
    // What a device that is away knew last stays known, but nothing leaves.
    let is_away = segment.is_some() && state.as_ref().is_some_and(|state| state.fault.is_some());
    let left = state.iter().flat_map(|state| &state.peers).filter(|peer| peer.left.is_some());
    // The kernel knows better: `not_allowed`. It stands before the pod's own route for the same prefix.
    let left = left.map(|peer| Route { prefix: peer.prefix, via: Via::Elsewhere, source: None });
    link.routes.splice(0..0, left.collect::<Vec<_>>());
    let uplink = uplink(spec, node, is_away, (state.as_ref(), segment.as_ref()))?;
    let (is_up, forwarding) = (pod.is_up(interface), router::forwarding(spec, &link, host, told.policies));
    let tables = AttachmentTables::new(Attachment {
        interface: LinkTable::new(link)?.with_state(is_up),
        uplink,
        overlay: match (&segment, &state) {
            (Some(segment), _) => Overlay::VxlanBridged(VxlanBridged::new(segment.clone())?),
            (None, Some(state)) if spec.attachment.overlay.routed().is_some() => {
                overlay::tables(state, host)?
            }
            (None, _) => Overlay::None,
        },
        destinations: spec.attachment.allowed(),
        own: pod.own().collect(),
        vlan: spec.attachment.tag,
    })?;
    let tables = if others.is_empty() { tables } else { tables.with_routes_of_others(pod.routes_by(others)) };
    let arrival = match (&segment, state.as_ref().filter(|_| spec.attachment.overlay.routed().is_some())) {
        (Some(segment), _) => Some(Arrival::bridged(segment)),
        (None, Some(state)) => Arrival::routed(state, host),
        (None, None) => None,
    };
    let arrival = arrival.filter(|_| spec.attachment.is_short());
    let delivery = arrival.and_then(|of| delivery::of(of, (interface, namespace), &tables, host));
    let tables = tables.delivered(delivery);
    let tables = match withheld {
        Some(withheld) => tables.withholding(withheld)?,
        None => tables,
    };
    let tables = tables.forwarded(forwarding)?;
    let tables = tables
        .naming(spec.attachment.destination_macs.clone(), spec.attachment.ethernet == Ethernet::Listed)?;
    Ok((tables, state))
}

/// A segment has one way only: when the kernel would encrypt a part of it, all of it is the kernel's.
fn check_segment(
    segment: &Bridged,
    spec: &AttachmentSpec,
    host: &Snapshot,
    policies: &Policies,
) -> Result<(), TablesError> {
    let (local, port) = (segment.tunnel.local, segment.tunnel.port);
    let underlay = Underlay::new(host, policies, &spec.uplink, local, port);
    let ends: HashSet<IpAddr> = ends_of(segment).filter(|end| *end != local).collect();
    match ends.into_iter().find_map(|end| underlay.why_left(end)) {
        Some(why) => Err(TablesError::Encrypted(why)),
        None => Ok(()),
    }
}

fn ends_of(segment: &Bridged) -> impl Iterator<Item = IpAddr> {
    segment.members.iter().map(|member| member.vtep).chain(segment.flood.iter().copied())
}

/// Checks at the time of attaching what later is only waited for.
pub(super) fn check_devices(
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
    spec: &AttachmentSpec,
    node: &mut Node<'_>,
    is_away: bool,
    (overlay, segment): (Option<&OverlayState>, Option<&Bridged>),
) -> Result<Arc<LinkTable>, TableError> {
    let host = node.host;
    let found = host.device(&spec.uplink).filter(|(_, device)| device.mac.is_some() && !is_away);
    let Some((index, _)) = found else { return LinkTable::new(unplugged(spec)).map(Arc::new) };
    let link = || {
        let link = host.link(index, spec.uplink_port).unwrap_or_else(|| unplugged(spec));
        straight(link, spec, host)
    };
    if host.routes().count() > ROUTES_MAX || host.resolved(index).count() > NEIGHBOURS_MAX {
        return LinkTable::new(for_tunnel_ends(link(), overlay, segment)).map(Arc::new);
    }
    node.uplinks.of(spec, node.revision, link)
}

/// The uplink without what leads to tunnel devices instead, where the attachment wants that skipped.
fn straight(mut uplink: Link, spec: &AttachmentSpec, host: &Snapshot) -> Link {
    if spec.attachment.allow_policy_bypass {
        let tunnelled: HashSet<_> = host.tunnelled().collect();
        uplink.routes.retain(|route| !tunnelled.contains(&route.prefix));
    }
    uplink
}

/// Where a node's tables are larger than ours, only what leads to tunnel ends matters on the uplink.
fn for_tunnel_ends(mut uplink: Link, overlay: Option<&OverlayState>, segment: Option<&Bridged>) -> Link {
    if uplink.routes.len() <= ROUTES_MAX && uplink.neighbours.len() <= NEIGHBOURS_MAX {
        return uplink;
    }
    let ends = overlay.into_iter().flat_map(|overlay| &overlay.peers);
    let ends = ends.filter_map(|peer| Some(peer.end.as_ref().ok()?.0));
    let of_segment = segment.into_iter().flat_map(ends_of);
    let ends: HashSet<IpAddr> = ends.chain(of_segment).collect();
    uplink.routes.retain(|route| ends.iter().any(|vtep| route.prefix.contains(*vtep)));
    let gateways: HashSet<IpAddr> = uplink.routes.iter().filter_map(gateway).collect();
    uplink.neighbours.retain(|n| gateways.contains(&n.address) || ends.contains(&n.address));
    uplink
}

fn gateway(route: &ktsn_resolve::Route) -> Option<IpAddr> {
    match route.via {
        Via::Gateway(gateway) => Some(gateway),
        _ => None,
    }
}

/// The uplink while its device is away: no routes, so nothing leaves by it (`no_route`).
fn unplugged(spec: &AttachmentSpec) -> Link {
    Link {
        port: spec.uplink_port,
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
    // An end that nobody knows now is the unspecified address.
    for end in tables.overlay().ends().filter(|end| !end.is_unspecified()) {
        match tables.uplink().route(end).map(|route| route.via) {
            Some(Via::OnLink) => hops.push((Side::Uplink, end)),
            Some(Via::Gateway(gateway)) => hops.push((Side::Uplink, gateway)),
            Some(Via::Elsewhere) | None => {}
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
