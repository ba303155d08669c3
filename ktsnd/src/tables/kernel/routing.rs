// SPDX-License-Identifier: Apache-2.0
//! How a namespace routes its datagrams: by the main table alone, or as only the kernel knows.
//!
//! In: a dump of all routes and of the rules. Out: the routes of the main table, what the namespace delivers to itself, and in which
//! families rules or other tables have a say.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use ktsn_model::IpPrefix;
use ktsn_resolve::AskedFamilies;
use netlink_packet_route::route::RouteMessage;
use netlink_packet_route::rule::RuleMessage;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rustix::io::Errno;

use super::exceptions::{Exceptions, is_exception};
use super::netlink::Netlink;
use super::routes::{MainRoute, TableRoute, route, sort};
use super::rules::{Origin, are_usual, rule};
use crate::tables::error::{TablesError, netlink_error};

/// What is not the main table's of one family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Rest {
    /// Other rules than the usual ones have a say in the namespace's own datagrams.
    has_rules: bool,
    /// Other rules than the usual ones have a say in what the namespace forwards.
    has_rules_of_forwarding: bool,
    /// The table `default` has routes, or the table `local` has unusual ones, or some could not be read.
    has_tables: bool,
}

/// The routing of one namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Routing {
    /// Routes of the main table; of equal prefixes the preferred one first.
    pub(crate) main: Vec<MainRoute>,
    local: Vec<IpPrefix>,
    /// Of the table `local`, neither an address nor a group.
    other: Vec<IpPrefix>,
    v4: Rest,
    v6: Rest,
    /// What routers said of single destinations.
    pub(crate) exceptions: Exceptions,
}

impl Routing {
    /// Dumps routes and rules. An error names which.
    pub(crate) fn take(netlink: &mut Netlink) -> Result<Self, TablesError> {
        let mut routing = Self::default();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut request = RouteMessage::default();
            request.header.address_family = family;
            let routes = netlink.dump(&RouteNetlinkMessage::GetRoute(request), |message| match message {
                RouteNetlinkMessage::NewRoute(message) if is_exception(&message) => Some(Err(message)),
                RouteNetlinkMessage::NewRoute(message) => route(&message).map(Ok),
                _ => None,
            });
            let routes = routes.map_err(netlink_error("routes"))?;
            let are_routes_read = !netlink.has_unread;
            let rules = rules(netlink, family).map_err(netlink_error("routing rules"))?;
            let are_read = are_routes_read && !netlink.has_unread;
            let is_v4 = family == AddressFamily::Inet;
            let rest = routing.rest(is_v4);
            rest.has_tables |= !are_read;
            let of = |origin| rules.as_ref().map(|rules| rules.iter().map(move |of| rule(of, origin)));
            let has_more = |rules: Option<_>| rules.is_some_and(|rules| !are_usual(rules));
            rest.has_rules = has_more(of(Origin::Own));
            rest.has_rules_of_forwarding = has_more(of(Origin::Forwarded));
            for route in routes {
                match route {
                    Ok(route) => routing.add(is_v4, route),
                    Err(exception) => routing.exceptions.add(&exception),
                }
            }
        }
        routing.sort();
        Ok(routing)
    }

    /// Adds a route; [`Self::sort`] comes after the last one.
    pub(crate) fn add(&mut self, is_v4: bool, route: TableRoute) {
        match route {
            TableRoute::Main(route) => self.main.push(route),
            TableRoute::Local(prefix) => self.local.push(prefix),
            TableRoute::Other(prefix) if IpPrefix::host(prefix.address()) == prefix => {
                self.other.push(prefix);
            }
            TableRoute::Other(_) | TableRoute::Default => self.rest(is_v4).has_tables = true,
        }
    }

    /// Sorts the routes of the main table.
    pub(crate) fn sort(&mut self) {
        sort(&mut self.main);
    }

    fn rest(&mut self, is_v4: bool) -> &mut Rest {
        if is_v4 { &mut self.v4 } else { &mut self.v6 }
    }

    /// The families in which not the main table alone routes datagrams of this origin.
    pub(crate) fn asked(&self, origin: Origin) -> AskedFamilies {
        let is_asked = |rest: Rest| {
            let has_rules = match origin {
                Origin::Own => rest.has_rules,
                Origin::Forwarded => rest.has_rules_of_forwarding,
            };
            has_rules || rest.has_tables
        };
        AskedFamilies { is_v4: is_asked(self.v4), is_v6: is_asked(self.v6) }
    }

    /// What the namespace delivers to itself besides `own`, its addresses.
    pub(crate) fn local(&self, own: impl Fn(IpAddr) -> bool) -> Vec<IpPrefix> {
        let is_own = |prefix: &&IpPrefix| {
            let address = prefix.address();
            let is_host = IpPrefix::host(address) == **prefix;
            address.is_loopback() || (is_host && own(address))
        };
        self.local.iter().filter(|prefix| !is_own(prefix)).copied().collect()
    }

    /// Addresses that the table `local` has, and that are no broadcast address of a network of these addresses.
    pub(crate) fn unusual(&self, own: &[(IpAddr, u8)]) -> impl Iterator<Item = IpPrefix> {
        let is_broadcast = |prefix: &&IpPrefix| {
            let IpAddr::V4(at) = prefix.address() else { return false };
            // Older kernels have the first address of a network as a broadcast address, too.
            let ends = |(own, bits): &(IpAddr, u8)| match own {
                IpAddr::V4(own) if *bits <= 32 => {
                    let hosts = u32::MAX.checked_shr(u32::from(*bits)).unwrap_or(0);
                    [own.to_bits() | hosts, own.to_bits() & !hosts].contains(&at.to_bits())
                }
                _ => false,
            };
            at == Ipv4Addr::BROADCAST || at.is_loopback() || own.iter().any(ends)
        };
        self.other.iter().filter(move |prefix| !is_broadcast(prefix)).copied()
    }
}

/// The rules of a family, in their order; `None`: the kernel knows none.
fn rules(netlink: &mut Netlink, family: AddressFamily) -> io::Result<Option<Vec<RuleMessage>>> {
    let mut request = RuleMessage::default();
    request.header.family = family;
    let rules = netlink.dump(&RouteNetlinkMessage::GetRule(request), |message| match message {
        RouteNetlinkMessage::NewRule(message) => Some(message),
        _ => None,
    });
    match rules {
        Ok(rules) => Ok(Some(rules)),
        // Without CONFIG_IP_MULTIPLE_TABLES there are the tables local and main.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::OPNOTSUPP) => Ok(None),
        Err(error) => Err(error),
    }
}
