// SPDX-License-Identifier: Apache-2.0
//! Peers that the kernel's own tables of a VXLAN device tell of.
//!
//! In: a node's snapshot. Out: a prefix for each route by the device, with the tunnel end behind it: route → gateway →
//! MAC address (neighbours) → tunnel end (forwarding table), as the kernel finds it for a frame of its own. What is
//! missing on the way is named; its prefix stays known, so that nothing for it leaves by another way.
//!
//! ```text
//!  10.244.1.0/24 via 10.244.1.0 ─ neighbour ─► 02:4b:…:02 ─ forwarding table ─► 192.168.50.2
//! ```

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ktsn_model::IpPrefix;
use ktsn_wire::MacAddress;

use crate::tables::kernel::routes::MainRoute;
use crate::tables::kernel::snapshot::Snapshot;
use crate::tables::kernel::vxlan_device::{Forwarding, VxlanDevice};

/// Prefixes known before a device went away are remembered for so long after its return: whatever makes it again fills
/// its tables one by one.
pub(crate) const HOLD: Duration = Duration::from_secs(10);

/// Why a prefix has no tunnel end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// The device is gone or down.
    Device,
    /// The device came back, its route has not.
    Route,
    /// Nobody knows the gateway's MAC address.
    Neighbour(IpAddr),
    /// The forwarding table does not have it.
    Forwarding(MacAddress),
    /// The forwarding entry names another VNI.
    Vni(u32),
    /// The forwarding entry names another port.
    Port(u16),
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device => write!(f, "the VXLAN device is gone or down"),
            Self::Route => write!(f, "no route since the VXLAN device came back"),
            Self::Neighbour(gateway) => write!(f, "no neighbour entry for {gateway}"),
            Self::Forwarding(mac) => write!(f, "no forwarding entry for {mac}"),
            Self::Vni(vni) => write!(f, "its forwarding entry names VNI {vni}"),
            Self::Port(port) => write!(f, "its forwarding entry names port {port}"),
        }
    }
}

/// A prefix that the kernel reaches by the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Learnt {
    pub(crate) prefix: IpPrefix,
    /// Tunnel end and MAC address of the VXLAN device there.
    pub(crate) end: Result<(IpAddr, MacAddress), Missing>,
    /// The gateway whose MAC address counts.
    pub(crate) gateway: IpAddr,
}

/// The peers by `device`, in the order of the kernel's routes.
fn peers(host: &Snapshot, device: u32, vxlan: &VxlanDevice) -> Vec<Learnt> {
    let mut by_mac: BTreeMap<MacAddress, Forwarding> = BTreeMap::new();
    for entry in host.forwarding.iter().filter(|entry| entry.device == device) {
        by_mac.entry(entry.mac).or_insert(*entry);
    }
    let end = |gateway: IpAddr| {
        let mac = host.mac_of(device, gateway).ok_or(Missing::Neighbour(gateway))?;
        let entry = by_mac.get(&mac).ok_or(Missing::Forwarding(mac))?;
        match (entry.vni, entry.port) {
            (Some(vni), _) if vni != vxlan.vni => Err(Missing::Vni(vni)),
            (_, Some(port)) if port != vxlan.port => Err(Missing::Port(port)),
            _ => Ok((entry.vtep.to_canonical(), mac)),
        }
    };
    let (mut learnt, mut seen) = (Vec::new(), HashSet::new());
    for route in &host.routing.main {
        // Of equal prefixes the kernel takes the first; when that is another device's, so is the prefix.
        if !seen.insert(route.prefix) {
            continue;
        }
        let Some(hop) = route.hops.iter().find(|hop| hop.device == device) else { continue };
        match hop.gateway {
            Some(gateway) => learnt.push(Learnt { prefix: route.prefix, end: end(gateway), gateway }),
            None => learnt.extend(on_link(host, device, route).map(|address| Learnt {
                prefix: IpPrefix::host(address),
                end: end(address),
                gateway: address,
            })),
        }
    }
    learnt
}

/// Stations that are on the tunnel themselves: those whose MAC address the kernel knows.
fn on_link<'a>(host: &'a Snapshot, device: u32, route: &'a MainRoute) -> impl Iterator<Item = IpAddr> + 'a {
    let is_link_local = matches!(route.prefix.address(), IpAddr::V6(a) if a.is_unicast_link_local());
    let known = host.neighbours_of(device).map(|neighbour| neighbour.address);
    let known = known.filter(move |address| route.prefix.contains(*address));
    known.filter(move |_| !is_link_local && !route.prefix.address().is_multicast())
}

/// The stations on the L2 segment of a VXLAN device, each with its tunnel end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Stations behind other ports of the device's bridge.
    pub(crate) here: Vec<MacAddress>,
    /// Stations behind tunnel ends.
    pub(crate) remote: Vec<(MacAddress, IpAddr)>,
    /// Tunnel ends that get frames to groups and to unknown stations.
    pub(crate) flood: Vec<IpAddr>,
    /// What contradicts, and who wins; what is not served.
    pub(crate) conflicts: Vec<String>,
}

fn segment(host: &Snapshot, device: u32, vxlan: &VxlanDevice) -> Segment {
    let here: HashSet<MacAddress> = host.stations_beside(device).collect();
    let mut segment = Segment::default();
    for entry in host.forwarding.iter().filter(|entry| entry.device == device) {
        let (mac, vtep) = (entry.mac, entry.vtep.to_canonical());
        let is_foreign = entry.vni.is_some_and(|vni| vni != vxlan.vni)
            || entry.port.is_some_and(|port| port != vxlan.port);
        if is_foreign || vtep.is_multicast() {
            segment
                .conflicts
                .push(format!("{mac} at {vtep}: groups, other VNIs and other ports are not served"));
        } else if mac == MacAddress::ZERO {
            segment.flood.push(vtep);
        } else if here.contains(&mac) {
            segment.conflicts.push(format!("{mac} is on this node and at {vtep}; the one here holds"));
        } else if !mac.is_multicast() {
            segment.remote.push((mac, vtep));
        }
    }
    segment.here = here.into_iter().collect();
    segment.here.sort_unstable();
    segment
}

/// What one device's tables show, and what is remembered of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Learner {
    /// Its number and itself as it was last seen; `None`: never.
    device: Option<(u32, VxlanDevice)>,
    is_away: bool,
    segment: Segment,
    peers: Vec<Learnt>,
    held_until: Option<Instant>,
}

impl Learner {
    /// Takes over what the snapshot shows.
    pub(crate) fn update(&mut self, host: &Snapshot, name: &str, now: Instant) {
        let found = host.device(name).filter(|(_, device)| device.up);
        let Some((index, vxlan)) = found.and_then(|(index, d)| Some((index, d.vxlan.as_ref()?))) else {
            self.is_away = true;
            for peer in &mut self.peers {
                peer.end = Err(Missing::Device);
            }
            return;
        };
        let is_another = self.device.as_ref().is_some_and(|(before, _)| *before != index);
        if self.device.is_some() && (self.is_away || is_another) {
            self.held_until = Some(now + HOLD);
            for peer in &mut self.peers {
                peer.end = Err(Missing::Device);
            }
        }
        self.is_away = false;
        self.device = Some((index, vxlan.clone()));
        self.segment = segment(host, index, vxlan);
        let mut learnt = peers(host, index, vxlan);
        if self.is_holding(now) {
            let known: HashSet<IpPrefix> = learnt.iter().map(|peer| peer.prefix).collect();
            let held = self.peers.iter().filter(|peer| peer.end.is_err() && !known.contains(&peer.prefix));
            let held: Vec<Learnt> = held
                .filter(|peer| matches!(peer.end, Err(Missing::Device | Missing::Route)))
                .map(|peer| Learnt { end: Err(Missing::Route), ..*peer })
                .collect();
            learnt.extend(held);
        } else {
            self.held_until = None;
        }
        self.peers = learnt;
    }

    fn is_holding(&self, now: Instant) -> bool {
        self.held_until.is_some_and(|until| now < until)
    }

    /// Whether something is remembered that is to be forgotten by now.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.held_until.is_some_and(|until| now >= until)
    }

    /// The device as it was last seen.
    pub(crate) fn device(&self) -> Option<&VxlanDevice> {
        self.device.as_ref().map(|(_, device)| device)
    }

    /// Whether the device is gone or down now.
    pub(crate) fn is_away(&self) -> bool {
        self.is_away
    }

    /// The stations on the device's segment, as they were last seen.
    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    /// The peers of now.
    pub(crate) fn peers(&self) -> &[Learnt] {
        &self.peers
    }
}
