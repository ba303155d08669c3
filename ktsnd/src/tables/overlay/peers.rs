// SPDX-License-Identifier: Apache-2.0
//! One list of peers out of three sources.
//!
//! In: peers by configuration, by the control API, and learnt ones. Out: one peer a prefix, and the conflicts. Who is
//! more explicit wins: configuration, then the control API (the attachment's list before its VNI's), then what the
//! kernel knows. So the winner never depends on who came first.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::IpAddr;

use ktsn_model::IpPrefix;
use ktsn_resolve::Peer;
use ktsn_resolve::limits::PEERS_MAX;
use ktsn_wire::MacAddress;

use super::learn::Learnt;
use crate::config::VxlanPeer;

ktsn_model::words! {
    /// Where a peer comes from, the strongest first.
    #[derive(PartialOrd, Ord)]
    pub enum Source {
        /// The attachment's `peers`.
        Configuration = "configuration",
        /// `SetPeers`.
        ControlApi = "control-api",
        /// The kernel's tables of the VXLAN device.
        Learnt = "learnt",
    }
}

/// A peer as it is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerState {
    /// Its pods.
    pub prefix: IpPrefix,
    /// Its tunnel end and the MAC address of its VXLAN device; `Err`: why it is not known.
    pub end: Result<(IpAddr, MacAddress), String>,
    /// The source of the peer.
    pub source: Source,
    /// Why frames to it are left to the kernel; `None`: they are not.
    pub left: Option<String>,
}

impl fmt::Display for PeerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.end {
            Ok((vtep, mac)) => write!(f, "{vtep} with {mac} ({})", self.source.word()),
            Err(missing) => write!(f, "{missing} ({})", self.source.word()),
        }
    }
}

/// What is known of one attachment's peers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sources<'a> {
    pub(crate) configured: &'a [VxlanPeer],
    /// Peers of `SetPeers`: the attachment's list, then its VNI's.
    pub(crate) given: [&'a [VxlanPeer]; 2],
    pub(crate) learnt: &'a [Learnt],
    /// The addresses of the pod's interface.
    pub(crate) own: &'a [(IpAddr, u8)],
    /// This node's tunnel end.
    pub(crate) local: IpAddr,
}

/// Merges the peers of all sources into one list by precedence; returns the list and the conflicts.
pub(crate) fn merge(sources: &Sources<'_>) -> (Vec<PeerState>, Vec<String>) {
    let (mut merged, mut conflicts) = (Merged::default(), Vec::new());
    let listed = |source| {
        move |peer: &VxlanPeer| PeerState {
            prefix: peer.prefix,
            end: Ok((peer.vtep, peer.mac)),
            source,
            left: None,
        }
    };
    let learnt = |peer: &Learnt| PeerState {
        prefix: peer.prefix,
        end: peer.end.map_err(|missing| missing.to_string()),
        source: Source::Learnt,
        left: None,
    };
    let all = sources.configured.iter().map(listed(Source::Configuration));
    let all = all.chain(sources.given.iter().copied().flatten().map(listed(Source::ControlApi)));
    for peer in all.chain(sources.learnt.iter().map(learnt)) {
        if let Err(conflict) = merged.add(peer, sources) {
            conflicts.push(conflict);
        }
    }
    conflicts.extend(shared_mac(sources.learnt));
    if merged.peers.len() > PEERS_MAX {
        conflicts.push(format!("{} peers; the first {PEERS_MAX} are served", merged.peers.len()));
        merged.peers.truncate(PEERS_MAX);
    }
    (merged.peers, conflicts)
}

#[derive(Default)]
struct Merged {
    peers: Vec<PeerState>,
    by_prefix: HashMap<IpPrefix, usize>,
    by_mac: HashMap<MacAddress, IpAddr>,
}

impl Merged {
    /// Takes a peer in, unless a stronger one has its prefix; a contradiction is the error.
    fn add(&mut self, peer: PeerState, sources: &Sources<'_>) -> Result<(), String> {
        let prefix = peer.prefix;
        if let Some(before) = self.by_prefix.get(&prefix).and_then(|at| self.peers.get(*at)) {
            // Who knows no tunnel end claims nothing.
            return if before.end == peer.end || peer.end.is_err() {
                Ok(())
            } else {
                Err(format!("{prefix} is claimed by {before} and by {peer}; the first holds"))
            };
        }
        if let Ok((vtep, mac)) = peer.end {
            if vtep.is_ipv4() != sources.local.is_ipv4() {
                return Err(format!(
                    "{prefix}: {peer} is of another family than {}; left out",
                    sources.local
                ));
            }
            if let Some((own, bits)) = claimed(&prefix, sources).filter(|_| vtep != sources.local) {
                return Err(format!(
                    "{prefix} of {peer} is this pod's {own}/{bits} as well; the pod's holds"
                ));
            }
            let known = *self.by_mac.entry(mac).or_insert(vtep);
            if known != vtep {
                let _ = self.by_prefix.insert(prefix, self.peers.len());
                self.peers.push(peer);
                return Err(format!(
                    "{mac} is at {known} and at {vtep}; both are served, each for its own prefixes"
                ));
            }
        }
        self.by_prefix.insert(prefix, self.peers.len());
        self.peers.push(peer);
        Ok(())
    }
}

/// The pod's own address in a peer's prefix, where that is as specific as the pod's own network.
fn claimed(prefix: &IpPrefix, sources: &Sources<'_>) -> Option<(IpAddr, u8)> {
    sources.own.iter().copied().find(|(own, bits)| prefix.contains(*own) && prefix.bits() >= *bits)
}

/// Gateways with one MAC address: the forwarding table can have it at one tunnel end only.
fn shared_mac(learnt: &[Learnt]) -> Vec<String> {
    // A node has one gateway a family.
    let mut gateways: BTreeMap<(MacAddress, bool), IpAddr> = BTreeMap::new();
    let mut conflicts = Vec::new();
    for peer in learnt {
        let Ok((vtep, mac)) = peer.end else { continue };
        let first = *gateways.entry((mac, peer.gateway.is_ipv4())).or_insert(peer.gateway);
        if first != peer.gateway {
            conflicts.push(format!(
                "gateways {first} and {} have the same {mac}, which the kernel has at {vtep} only",
                peer.gateway
            ));
        }
    }
    conflicts
}

/// The peer as the tables have it.
pub(crate) fn in_tables(peer: &PeerState, local: IpAddr) -> Peer {
    let (vtep, mac) = match peer.end {
        Ok(end) => end,
        Err(_) if local.is_ipv4() => (IpAddr::from([0; 4]), MacAddress::ZERO),
        Err(_) => (IpAddr::from([0; 16]), MacAddress::ZERO),
    };
    Peer { prefix: peer.prefix, vtep, mac }
}
