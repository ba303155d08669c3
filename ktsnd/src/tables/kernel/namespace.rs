// SPDX-License-Identifier: Apache-2.0
//! A network namespace: who it is, and a netlink socket inside of it.
//!
//! In: a path, or the namespace that a short-lived thread has entered. Out: an [`Identity`] to compare later, and a socket.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use super::icmp;
use super::netlink::Netlink;
use super::pod_filter::{Nft, OlderTables};
use super::raw::Raw;
use crate::sys;

/// Which namespace a path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    /// Looks without opening, so that looking holds nothing.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let stat = rustix::fs::stat(path)?;
        Ok(Self { device: stat.st_dev, inode: stat.st_ino })
    }
}

/// A namespace that a thread is in, with what tables need of it.
#[derive(Debug)]
pub(crate) struct Entered {
    pub(crate) identity: Identity,
    pub(crate) netlink: Netlink,
    pub(crate) cookie: u64,
    pub(crate) beside: BesideSockets,
}

/// Sockets and files that hint at what rtnetlink does not announce.
#[derive(Debug)]
pub(crate) struct BesideSockets {
    pub(crate) icmp: icmp::Sockets,
    /// Without it this kernel has no nf_tables.
    pub(crate) filter: Option<Netlink<Raw<Nft>>>,
    pub(crate) older: OlderTables,
}

impl BesideSockets {
    /// Of the calling thread's namespace.
    fn here() -> io::Result<Self> {
        Ok(Self { icmp: icmp::Sockets::open()?, filter: Netlink::open().ok(), older: OlderTables::here() })
    }
}

impl Entered {
    /// The identity of the calling thread's namespace.
    pub(crate) fn here() -> io::Result<Self> {
        let identity = Identity::of(Path::new("/proc/thread-self/ns/net"))?;
        let netlink = Netlink::open()?;
        let cookie = sys::netns_cookie(netlink.as_fd())?;
        Ok(Self { identity, netlink, cookie, beside: BesideSockets::here()? })
    }
}
