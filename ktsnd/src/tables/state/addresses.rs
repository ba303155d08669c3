// SPDX-License-Identifier: Apache-2.0
//! The addresses of an attachment: settled once, when it is attached, and told when the interface has others.
//!
//! In: an attachment's specification, its interface. Out: the same specification with addresses that follow from nothing
//! later. The pod's root changes what the interface has; it must not change what is given.

use std::net::IpAddr;
use std::path::Path;

use ktsn_resolve::AttachmentTables;

use super::super::namespace::Identity;
use super::super::snapshot::Snapshot;
use super::super::{AttachmentSpec, Event};
use crate::config::Given;

/// Withheld addresses that are told one by one; more are counted.
const TOLD_MAX: usize = 4;

/// Settles what is given where nothing was said: what the interface has now. In the daemon's own namespace the interface is
/// believed: its addresses are the node's own.
pub(super) fn settle(spec: &mut AttachmentSpec, interface: u32, pod: &Snapshot, namespace: Identity) {
    if spec.addresses == Given::AtAttachment {
        spec.addresses = match Identity::of(Path::new("/proc/thread-self/ns/net")) {
            Ok(own) if own == namespace => Given::Interface,
            _ => Given::found(pod.addresses_of(interface)),
        };
    }
}

/// Tells once of an attachment whose interface has addresses that are not given.
pub(super) fn tell(
    is_told: &mut bool,
    spec: &AttachmentSpec,
    tables: Option<&AttachmentTables>,
    report: &dyn Fn(Event),
) {
    let withheld = tables.map_or(&[][..], AttachmentTables::withheld);
    if *is_told || withheld.is_empty() {
        return;
    }
    *is_told = true;
    let shown: Vec<String> = withheld.iter().take(TOLD_MAX).map(IpAddr::to_string).collect();
    let more = match withheld.len().saturating_sub(TOLD_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let (place, shown) = (spec.place(), shown.join(", "));
    report(Event::Warning(format!(
        "{place}: {shown}{more}: not given to the attachment; KTSN sends nothing from there (not_allowed) and delivers \
         nothing to it; name it in `addresses`, or take it off"
    )));
}
