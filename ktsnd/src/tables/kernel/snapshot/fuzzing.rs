// SPDX-License-Identifier: Apache-2.0
//! A snapshot made of any messages, for a fuzz target.

use std::net::IpAddr;

use ktsn_resolve::{Link, PortIndex};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::packet_core::{NetlinkMessage, NetlinkPayload};

use super::{Snapshot, address, neighbour, vxlan_device};
use crate::tables::kernel::ask::reply;
use crate::tables::kernel::device::Device;
use crate::tables::kernel::netlink::first_message;
use crate::tables::kernel::routes::route;
use crate::tables::kernel::rules::{Origin, rule};

/// What a snapshot says.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// Messages that were understood.
    pub messages: usize,
    /// What each device's table is made from, by its number.
    pub links: Vec<(u32, Link)>,
    /// Destinations asked for, with the most specific route's length, where there is one.
    pub routes: Vec<(IpAddr, Option<u8>)>,
    /// Stations of VXLAN devices' forwarding tables, and those beside them.
    pub stations: usize,
}

/// Reads messages one behind the other, as dumps of links, addresses, routes and neighbours bring them.
#[must_use]
pub fn layout(octets: &[u8]) -> Layout {
    let (mut snapshot, mut messages, mut rest) = (Snapshot::default(), 0, octets);
    while let Some((message, behind)) = first_message(rest) {
        rest = behind;
        let read = NetlinkMessage::<RouteNetlinkMessage>::deserialize(message.buffer)
            .map(NetlinkMessage::into_parts);
        let Ok((_, NetlinkPayload::InnerMessage(message))) = read else { continue };
        messages += 1;
        match message {
            RouteNetlinkMessage::NewLink(message) => snapshot.devices.extend([Device::of(message)]),
            RouteNetlinkMessage::NewAddress(message) => snapshot.addresses.extend(address(&message)),
            RouteNetlinkMessage::NewRoute(message) => {
                let _ = reply(&message);
                let is_v4 = message.header.address_family == AddressFamily::Inet;
                route(&message).into_iter().for_each(|route| snapshot.routing.add(is_v4, route));
            }
            RouteNetlinkMessage::NewRule(message) => {
                let _ = [Origin::Own, Origin::Forwarded].map(|origin| rule(&message, origin));
            }
            RouteNetlinkMessage::NewNeighbour(message) => {
                snapshot.neighbours.extend(neighbour(&message));
                snapshot.forwarding.extend(vxlan_device::forwarding(&message));
                snapshot.stations.extend(vxlan_device::station(&message));
            }
            _ => {}
        }
    }
    snapshot.routing.sort();
    look(&snapshot, messages)
}

/// Asks it what the daemon asks it.
fn look(snapshot: &Snapshot, messages: usize) -> Layout {
    let numbers: Vec<u32> = snapshot.devices.keys().copied().collect();
    let of = |index: &u32| Some((*index, snapshot.link(*index, PortIndex(0))?));
    let asked: Vec<IpAddr> = snapshot.own().chain(crate::fuzzing::own()).collect();
    let stations = numbers.iter().map(|index| snapshot.stations_beside(*index).count()).sum::<usize>();
    for index in &numbers {
        let _ = (snapshot.first_address(*index), snapshot.neighbours_of(*index).count());
        let _ = (snapshot.routes_by(&[*index]).count(), snapshot.addresses_of(*index).count());
    }
    let _ = (snapshot.default_device(), snapshot.tunnelled().count());
    let routes = asked.into_iter().map(|address| {
        let _ = snapshot.tunnel_to(address);
        (address, snapshot.route_to(address).map(|route| route.prefix.bits()))
    });
    Layout {
        messages,
        links: numbers.iter().filter_map(of).collect(),
        routes: routes.collect(),
        stations: stations + snapshot.forwarding.len(),
    }
}
