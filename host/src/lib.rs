// SPDX-License-Identifier: Apache-2.0
//! This machine: commands of the system, child processes, network namespaces, the probe of wake-ups, QEMU's monitor.
//!
//! In: command lines, programs. Out: what they said, or one error that names what was tried and what to do. No child outlives its value.

pub mod command;
mod cpus;
pub mod cyclictest;
mod error;
pub mod monitor_lines;
pub mod process;
mod programs;
pub mod qmp;
#[allow(unsafe_code)]
mod sys;

pub use cpus::cpus_of;
pub use error::HostError;
pub use programs::{find_own, find_program, is_installed};
pub use sys::{enter_namespace, exists, in_new_network, inherit, leave_network, pin, within};
