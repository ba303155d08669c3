// SPDX-License-Identifier: Apache-2.0
//! Throw-away guests under QEMU that run one program.
//!
//! In: Debian packages, a machine, a program. Out: what the program writes and how it ends. docs/design/vm.md says why it is as it is.

mod accelerator;
mod cache;
mod cpio;
mod elf;
mod guest;
mod image;
mod kernel;
mod machine;
pub mod protocol;
mod run;
mod runs;

pub use accelerator::{Choice, choose};
pub use cache::Cache;
pub use guest::run as run_guest;
pub use image::{Facts, Image, PACKAGES, Renew, image, remove_images};
pub use machine::{Accelerator, Datapath, Machine};
pub use run::{Report, Request, Stream, Watch, run};
pub use runs::{Removed, clean};

#[cfg(test)]
mod tests;
