// SPDX-License-Identifier: Apache-2.0
//! Readers of what comes from outside, for the fuzz targets: not an interface.
//!
//! In: any octets. Out: what the daemon would make of them, in types that say no more than a target has to hold against its
//! promises. Nothing here touches a file, the clock or the network, but for `registrar`, which makes sockets, memfds and the like.

use ktsn_model::IpPrefix;

pub use crate::clock::fuzzing::clock_answers;
pub use crate::policy::fuzzing::{Named, rules};
pub use crate::tables::fuzzing::{Layout, excepted, layout, nf_tables, older_table, policies};

pub use crate::run_dir::fuzzing::{StateRead, state};

/// The registrar, driven one step at a time.
pub mod registrar {
    pub use crate::clients::fuzzing::{
        ATTACHMENTS, CLIENTS_A_PROCESS, Closed, Counted, Driver, Limits, Namespace, Passed, Peer, Region,
        Told,
    };
}

/// Addresses that pods have in the targets.
#[must_use]
pub fn own() -> [std::net::IpAddr; 2] {
    [
        std::net::Ipv4Addr::new(10, 244, 0, 2).into(),
        std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2).into(),
    ]
}

/// Destinations that leave past the packet filter in the targets.
#[must_use]
pub fn others() -> Vec<IpPrefix> {
    ["10.244.0.0/16", "10.96.0.0/12", "fd00::/48", "192.168.50.0/24"]
        .iter()
        .filter_map(|text| text.parse().ok())
        .collect()
}
