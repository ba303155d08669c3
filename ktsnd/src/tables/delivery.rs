// SPDX-License-Identifier: Apache-2.0
//! How the host would deliver what arrives for a pod: from which device, with which MAC address, up to which size.
//!
//! In: the daemon's devices, the pod's interface. Out: a [`Delivery`], or none where the host would do something else than
//! pass a packet on through a bridge or straight into the pod's veth.

use std::net::IpAddr;

use ktsn_resolve::{Bridged, Delivery, LinkTable, Tunnel};
use ktsn_wire::{MacAddress, Vni};
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};

use super::overlay::OverlayState;
use super::snapshot::{Device, Snapshot};

/// What kind of device it is, as far as that matters here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    Veth,
    Bridge,
    Vrf,
    #[default]
    Other,
}

/// What a device is to others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kin {
    pub(super) kind: Kind,
    /// The device that it is a port of.
    pub(super) master: Option<u32>,
    /// Of a veth: its peer's number, and the number of the peer's namespace.
    pub(super) peer: Option<(u32, i32)>,
}

impl Kin {
    pub(super) fn of(link: &LinkMessage) -> Self {
        let (mut kin, mut peer, mut namespace) = (Self::default(), None, None);
        for attribute in &link.attributes {
            match attribute {
                LinkAttribute::Controller(master) => kin.master = Some(*master),
                LinkAttribute::Link(index) => peer = Some(*index),
                LinkAttribute::LinkNetNsId(id) => namespace = Some(*id),
                LinkAttribute::LinkInfo(infos) => {
                    for info in infos {
                        match info {
                            LinkInfo::Kind(InfoKind::Veth) => kin.kind = Kind::Veth,
                            LinkInfo::Kind(InfoKind::Bridge) => kin.kind = Kind::Bridge,
                            LinkInfo::Kind(InfoKind::Vrf) => kin.kind = Kind::Vrf,
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        kin.peer = peer.zip(namespace).filter(|_| kin.kind == Kind::Veth);
        kin
    }
}

/// Where an overlay's frames arrive, and for which station of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    vni: Vni,
    port: u16,
    local: IpAddr,
    /// Routed: the VXLAN device; `None`: bridged, the pod's interface is the station.
    router: Option<MacAddress>,
}

impl Arrival {
    /// Through the node's VXLAN device, as long as the kernel would take such frames.
    pub(super) fn routed(overlay: &OverlayState, host: &Snapshot) -> Option<Self> {
        let (_, device) = host.device(&overlay.device).filter(|(_, device)| device.up)?;
        let is_known = overlay.fault.is_none() && overlay.port != 0 && !overlay.local.is_unspecified();
        let (port, local, router) = (overlay.port, overlay.local, Some(device.mac?));
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
    interface: &LinkTable,
    host: &Snapshot,
) -> Option<Delivery> {
    let peer = (pod.0, pod.1?);
    let is_end = |device: &Device| device.kin.peer == Some(peer) && device.up && interface.is_up();
    let (host_end, device) = host.devices().find(|(_, device)| is_end(device))?;
    // Who sends it into the pod: the bridge as its router, or the host by the veth itself.
    let sender = match device.kin.master {
        None => device,
        Some(master) => {
            let master = host.device_at(master).filter(|master| master.up)?;
            match master.kin.kind {
                Kind::Bridge => master,
                Kind::Vrf => device,
                Kind::Veth | Kind::Other => return None,
            }
        }
    };
    let gateway = if arrival.router.is_some() { Some(sender.mac?) } else { None };
    Some(Delivery {
        vni: arrival.vni,
        port: arrival.port,
        local: arrival.local,
        station: arrival.router.unwrap_or(interface.mac()),
        gateway,
        host_end,
        packet_octets_max: interface.mtu().min(device.mtu).min(sender.mtu),
    })
}
