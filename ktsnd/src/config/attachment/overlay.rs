// SPDX-License-Identifier: Apache-2.0
//! `overlay = { vxlan = … }`, and peers as the control API gives them.
//!
//! In: untrusted text. Out: [`Vxlan`] and [`VxlanPeer`]s. What a VXLAN device knows itself (VNI, port, local address)
//! may be left out where its tables are learnt; what is given then must be as the device has it.

use std::net::IpAddr;

use ktsn_model::IpPrefix;
use ktsn_resolve::Bridged;
use ktsn_resolve::limits::PEERS_MAX;
use ktsn_wire::MacAddress;

use super::segment::{self, SegmentFrom};
use crate::config::ConfigError;
use crate::config::values::{Checked, address, device_name, prefix, required};
use ktsn_proto::attachment::{OverlayConfig, PeerConfig, VxlanConfig};

/// Flannel's network identifier, port and device.
const VNI: u32 = 1;
const PORT: u16 = 8472;
const DEVICE: &str = "flannel.1";

/// The overlay network of an attachment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Overlay {
    /// Frames leave without a tunnel.
    #[default]
    None,
    /// VXLAN in routed mode: a peer is the node of a prefix.
    Routed(Vxlan),
    /// VXLAN in bridged mode: a peer is the node of a station, or of the hosts of a prefix.
    Bridged(Bridged),
    /// VXLAN in bridged mode; a device of this node knows its peers.
    BridgedFrom(SegmentFrom),
}

impl Overlay {
    /// Checks `overlay.vxlan`; `field` is the path that errors begin with.
    pub(super) fn check(field: &str, raw: Option<&OverlayConfig>) -> Checked<Self> {
        let Some(OverlayConfig::Vxlan(vxlan)) = raw else { return Ok(Self::None) };
        let is_bridged = vxlan.mode.as_deref() == Some(segment::MODE);
        Ok(match &vxlan.learn_from {
            Some(device) if is_bridged => Self::BridgedFrom(segment::check_learnt(field, vxlan, device)?),
            None if is_bridged => Self::Bridged(segment::check(field, vxlan)?),
            _ => Self::Routed(check_vxlan(field, vxlan)?),
        })
    }

    /// The configuration that [`Self::check`] reads.
    pub(super) fn config(&self) -> OverlayConfig {
        let vxlan = match self {
            Self::None => return OverlayConfig::None,
            Self::Routed(vxlan) => vxlan.config(),
            Self::Bridged(segment) => segment::config(segment),
            Self::BridgedFrom(from) => from.config(),
        };
        OverlayConfig::Vxlan(Box::new(vxlan))
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    /// Whether the network is one in bridged mode.
    #[must_use]
    pub const fn is_segment(&self) -> bool {
        matches!(self, Self::Bridged(_) | Self::BridgedFrom(_))
    }

    /// The network in routed mode, if it is one.
    #[must_use]
    pub const fn routed(&self) -> Option<&Vxlan> {
        if let Self::Routed(vxlan) = self { Some(vxlan) } else { None }
    }

    /// The network in bridged mode, if it is one with configured peers.
    #[must_use]
    pub const fn bridged(&self) -> Option<&Bridged> {
        if let Self::Bridged(segment) = self { Some(segment) } else { None }
    }

    /// The device that knows the peers of a network in bridged mode, if there is one.
    #[must_use]
    pub const fn bridged_from(&self) -> Option<&SegmentFrom> {
        if let Self::BridgedFrom(from) = self { Some(from) } else { None }
    }
}

/// `overlay = { vxlan = … }` in routed mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vxlan {
    /// Network identifier, 24 bit; `None`: the device's.
    pub vni: Option<u32>,
    /// UDP destination port; `None`: the device's.
    pub port: Option<u16>,
    /// This node's address; `None`: the device's, else the uplink's first.
    pub local: Option<IpAddr>,
    /// This node's VXLAN device.
    pub device: String,
    /// Whether peers come from that device's tables too.
    pub is_learnt: bool,
    /// Other nodes by configuration.
    pub peers: Vec<VxlanPeer>,
}

impl Vxlan {
    fn config(&self) -> VxlanConfig {
        VxlanConfig {
            mode: Some("routed".to_owned()),
            vni: self.vni,
            port: self.port,
            local: self.local.map(|local| local.to_string()),
            device: Some(self.device.clone()),
            learn_from: self.is_learnt.then(|| self.device.clone()),
            peers: Some(self.peers.iter().map(VxlanPeer::config).collect()),
            ..VxlanConfig::default()
        }
    }
}

/// The attachments that a list of peers is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PeersTarget {
    /// The attachment with this name.
    Attachment(String),
    /// Every attachment with this network identifier, now or later.
    Vni(u32),
}

/// One remote node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VxlanPeer {
    /// Its pods.
    pub prefix: IpPrefix,
    /// Its address.
    pub vtep: IpAddr,
    /// Its VXLAN device's MAC address.
    pub mac: MacAddress,
}

impl VxlanPeer {
    /// The configuration of this peer.
    pub(crate) fn config(&self) -> PeerConfig {
        PeerConfig {
            prefix: Some(self.prefix.to_string()),
            vtep: Some(self.vtep.to_string()),
            mac: Some(self.mac.to_string()),
        }
    }
}

fn check_vxlan(field: &str, raw: &VxlanConfig) -> Checked<Vxlan> {
    let path = |name: &str| format!("{field}.{name}");
    if let Some(mode) = raw.mode.as_deref().filter(|m| *m != "routed") {
        return Err(ConfigError::value(&path("mode"), mode, "routed or bridged"));
    }
    if let Some((name, value)) = segment::foreign_field(raw) {
        let why = "only for mode = \"bridged\"".to_owned();
        return Err(ConfigError::NotAllowed { field: path(name), value, why });
    }
    if let Some(vni) = raw.vni {
        check_vni(&path("vni"), vni)?;
    }
    if raw.port == Some(0) {
        return Err(ConfigError::value(&path("port"), 0, "a UDP port, 1 to 65535"));
    }
    let learn_from = raw.learn_from.as_deref();
    let learn_from = learn_from.map(|name| device_name(&path("learn_from"), Some(name))).transpose()?;
    let is_learnt = learn_from.is_some();
    let local = match &raw.local {
        None if is_learnt => None,
        text => Some(address(&path("local"), text.as_deref())?),
    };
    let peers = check_peers(&path("peers"), raw.peers.as_deref().unwrap_or_default())?;
    if let Some(local) = local
        && let Some(i) = peers.iter().position(|peer| peer.vtep.is_ipv4() != local.is_ipv4())
    {
        let field = path(&format!("peers[{i}].vtep"));
        return Err(ConfigError::value(&field, peers[i].vtep, "an address of the same family as `local`"));
    }
    let device = match (raw.device.as_deref(), learn_from) {
        (Some(device), Some(from)) if device != from => {
            let expected = format!("{from}, which `learn_from` names, or nothing");
            return Err(ConfigError::value(&path("device"), device, expected));
        }
        (_, Some(from)) => from,
        (device, None) => device_name(&path("device"), Some(device.unwrap_or(DEVICE)))?,
    };
    let or_default = |value: Option<u32>, default: u32| value.or((!is_learnt).then_some(default));
    Ok(Vxlan {
        vni: or_default(raw.vni, VNI),
        port: raw.port.or((!is_learnt).then_some(PORT)),
        local,
        device,
        is_learnt,
        peers,
    })
}

/// A VXLAN network identifier.
///
/// # Errors
/// `Value`.
pub(crate) fn check_vni(field: &str, vni: u32) -> Checked<u32> {
    if (1..1 << 24).contains(&vni) { Ok(vni) } else { Err(ConfigError::value(field, vni, "1 to 16777215")) }
}

/// A list of peers: no prefix twice, tunnel ends of one family, no more than the tables hold.
///
/// # Errors
/// [`ConfigError`] for the first fault found.
pub(crate) fn check_peers(field: &str, raw: &[PeerConfig]) -> Checked<Vec<VxlanPeer>> {
    if raw.len() > PEERS_MAX {
        return Err(ConfigError::value(field, raw.len(), format!("at most {PEERS_MAX} peers")));
    }
    let mut peers: Vec<VxlanPeer> = Vec::with_capacity(raw.len());
    let mut known = std::collections::HashSet::new();
    for (i, peer) in raw.iter().enumerate() {
        let peer = check_peer(&format!("{field}[{i}]"), peer)?;
        if !known.insert(peer.prefix) {
            return Err(ConfigError::duplicate(&format!("{field}[{i}].prefix"), peer.prefix));
        }
        if peers.first().is_some_and(|first| first.vtep.is_ipv4() != peer.vtep.is_ipv4()) {
            let field = format!("{field}[{i}].vtep");
            return Err(ConfigError::value(&field, peer.vtep, "an address of the same family as the others"));
        }
        peers.push(peer);
    }
    Ok(peers)
}

fn check_peer(field: &str, raw: &PeerConfig) -> Checked<VxlanPeer> {
    let prefix_field = format!("{field}.prefix");
    let text = required(&prefix_field, raw.prefix.as_deref(), "the peer's pods, for example 10.244.1.0/24")?;
    let mac_field = format!("{field}.mac");
    let mac = required(&mac_field, raw.mac.as_deref(), "the MAC address of the peer's VXLAN device")?;
    let vtep_field = format!("{field}.vtep");
    let vtep = address(&vtep_field, raw.vtep.as_deref())?;
    if vtep.is_unspecified() || vtep.is_multicast() {
        return Err(ConfigError::value(&vtep_field, vtep, "the address of one node"));
    }
    let parsed: MacAddress = mac
        .parse()
        .map_err(|_| ConfigError::value(&mac_field, mac, "six octets such as 02:00:00:00:00:01"))?;
    if parsed == MacAddress::ZERO || parsed.is_multicast() {
        return Err(ConfigError::value(&mac_field, mac, "the MAC address of one device"));
    }
    Ok(VxlanPeer { prefix: prefix(&prefix_field, text)?, vtep, mac: parsed })
}
