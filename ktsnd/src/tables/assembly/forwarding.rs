// SPDX-License-Identifier: Apache-2.0
//! The node as its pods' router: what rule 4b of `docs/design/resolve.md` asks for.
//!
//! In: the snapshot of the daemon's own namespace, the routes of a pod's interface. Out: [`Forwarding`].

use std::net::IpAddr;

use ktsn_resolve::{Forwarding, Link, Via};

use crate::tables::kernel::router::Router;
use crate::tables::kernel::snapshot::Snapshot;
use crate::tables::kernel::xfrm::Policies;
use crate::tables::spec::AttachmentSpec;

/// What the node forwards for the pod with this interface: nothing for those on an overlay or behind a virtual switch, and
/// nothing where the node may encrypt what it forwards.
pub(super) fn forwarding(
    spec: &AttachmentSpec,
    interface: &Link,
    host: &Snapshot,
    policies: Option<&Policies>,
) -> Forwarding {
    let is_protected =
        !spec.attachment.allow_policy_bypass && policies.is_some_and(Policies::protect_anything);
    let has_overlay = !spec.attachment.overlay.is_none();
    // What a virtual switch carries does not pass the node's own routing.
    if has_overlay || is_protected || spec.attachment.egress.is_vhost_user() {
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
    let (is_v4, is_v6) = (all(true, |router| router.is_v4), all(false, |router| router.is_v6));
    // Without forwarding nothing depends on the addresses, and equal tables are not published again.
    let own = if is_v4 || is_v6 { host.own().collect() } else { Vec::new() };
    Forwarding { own, is_v4, is_v6 }
}
