// SPDX-License-Identifier: Apache-2.0
//! An attachment's overlay as it is in force.
//!
//! In: what configuration and control API say, what the kernel's device and tables say. Out: resolve's [`Overlay`],
//! and an [`OverlayState`] to show. Where something contradicts or is missing, prefixes stay known without a tunnel
//! end: their frames are dropped and counted (`no_neighbour`); they never leave by another way meanwhile.

use std::net::IpAddr;

use ktsn_resolve::{Overlay, Tunnel, VxlanRouted};
use ktsn_wire::{MacAddress, Vni};

use super::TablesError;
use super::learn::Learner;
use super::peers::{PeerState, Sources, in_tables, merge};
use super::snapshot::Snapshot;
use super::underlay::Underlay;
use super::xfrm::Policies;
use crate::config::{Vxlan, VxlanPeer};

/// An overlay as it is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverlayState {
    /// This node's VXLAN device.
    pub device: String,
    /// Network identifier; 0: nobody knows.
    pub vni: u32,
    /// UDP destination port; 0: nobody knows.
    pub port: u16,
    /// This node's tunnel end; unspecified: nobody knows.
    pub local: IpAddr,
    /// MAC address of the VXLAN device, the inner source.
    pub device_mac: MacAddress,
    /// Why nothing leaves through the tunnel; `None`: it does.
    pub fault: Option<String>,
    /// One for each prefix.
    pub peers: Vec<PeerState>,
    /// What contradicts, and who won.
    pub conflicts: Vec<String>,
}

/// What the control API and the kernel say of one attachment's overlay.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told<'a> {
    /// The attachment's list by `SetPeers`, then its VNI's.
    pub(super) given: [&'a [VxlanPeer]; 2],
    pub(super) learner: Option<&'a Learner>,
    /// What may be encrypted on the kernel's way; `None`: the attachment skips that knowingly.
    pub(super) policies: Option<&'a Policies>,
}

/// The state of `vxlan` on this node, for a pod with the addresses `own`.
pub(super) fn state(
    vxlan: &Vxlan,
    told: Told<'_>,
    host: &Snapshot,
    uplink: &str,
    own: &[(IpAddr, u8)],
) -> OverlayState {
    let found = host.device(&vxlan.device).map(|(_, device)| device);
    let device_mac = found.and_then(|device| device.mac).unwrap_or(MacAddress::ZERO);
    let known = told.learner.and_then(Learner::device);
    let local = vxlan.local.or_else(|| known.and_then(|known| known.local)).or_else(|| {
        let (index, _) = host.device(uplink)?;
        host.first_address(index)
    });
    let local = local.unwrap_or(IpAddr::from([0; 4]));
    let vni = vxlan.vni.or(known.map(|known| known.vni)).unwrap_or(0);
    let port = vxlan.port.or(known.map(|known| known.port)).unwrap_or(0);
    let (mut peers, conflicts) = merge(&Sources {
        configured: &vxlan.peers,
        given: told.given,
        learnt: told.learner.map_or(&[], Learner::peers),
        own,
        local,
    });
    let fault = if device_mac == MacAddress::ZERO {
        Some(format!("{}: no such device", vxlan.device))
    } else {
        told.learner.and_then(|learner| contradiction(vxlan, learner))
    };
    if let Some(fault) = &fault {
        for peer in &mut peers {
            peer.end = Err(fault.clone());
        }
    }
    if let Some(policies) = told.policies {
        let underlay = Underlay::new(host, policies, uplink, local, port);
        for peer in &mut peers {
            peer.left = peer.end.as_ref().ok().and_then(|(vtep, _)| underlay.why_left(*vtep));
        }
    }
    let device = vxlan.device.clone();
    OverlayState { device, vni, port, local, device_mac, fault, peers, conflicts }
}

/// Why the device whose tables are learnt is not what the configuration means, or none that frames can be made for.
fn contradiction(vxlan: &Vxlan, learner: &Learner) -> Option<String> {
    let name = &vxlan.device;
    let Some(device) = learner.device().filter(|_| !learner.is_away()) else {
        return Some(format!("{name}: down, or no VXLAN device"));
    };
    if let Some(foreign) = device.foreign {
        return Some(format!("learn_from: {name}: {foreign}; expected a VXLAN device with one VNI"));
    }
    let differs = |field: &str, ours: &dyn std::fmt::Display, its: &dyn std::fmt::Display| {
        Some(format!("overlay.vxlan.{field}: {ours}: {name} has {its}; leave the field out, or correct it"))
    };
    match (vxlan.vni, vxlan.port, vxlan.local, device.local) {
        (Some(vni), ..) if vni != device.vni => differs("vni", &vni, &device.vni),
        (_, Some(port), ..) if port != device.port => differs("port", &port, &device.port),
        (_, _, Some(local), Some(its)) if local != its => differs("local", &local, &its),
        _ => None,
    }
}

/// What resolve makes of it.
pub(super) fn tables(state: &OverlayState, host: &Snapshot) -> Result<Overlay, TablesError> {
    if state.peers.is_empty() && state.fault.is_some() {
        return Ok(Overlay::None);
    }
    let tunnel = tunnel(state, host)?;
    let served = state.peers.iter().filter(|peer| peer.left.is_none());
    Ok(Overlay::VxlanRouted(VxlanRouted::new(ktsn_resolve::Vxlan {
        tunnel,
        device_mac: state.device_mac,
        peers: served.map(|peer| in_tables(peer, state.local)).collect(),
    })?))
}

/// The outer headers that the device would write.
pub(super) fn tunnel(state: &OverlayState, host: &Snapshot) -> Result<Tunnel, TablesError> {
    let vni = Vni::new(state.vni).ok_or(TablesError::Vni(state.vni))?;
    let mut tunnel = Tunnel::new(vni, state.port, state.local);
    if let Some(device) = host.device(&state.device).and_then(|(_, device)| device.vxlan.as_ref()) {
        (tunnel.ttl, tunnel.ds, tunnel.df) = (device.ttl, device.ds, device.df);
        // The device's first attribute speaks of IPv4 only (ip-link(8)).
        tunnel.udp_checksum = match state.local {
            IpAddr::V4(_) => device.udp_checksum,
            IpAddr::V6(_) => !device.udp_zero_checksum_v6,
        };
    }
    Ok(tunnel)
}
