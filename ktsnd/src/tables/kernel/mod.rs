// SPDX-License-Identifier: Apache-2.0
//! What is read from the kernel: namespaces, and in each its devices, addresses, routes, neighbours, IPsec policies and
//! packet filters.
//!
//! In: netlink, ICMP, inotify, sysctls. Out: snapshots, and hints that they are old. Nothing here knows of attachments, and
//! nothing is changed, but that the kernel is asked to resolve a neighbour.

pub(crate) mod ask;
pub(crate) mod device;
pub(crate) mod ends;
pub(crate) mod exceptions;
pub(crate) mod icmp;
pub(crate) mod namespace;
pub(crate) mod netlink;
pub(crate) mod pod_filter;
pub(crate) mod raw;
pub(crate) mod reader;
pub(crate) mod router;
pub(crate) mod routes;
mod routing;
pub(crate) mod rules;
pub(crate) mod snapshot;
pub(crate) mod space;
pub(crate) mod vxlan_device;
pub(crate) mod watch;
pub(crate) mod xfrm;
