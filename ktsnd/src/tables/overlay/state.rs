// SPDX-License-Identifier: Apache-2.0
//! An attachment's overlay as it is in force.
//!
//! In: what configuration and control API say, what the kernel's device and tables say. Out: resolve's [`Overlay`] or
//! [`Bridged`], and an [`OverlayState`] to show. In routed mode, where something contradicts or is missing, prefixes stay
//! known without a tunnel end: their frames are dropped and counted (`no_neighbour`); they never leave by another way
//! meanwhile. In bridged mode, while the device is away, the last segment that was learnt holds without a way out.

use std::net::IpAddr;

use ktsn_resolve::{Bridged, Member, MemberAt, Overlay, Tunnel, VxlanRouted};
use ktsn_wire::{MacAddress, Vni};

use super::learn::{Learner, Segment};
use super::peers::{PeerState, Sources, in_tables, merge};
use super::underlay::Underlay;
use crate::config::{SegmentFrom, Vxlan, VxlanPeer};
use crate::tables::error::TablesError;
use crate::tables::kernel::snapshot::Snapshot;
use crate::tables::kernel::xfrm::Policies;

/// An overlay as it is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverlayState {
    /// This node's VXLAN device.
    pub device: String,
    /// Network identifier; 0: not known.
    pub vni: u32,
    /// UDP destination port; 0: not known.
    pub port: u16,
    /// This node's tunnel end; unspecified: not known.
    pub local: IpAddr,
    /// MAC address of the VXLAN device, the inner source.
    pub device_mac: MacAddress,
    /// Why nothing leaves through the tunnel; `None`: it does.
    pub fault: Option<String>,
    /// One for each prefix.
    pub peers: Vec<PeerState>,
    /// The conflicts between sources, each with the winner.
    pub conflicts: Vec<String>,
}

/// What the control API and the kernel say of one attachment's overlay.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Inputs<'a> {
    /// The attachment's list by `SetPeers`, then its VNI's.
    pub(crate) given: [&'a [VxlanPeer]; 2],
    pub(crate) learner: Option<&'a Learner>,
    /// What may be encrypted on the kernel's way; `None`: the attachment skips that knowingly.
    pub(crate) policies: Option<&'a Policies>,
}

/// The state of a routed overlay on this node, for a pod with the addresses `own`.
pub(crate) fn routed(
    vxlan: &Vxlan,
    inputs: Inputs<'_>,
    host: &Snapshot,
    uplink: &str,
    own: &[(IpAddr, u8)],
) -> OverlayState {
    let found = host.device(&vxlan.device).map(|(_, device)| device);
    let device_mac = found.and_then(|device| device.mac).unwrap_or(MacAddress::ZERO);
    let known = inputs.learner.and_then(Learner::device);
    let local = vxlan.local.or_else(|| known.and_then(|known| known.local)).or_else(|| {
        let (index, _) = host.device(uplink)?;
        host.first_address(index)
    });
    let local = local.unwrap_or(IpAddr::from([0; 4]));
    let vni = vxlan.vni.or(known.map(|known| known.vni)).unwrap_or(0);
    let port = vxlan.port.or(known.map(|known| known.port)).unwrap_or(0);
    let (mut peers, conflicts) = merge(&Sources {
        configured: &vxlan.peers,
        given: inputs.given,
        learnt: inputs.learner.map_or(&[], Learner::peers),
        own,
        local,
    });
    let fault = if device_mac == MacAddress::ZERO {
        Some(format!("{}: no such device", vxlan.device))
    } else {
        inputs.learner.and_then(|learner| contradiction(vxlan, learner))
    };
    if let Some(fault) = &fault {
        for peer in &mut peers {
            peer.end = Err(fault.clone());
        }
    }
    if let Some(policies) = inputs.policies {
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

/// A routed overlay for resolve.
pub(crate) fn tables(state: &OverlayState, host: &Snapshot) -> Result<Overlay, TablesError> {
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
pub(crate) fn tunnel(state: &OverlayState, host: &Snapshot) -> Result<Tunnel, TablesError> {
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

/// The state of a bridged overlay on this node, as the VXLAN device and its bridge know it.
pub(crate) fn segment(
    from: &SegmentFrom,
    learner: Option<&Learner>,
    host: &Snapshot,
    uplink: &str,
) -> OverlayState {
    // As the same device would be in routed mode, without peers.
    let vxlan = Vxlan {
        vni: None,
        port: None,
        local: None,
        device: from.device.clone(),
        is_learnt: true,
        peers: Vec::new(),
    };
    let mut state = routed(&vxlan, Inputs { learner, ..Inputs::default() }, host, uplink, &[]);
    state.peers.clear();
    state.conflicts = learner.map(|learner| learner.segment().conflicts.clone()).unwrap_or_default();
    state
}

/// A bridged overlay for resolve; `None`: nothing was ever learnt, or the device is none that frames can be made for.
pub(crate) fn bridged(
    from: &SegmentFrom,
    state: &OverlayState,
    learner: Option<&Learner>,
    host: &Snapshot,
) -> Result<Option<Bridged>, TablesError> {
    let Some(learner) = learner.filter(|learner| learner.device().is_some_and(|d| d.foreign.is_none()))
    else {
        return Ok(None);
    };
    if state.local.is_unspecified() {
        return Ok(None);
    }
    let Segment { here, remote, flood, .. } = learner.segment();
    let is_ours = |vtep: &IpAddr| vtep.is_ipv4() == state.local.is_ipv4();
    let member = |mac: MacAddress, vtep: IpAddr| Member { at: MemberAt::Mac(mac), vtep };
    let remote = remote.iter().filter(|(_, vtep)| is_ours(vtep));
    Ok(Some(Bridged {
        tunnel: tunnel(state, host)?,
        members: here
            .iter()
            .map(|mac| member(*mac, state.local))
            .chain(remote.map(|(mac, vtep)| member(*mac, *vtep)))
            .collect(),
        flood: flood.iter().copied().filter(is_ours).collect(),
        flood_interface: from.flood_interface,
    }))
}
