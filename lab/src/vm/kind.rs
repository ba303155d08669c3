// SPDX-License-Identifier: Apache-2.0
//! The kinds of guests, and what the image of each is made of.
//!
//! In: a name. Out: packages, and where the kernel lies in them. Pure.

use std::fmt;
use std::str::FromStr;

/// What a guest is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// A machine of QEMU's, with Debian's real-time kernel.
    #[default]
    Qemu,
    /// User-mode Linux: a kernel that is a program of this machine. One CPU, no real-time kernel; it boots sooner.
    Uml,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 2] = [Self::Qemu, Self::Uml];

    /// The packages; `+`: with the libraries that they depend on. scripts/setup.sh has the same lists.
    #[must_use]
    pub const fn packages(self) -> [&'static str; 8] {
        let kernel = match self {
            Self::Qemu => "linux-image-rt-amd64",
            Self::Uml => "user-mode-linux",
        };
        [kernel, "busybox-static", "dash", "+iproute2", "+chrony", "+rt-tests", "+ethtool", "+libgcc-s1"]
    }

    /// How much the packages are to fetch, in 10^6 octets.
    #[must_use]
    pub const fn megabytes(self) -> u32 {
        match self {
            Self::Qemu => 85,
            Self::Uml => 56,
        }
    }

    /// What follows the names of its directories in the cache.
    pub(super) const fn suffix(self) -> &'static str {
        match self {
            Self::Qemu => "",
            Self::Uml => "-uml",
        }
    }

    /// Where the packages have a directory for each version of the kernel.
    pub(super) const fn modules(self) -> &'static str {
        match self {
            Self::Qemu => "lib/modules",
            Self::Uml => "usr/lib/uml/modules",
        }
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|kind| kind.to_string() == text);
        found.ok_or_else(|| "expected qemu or uml".to_owned())
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Qemu => "qemu",
            Self::Uml => "uml",
        })
    }
}
