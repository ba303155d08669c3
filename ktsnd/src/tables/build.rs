// SPDX-License-Identifier: Apache-2.0
//! Snapshots and configuration → one attachment's tables.
//!
//! In: an [`AttachmentSpec`], the snapshots of the pod's and of the daemon's namespace. Out: [`AttachmentTables`], or
//! why not; and which neighbours this attachment needs.

use std::net::IpAddr;

use ktsn_resolve::limits::{NEIGHBOURS_MAX, ROUTES_MAX};
use ktsn_resolve::{
    Attachment, AttachmentTables, Link, LinkTable, Overlay, Peer, Side, Tunnel, Via, Vxlan, VxlanRouted,
};
use ktsn_wire::{MacAddress, Vni};

use super::snapshot::Snapshot;
use super::{AttachmentSpec, TablesError};

/// Gateways of one attachment whose MAC addresses are kept fresh unasked.
const GATEWAYS_MAX: usize = 16;

/// The tables of `spec`, whose interface has the number `interface` in the pod's namespace.
pub(super) fn attachment(
    spec: &AttachmentSpec,
    interface: u32,
    pod: &Snapshot,
    host: &Snapshot,
) -> Result<AttachmentTables, TablesError> {
    let missing =
        |field, device: &str, place: String| TablesError::Device { field, device: device.to_owned(), place };
    let link = pod
        .link(interface, spec.interface_port)
        .ok_or_else(|| missing("interface", &spec.interface, spec.netns.display().to_string()))?;
    let uplink = match host.device(&spec.uplink).and_then(|(index, _)| host.link(index, spec.uplink_port)) {
        Some(uplink) => for_tunnel_ends(uplink, spec),
        None => unplugged(spec),
    };
    let is_up = pod.is_up(interface);
    let tables = AttachmentTables::new(Attachment {
        interface: LinkTable::new(link)?.with_state(is_up),
        uplink: LinkTable::new(uplink)?,
        overlay: overlay(spec, host)?,
        destinations: Some(spec.destinations.clone()),
        own: pod.own().collect(),
        vlan: spec.tag,
    })?;
    Ok(match &spec.listed {
        Some(macs) => tables.listed(macs.clone())?,
        None => tables,
    })
}

/// Checks at the time of attaching what later is only waited for.
pub(super) fn check_devices(spec: &AttachmentSpec, host: &Snapshot) -> Result<(), TablesError> {
    let devices =
        [("uplink", Some(&spec.uplink)), ("overlay.vxlan.device", spec.overlay.as_ref().map(|o| &o.device))];
    for (field, device) in devices {
        let Some(device) = device else { continue };
        if host.device(device).is_none_or(|(_, found)| found.mac.is_none()) {
            let place = "the daemon's network namespace".to_owned();
            return Err(TablesError::Device { field, device: device.clone(), place });
        }
    }
    Ok(())
}

/// Without its VXLAN device a node has no overlay: the kernel could not send either.
fn overlay(spec: &AttachmentSpec, host: &Snapshot) -> Result<Overlay, TablesError> {
    let Some(vxlan) = &spec.overlay else { return Ok(Overlay::None) };
    let Some((_, device)) = host.device(&vxlan.device) else { return Ok(Overlay::None) };
    let Some(device_mac) = device.mac else { return Ok(Overlay::None) };
    let peer = |peer: &crate::config::VxlanPeer| Peer { prefix: peer.prefix, vtep: peer.vtep, mac: peer.mac };
    let vni = Vni::new(vxlan.vni).ok_or(TablesError::Vni(vxlan.vni))?;
    Ok(Overlay::VxlanRouted(VxlanRouted::new(Vxlan {
        tunnel: Tunnel {
            // The device's own attribute speaks of IPv4 only (ip-link(8)); over IPv6 the checksum is the rule.
            udp_checksum: vxlan.local.is_ipv6() || device.udp_checksum.unwrap_or(true),
            ..Tunnel::new(vni, vxlan.port, vxlan.local)
        },
        device_mac,
        peers: vxlan.peers.iter().map(peer).collect(),
    })?))
}

/// Where a node's tables are larger than ours, only what leads to tunnel ends matters on the uplink.
fn for_tunnel_ends(mut uplink: Link, spec: &AttachmentSpec) -> Link {
    if uplink.routes.len() <= ROUTES_MAX && uplink.neighbours.len() <= NEIGHBOURS_MAX {
        return uplink;
    }
    let ends = || spec.overlay.iter().flat_map(|overlay| overlay.peers.iter().map(|peer| peer.vtep));
    uplink.routes.retain(|route| ends().any(|vtep| route.prefix.contains(vtep)));
    let gateways: Vec<IpAddr> = uplink.routes.iter().filter_map(gateway).collect();
    uplink.neighbours.retain(|n| gateways.contains(&n.address) || ends().any(|vtep| vtep == n.address));
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
    for end in tables.overlay().ends() {
        match tables.uplink().route(end).map(|route| route.via) {
            Some(Via::OnLink) => hops.push((Side::Uplink, end)),
            Some(Via::Gateway(gateway)) => hops.push((Side::Uplink, gateway)),
            Some(Via::Elsewhere) | None => {}
        }
    }
    let gateways = tables.interface().routes().filter_map(gateway).take(GATEWAYS_MAX);
    hops.extend(gateways.map(|gateway| (Side::Interface, gateway)));
    hops.sort_unstable();
    hops.dedup();
    hops
}
