// SPDX-License-Identifier: Apache-2.0
//! A sorted map from IP prefixes, looked up by longest match.
//!
//! In: pairs in order of preference. Out: the value of the longest prefix that covers an address or a whole prefix.
//! Entries stand by family, longest prefix first, then address; each length is one run that is searched by bisection.

use alloc::vec::Vec;
use core::net::IpAddr;
use core::ops::Range;

use ktsn_model::IpPrefix;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PrefixMap<T> {
    entries: Vec<(IpPrefix, T)>,
    runs: Vec<Run>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Run {
    is_v4: bool,
    bits: u8,
    range: Range<usize>,
}

/// The same prefix, an IPv4-mapped one (RFC 4291 2.5.5.2) as IPv4.
pub(crate) fn canonical(prefix: IpPrefix) -> IpPrefix {
    match prefix.address() {
        IpAddr::V6(address) if prefix.bits() >= 96 => match address.to_ipv4_mapped() {
            Some(v4) => IpPrefix::covering(IpAddr::V4(v4), prefix.bits() - 96).unwrap_or(prefix),
            None => prefix,
        },
        _ => prefix,
    }
}

impl<T> PrefixMap<T> {
    /// Sorts; of equal prefixes the first given one stays.
    pub(crate) fn new(entries: impl IntoIterator<Item = (IpPrefix, T)>) -> Self {
        let mut entries: Vec<_> =
            entries.into_iter().map(|(prefix, value)| (canonical(prefix), value)).collect();
        let key = |prefix: &IpPrefix| (prefix.address().is_ipv6(), u8::MAX - prefix.bits(), prefix.address());
        entries.sort_by_key(|entry| key(&entry.0));
        entries.dedup_by(|later, earlier| later.0 == earlier.0);
        let mut runs: Vec<Run> = Vec::new();
        for (at, (prefix, _)) in entries.iter().enumerate() {
            let (is_v4, bits) = (prefix.address().is_ipv4(), prefix.bits());
            match runs.last_mut() {
                Some(run) if run.is_v4 == is_v4 && run.bits == bits => run.range.end = at + 1,
                _ => runs.push(Run { is_v4, bits, range: at..at + 1 }),
            }
        }
        Self { entries, runs }
    }

    /// The value of the longest prefix that covers all of `at`.
    pub(crate) fn longest(&self, at: IpPrefix) -> Option<&T> {
        let is_v4 = at.address().is_ipv4();
        self.runs.iter().filter(|run| run.is_v4 == is_v4 && run.bits <= at.bits()).find_map(|run| {
            let network = IpPrefix::covering(at.address(), run.bits).ok()?.address();
            let entries = self.entries.get(run.range.clone())?;
            let found = entries.binary_search_by_key(&network, |(prefix, _)| prefix.address()).ok()?;
            entries.get(found).map(|(_, value)| value)
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(IpPrefix, T)> {
        self.entries.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}
