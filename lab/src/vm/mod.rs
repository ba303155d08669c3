// SPDX-License-Identifier: Apache-2.0
//! Throw-away guests, of QEMU or of User-mode Linux, that run one program.
//!
//! In: Debian packages, a machine, a program. Out: what the program writes and how it ends. docs/design/vm.md says why it is as it is.

mod accelerator;
mod cache;
mod clock;
mod cpio;
mod elf;
mod errand;
mod guest;
mod guest_clock;
mod image;
mod kernel;
mod kind;
mod machine;
mod network;
mod pin;
pub mod protocol;
mod request;
mod run;
mod runs;
pub mod schedule_scene;
#[allow(unsafe_code)]
mod sys;
mod time_server;
pub mod truth;
mod uml;

pub use accelerator::{Choice, choose};
pub use cache::Cache;
pub use errand::{Done, Errand};
pub use guest::{is_guest, run as run_guest};
pub use image::{Facts, Image, Renew, image, remove_images};
pub use kind::Kind;
pub use ktsn_host::qmp;
pub use machine::{Accelerator, Machine};
pub use network::{Address, Bridge, Datapath, Opened};
pub use pin::Cpus;
pub(crate) use run::printable;
pub use run::{Report, Request, Stream, Watch, run};
pub use runs::{Removed, clean};

#[cfg(test)]
mod protocol_tests;
#[cfg(test)]
mod tests;
