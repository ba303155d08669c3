// SPDX-License-Identifier: Apache-2.0
//! The last step before the wire: one network device, opened for transmission only.
//!
//! In: whole Ethernet frames (without FCS) that the caller has scheduled. Out: the same octets on the wire, in
//! the order of the commits. A frame goes through three hands:
//!
//! ```text
//!          stage(build)           commit                 reap
//!   free ──────────────► staged ─────────► in flight ────────► free
//!     ▲                    │                  (kernel, device)
//!     └──────abandon───────┘
//! ```
//!
//! Everything that takes time (building, copying, checking) happens in [`Port::stage`]; [`Port::commit`] is one
//! store and one non-blocking system call, because it is called at the transmit time.
//!
//! What a port must never do: let a staged frame leave before its commit; send a frame twice; lose one without
//! an error or a counter; block; allocate after it was opened; read a clock to decide anything; receive. (`deferred` blocks, in
//! its own thread, and reads a clock there.)
//! It knows neither schedules nor tenants.

mod device;
mod error;
mod limits;
mod stages;
mod traits;

pub mod af_packet;
pub mod af_xdp;
pub mod auto;
pub mod deferred;
#[cfg(feature = "dpdk")]
pub mod dpdk;
pub mod memory;
pub mod vhost_user;

pub use auto::{AnyPort, Opened, open};
pub use device::{Device, LinkInfo, LinkState, LinkWatch, Options, in_namespace, link_info, link_speed};
pub use error::{OpenError, SendError, StageError};
pub use limits::{CHUNK_OCTETS_MAX, ETHERNET_HEADER_OCTETS, STAGE_COUNT_MAX, VLAN_TAG_OCTETS};
pub use traits::{Builder, Capabilities, Counters, Occupancy, Port, StageId};
