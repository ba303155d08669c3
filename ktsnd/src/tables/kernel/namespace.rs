// SPDX-License-Identifier: Apache-2.0
//! A network namespace: who it is, and a netlink socket inside of it.
//!
//! In: a path. Out: an [`Identity`] to compare later, and a socket. The thread that enters the namespace is a
//! short-lived one, so no thread of the daemon ever is in a foreign namespace.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::netlink::Netlink;
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
}

impl Entered {
    /// The identity of the calling thread's namespace.
    pub(crate) fn here() -> io::Result<Self> {
        let identity = Identity::of(Path::new("/proc/thread-self/ns/net"))?;
        let netlink = Netlink::open()?;
        let cookie = sys::netns_cookie(netlink.as_fd())?;
        Ok(Self { identity, netlink, cookie })
    }
}

/// Opens a netlink socket inside of the namespace at `path`; tells which one that was.
pub(crate) fn open(path: &Path) -> io::Result<Entered> {
    let file = File::open(path)?;
    let entered = std::thread::scope(|scope| {
        let inside = || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
            Entered::here()
        };
        scope.spawn(inside).join()
    });
    entered.unwrap_or_else(|_| Err(io::Error::other("the thread that entered it panicked")))
}
