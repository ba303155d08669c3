// SPDX-License-Identifier: Apache-2.0
//! `overlay = { vxlan = { mode = "bridged", … } }`: a segment of its own.
//!
//! In: untrusted text. Out: what resolve makes a segment's tables from ([`Bridged`]). Nothing is taken from a device of the
//! node: a segment needs none here.

use std::collections::HashSet;
use std::net::IpAddr;

use ktsn_model::IpPrefix;
use ktsn_resolve::limits::{FLOOD_MAX, PEERS_MAX};
use ktsn_resolve::{Bridged, Member, MemberAt, OuterDs, OuterTtl, Tunnel};
use ktsn_wire::{DsField, MacAddress, Vni};

use crate::config::ConfigError;
use crate::config::values::{Checked, address, device_name, prefix, required, word};
use ktsn_proto::attachment::{OuterConfig, PeerConfig, VxlanConfig};

/// The word of this mode.
pub(super) const MODE: &str = "bridged";
/// Linux's default, and Flannel's.
const PORT: u16 = 8472;

/// The first field that is set although only bridged mode has it, with its value.
pub(super) fn foreign_field(raw: &VxlanConfig) -> Option<(&'static str, String)> {
    let flood_interface = ("flood_interface", shown(raw.flood_interface.as_ref()));
    std::iter::once(flood_interface).chain(outer_fields(raw)).find_map(|(name, value)| Some((name, value?)))
}

/// The fields about copies and the outer header, each with its value if it is set.
fn outer_fields(raw: &VxlanConfig) -> [(&'static str, Option<String>); 5] {
    [
        (
            "flood",
            raw.flood.as_ref().map(|ends| if ends.is_empty() { "[]".to_owned() } else { ends.join(", ") }),
        ),
        ("ttl", shown(raw.ttl.as_ref())),
        ("tos", shown(raw.tos.as_ref())),
        ("df", raw.df.clone()),
        ("udp_checksum", shown(raw.udp_checksum.as_ref())),
    ]
}

/// A value as errors show it.
fn shown(value: Option<&impl std::fmt::Display>) -> Option<String> {
    value.map(ToString::to_string)
}

/// The hosts that a segment's table names by prefix.
pub(super) fn prefixes_of(segment: &Bridged) -> impl Iterator<Item = IpPrefix> {
    segment.members.iter().filter_map(|member| match member.at {
        MemberAt::Prefix(prefix) => Some(prefix),
        MemberAt::Mac(_) => None,
    })
}

/// A segment as a VXLAN device of this node, and the bridge that it is a port of, know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentFrom {
    /// The device.
    pub device: String,
    /// One more copy of flooded frames leaves by the interface ([`Bridged::flood_interface`]).
    pub flood_interface: bool,
}

impl SegmentFrom {
    pub(super) fn config(&self) -> VxlanConfig {
        VxlanConfig {
            mode: Some(MODE.to_owned()),
            learn_from: Some(self.device.clone()),
            flood_interface: Some(self.flood_interface),
            ..VxlanConfig::default()
        }
    }
}

/// The configuration that [`check`] reads.
pub(super) fn config(segment: &Bridged) -> VxlanConfig {
    let tunnel = &segment.tunnel;
    let inherit = || OuterConfig::Word("inherit".to_owned());
    let peer = |member: &Member| {
        let (prefix, mac) = match member.at {
            MemberAt::Prefix(prefix) => (Some(prefix.to_string()), None),
            MemberAt::Mac(mac) => (None, Some(mac.to_string())),
        };
        PeerConfig { prefix, vtep: Some(member.vtep.to_string()), mac }
    };
    VxlanConfig {
        mode: Some(MODE.to_owned()),
        vni: Some(tunnel.vni.get()),
        port: Some(tunnel.port),
        local: Some(tunnel.local.to_string()),
        peers: Some(segment.members.iter().map(peer).collect()),
        flood: Some(segment.flood.iter().map(ToString::to_string).collect()),
        flood_interface: Some(segment.flood_interface),
        ttl: Some(match tunnel.ttl {
            OuterTtl::Fixed(ttl) => OuterConfig::Number(u64::from(ttl)),
            OuterTtl::Inherit => inherit(),
        }),
        tos: Some(match tunnel.ds {
            OuterDs::Fixed(ds) => OuterConfig::Number(u64::from(ds.0)),
            OuterDs::Inherit => inherit(),
        }),
        df: Some(tunnel.df.word().to_owned()),
        udp_checksum: Some(tunnel.udp_checksum),
        ..VxlanConfig::default()
    }
}

/// Checks a segment that is learnt: everything but `flood_interface` is the device's.
pub(super) fn check_learnt(field: &str, raw: &VxlanConfig, device: &str) -> Checked<SegmentFrom> {
    let path = |name: &str| format!("{field}.{name}");
    let device = device_name(&path("learn_from"), Some(device))?;
    let peers = raw.peers.as_ref().filter(|peers| !peers.is_empty());
    let of_the_device = [
        ("vni", shown(raw.vni.as_ref())),
        ("port", shown(raw.port.as_ref())),
        ("local", raw.local.clone()),
        ("device", raw.device.clone()),
        ("peers", peers.map(|peers| format!("{} peers", peers.len()))),
    ];
    let mut fields = of_the_device.into_iter().chain(outer_fields(raw));
    if let Some((name, value)) = fields.find_map(|(name, value)| Some((name, value?))) {
        let why = format!("in bridged mode `learn_from` takes it from {device}");
        return Err(ConfigError::NotAllowed { field: path(name), value, why });
    }
    Ok(SegmentFrom { device, flood_interface: raw.flood_interface.unwrap_or(false) })
}

/// Checks a segment; `field` is the path that errors begin with.
pub(super) fn check(field: &str, raw: &VxlanConfig) -> Checked<Bridged> {
    let path = |name: &str| format!("{field}.{name}");
    let expected = "the segment's network identifier, 1 to 16777215";
    let vni = raw.vni.ok_or_else(|| ConfigError::missing(&path("vni"), expected))?;
    let vni = Vni::new(vni)
        .filter(|vni| vni.get() != 0)
        .ok_or_else(|| ConfigError::value(&path("vni"), vni, "1 to 16777215"))?;
    if raw.port == Some(0) {
        return Err(ConfigError::value(&path("port"), 0, "a UDP port, 1 to 65535"));
    }
    if let Some(device) = &raw.device {
        let expected = "nothing in bridged mode: a segment needs no VXLAN device of this node";
        return Err(ConfigError::value(&path("device"), device, expected));
    }
    let local = end(&path("local"), raw.local.as_deref(), None)?;
    let peers = raw.peers.as_deref().unwrap_or_default();
    let flood = raw.flood.as_deref().unwrap_or_default();
    let bounds = [("peers", peers.len(), PEERS_MAX), ("flood", flood.len(), FLOOD_MAX)];
    for (name, count, most) in bounds {
        if count > most {
            return Err(ConfigError::value(&path(name), count, format!("at most {most} entries")));
        }
    }
    let (mut members, mut known) = (Vec::new(), HashSet::new());
    for (i, peer) in peers.iter().enumerate() {
        let field = path(&format!("peers[{i}]"));
        let member = member(&field, peer, local)?;
        if !known.insert(member.at) {
            let (name, value) = match member.at {
                MemberAt::Mac(mac) => ("mac", mac.to_string()),
                MemberAt::Prefix(prefix) => ("prefix", prefix.to_string()),
            };
            return Err(ConfigError::duplicate(&format!("{field}.{name}"), value));
        }
        members.push(member);
    }
    let flood = flood
        .iter()
        .enumerate()
        .map(|(i, text)| end(&path(&format!("flood[{i}]")), Some(text), Some(local)))
        .collect::<Checked<_>>()?;
    Ok(Bridged {
        tunnel: Tunnel {
            ttl: ttl(&path("ttl"), raw.ttl.as_ref())?,
            ds: tos(&path("tos"), raw.tos.as_ref())?,
            df: word(&path("df"), raw.df.as_deref())?,
            udp_checksum: raw.udp_checksum.unwrap_or(true),
            ..Tunnel::new(vni, raw.port.unwrap_or(PORT), local)
        },
        members,
        flood,
        flood_interface: raw.flood_interface.unwrap_or(false),
    })
}

/// The address of a node, of the family of `local`.
fn end(field: &str, text: Option<&str>, local: Option<IpAddr>) -> Checked<IpAddr> {
    let end = address(field, text)?;
    if end.is_unspecified() || end.is_multicast() {
        return Err(ConfigError::value(field, end, "the address of one node"));
    }
    match local {
        Some(local) if local.is_ipv4() != end.is_ipv4() => {
            Err(ConfigError::value(field, end, "an address of the same family as `local`"))
        }
        _ => Ok(end),
    }
}

fn member(field: &str, raw: &PeerConfig, local: IpAddr) -> Checked<Member> {
    let path = |name: &str| format!("{field}.{name}");
    let vtep = end(&path("vtep"), raw.vtep.as_deref(), Some(local))?;
    let at = match (&raw.mac, &raw.prefix) {
        (Some(mac), Some(_)) => {
            let expected =
                "either `mac` or `prefix`: in bridged mode a peer is a station, or the hosts of a prefix";
            return Err(ConfigError::value(&path("mac"), mac, expected));
        }
        (Some(text), None) => {
            let expected = "a station's MAC address, such as 02:00:00:00:00:01";
            let mac =
                text.parse().ok().filter(|mac: &MacAddress| !mac.is_multicast() && *mac != MacAddress::ZERO);
            MemberAt::Mac(mac.ok_or_else(|| ConfigError::value(&path("mac"), text, expected))?)
        }
        (None, text) => {
            let expected = "the hosts behind it, for example 10.9.0.0/28, or `mac`, one station";
            let text = required(&path("prefix"), text.as_deref(), expected)?;
            MemberAt::Prefix(prefix(&path("prefix"), text)?)
        }
    };
    Ok(Member { at, vtep })
}

fn number(raw: &OuterConfig) -> Option<u8> {
    match raw {
        OuterConfig::Number(number) => u8::try_from(*number).ok(),
        OuterConfig::Word(word) => word.parse().ok(),
    }
}

fn is_inherit(raw: &OuterConfig) -> bool {
    matches!(raw, OuterConfig::Word(word) if word == "inherit")
}

fn ttl(field: &str, raw: Option<&OuterConfig>) -> Checked<OuterTtl> {
    match raw {
        None => Ok(OuterTtl::linux(0)),
        Some(raw) if is_inherit(raw) => Ok(OuterTtl::Inherit),
        Some(raw) => {
            let ttl = number(raw).map(OuterTtl::linux);
            ttl.ok_or_else(|| ConfigError::value(field, raw, "0 (64) to 255, or inherit"))
        }
    }
}

fn tos(field: &str, raw: Option<&OuterConfig>) -> Checked<OuterDs> {
    match raw {
        None => Ok(OuterDs::Fixed(DsField(0))),
        Some(raw) if is_inherit(raw) => Ok(OuterDs::Inherit),
        Some(raw) => {
            // The two ECN bits are the inner packet's.
            let tos = number(raw).filter(|tos| tos & 0b11 == 0).map(|tos| OuterDs::Fixed(DsField(tos)));
            tos.ok_or_else(|| ConfigError::value(field, raw, "a multiple of 4, 0 to 252, or inherit"))
        }
    }
}
