// SPDX-License-Identifier: Apache-2.0
//! A sorted map from IP prefixes, looked up by longest match.
//!
//! In: pairs in order of preference. Out: the value of the longest prefix that covers an address or a whole prefix.
//! Entries stand by family, longest prefix first, then address. Each length has an index of its own, asked one after the
//! other: what a look-up costs depends on how many lengths there are, hardly on how many prefixes.

use alloc::vec::Vec;
use core::net::IpAddr;
use core::ops::BitAnd;

use ktsn_model::IpPrefix;

use crate::index::{Index, Key};

/// A sorted map from IP prefixes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PrefixMap<T> {
    entries: Vec<(IpPrefix, T)>,
    v4: Vec<Length<u32>>,
    v6: Vec<Length<u128>>,
}

/// All prefixes of one length.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Length<K> {
    bits: u8,
    mask: K,
    index: Index<K>,
}

/// The prefix, as IPv4 if it is an IPv4-mapped one (RFC 4291 2.5.5.2).
pub(crate) fn canonical(prefix: IpPrefix) -> IpPrefix {
    match prefix.address() {
        IpAddr::V6(address) if prefix.bits() >= 96 => match address.to_ipv4_mapped() {
            Some(v4) => IpPrefix::covering(IpAddr::V4(v4), prefix.bits() - 96).unwrap_or(prefix),
            None => prefix,
        },
        _ => prefix,
    }
}

/// An IPv4 address as an [`Index`]'s key.
pub(crate) fn v4_bits(address: IpAddr) -> Option<u32> {
    if let IpAddr::V4(address) = address { Some(address.to_bits()) } else { None }
}

/// An IPv6 address as an [`Index`]'s key.
pub(crate) fn v6_bits(address: IpAddr) -> Option<u128> {
    if let IpAddr::V6(address) = address { Some(address.to_bits()) } else { None }
}

/// The lengths of one family in the order of the entries: longest first.
fn lengths<T, K: Key>(
    entries: &[(IpPrefix, T)],
    key: impl Fn(IpAddr) -> Option<K>,
    mask: impl Fn(u32) -> K,
) -> Vec<Length<K>> {
    let family = entries.iter().zip(0..);
    let family = family.filter_map(|((prefix, _), at)| Some((prefix.bits(), (key(prefix.address())?, at))));
    let family: Vec<(u8, (K, u32))> = family.collect();
    let length = |run: &[(u8, (K, u32))]| {
        let &(bits, _) = run.first()?;
        Some(Length { bits, mask: mask(u32::from(bits)), index: Index::new(run.iter().map(|entry| entry.1)) })
    };
    family.chunk_by(|a, b| a.0 == b.0).filter_map(length).collect()
}

/// The position of the longest prefix that covers the first `bits` bits of `key`.
fn longest<K: Key + BitAnd<Output = K>>(lengths: &[Length<K>], key: K, bits: u8) -> Option<usize> {
    let mut lengths = lengths.iter().filter(|length| length.bits <= bits);
    lengths.find_map(|length| length.index.find(key & length.mask))
}

impl<T> PrefixMap<T> {
    /// Sorts; of equal prefixes the first given one stays.
    pub(crate) fn new(entries: impl IntoIterator<Item = (IpPrefix, T)>) -> Self {
        let mut entries: Vec<_> =
            entries.into_iter().map(|(prefix, value)| (canonical(prefix), value)).collect();
        let key = |prefix: &IpPrefix| (prefix.address().is_ipv6(), u8::MAX - prefix.bits(), prefix.address());
        entries.sort_by_key(|entry| key(&entry.0));
        entries.dedup_by(|later, earlier| later.0 == earlier.0);
        let v4 = lengths(&entries, v4_bits, |bits| u32::MAX.checked_shl(32 - bits).unwrap_or(0));
        let v6 = lengths(&entries, v6_bits, |bits| u128::MAX.checked_shl(128 - bits).unwrap_or(0));
        Self { entries, v4, v6 }
    }

    /// The value of the longest prefix that covers all of `at`.
    pub(crate) fn longest(&self, at: IpPrefix) -> Option<&T> {
        let found = match at.address() {
            IpAddr::V4(address) => longest(&self.v4, address.to_bits(), at.bits()),
            IpAddr::V6(address) => longest(&self.v6, address.to_bits(), at.bits()),
        };
        self.entries.get(found?).map(|(_, value)| value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(IpPrefix, T)> {
        self.entries.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use proptest::collection::vec as many;
    use proptest::prelude::*;

    use super::*;

    fn prefix() -> impl Strategy<Value = IpPrefix> {
        let v4 = (0..4_u32, 0..=32_u8).prop_map(|(at, bits)| {
            IpPrefix::covering(IpAddr::V4((0x0a00_0000 | at << 30 | at << 8 | at).into()), bits)
        });
        let v6 = (0..4_u128, 0..=128_u8).prop_map(|(at, bits)| {
            IpPrefix::covering(IpAddr::V6((0xfd_u128 << 120 | at << 64 | at << 30 | at).into()), bits)
        });
        let mapped = (0..4_u128, 90..=128_u8).prop_map(|(at, bits)| {
            IpPrefix::covering(IpAddr::V6((0xffff_u128 << 32 | 0x0a00_0000 | at << 8 | at).into()), bits)
        });
        prop_oneof![v4, v6, mapped].prop_filter_map("a prefix", Result::ok)
    }

    proptest! {
        #[test]
        fn the_longest_is_what_a_scan_finds(list in many(prefix(), 0..60), asked in many(prefix(), 20)) {
            let map = PrefixMap::new(list.iter().copied().zip(0_usize..));
            let list: Vec<IpPrefix> = list.into_iter().map(canonical).collect();
            for at in asked {
                let covers = |prefix: &IpPrefix| prefix.bits() <= at.bits() && prefix.contains(at.address());
                let longest = list.iter().filter(|prefix| covers(prefix)).map(IpPrefix::bits).max();
                let first = list.iter().position(|prefix| covers(prefix) && Some(prefix.bits()) == longest);
                prop_assert_eq!(map.longest(at).copied(), first, "{} in {:?}", at, list);
            }
            prop_assert!(map.entries.is_sorted_by_key(|(p, _)| (p.address().is_ipv6(), u8::MAX - p.bits(), p.address())));
        }
    }
}
