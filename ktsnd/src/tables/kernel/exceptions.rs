// SPDX-License-Identifier: Apache-2.0
//! Exceptions of routes: destinations that a router redirected, or named a smaller MTU for (`ip route show cache`).
//!
//! In: routes as the kernel lists them, the exceptions among them. Out: the destinations, each with its device and MTU, and when the first
//! of them ends. The kernel announces none of them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use netlink_packet_route::AddressFamily;
use netlink_packet_route::route::{RouteAttribute, RouteFlags, RouteMessage, RouteMetric};

use super::routes::{gateway, ip};

/// The unit of an exception's remaining time (USER_HZ).
const TICK: Duration = Duration::from_millis(10);

/// What is different about a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exception {
    pub(crate) device: u32,
    gateway: Option<IpAddr>,
    /// Largest IP packet, octets, where a router named one.
    pub(crate) mtu: Option<u32>,
}

/// Whether a route of a dump is an exception.
pub(crate) fn is_exception(message: &RouteMessage) -> bool {
    message.header.flags.contains(RouteFlags::Cloned)
}

/// The exceptions of a namespace. Two values are equal if they say the same now, whenever that ends.
#[derive(Clone, Debug, Default)]
pub(crate) struct Exceptions {
    all: BTreeMap<IpAddr, Exception>,
    /// How long the first one lasts.
    lasts: Option<Duration>,
}

impl PartialEq for Exceptions {
    fn eq(&self, other: &Self) -> bool {
        self.all == other.all
    }
}

impl Eq for Exceptions {}

impl Exceptions {
    /// Takes over an exception of a dump.
    pub(crate) fn add(&mut self, message: &RouteMessage) {
        let header = &message.header;
        let bits = if header.address_family == AddressFamily::Inet { 32 } else { 128 };
        let (mut destination, mut device, mut mtu, mut lasts) = (None, None, None, None);
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Destination(address) => destination = ip(address),
                RouteAttribute::Oif(index) => device = Some(*index),
                RouteAttribute::Metrics(metrics) => {
                    mtu = metrics.iter().find_map(|metric| match metric {
                        RouteMetric::Mtu(octets) => Some(*octets),
                        _ => None,
                    });
                }
                RouteAttribute::CacheInfo(info) => {
                    lasts = Some(TICK * info.expires).filter(|of| !of.is_zero());
                }
                _ => {}
            }
        }
        if let (Some(destination), Some(device)) = (destination, device)
            && header.destination_prefix_length == bits
        {
            let gateway = gateway(&message.attributes);
            self.all.insert(destination, Exception { device, gateway, mtu });
            self.lasts = [self.lasts, lasts].into_iter().flatten().min();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The destinations that leave by this device.
    pub(crate) fn by(&self, device: u32) -> impl Iterator<Item = (IpAddr, Exception)> {
        let all = self.all.iter().map(|(destination, exception)| (*destination, *exception));
        all.filter(move |(_, exception)| exception.device == device)
    }

    /// How long all of them hold; `None`: there are none.
    pub(crate) fn lasts(&self, at_most: Duration) -> Option<Duration> {
        // What the kernel rounded off is over by then.
        let lasts = self.lasts.map_or(at_most, |lasts| (lasts + 2 * TICK).min(at_most));
        (!self.is_empty()).then_some(lasts)
    }
}
