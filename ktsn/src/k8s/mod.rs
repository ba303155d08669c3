// SPDX-License-Identifier: Apache-2.0
//! KTSN in a Kubernetes cluster, from outside: what is to be there, what is there, and how one becomes the other.
//!
//! In: the Helm chart, by `ktsn-chart`, and the user's `kubectl`. Out: objects of the cluster, and short pods that look at
//! the nodes or clear them. It never reads a kubeconfig: kubectl does, with whatever log-in the user has.

pub(crate) mod chart;
pub(crate) mod cluster;
pub(crate) mod installed;
pub(crate) mod node_pods;
pub(crate) mod prefix;
pub(crate) mod preflight;
pub(crate) mod ready;
#[cfg(test)]
pub(crate) mod recorded;
