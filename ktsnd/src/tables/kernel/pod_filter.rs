// SPDX-License-Identifier: Apache-2.0
//! What the packet filter of a pod's own namespace does to the datagrams of its sockets.
//!
//! In: the rules that the kernel runs at the hooks `output` and `postrouting` (nf_tables, also at `egress`; the older iptables), as it
//! lists them. Out: [`PodFilter`]: which UDP datagrams without a mark a rule may drop, change or lead elsewhere. On doubt a rule may.
//! Reads only.

mod extension;
pub(crate) mod fuzzing;
mod nft;
mod older;
mod scope;
mod walk;

use std::io;
use std::net::IpAddr;

use ktsn_model::IpPrefix;

pub(crate) use nft::Nft;
pub(crate) use older::OlderTables;
use scope::{Reach, Scope};
use walk::Found;

use super::netlink::{Bounds, Netlink};
use super::raw::Raw;

/// Which datagrams a namespace's packet filter may have a say about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodFilter {
    changed: Vec<Reach>,
    /// Why the rules are not known; every datagram is concerned then.
    pub(crate) fault: Option<String>,
}

impl PodFilter {
    /// The rules of the calling thread's namespace.
    pub(crate) fn read(bounds: Option<Bounds>) -> Self {
        let mut found = Found::default();
        let read = read_nft(bounds, &mut found)
            .map_err(|error| format!("nf_tables: {error}"))
            .and_then(|()| older::read(&mut found).map_err(|error| format!("iptables-legacy: {error}")));
        match read {
            Ok(()) => Self { changed: found.into_reaches(), fault: None },
            Err(fault) => Self { changed: Scope::all().reaches().collect(), fault: Some(fault) },
        }
    }

    /// The destinations of datagrams that leave by this device, from one of these addresses, and that a rule may concern.
    pub(crate) fn destinations(&self, device: &str, own: &[(IpAddr, u8)]) -> Vec<IpPrefix> {
        let mut all: Vec<IpPrefix> = Vec::new();
        for reach in &self.changed {
            let meets = reach.is_by(device) && own.iter().any(|(own, _)| reach.source.contains(*own));
            if meets && !reach.destination.address().is_loopback() && !all.contains(&reach.destination) {
                all.push(reach.destination);
            }
        }
        all
    }
}

/// A kernel without nf_tables has none of its rules.
fn read_nft(bounds: Option<Bounds>, found: &mut Found) -> io::Result<()> {
    let is_missing = |error: &io::Error| {
        matches!(error.raw_os_error(), Some(libc::EPROTONOSUPPORT | libc::EINVAL | libc::EOPNOTSUPP))
    };
    let mut netlink = match Netlink::<Raw<Nft>>::open_unsubscribed() {
        Err(error) if is_missing(&error) => return Ok(()),
        opened => opened?,
    };
    netlink.bounds = bounds;
    match nft::read(&mut netlink, found) {
        Err(error) if is_missing(&error) => Ok(()),
        read => read,
    }
}
