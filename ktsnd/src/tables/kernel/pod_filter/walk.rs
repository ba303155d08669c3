// SPDX-License-Identifier: Apache-2.0
//! From a hook through all chains that it leads to.
//!
//! In: chains of steps. Out: the datagrams that some step may change ([`Found`]). The work has a bound: beyond it every datagram may be
//! changed.

use std::collections::HashMap;
use std::hash::Hash;

use super::scope::{Reach, Scope};

/// Chains that lead to each other, as deep as Linux allows.
const DEPTH_MAX: usize = 16;
/// Steps that are looked at in all.
const VISITS_MAX: usize = 100_000;
/// Sets of datagrams that are kept apart.
const REACHES_MAX: usize = 256;

/// What a rule does with the datagrams that it matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action<K> {
    /// It drops, changes or reroutes them, or what it does is not known.
    Change,
    /// It goes on in this chain, and perhaps comes back.
    Chain(K),
    /// No later rule of the chain sees any of them.
    End,
}

/// A rule, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step<K> {
    pub(super) scope: Scope,
    pub(super) action: Action<K>,
}

/// Chains by their names.
#[derive(Debug)]
pub(super) struct Chains<K>(HashMap<K, Vec<Step<K>>>);

/// The datagrams that may be changed.
#[derive(Debug, Default)]
pub(super) struct Found {
    reaches: Vec<Reach>,
    visits: usize,
    is_all: bool,
}

impl Found {
    pub(super) fn add(&mut self, scope: &Scope) {
        for reach in scope.reaches() {
            if !self.reaches.contains(&reach) {
                self.reaches.push(reach);
            }
        }
        self.is_all |= self.reaches.len() > REACHES_MAX;
    }

    pub(super) fn into_reaches(self) -> Vec<Reach> {
        if self.is_all { Scope::all().reaches().collect() } else { self.reaches }
    }
}

impl<K> Default for Chains<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash> Chains<K> {
    /// Adds steps behind those that the chain has.
    pub(super) fn extend(&mut self, chain: K, steps: Vec<Step<K>>) {
        self.0.entry(chain).or_default().extend(steps);
    }

    /// Follows the datagrams of `scope` through a chain.
    pub(super) fn follow(&self, chain: &K, scope: &Scope, found: &mut Found) {
        self.follow_at(chain, scope, found, 0);
    }

    fn follow_at(&self, chain: &K, scope: &Scope, found: &mut Found, depth: usize) {
        found.is_all |= depth > DEPTH_MAX;
        for step in self.0.get(chain).into_iter().flatten() {
            found.visits += 1;
            found.is_all |= found.visits > VISITS_MAX;
            if found.is_all {
                return;
            }
            let matched = scope.and(&step.scope);
            match &step.action {
                _ if matched.is_empty() => {}
                Action::Change => found.add(&matched),
                Action::Chain(next) => self.follow_at(next, &matched, found, depth + 1),
                Action::End => return,
            }
        }
    }
}
