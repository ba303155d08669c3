// SPDX-License-Identifier: Apache-2.0
//! Target `resolve`: tables and a datagram out of any octets.
//!
//! In: an attachment (no overlay and a forwarding node, routed, or bridged with head-end replication; IPv4 and IPv6 inside and
//! outside; routes, neighbours, lists, tags, outer fields) and one datagram. The answer must be that of the plain reference
//! which the crate's own tests are held against; whatever leaves is as long as it said, fits its device, and carries the
//! inner packet's ECN outside, CE as ECT(0) (RFC 3168 9.1.1).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ktsn_model::IpPrefix;
use ktsn_resolve::{
    AskedFamilies, AttachmentIndex, AttachmentTables, Bridged, Egress, Flow, Forwarding, InterfaceRoute,
    Link, LinkTable, Marks, Member, MemberAt, Neighbour, OuterDf, OuterDs, OuterTtl, Overlay, Peer,
    PortIndex, Refusal, Replica, Resolved, Route, RouteAnswer, TableError, Tables, Tunnel, Via, Vxlan,
    VxlanBridged, VxlanRouted, next_replica, resolve_answered, resolve_replica,
};
use ktsn_wire::{DsField, HeaderTemplate, Identifications, MacAddress, Pcp, Tci, Vid, Vni, dissect};

use crate::reference::{self, Kind, Plain};

const INDEX: AttachmentIndex = AttachmentIndex(0);
const VXLAN_PORT: u16 = 8472;

/// Resolves `data`.
///
/// # Panics
/// When an invariant does not hold.
pub fn resolve(data: &[u8]) {
    run(data);
}

/// How many frames left.
fn run(data: &[u8]) -> usize {
    let mut octets = Octets(data);
    let mut plain = octets.plain();
    let (flow, payload_octets) = octets.flow();
    octets.ask(&mut plain);
    let tables = match tables(&plain) {
        Ok(tables) => tables,
        Err(TableError::TunnelFamily { .. } | TableError::GroupMember(_) | TableError::ReservedVlan) => {
            return 0;
        }
        Err(error) => panic!("{error}: {plain:?}"),
    };
    match (all(&tables, &flow, plain.answer.as_ref()), reference::resolve(&plain, &flow)) {
        (Ok(ours), Ok(theirs)) => {
            assert_eq!(ours.len(), theirs.len(), "{flow:?} {plain:?}");
            for (ours, theirs) in ours.iter().zip(&theirs) {
                let facts = (ours.port, ours.payload_max, ours.egress);
                assert_eq!(facts, (theirs.port, theirs.payload_max, theirs.egress), "{flow:?} {plain:?}");
                let template = HeaderTemplate::new(&theirs.repr).expect("a template");
                assert_eq!(
                    written(ours, &template, payload_octets, &plain),
                    written_by(&template, payload_octets)
                );
            }
            ours.len()
        }
        (ours, theirs) => {
            assert_eq!(ours.map(|_| ()), theirs.map(|_| ()), "{flow:?} {plain:?}");
            0
        }
    }
}

fn written_by(template: &HeaderTemplate, payload_octets: u16) -> Vec<u8> {
    let payload = vec![0x5a; usize::from(payload_octets)];
    let mut out = vec![0; template.frame_octets(payload.len())];
    let numbers = Identifications { outer: 76, inner: 77 };
    match template.write_frame_identified(&payload, numbers, &mut out) {
        Ok(octets) => assert_eq!(octets, out.len(), "as long as it said"),
        Err(_) => out.clear(),
    }
    out
}

/// The frame, which fits where its payload does. Longer than the length fields allow: nothing, which the reference's says too.
fn written(ours: &Resolved, theirs: &HeaderTemplate, payload_octets: u16, plain: &Plain) -> Vec<u8> {
    assert_eq!(ours.template.header_octets(), theirs.header_octets());
    let frame = written_by(&ours.template, payload_octets);
    if payload_octets > ours.payload_max {
        return frame;
    }
    let (link, tag) = match ours.egress {
        Egress::Uplink => (&plain.uplink, 0),
        Egress::Interface => (&plain.interface, if plain.vlan.is_some() { 4 } else { 0 }),
    };
    let smallest = if plain.uplink.mtu.min(plain.interface.mtu) < 150 { 150 } else { 0 };
    let octets_max = (link.mtu + 14 + tag).max(smallest);
    assert!(frame.len() <= octets_max as usize, "{} octets, at most {octets_max}", frame.len());
    let Ok(taken_apart) = dissect(&frame, Some(VXLAN_PORT)) else { panic!("no frame: {frame:02x?}") };
    if let Some(tunnel) = taken_apart.tunnel {
        let ecn = taken_apart.inner.ds.0 & 3;
        assert_eq!(tunnel.outer.ds.0 & 3, if ecn == 3 { 2 } else { ecn }, "ECN");
    }
    frame
}

/// All frames that a datagram leaves as, as a worker asks for them.
fn all(tables: &Tables, flow: &Flow, answer: Option<&RouteAnswer>) -> Result<Vec<Resolved>, Refusal> {
    let mut found = vec![match answer {
        Some(answer) => resolve_answered(tables, flow, answer)?,
        None => resolve_replica(tables, flow, Replica::First)?,
    }];
    let mut last = found.first().and_then(|first| first.replica);
    while let Some(next) = last.and_then(|last| next_replica(tables, INDEX, last)) {
        found.extend(resolve_replica(tables, flow, next).ok());
        last = Some(next);
    }
    Ok(found)
}

fn tables(plain: &Plain) -> Result<Tables, TableError> {
    let (ttl, ds, df) = plain.outer;
    let new = Tunnel::new(plain.vni, plain.vxlan_port, plain.local);
    let tunnel = Tunnel { ttl, ds, df, udp_checksum: plain.udp_checksum, ..new };
    let overlay = match &plain.kind {
        Kind::Plain(..) => Overlay::None,
        Kind::Routed => {
            let (device_mac, peers) = (plain.device_mac, plain.peers.clone());
            Overlay::VxlanRouted(VxlanRouted::new(Vxlan { tunnel, device_mac, peers })?)
        }
        Kind::Bridged(members, flood, flood_interface) => {
            let (members, flood) = (members.clone(), flood.clone());
            let bridged = Bridged { tunnel, members, flood, flood_interface: *flood_interface };
            Overlay::VxlanBridged(VxlanBridged::new(bridged)?)
        }
    };
    let mut attachment = AttachmentTables::new(
        LinkTable::new(plain.interface.clone())?,
        LinkTable::new(plain.uplink.clone())?.into(),
        overlay,
        Some(plain.destinations.clone()),
    )?
    .with_own(plain.own.clone())?
    .with_vlan(plain.vlan)?
    .asking(AskedFamilies { is_v4: plain.asked.0, is_v6: plain.asked.1 })
    .with_local(plain.delivered.clone())?;
    if let Kind::Plain(own, is_v4, is_v6) = &plain.kind {
        attachment = attachment.forwarded(Forwarding { own: own.clone(), is_v4: *is_v4, is_v6: *is_v6 })?;
    }
    Tables::new(1, vec![Some(attachment)])
}

/// Octets that are read one after the other; zeros behind their end.
struct Octets<'a>(&'a [u8]);

impl Octets<'_> {
    fn one(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn two(&mut self) -> u16 {
        u16::from_be_bytes([self.one(), self.one()])
    }

    fn list<T>(&mut self, count_max: u8, mut one: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let count = self.one() % (count_max + 1);
        (0..count).map(|_| one(self)).collect()
    }

    /// Few addresses, so that tables and datagrams meet: two networks of four hosts in each family, and those with a meaning.
    fn address(&mut self) -> IpAddr {
        let octet = self.one();
        let (network, host) = (octet >> 2 & 1, octet & 3);
        match octet >> 3 {
            0..8 => Ipv4Addr::new(10, 1, network, [1, 5, 77, 255][usize::from(host)]).into(),
            8..16 => Ipv6Addr::new(0xfd01, 0, 0, network.into(), 0, 0, 0, host.into()).into(),
            16..18 => Ipv4Addr::new(224 + network, 0, 130, host).into(),
            18..20 => Ipv6Addr::new(0xff01 + u16::from(host), 0, 0, 0, 0, 0, network.into(), 7).into(),
            20..22 => Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, network.into(), host.into()).into(),
            22 => {
                [Ipv4Addr::BROADCAST, Ipv4Addr::LOCALHOST, Ipv4Addr::UNSPECIFIED, Ipv4Addr::new(192, 0, 2, 1)]
                    [usize::from(host)]
                .into()
            }
            23 => [Ipv6Addr::LOCALHOST, Ipv6Addr::UNSPECIFIED][usize::from(network)].into(),
            24..28 => Ipv4Addr::from([self.one(), self.one(), self.one(), self.one()]).into(),
            _ => {
                let words = std::array::from_fn::<u16, 8, _>(|_| self.two());
                IpAddr::from(words).to_canonical()
            }
        }
    }

    fn mac(&mut self) -> MacAddress {
        match self.one() {
            0 => MacAddress::ZERO,
            255 => MacAddress([1, 0, 0x5e, 0, 0, 1]),
            last => MacAddress([2, 0, 0, 0, 0, last % 8]),
        }
    }

    fn prefix(&mut self) -> IpPrefix {
        let (address, bits) = (self.address(), self.one());
        let width = if address.is_ipv4() { 32 } else { 128 };
        IpPrefix::covering(address, bits % (width + 1)).unwrap_or(IpPrefix::host(address))
    }

    fn route(&mut self) -> Route {
        let via = match self.one() % 8 {
            0 => Via::Elsewhere,
            4 => Via::Asked,
            1 | 5 => Via::Gateway(self.address()),
            _ => Via::OnLink,
        };
        let source = self.one().is_multiple_of(4).then(|| self.address());
        Route { prefix: self.prefix(), via, source }
    }

    fn link(&mut self, port: u16) -> Link {
        let mtu = u32::from(self.two());
        let address = |octets: &mut Self| {
            let (address, bits) = (octets.address(), octets.one());
            (address, bits % if address.is_ipv4() { 33 } else { 129 })
        };
        Link {
            port: PortIndex(port),
            if_index: u32::from(port) + 2,
            mac: MacAddress([2, 0, 0, 0, 1, port as u8]),
            mtu,
            addresses: self.list(3, address),
            routes: self.list(4, Self::route),
            neighbours: self.list(5, |octets| Neighbour { address: octets.address(), mac: octets.mac() }),
        }
    }

    fn kind(&mut self) -> Kind {
        let switches = self.one();
        match switches % 3 {
            0 => Kind::Plain(self.list(3, Self::address), switches & 8 != 0, switches & 16 != 0),
            1 => Kind::Routed,
            _ => {
                let member = |octets: &mut Self| {
                    let is_mac = octets.one().is_multiple_of(2);
                    let at =
                        if is_mac { MemberAt::Mac(octets.mac()) } else { MemberAt::Prefix(octets.prefix()) };
                    Member { at, vtep: octets.address() }
                };
                Kind::Bridged(self.list(4, member), self.list(4, Self::address), switches & 8 != 0)
            }
        }
    }

    fn outer(&mut self) -> (OuterTtl, OuterDs, OuterDf) {
        let (switches, value) = (self.one(), self.one());
        (
            if switches & 1 == 0 { OuterTtl::Inherit } else { OuterTtl::Fixed(value) },
            if switches & 2 == 0 { OuterDs::Inherit } else { OuterDs::Fixed(DsField(value)) },
            [OuterDf::Unset, OuterDf::Set, OuterDf::Inherit][usize::from(switches >> 2) % 3],
        )
    }

    fn plain(&mut self) -> Plain {
        let kind = self.kind();
        let outer = self.outer();
        let (interface, uplink) = (self.link(1), self.link(0));
        let tag = self.two();
        let tci = Tci {
            pcp: Pcp::new((tag >> 13) as u8).unwrap_or_default(),
            dei: false,
            vid: Vid::new(tag & 0xfff).unwrap_or_default(),
        };
        let peer =
            |octets: &mut Self| Peer { prefix: octets.prefix(), vtep: octets.address(), mac: octets.mac() };
        Plain {
            interface,
            uplink,
            kind,
            peers: self.list(4, peer),
            outer,
            local: self.address(),
            vni: Vni::new(u32::from(self.one())).unwrap_or_default(),
            vxlan_port: VXLAN_PORT,
            device_mac: MacAddress([2, 0, 0, 0, 1, 9]),
            udp_checksum: self.one().is_multiple_of(2),
            destinations: self.list(4, Self::prefix),
            own: self.list(2, Self::address),
            vlan: (tag != 0).then_some(tci),
            asked: (false, false),
            delivered: Vec::new(),
            answer: None,
        }
    }

    /// What only the kernel knows. It is read last: inputs without it are those of a namespace where the main table decides.
    fn ask(&mut self, plain: &mut Plain) {
        plain.asked = match self.one() {
            asked @ 1..=3 => (asked & 1 != 0, asked & 2 != 0),
            _ => (false, false),
        };
        plain.delivered = self.list(2, Self::prefix);
        plain.answer = match self.one() % 4 {
            0 => None,
            1 => Some(RouteAnswer::Elsewhere),
            _ => Some(RouteAnswer::Interface(InterfaceRoute {
                gateway: self.one().is_multiple_of(2).then(|| self.address()),
                source: self.one().is_multiple_of(2).then(|| self.address()),
                mtu: self.one().is_multiple_of(2).then(|| u32::from(self.two())),
                hop_limit: Some(self.one()).filter(|hops| *hops != 0),
            })),
        };
    }

    /// The datagram, and how long its payload is.
    fn flow(&mut self) -> (Flow, u16) {
        let switches = self.one();
        let destination = match self.address() {
            IpAddr::V4(address) if switches & 1 != 0 => IpAddr::V6(address.to_ipv6_mapped()),
            address => address,
        };
        let flow = Flow {
            is_connected: false,
            uid: 0,
            attachment: INDEX,
            bound: (switches & 2 != 0).then(|| self.address()),
            source_port: self.two(),
            destination,
            destination_port: 7000 + u16::from(self.one()),
            scope: u32::from(switches >> 2 & 3),
            traffic_class: self.one(),
            hop_limit: self.one(),
            marks: Marks {
                dont_fragment: switches & 0x10 == 0,
                flow_label: if switches & 0x40 != 0 { 0xa_bcde } else { 0 },
                udp_checksum: switches & 0x80 == 0,
                is_default_hop_limit: false,
            },
        };
        (flow, self.two() % 9_000)
    }
}

#[cfg(test)]
mod tests {
    use super::run;

    /// The corpus reaches what its names say.
    #[test]
    fn corpus_of_resolve_gets_far() {
        for (name, data, frames) in [
            ("routed", &include_bytes!("../corpus/resolve/routed.bin")[..], 1),
            ("routed-v6-over-v6", include_bytes!("../corpus/resolve/routed-v6-over-v6.bin"), 1),
            ("routed-unknown-end", include_bytes!("../corpus/resolve/routed-unknown-end.bin"), 0),
            ("routed-mapped-bound", include_bytes!("../corpus/resolve/routed-mapped-bound.bin"), 1),
            ("segment-station", include_bytes!("../corpus/resolve/segment-station.bin"), 1),
            ("segment-flood", include_bytes!("../corpus/resolve/segment-flood.bin"), 3),
            ("segment-flood-v6", include_bytes!("../corpus/resolve/segment-flood-v6.bin"), 2),
            ("segment-here", include_bytes!("../corpus/resolve/segment-here.bin"), 1),
            ("host-gw", include_bytes!("../corpus/resolve/host-gw.bin"), 1),
            ("interface", include_bytes!("../corpus/resolve/interface.bin"), 1),
            ("no-neighbour", include_bytes!("../corpus/resolve/no-neighbour.bin"), 0),
        ] {
            assert_eq!(run(data), frames, "{name}");
        }
    }
}
