// SPDX-License-Identifier: Apache-2.0
//! How the host would deliver what arrives for a pod: from which device, with which MAC address, up to which size.
//!
//! In: the daemon's devices, routes and neighbours, the attachment's tables. Out: a [`Delivery`], or none where the host
//! would do something else than pass a packet on through a bridge or straight into the pod's veth. It names the addresses
//! that the host itself would deliver to this pod, the tunnel ends that it knows, and its own addresses.

use std::net::IpAddr;
use std::sync::Arc;

use ktsn_resolve::{AttachmentTables, Bridged, Delivery, LinkTable, Tunnel};
use ktsn_wire::{MacAddress, Vni};

use crate::tables::kernel::device::{Device, Kind};
use crate::tables::kernel::snapshot::Snapshot;
use crate::tables::overlay::state::OverlayState;

/// Where an overlay's frames arrive, and for which station of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    vni: Vni,
    port: u16,
    local: IpAddr,
    /// Routed: the VXLAN device and its number; `None`: bridged, the pod's interface is the station.
    router: Option<(MacAddress, u32)>,
}

impl Arrival {
    /// Through the node's VXLAN device, as long as the kernel would take such frames.
    pub(super) fn routed(overlay: &OverlayState, host: &Snapshot) -> Option<Self> {
        let (index, device) = host.device(&overlay.device).filter(|(_, device)| device.up)?;
        let is_known = overlay.fault.is_none() && overlay.port != 0 && !overlay.local.is_unspecified();
        let (port, local, router) = (overlay.port, overlay.local, Some((device.mac?, index)));
        is_known.then_some(Self { vni: Vni::new(overlay.vni)?, port, local, router })
    }

    /// In a segment of its own.
    pub(super) fn bridged(segment: &Bridged) -> Self {
        let Tunnel { vni, port, local, .. } = segment.tunnel;
        Self { vni, port, local, router: None }
    }
}

/// `pod`: the interface's number, and its namespace's as the daemon's counts it.
pub(super) fn of(
    arrival: Arrival,
    pod: (u32, Option<i32>),
    tables: &AttachmentTables,
    host: &Snapshot,
) -> Option<Delivery> {
    let interface = tables.interface();
    let peer = (pod.0, pod.1?);
    let is_end = |device: &Device| device.peer == Some(peer) && device.up && interface.is_up();
    let (&host_end, device) = host.devices.iter().find(|(_, device)| is_end(device))?;
    // What sends it into the pod: the bridge as its router, or the host by the veth itself.
    let (sender_index, sender) = match device.master {
        None => (host_end, device),
        // Of a VRF the host's routes are in a table that is not read.
        Some(index) => {
            let is_bridge = |master: &&Device| master.up && master.kind == Kind::Bridge;
            (index, host.devices.get(&index).filter(is_bridge)?)
        }
    };
    let is_mine = |address: &IpAddr| match arrival.router {
        Some(_) => leads_here(*address, sender_index, sender, interface, host),
        // The segment knows the pod by its MAC address; the host's routes say nothing of it.
        None => !is_ipv4_link_local(*address),
    };
    let addresses = interface.addresses().iter().map(|(address, _)| *address).filter(is_mine).collect();
    let gateway = if arrival.router.is_some() { Some(sender.mac?) } else { None };
    Some(Delivery {
        vni: arrival.vni,
        port: arrival.port,
        local: arrival.local,
        station: arrival.router.map_or(interface.mac(), |(mac, _)| mac),
        gateway,
        host_end,
        packet_octets_max: interface.mtu().min(device.mtu).min(sender.mtu),
        addresses,
        ends: ends(arrival, tables, host),
        own: own(host),
    })
}

/// Whether the host itself would send a packet for this address into the pod with this interface, by the device `sender`.
fn leads_here(
    address: IpAddr,
    sender_index: u32,
    sender: &Device,
    interface: &LinkTable,
    host: &Snapshot,
) -> bool {
    let is_link_scoped =
        is_ipv4_link_local(address) || matches!(address, IpAddr::V6(own) if own.is_unicast_link_local());
    let hop = match host.route_to(address).map(|route| route.hops.as_slice()) {
        Some([hop]) if hop.device == sender_index => hop,
        _ => return false,
    };
    // Behind a bridge there are several stations: one that the host knows for this address must be the pod.
    let is_station = sender.kind != Kind::Bridge
        || (hop.gateway.is_none()
            && host.mac_of(sender_index, address).is_none_or(|mac| mac == interface.mac()));
    is_station && !is_link_scoped && host.own().all(|own| own != address)
}

fn is_ipv4_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V4(address) if address.is_link_local())
}

/// The tunnel ends that frames may come from: those that frames may go to, and what the host's VXLAN device knows.
fn ends(arrival: Arrival, tables: &AttachmentTables, host: &Snapshot) -> Vec<IpAddr> {
    let device = arrival.router.map(|(_, device)| device);
    let known = host.forwarding.iter().filter(|entry| Some(entry.device) == device);
    let known = known.filter(|entry| entry.vni.is_none_or(|vni| vni == arrival.vni.get()));
    let all = tables.overlay().ends().chain(known.map(|entry| entry.vtep));
    let mut ends: Vec<IpAddr> = all.filter(|end| !end.is_unspecified() && !end.is_multicast()).collect();
    ends.sort_unstable();
    ends.dedup();
    ends
}

/// The host's addresses that may stand in a packet of another host's. Link-local ones mean something on each link.
fn own(host: &Snapshot) -> Arc<[IpAddr]> {
    let is_global = |address: &IpAddr| match address {
        IpAddr::V4(address) => !address.is_loopback(),
        IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
    };
    let mut own: Vec<IpAddr> = host.own().filter(is_global).collect();
    own.sort_unstable();
    own.dedup();
    own.into()
}
