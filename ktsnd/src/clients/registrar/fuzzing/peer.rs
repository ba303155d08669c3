// SPDX-License-Identifier: Apache-2.0
//! What a program of the target holds of its connection.

use std::os::fd::{AsFd, OwnedFd};

use crate::clients::connection::{self, Read};

/// A program's end of a connection.
#[derive(Debug)]
pub struct Peer {
    /// The connection's number, which is its client's too.
    pub number: u64,
    /// Its process.
    pub pid: u32,
    /// Octets of the region that it was given.
    pub region_octets: u32,
    pub(super) fd: OwnedFd,
    pub(super) region: Option<Region>,
}

/// What came with the answer to a Hello.
#[derive(Debug)]
pub struct Region {
    pub(super) memfd: OwnedFd,
    pub(super) doorbell: OwnedFd,
}

impl Region {
    /// Whether the daemon has closed its end of the doorbell: it does with the client's memory.
    #[must_use]
    pub fn is_given_back(&self) -> bool {
        matches!(connection::read(self.doorbell.as_fd(), &mut [0; 64]), Read::Ended)
    }
}

impl Peer {
    /// The connection and the region by themselves.
    #[must_use]
    pub fn part(self) -> (OwnedFd, Option<Region>) {
        (self.fd, self.region)
    }
}
