// SPDX-License-Identifier: Apache-2.0
//! Small worlds, and what `docs/design/resolve.md` says about each: written rule by rule from that page; it shares nothing
//! with the crate or with the other reference.
//!
//! In: a [`World`], a [`Place`] to send to and the socket's [`Bound`] and hop limit. Out: the frames that leave, or the reasons
//! that apply. Where several things are missing, the page does not say which is reported: any of them will do.

mod world;

use std::net::IpAddr;

use ktsn_wire::MacAddress;

pub(crate) use world::*;

/// A frame, as far as the page says what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub by_uplink: bool,
    pub macs: (MacAddress, MacAddress),
    pub is_tagged: bool,
    pub addresses: (IpAddr, IpAddr),
    pub hop_limit: u8,
    /// MAC and IP addresses of the outer headers.
    pub tunnel: Option<(MacAddress, MacAddress, IpAddr, IpAddr)>,
}

/// The page's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    OwnAddress,
    NotAllowed,
    RoutingRules,
    /// The kernel is asked.
    Unanswered {
        payload_max: u32,
    },
    /// Dropped, for one of these: no route, no neighbour by this address.
    Dropped {
        no_route: bool,
        no_neighbour: Vec<IpAddr>,
        no_end: bool,
    },
    Leaves {
        frames: Vec<Seen>,
        payload_max: u32,
    },
}

fn no_route() -> Answer {
    Answer::Dropped { no_route: true, no_neighbour: vec![], no_end: false }
}

fn no_neighbour(address: IpAddr) -> Answer {
    Answer::Dropped { no_route: false, no_neighbour: vec![address], no_end: false }
}

/// Both are missing: either may be reported.
fn either(a: Answer, b: Answer) -> Answer {
    match (a, b) {
        (
            Answer::Dropped { no_route, mut no_neighbour, no_end },
            Answer::Dropped { no_route: also, no_neighbour: more, no_end: end },
        ) => {
            no_neighbour.extend(more);
            Answer::Dropped { no_route: no_route || also, no_neighbour, no_end: no_end || end }
        }
        (Answer::Dropped { .. }, other) | (other, _) => other,
    }
}

/// One way for a frame that has been found missing or not.
type Way<T> = Result<T, Answer>;

pub(crate) struct Question {
    pub world: World,
    pub to: Place,
    pub bound: Bound,
    /// 0: the default.
    pub hop_limit: u8,
}

impl Question {
    fn at(&self, place: Place) -> IpAddr {
        place.address(self.world.is_v6)
    }

    fn is_group(&self) -> bool {
        matches!(self.to, Place::Group | Place::Broadcast | Place::SubnetBroadcast)
    }

    /// Link-local unicast of IPv6: always on link. IPv4 has no such thing here.
    fn is_on_link_by_nature(&self) -> bool {
        self.to == Place::LinkLocal && self.world.is_v6
    }

    fn is_link_scoped(&self) -> bool {
        self.world.is_v6 && matches!(self.to, Place::LinkLocal | Place::Broadcast | Place::SubnetBroadcast)
    }

    /// Rule 2b.
    fn is_asked(&self) -> bool {
        let follows_routes = !self.is_group() && !self.is_on_link_by_nature() && !self.in_subnet();
        match self.world.pod_route {
            PodRoute::Rules => true,
            PodRoute::Asked => follows_routes,
            _ => false,
        }
    }

    fn in_subnet(&self) -> bool {
        use Place::{Gateway, Near, Own, Prefixed, Station, SubnetBroadcast};
        match self.to {
            Own | Gateway | Near | Station | Prefixed => true,
            SubnetBroadcast => !self.world.is_v6,
            _ => false,
        }
    }

    fn in_far(&self) -> bool {
        matches!(self.to, Place::Far | Place::Inner | Place::Node)
    }

    fn is_allowed(&self) -> bool {
        match (self.world.allowed, self.world.mode) {
            (Allowed::Everything, _) => true,
            (Allowed::Far, _) | (Allowed::Default, Mode::Routed) => self.in_far(),
            // Prefixes only: stations by MAC address have none.
            (Allowed::Default, Mode::Bridged { .. }) => {
                self.to == Place::Prefixed && self.world.second != Second::Absent
            }
            (Allowed::Default, Mode::Plain { .. }) => false,
        }
    }

    fn source(&self) -> IpAddr {
        match (self.bound, self.is_link_scoped()) {
            (Bound::Nothing, true) => "fe80::5".parse().unwrap(),
            _ => self.at(Place::Own),
        }
    }

    /// The next hop on the pod's link.
    fn next_hop(&self) -> Way<IpAddr> {
        if self.is_on_link_by_nature() {
            return Ok(self.at(self.to));
        }
        match self.world.pod_route {
            PodRoute::Nothing => Err(no_route()),
            _ if self.in_subnet() => Ok(self.at(self.to)),
            PodRoute::Gateway => Ok(self.at(Place::Gateway)),
            PodRoute::Subnet => Err(no_route()),
            PodRoute::Elsewhere => Err(Answer::NotAllowed),
            PodRoute::Asked | PodRoute::Rules => Err(Answer::RoutingRules),
        }
    }

    fn link_mac(&self, hop: IpAddr) -> Way<MacAddress> {
        let stations = [
            (Place::Gateway, GATEWAY),
            (Place::Near, NEAR),
            (Place::Station, STATION),
            (Place::Prefixed, PREFIXED),
            (Place::LinkLocal, LINK_LOCAL),
        ];
        let found = stations.iter().find(|(place, _)| self.at(*place) == hop);
        found.filter(|_| self.world.knows_link).map(|(_, last)| mac(*last)).ok_or(no_neighbour(hop))
    }

    /// Rule 3: RFC 1112, RFC 2464, broadcast.
    fn group_mac(&self) -> MacAddress {
        MacAddress(match (self.to, self.world.is_v6) {
            (Place::Group, false) => [1, 0, 0x5e, 1, 2, 3],
            (Place::Group, true) => [0x33, 0x33, 0, 1, 0x80, 3],
            (Place::Broadcast, true) => [0x33, 0x33, 0, 0, 0, 1],
            (_, true) => [0x33, 0x33, 0, 0, 0, 7],
            (_, false) => [255; 6],
        })
    }

    /// MAC address on the underlay for what goes to `host` there; without an overlay for what goes on to the far pods.
    fn underlay_mac(&self, host: u8, destination: IpAddr) -> Way<MacAddress> {
        let World { underlay: way, known, over_v6, is_v6, mode, .. } = self.world;
        let routers_family = if matches!(mode, Mode::Plain { .. }) { is_v6 } else { over_v6 };
        let router = underlay(routers_family, 9);
        match way {
            Underlay::Nothing | Underlay::Elsewhere => Err(no_route()),
            Underlay::OnLink => match known {
                Known::Everybody => Ok(mac(UPLINK + host)),
                Known::SecondAndRouter if host == 3 => Ok(mac(UPLINK + host)),
                _ => Err(no_neighbour(destination)),
            },
            Underlay::Router | Underlay::Default => match known {
                Known::Nobody => Err(no_neighbour(router)),
                _ => Ok(mac(ROUTER)),
            },
        }
    }

    fn payload_max(&self, is_tunnel: bool, is_forwarded: bool) -> u32 {
        let is_bridged = matches!(self.world.mode, Mode::Bridged { .. });
        let mut packet = INTERFACE_MTU;
        if is_tunnel || is_bridged {
            let tag = if is_bridged && self.world.is_tagged { 4 } else { 0 };
            packet = packet.min(UPLINK_MTU - if self.world.over_v6 { 70 } else { 50 } - tag);
        }
        if is_forwarded {
            packet = packet.min(UPLINK_MTU);
        }
        packet - if self.world.is_v6 { 48 } else { 28 }
    }

    fn leaves(&self, frames: Vec<Seen>, is_tunnel: bool, is_forwarded: bool) -> Answer {
        Answer::Leaves { frames, payload_max: self.payload_max(is_tunnel, is_forwarded) }
    }

    /// The hop limit after one router.
    fn passed_on(&self) -> Way<u8> {
        match self.hop_limit {
            0 => Ok(63),
            1 => Err(no_route()),
            more => Ok(more - 1),
        }
    }

    fn in_tunnel(&self, host: u8, inner: &Seen) -> Way<Seen> {
        let (local, end) = (underlay(self.world.over_v6, 1), underlay(self.world.over_v6, host));
        let outer = (mac(UPLINK), self.underlay_mac(host, end)?, local, end);
        Ok(Seen { by_uplink: true, tunnel: Some(outer), ..inner.clone() })
    }

    /// Rule 4.
    fn routed(&self) -> Option<Answer> {
        if self.world.mode != Mode::Routed || !self.in_far() {
            return None;
        }
        let (host, device) = match self.world.second {
            Second::Absent => (2, FAR_DEVICE),
            _ if self.to != Place::Inner => (2, FAR_DEVICE),
            Second::Remote => (3, INNER_DEVICE),
            Second::Here => return None,
            Second::Unknown => {
                let no_end = Answer::Dropped { no_route: false, no_neighbour: vec![], no_end: true };
                let expired = self.passed_on().err();
                return Some(expired.map_or(no_end.clone(), |expired| either(expired, no_end)));
            }
        };
        let inner = Seen {
            by_uplink: true,
            macs: (mac(DEVICE), mac(device)),
            is_tagged: false,
            addresses: (self.source(), self.at(self.to)),
            hop_limit: self.passed_on().unwrap_or(0),
            tunnel: None,
        };
        Some(match (self.passed_on(), self.in_tunnel(host, &inner)) {
            (Ok(_), Ok(frame)) => self.leaves(vec![frame], true, false),
            (Err(a), Err(b)) => either(a, b),
            (Err(missing), _) | (_, Err(missing)) => missing,
        })
    }

    /// Rule 4b.
    fn forwarded(&self) -> Option<Answer> {
        let Mode::Plain { forwards: true, has_gateway: true } = self.world.mode else { return None };
        let by_gateway = self.next_hop() == Ok(self.at(Place::Gateway)) && self.to != Place::Gateway;
        let has_route = self.in_far() && matches!(self.world.underlay, Underlay::OnLink | Underlay::Router);
        if !by_gateway || !has_route || self.to == Place::Node || self.is_on_link_by_nature() {
            return None;
        }
        let host = if self.to == Place::Inner { 3 } else { 2 };
        Some(match (self.passed_on(), self.underlay_mac(host, self.at(self.to))) {
            (Ok(hop_limit), Ok(next)) => {
                let frame = Seen {
                    by_uplink: true,
                    macs: (mac(UPLINK), next),
                    is_tagged: false,
                    addresses: (self.source(), self.at(self.to)),
                    hop_limit,
                    tunnel: None,
                };
                self.leaves(vec![frame], false, true)
            }
            (Err(a), Err(b)) => either(a, b),
            (Err(missing), _) | (_, Err(missing)) => missing,
        })
    }

    /// Rule 4c, for what rules 3 and 5 would hand to the interface.
    fn segment(&self, frame: Seen, hop: Option<IpAddr>) -> Answer {
        let Mode::Bridged { flood, copy_here } = self.world.mode else {
            return self.leaves(vec![frame], false, false);
        };
        let second = (hop == Some(self.at(Place::Prefixed))).then_some(self.world.second);
        let station = match (frame.macs.1 == mac(STATION), second) {
            (true, _) => Some(Ok(2)),
            (_, Some(Second::Remote | Second::Unknown)) => Some(Ok(3)),
            (_, Some(Second::Here)) => Some(Err(())),
            _ => None,
        };
        match station {
            Some(Ok(host)) => {
                return match self.in_tunnel(host, &frame) {
                    Ok(frame) => self.leaves(vec![frame], true, false),
                    Err(missing) => missing,
                };
            }
            Some(Err(())) => return self.leaves(vec![frame], false, false),
            None => {}
        }
        let hosts: &[u8] = match flood {
            Flood::Nobody => &[],
            Flood::First => &[2],
            Flood::All => &[2, 3],
        };
        let copies: Vec<Way<Seen>> = hosts.iter().map(|host| self.in_tunnel(*host, &frame)).collect();
        let mut frames: Vec<Seen> = copies.iter().flatten().cloned().collect();
        if copy_here || hosts.is_empty() {
            frames.push(frame);
        }
        if frames.is_empty() {
            return copies.into_iter().filter_map(Way::err).reduce(either).unwrap();
        }
        self.leaves(frames, false, false)
    }

    /// All rules in their order.
    pub(crate) fn answer(&self) -> Answer {
        if matches!(self.to, Place::Own | Place::Loopback | Place::Unspecified) {
            return Answer::OwnAddress;
        }
        if !self.is_allowed() {
            return Answer::NotAllowed;
        }
        if self.is_asked() {
            let is_bridged = matches!(self.world.mode, Mode::Bridged { .. });
            if self.is_group() || self.is_on_link_by_nature() || is_bridged {
                return Answer::RoutingRules;
            }
            if self.bound == Bound::Foreign {
                return Answer::NotAllowed;
            }
            let is_here = self.to == Place::Inner && self.world.second == Second::Here;
            let is_tunnel = self.world.mode == Mode::Routed && self.in_far() && !is_here;
            return Answer::Unanswered { payload_max: self.payload_max(is_tunnel, false) };
        }
        if self.bound == Bound::Foreign {
            return Answer::NotAllowed;
        }
        let by_interface = |to_mac, default| Seen {
            by_uplink: false,
            macs: (mac(POD), to_mac),
            is_tagged: self.world.is_tagged,
            addresses: (self.source(), self.at(self.to)),
            hop_limit: if self.hop_limit == 0 { default } else { self.hop_limit },
            tunnel: None,
        };
        if self.is_group() {
            let is_multicast = self.world.is_v6 || self.to == Place::Group;
            return self.segment(by_interface(self.group_mac(), if is_multicast { 1 } else { 64 }), None);
        }
        if let Some(answer) = self.routed().or_else(|| self.forwarded()) {
            return answer;
        }
        match self.next_hop().and_then(|hop| Ok((hop, self.link_mac(hop)?))) {
            Ok((hop, to_mac)) => self.segment(by_interface(to_mac, 64), Some(hop)),
            Err(missing) => missing,
        }
    }
}
