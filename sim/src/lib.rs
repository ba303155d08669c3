// SPDX-License-Identifier: Apache-2.0
//! The deterministic simulator: ktsnd's shipped worker loop in a virtual world.
//!
//! In: a seed. Out: whether any rule of `check` was broken, and what happened before. The worker
//! (`ktsnd::worker::Worker::pass`), its rings, tables, transmission selection and port trait are the shipped ones;
//! clocks, link, programs and faults are virtual. One thread, no real clock: the same seed gives the same run.
//!
//! ```text
//!  seed → plan ─► world: clocks, programs (real rings), link, faults
//!                   ▲ reads, sleeps, commits          │ pushes, commands, steps
//!                   └──────── Worker::pass ◄──────────┘
//!                   world ─► ledger (the truth) ─► checkers
//! ```
//!
//! It must never read a real clock, start a thread, or ask the worker about itself.
#![forbid(unsafe_code)]

mod arrival;
pub mod broken;
pub mod check;
pub mod clocks;
pub mod control;
pub mod event;
pub mod figures;
pub mod gates;
mod happen;
pub mod host;
pub mod ledger;
pub mod link;
pub mod plan;
pub mod port;
pub mod random;
pub mod report;
pub mod run;
pub mod scenario;
pub mod stamp;
pub mod tenant;
pub mod trace;
pub mod world;

pub use broken::Broken;
pub use run::{Options, Outcome, run, run_plan};
