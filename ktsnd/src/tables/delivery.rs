// SPDX-License-Identifier: Apache-2.0
//! How the host would deliver what arrives for a pod: from which device, with which MAC address, up to which size.
//!
//! In: the daemon's devices, the pod's interface. Out: a [`Delivery`], or none where the host would do something else than
//! pass a packet on through a bridge or straight into the pod's veth.

use ktsn_resolve::{Delivery, LinkTable};
use ktsn_wire::Vni;
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};

use super::overlay::OverlayState;
use super::snapshot::Snapshot;

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

/// `pod`: the interface's number, and its namespace's as the daemon's counts it.
pub(super) fn of(
    overlay: &OverlayState,
    pod: (u32, Option<i32>),
    interface: &LinkTable,
    host: &Snapshot,
) -> Option<Delivery> {
    let peer = Some((pod.0, pod.1?)).filter(|_| interface.is_up());
    peer?;
    let (host_end, device) = host.devices().find(|(_, device)| device.kin.peer == peer && device.up)?;
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
    let (_, vxlan) = host.device(&overlay.device).filter(|(_, vxlan)| vxlan.up)?;
    Some(Delivery {
        vni: Vni::new(overlay.vni)?,
        port: overlay.port,
        local: overlay.local,
        station: vxlan.mac?,
        gateway: Some(sender.mac?),
        host_end,
        packet_octets_max: interface.mtu().min(device.mtu).min(sender.mtu),
    })
}
