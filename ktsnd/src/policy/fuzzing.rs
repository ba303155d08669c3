// SPDX-License-Identifier: Apache-2.0
//! The readers of the packet filter's rules for a fuzz target.

use std::net::IpAddr;

use ktsn_model::IpPrefix;

use super::{Hindrance, Prefixes, Rule, hindrances, of_iptables, of_nft};

/// A rule that names addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Source prefixes; empty: any source.
    pub sources: Vec<IpPrefix>,
    /// Destination prefixes; empty: any destination.
    pub destinations: Vec<IpPrefix>,
}

/// The rules of a text that `nft -j list ruleset` (else `iptables-save`) printed, and those that hinder datagrams between `own` and
/// `others`.
#[must_use]
pub fn rules(text: &str, is_nft: bool, own: &[IpAddr], others: &[IpPrefix]) -> (Vec<Named>, Vec<Hindrance>) {
    let rules: Vec<Rule> = if is_nft { of_nft(text) } else { of_iptables(text) };
    let found = hindrances(&rules, own, &others.iter().copied().collect::<Prefixes>());
    let all = |prefixes: Option<Prefixes>| prefixes.iter().flat_map(Prefixes::iter).collect();
    let named = rules
        .into_iter()
        .map(|rule| Named { sources: all(rule.sources), destinations: all(rule.destinations) });
    (named.collect(), found)
}
