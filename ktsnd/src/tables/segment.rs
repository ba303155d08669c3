// SPDX-License-Identifier: Apache-2.0
//! A bridged overlay as a VXLAN device of this node, and its bridge, know it.
//!
//! In: what was learnt from the device. Out: resolve's description of the segment, and an [`OverlayState`] to show. While
//! the device is away the last one holds without a way out: frames for stations elsewhere are dropped and counted.

use std::net::IpAddr;

use ktsn_resolve::{Bridged, Member, MemberAt};
use ktsn_wire::MacAddress;

use super::TablesError;
use super::learn::{Learner, Segment};
use super::overlay::{OverlayState, tunnel};
use super::snapshot::Snapshot;
use crate::config::{SegmentFrom, Vxlan};

/// The segment's state on this node.
pub(super) fn state(
    from: &SegmentFrom,
    learner: Option<&Learner>,
    host: &Snapshot,
    uplink: &str,
) -> OverlayState {
    // The same device in routed mode, of which nothing but the device is told.
    let vxlan = Vxlan {
        vni: None,
        port: None,
        local: None,
        device: from.device.clone(),
        is_learnt: true,
        peers: Vec::new(),
    };
    let told = super::overlay::Told { learner, ..Default::default() };
    let mut state = super::overlay::state(&vxlan, told, host, uplink, &[]);
    state.peers.clear();
    state.conflicts = learner.map(|learner| learner.segment().conflicts.clone()).unwrap_or_default();
    state
}

/// What resolve makes of it; `None`: nothing was ever learnt, or the device is none that frames can be made for.
pub(super) fn bridged(
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
