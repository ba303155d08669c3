// SPDX-License-Identifier: Apache-2.0
//! Whether the kernel would encrypt what goes to a tunnel end, or route it as only the kernel knows.
//!
//! In: the node's routes, devices and IPsec policies. Out: why frames to a tunnel end are left to the kernel. What leaves
//! straight by the uplink passes neither a WireGuard device nor an IPsec policy: it would be readable on the wire.

use std::net::IpAddr;

use crate::tables::kernel::snapshot::Snapshot;
use crate::tables::kernel::xfrm::{Policies, Tunnelled};

/// The way from this node to its tunnel ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Underlay<'a> {
    host: &'a Snapshot,
    policies: &'a Policies,
    /// Hardly a node has one; then routes need no look.
    has_tunnels: bool,
    uplink: u32,
    local: IpAddr,
    port: u16,
}

impl<'a> Underlay<'a> {
    /// From `local` by the device `uplink`, to UDP port `port`.
    pub(crate) fn new(
        host: &'a Snapshot,
        policies: &'a Policies,
        uplink: &str,
        local: IpAddr,
        port: u16,
    ) -> Self {
        let uplink = host.device(uplink).map_or(0, |(index, _)| index);
        Self { host, policies, has_tunnels: host.tunnelled().next().is_some(), uplink, local, port }
    }

    /// Why frames to `vtep` must not leave straight by the uplink; `None`: they may.
    pub(crate) fn why_left(&self, vtep: IpAddr) -> Option<String> {
        if self.has_tunnels
            && let Some(device) = self.host.tunnel_to(vtep)
        {
            return Some(format!("the route to {vtep} leaves by {device}, a tunnel of its own"));
        }
        if self.host.ends.to(vtep) == Some(None) {
            return Some(format!("only the kernel knows the route to {vtep}"));
        }
        let (local, port) = (self.local, self.port);
        let covers = self.policies.cover(&Tunnelled { local, vtep, port, device: self.uplink });
        covers.then(|| format!("an IPsec policy covers UDP from {local} to {vtep} port {port}"))
    }
}
