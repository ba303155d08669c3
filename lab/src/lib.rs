// SPDX-License-Identifier: Apache-2.0
//! Testbeds on one machine, and the experiments that run on them.
//!
//! In: which paths, payloads and how long; the programs that stand beside the caller's own. Out: results in the
//! schema `ktsn.results/1`. Everything set up is removed whatever happens. Nothing timed runs outside the machine's
//! measuring lock, and no round is left out by its result.

pub mod calls;
mod carry_out;
pub mod clock_bench;
pub mod cluster;
pub mod container;
pub mod control_loop;
pub mod daemon;
pub mod datapaths;
pub mod error;
pub mod exclusive;
pub mod experiment;
pub mod gates;
pub mod micro;
mod observations;
mod observers;
pub mod overlay;
pub mod ovs;
pub mod realtime;
pub mod receive;
pub mod remote;
mod rows;
pub mod rtos;
pub mod sched;
pub mod testbed;
pub mod tools;
pub mod vm;
pub mod vm_bench;
mod worker_example;

#[allow(unsafe_code)]
mod sys;

use ktsn_host::command;
pub use ktsn_host::process;

pub use error::LabError;
pub use experiment::{Event, Outcome, Setup};
pub use tools::Tools;
