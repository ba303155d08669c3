// SPDX-License-Identifier: Apache-2.0
//! What is read from the kernel: namespaces, and in each its devices, addresses, routes, neighbours and IPsec policies.
//!
//! In: netlink, inotify, sysctls. Out: snapshots, and hints that they are old. Nothing here knows of attachments, and
//! nothing is changed, but that the kernel is asked to resolve a neighbour.

pub(crate) mod device;
pub(crate) mod namespace;
pub(crate) mod netlink;
pub(crate) mod router;
pub(crate) mod snapshot;
pub(crate) mod space;
pub(crate) mod vxlan_device;
pub(crate) mod watch;
pub(crate) mod xfrm;
