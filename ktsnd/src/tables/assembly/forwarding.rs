// SPDX-License-Identifier: Apache-2.0
//! The node as its pods' router: what rule 4b of `docs/design/resolve.md` asks for.
//!
//! In: the snapshot of the daemon's own namespace, the routes of a pod's interface. Out: [`Forwarding`].

use std::net::IpAddr;

use ktsn_model::IpPrefix;
use ktsn_resolve::{AttachmentTables, Forwarding, Link, Via};

use crate::tables::kernel::router::Router;
use crate::tables::kernel::rules::Origin;
use crate::tables::kernel::snapshot::Snapshot;
use crate::tables::kernel::xfrm::Policies;
use crate::tables::tracked::TrackedAttachment;

/// What the node forwards for the pod with this interface: nothing for those on an overlay or behind a virtual switch, and
/// nothing where the node may encrypt what it forwards.
pub(super) fn forwarding(
    tracked: &TrackedAttachment,
    interface: &Link,
    host: &Snapshot,
    policies: Option<&Policies>,
) -> Forwarding {
    let is_protected =
        !tracked.attachment.allow_policy_bypass && policies.is_some_and(Policies::protect_anything);
    let has_overlay = !tracked.attachment.overlay.is_none();
    // What a virtual switch carries does not pass the node's own routing.
    if has_overlay || is_protected || tracked.attachment.egress.is_vhost_user() {
        return Forwarding::default();
    }
    let gateways = interface.routes.iter().filter_map(|route| match route.via {
        Via::Gateway(gateway) => Some(gateway.to_canonical()),
        _ => None,
    });
    let routers: Vec<(IpAddr, Router)> =
        gateways.filter_map(|gateway| Some((gateway, host.router_at(gateway)?))).collect();
    // A pod with gateways on several devices is forwarded for where all of them do.
    let all = |is_v4: bool, forwards: fn(&Router) -> bool| {
        let mut of_family = routers.iter().filter(|(gateway, _)| gateway.is_ipv4() == is_v4).peekable();
        of_family.peek().is_some() && of_family.all(|(_, router)| forwards(router))
    };
    // Where rules have a say, the node's kernel sends it on: it leaves by the pod's interface.
    let asked = host.routing.asked(Origin::Forwarded);
    // What the node delivers to itself besides its addresses: single ones (anycast) are like these.
    let (local, networks): (Vec<_>, Vec<_>) =
        host.local().into_iter().partition(|prefix| IpPrefix::host(prefix.address()) == *prefix);
    let has_local = |is_v4: bool| networks.iter().any(|prefix| prefix.address().is_ipv4() == is_v4);
    let is_v4 = all(true, |router| router.is_v4) && !asked.is_v4 && !has_local(true);
    let is_v6 = all(false, |router| router.is_v6) && !asked.is_v6 && !has_local(false);
    // Without forwarding nothing depends on the addresses, and equal tables are not published again.
    let all = || host.own().chain(local.iter().map(|prefix| prefix.address())).collect();
    let own = if is_v4 || is_v6 { all() } else { Vec::new() };
    Forwarding { own, is_v4, is_v6 }
}

/// Allowed destinations that nothing leads to while the uplink is down or away, of a pod that the node forwards for. By the pod's
/// interface such frames would end in the node's stack, and count as sent: they are the kernel's, and count as that.
pub(super) fn unrouted(
    tracked: &TrackedAttachment,
    tables: &AttachmentTables,
    host: &Snapshot,
) -> Vec<IpPrefix> {
    let node = tables.forwarding();
    let is_up = host.device(&tracked.uplink).is_some_and(|(_, device)| device.up);
    if is_up || !(node.is_v4 || node.is_v6) {
        return Vec::new();
    }
    let forwards = |prefix: &IpPrefix| if prefix.address().is_ipv4() { node.is_v4 } else { node.is_v6 };
    // A part of the prefix may have a route of its own.
    let covers = |a: IpPrefix, b: IpPrefix| a.bits() <= b.bits() && a.contains(b.address());
    let has_route = |prefix: IpPrefix| {
        host.routing.main.iter().any(|route| covers(route.prefix, prefix) || covers(prefix, route.prefix))
    };
    tables.allowed().filter(forwards).filter(|prefix| !has_route(*prefix)).collect()
}
