// SPDX-License-Identifier: Apache-2.0
//! Fuzz targets: functions that take any octets and panic only on a broken promise.
//!
//! In: octets from a corpus, a mutator or libFuzzer. Out: nothing, or a panic that names the invariant. A target must
//! be deterministic, keep no state between calls, touch no file, clock or network (`registrar` makes sockets), and stay
//! fast (microseconds; `registrar`: milliseconds): the
//! same function runs under `cargo test` and under libFuzzer (see `README.md`).
#![forbid(unsafe_code)]

// libktsn's own files: a shared object cannot be linked, and the target needs a part of them.
#[allow(dead_code, unreachable_pub)]
#[path = "."]
mod process {
    #[path = "../../libktsn/src/process/abi.rs"]
    pub(crate) mod abi;
}
#[cfg(feature = "api")]
mod api;
#[allow(dead_code)]
#[path = "../../libktsn/src/call/control_messages.rs"]
mod control_messages;
#[cfg(feature = "api")]
mod daemon;
mod expect;
mod far;
// The lab around it runs ssh.
#[allow(dead_code, unreachable_pub)]
#[path = "../../lab/src/remote/frames.rs"]
mod far_frames;
mod guest;
// The lab around it runs QEMU.
#[allow(dead_code, unreachable_pub)]
#[path = "../../lab/src/vm/protocol.rs"]
mod guest_protocol;
mod link;
mod messages;
// The lab around it runs QEMU.
#[allow(dead_code, unreachable_pub)]
#[path = "../../host/src/monitor_lines.rs"]
mod monitor_lines;
pub mod mutate;
mod qemu;
// The doctor around it reads /proc.
#[allow(dead_code)]
#[path = "../../ktsn/src/doctor/vm/arguments.rs"]
mod qemu_arguments;
mod qmp;
// What the tests of ktsn-resolve are held against.
#[allow(dead_code)]
#[path = "../../resolve/tests/reference/mod.rs"]
mod reference;
#[cfg(feature = "api")]
mod registrar;
mod resolve;
mod ring;
mod schedule;
pub mod targets;
mod vptp;
mod wire;

#[cfg(feature = "api")]
pub use api::api;
#[cfg(feature = "api")]
pub use daemon::{clock, config, netlink, rules, state};
pub use expect::expect;
pub use far::far;
pub use guest::guest;
pub use link::link;
pub use messages::messages;
pub use qemu::qemu;
pub use qmp::qmp;
#[cfg(feature = "api")]
pub use registrar::registrar;
pub use resolve::resolve;
pub use ring::{control, ring};
pub use schedule::{schedule, taprio};
pub use vptp::vptp;
pub use wire::wire;
