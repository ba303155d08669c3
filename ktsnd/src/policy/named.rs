// SPDX-License-Identifier: Apache-2.0
//! Finds the destinations of an attachment that a rule names.
//!  
//! In: rules, the attachment's own addresses, the destinations of frames that leave past the node's packet filter. Out: the rules
//! that concern them, each with the destinations that it names. There are thousands of rules, of addresses in one rule, and of
//! destinations, so all are searched by bisection: the cost grows with their number, not with its square.

use std::collections::HashSet;
use std::net::IpAddr;

use ktsn_model::IpPrefix;
use ktsn_resolve::{AttachmentTables, Overlay};

use super::{Action, Rule};

/// Prefixes by family and address; none contains another one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Prefixes(Vec<IpPrefix>);

/// Equal addresses: the wider one first.
fn key(prefix: &IpPrefix) -> (bool, IpAddr, u8) {
    #[cfg(test)]
    cost::count();
    (prefix.address().is_ipv6(), prefix.address(), prefix.bits())
}

fn covers(wide: &IpPrefix, narrow: &IpPrefix) -> bool {
    #[cfg(test)]
    cost::count();
    wide.bits() <= narrow.bits() && wide.contains(narrow.address())
}

impl FromIterator<IpPrefix> for Prefixes {
    fn from_iter<I: IntoIterator<Item = IpPrefix>>(all: I) -> Self {
        let mut all: Vec<IpPrefix> = all.into_iter().collect();
        all.sort_by_key(key);
        // A prefix within the last one that was kept follows it at once.
        all.dedup_by(|later, kept| covers(kept, later));
        Self(all)
    }
}

impl Prefixes {
    /// The part of `of` that they cover: `of` itself, or the prefixes within it.
    pub(super) fn within(&self, of: IpPrefix) -> impl Iterator<Item = IpPrefix> {
        let at = self.0.partition_point(|prefix| key(prefix) <= key(&of));
        let whole = at.checked_sub(1).and_then(|before| self.0.get(before)).is_some_and(|p| covers(p, &of));
        let inside = self.0.get(at..).unwrap_or_default().iter().take_while(move |p| covers(&of, p)).copied();
        let inside = inside.take(if whole { 0 } else { usize::MAX });
        whole.then_some(of).into_iter().chain(inside)
    }

    /// Whether one of them contains the address.
    fn contains(&self, address: IpAddr) -> bool {
        let host = IpPrefix::host(address);
        let at = self.0.partition_point(|prefix| key(prefix) <= key(&host));
        at.checked_sub(1).and_then(|before| self.0.get(before)).is_some_and(|prefix| covers(prefix, &host))
    }

    /// The IP version of the first one.
    fn is_v4(&self) -> Option<bool> {
        self.0.first().map(|prefix| prefix.address().is_ipv4())
    }

    /// Whether there is no prefix.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All prefixes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = IpPrefix> {
        self.0.iter().copied()
    }
}

/// A rule about an attachment's datagrams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hindrance {
    /// The text that the tool printed.
    pub rule: String,
    /// Of the destinations that would leave past the filter, those that the rule names.
    pub destinations: Vec<IpPrefix>,
    /// The rule drops what comes from them: the ingress fast path would skip it.
    pub is_arrival: bool,
}

/// The rules about datagrams from one of `own` to one of `others`, or back.
pub(crate) fn hindrances(rules: &[Rule], own: &[IpAddr], others: &Prefixes) -> Vec<Hindrance> {
    let (mut found, mut known) = (Vec::new(), HashSet::new());
    for rule in rules {
        // A side without addresses is still of the family that the rule names.
        let named = rule.sources.as_ref().or(rule.destinations.as_ref());
        let Some(is_v4) = named.and_then(Prefixes::is_v4) else { continue };
        let is_own = |named: &Option<Prefixes>| {
            own.iter().any(|own| named.as_ref().map_or(own.is_ipv4() == is_v4, |all| all.contains(*own)))
        };
        let others_of = |named: &Option<Prefixes>| -> Vec<IpPrefix> {
            match named {
                None => others.iter().filter(|other| other.address().is_ipv4() == is_v4).collect(),
                Some(named) => named.iter().flat_map(|prefix| others.within(prefix)).collect(),
            }
        };
        let goes = if is_own(&rule.sources) { others_of(&rule.destinations) } else { Vec::new() };
        let comes_in = rule.action == Action::Drop && is_own(&rule.destinations);
        let comes = if comes_in { others_of(&rule.sources) } else { Vec::new() };
        let is_arrival = !comes.is_empty();
        let destinations: Prefixes = goes.into_iter().chain(comes).collect();
        // iptables and nftables print the same rule; it counts once.
        if !destinations.is_empty() && known.insert((is_arrival, destinations.0.clone())) {
            found.push(Hindrance { rule: rule.text.clone(), destinations: destinations.0, is_arrival });
        }
    }
    found
}

/// Whether datagrams may leave past the node's packet filter: by an overlay, or as the node would forward them.
pub(crate) fn is_past_the_kernel(tables: &AttachmentTables) -> bool {
    let node = tables.forwarding();
    *tables.overlay() != Overlay::None || node.is_v4 || node.is_v6
}

/// The allowed destinations that leave by the uplink, past the node's packet filter; all others pass the filter. In a segment of
/// the attachment's own that may be all.
pub(crate) fn past_the_kernel(tables: &AttachmentTables) -> Prefixes {
    let ways: Prefixes = match tables.overlay() {
        Overlay::VxlanBridged(_) => return tables.allowed().collect(),
        Overlay::VxlanRouted(vxlan) => vxlan.peers().map(|peer| peer.prefix).collect(),
        // The node's default route is never followed.
        Overlay::None => {
            tables.uplink().routes().map(|route| route.prefix).filter(|prefix| prefix.bits() > 0).collect()
        }
    };
    tables.allowed().flat_map(|allowed| ways.within(allowed).collect::<Vec<_>>()).collect()
}

/// How many prefixes were compared.
#[cfg(test)]
pub(super) mod cost {
    use std::cell::Cell;

    thread_local!(static COUNT: Cell<u64> = const { Cell::new(0) });

    pub(super) fn count() {
        COUNT.set(COUNT.get() + 1);
    }

    /// Comparisons while `work` runs.
    pub(in crate::policy) fn of<T>(work: impl FnOnce() -> T) -> (T, u64) {
        let before = COUNT.get();
        let done = work();
        (done, COUNT.get() - before)
    }
}
