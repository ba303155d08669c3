// SPDX-License-Identifier: Apache-2.0
//! Which UDP datagrams without a mark a rule may match.
//!
//! In: what its tests compare. Out: sources, destinations and a device, never fewer datagrams than the rule matches.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ktsn_model::IpPrefix;

/// The name of a device, or how it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DeviceName {
    pub(super) text: Vec<u8>,
    pub(super) is_beginning: bool,
}

/// The addresses of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sides {
    source: IpPrefix,
    destination: IpPrefix,
}

/// The datagrams that a rule may match; `None`: none of that family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scope {
    v4: Option<Sides>,
    v6: Option<Sides>,
    device: Option<DeviceName>,
}

/// One family of a scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reach {
    pub(super) source: IpPrefix,
    pub(super) destination: IpPrefix,
    device: Option<DeviceName>,
}

impl Reach {
    /// Whether datagrams that leave by the device of this name are meant.
    pub(super) fn is_by(&self, device: &str) -> bool {
        self.device.as_ref().is_none_or(|name| {
            let device = device.as_bytes();
            if name.is_beginning { device.starts_with(&name.text) } else { device == name.text }
        })
    }
}

/// What both prefixes cover.
fn common(a: IpPrefix, b: IpPrefix) -> Option<IpPrefix> {
    let (short, long) = if a.bits() <= b.bits() { (a, b) } else { (b, a) };
    short.contains(long.address()).then_some(long)
}

fn both(a: Option<Sides>, b: Option<Sides>) -> Option<Sides> {
    let (a, b) = (a?, b?);
    let (source, destination) = (common(a.source, b.source)?, common(a.destination, b.destination)?);
    Some(Sides { source, destination })
}

impl Scope {
    /// All datagrams.
    pub(super) fn all() -> Self {
        let of = |any: IpAddr| {
            let any = IpPrefix::covering(any, 0).ok()?;
            Some(Sides { source: any, destination: any })
        };
        let (v4, v6) = (of(Ipv4Addr::UNSPECIFIED.into()), of(Ipv6Addr::UNSPECIFIED.into()));
        Self { v4, v6, device: None }
    }

    /// Only those of a family.
    pub(super) fn of_family(mut self, is_v4: bool) -> Self {
        *(if is_v4 { &mut self.v6 } else { &mut self.v4 }) = None;
        self
    }

    /// Without those of a family.
    pub(super) fn without_family(self, is_v4: bool) -> Self {
        self.of_family(!is_v4)
    }

    /// Of the prefix's family only those from it, or to it.
    pub(super) fn within(mut self, prefix: IpPrefix, is_source: bool) -> Self {
        let family = if prefix.address().is_ipv4() { &mut self.v4 } else { &mut self.v6 };
        *family = family.and_then(|Sides { source, destination }| {
            if is_source {
                // A datagram from a loopback address is never taken.
                let source = common(source, prefix).filter(|source| !source.address().is_loopback())?;
                Some(Sides { source, destination })
            } else {
                Some(Sides { source, destination: common(destination, prefix)? })
            }
        });
        self
    }

    /// Only those by this device.
    pub(super) fn by(mut self, device: DeviceName) -> Self {
        self.device.get_or_insert(device);
        self
    }

    /// The datagrams in both.
    pub(super) fn and(&self, other: &Self) -> Self {
        let device = self.device.clone().or_else(|| other.device.clone());
        Self { v4: both(self.v4, other.v4), v6: both(self.v6, other.v6), device }
    }

    /// Whether there is no such datagram.
    pub(super) fn is_empty(&self) -> bool {
        self.v4.is_none() && self.v6.is_none()
    }

    pub(super) fn reaches(&self) -> impl Iterator<Item = Reach> {
        let device = self.device.clone();
        [self.v4, self.v6].into_iter().flatten().map(move |Sides { source, destination }| Reach {
            source,
            destination,
            device: device.clone(),
        })
    }
}

/// How many bits at its beginning a mask sets, where all others are clear.
pub(super) fn leading_bits(mask: &[u8], octets: usize) -> Option<u8> {
    let mask = mask.get(..octets)?;
    let leading: u32 = mask.iter().map(|octet| octet.leading_ones()).take_while(|ones| *ones == 8).sum();
    let last = mask.get(leading as usize / 8).map_or(0, |octet| octet.leading_ones());
    let set: u32 = mask.iter().map(|octet| octet.count_ones()).sum();
    u8::try_from(leading + last).ok().filter(|bits| u32::from(*bits) == set)
}

/// The prefix of these octets and this length.
pub(super) fn prefix(is_v4: bool, octets: &[u8], bits: u8) -> Option<IpPrefix> {
    let mut all = [0; 16];
    all.get_mut(..octets.len())?.copy_from_slice(octets);
    let address = if is_v4 {
        IpAddr::V4(Ipv4Addr::from(*all.first_chunk::<4>()?))
    } else {
        IpAddr::V6(Ipv6Addr::from(all))
    };
    IpPrefix::covering(address, bits).ok()
}
