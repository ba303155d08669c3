// SPDX-License-Identifier: Apache-2.0
//! Routes of a namespace, and which of them say without further questions how a datagram leaves.
//!
//! In: routes as the kernel lists them. Out: those of the main table, each with whether it is *asked* about: a look at the tables
//! cannot tell what Linux would do (`docs/design/resolve.md`). And what the namespace delivers to itself.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use ktsn_model::IpPrefix;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteNextHopFlags, RouteType,
    RouteVia,
};

/// RT_TABLE_LOCAL.
pub(crate) const TABLE_LOCAL: u32 = 255;
/// RT_TABLE_MAIN.
pub(crate) const TABLE_MAIN: u32 = 254;
/// RT_TABLE_DEFAULT.
pub(crate) const TABLE_DEFAULT: u32 = 253;

/// A way that a route may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hop {
    pub(crate) device: u32,
    pub(crate) gateway: Option<IpAddr>,
}

/// A route of the main table; no hops: unreachable, blackhole, prohibit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MainRoute {
    pub(crate) prefix: IpPrefix,
    pub(crate) metric: u32,
    pub(crate) source: Option<IpAddr>,
    pub(crate) hops: Vec<Hop>,
    /// Only the kernel can say how a datagram takes it.
    pub(crate) is_asked: bool,
}

/// A route, as far as datagrams without rules of their own meet it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TableRoute {
    /// Of the main table.
    Main(MainRoute),
    /// Of the table `local`: the namespace delivers this prefix to itself.
    Local(IpPrefix),
    /// Of the table `local`, and neither an address nor a group: only the kernel knows.
    Other(IpPrefix),
    /// Of the table `default`.
    Default,
}

pub(crate) fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some(IpAddr::V4(*address)),
        RouteAddress::Inet6(address) => Some(IpAddr::V6(*address)),
        _ => None,
    }
}

pub(crate) fn gateway(attributes: &[RouteAttribute]) -> Option<IpAddr> {
    attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Gateway(address) => ip(address),
        RouteAttribute::Via(RouteVia::Inet(address)) => Some(IpAddr::V4(*address)),
        RouteAttribute::Via(RouteVia::Inet6(address)) => Some(IpAddr::V6(*address)),
        _ => None,
    })
}

/// Reads a route; `None` for those of other tables, and those that Linux does not use.
pub(crate) fn route(message: &RouteMessage) -> Option<TableRoute> {
    let header = &message.header;
    let any = match header.address_family {
        AddressFamily::Inet => IpAddr::from([0; 4]),
        AddressFamily::Inet6 => IpAddr::from([0; 16]),
        _ => return None,
    };
    if header.flags.intersects(RouteFlags::Cloned | RouteFlags::Dead) {
        return None;
    }
    let (mut table, mut network) = (u32::from(header.table), any);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::Destination(address) => network = ip(address)?,
            _ => {}
        }
    }
    let prefix = IpPrefix::covering(network, header.destination_prefix_length).ok()?;
    match (table, header.kind) {
        (TABLE_MAIN, _) => Some(TableRoute::Main(main_route(message, prefix))),
        (TABLE_DEFAULT, _) => Some(TableRoute::Default),
        (TABLE_LOCAL, RouteType::Local | RouteType::Anycast) => Some(TableRoute::Local(prefix)),
        // Linux keeps the way of IPv6 groups there.
        (TABLE_LOCAL, _) if prefix.address().is_multicast() => None,
        (TABLE_LOCAL, _) => Some(TableRoute::Other(prefix)),
        _ => None,
    }
}

fn main_route(message: &RouteMessage, prefix: IpPrefix) -> MainRoute {
    let header = &message.header;
    let is_nowhere =
        matches!(header.kind, RouteType::BlackHole | RouteType::Unreachable | RouteType::Prohibit);
    let (mut metric, mut source, mut device, mut hops) = (0, None, None, Vec::new());
    // A type of service, or a source, makes it a route for some datagrams only: without hops for the others.
    let is_for_some = header.tos != 0 || header.source_prefix_length != 0;
    let mut is_asked = is_for_some;
    is_asked |= !(is_nowhere || header.kind == RouteType::Unicast);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Priority(number) => metric = *number,
            RouteAttribute::PrefSource(address) => source = ip(address),
            RouteAttribute::Oif(index) => device = Some(*index),
            RouteAttribute::MultiPath(paths) => {
                is_asked |= paths.len() > 1 || paths.iter().any(|path| is_encapsulated(&path.attributes));
                let alive = paths.iter().filter(|path| !path.flags.contains(RouteNextHopFlags::Dead));
                hops.extend(
                    alive
                        .map(|path| Hop { device: path.interface_index, gateway: gateway(&path.attributes) }),
                );
            }
            RouteAttribute::Metrics(metrics) => is_asked |= metrics.iter().any(changes_frames),
            _ => {}
        }
    }
    is_asked |= is_encapsulated(&message.attributes);
    if let Some(device) = device.filter(|_| !is_nowhere) {
        hops.push(Hop { device, gateway: gateway(&message.attributes) });
    }
    if is_for_some {
        hops.clear();
    }
    // A next-hop object that the kernel does not spell out.
    is_asked |= !is_nowhere && hops.is_empty();
    MainRoute { prefix, metric, source, hops, is_asked }
}

fn is_encapsulated(attributes: &[RouteAttribute]) -> bool {
    let is_so = |attribute: &RouteAttribute| {
        matches!(attribute, RouteAttribute::Encap(_) | RouteAttribute::EncapType(_))
    };
    attributes.iter().any(is_so)
}

/// Whether a metric of a route changes the frames of datagrams: their MTU, or their hop limit.
fn changes_frames(metric: &RouteMetric) -> bool {
    match metric {
        RouteMetric::Mtu(value) | RouteMetric::Hoplimit(value) => *value != 0,
        _ => false,
    }
}

/// Sorts the routes of the main table, of equal prefixes the preferred one first, and marks those that are asked about for want of a
/// sole answer. Linux chooses by turns among IPv4 default routes of one metric. It chooses IPv6 routes of one prefix by whether their
/// gateways answer.
pub(crate) fn sort(routes: &mut [MainRoute]) {
    // Stable: among equals the kernel's order. Those without hops that are asked about are for some datagrams only.
    routes.sort_by_key(|route| (route.is_asked && route.hops.is_empty(), route.metric));
    let is_rival_of = |route: &MainRoute, metric: u32| match route.prefix.address() {
        IpAddr::V4(_) => metric == route.metric,
        // Link-local addresses are routed by the device that they are meant on.
        IpAddr::V6(address) => !address.is_unicast_link_local(),
    };
    let (mut first, mut asked) = (HashMap::new(), HashSet::new());
    for route in routes.iter() {
        let is_rival = match first.entry(route.prefix) {
            Entry::Occupied(before) => is_rival_of(route, *before.get()),
            Entry::Vacant(place) => {
                place.insert(route.metric);
                false
            }
        };
        if route.is_asked || is_rival {
            asked.insert(route.prefix);
        }
    }
    for route in routes.iter_mut() {
        route.is_asked = asked.contains(&route.prefix);
    }
}
