// SPDX-License-Identifier: Apache-2.0
//! The daemon: clients' rings in, frames on time out.
//!
//! Three kinds of threads (see `docs/design/objects.md`): workers, the registrar, and the control thread. Beside them the
//! supervisor checks that all of them live (`docs/design/supervision.md`), and the clock watcher watches the clock, and a thread of its
//! own answers scrapes ([`metrics`]).
//! ring, resolve, sched and port meet in [`worker`] and nowhere else.

mod capture;
pub mod clients;
mod clock;
pub mod config;
pub mod control;
mod cpus;
pub mod daemon;
#[doc(hidden)]
pub mod fuzzing;
mod hand_over_account;
mod ingress;
pub mod limits;
mod log_limit;
mod margins;
pub mod messages;
pub mod metrics;
pub mod node;
mod now;
mod policy;
pub mod queue;
mod rehearsal;
pub mod run_dir;
pub mod stats;
pub mod supervise;
pub mod tables;
pub mod worker;

#[allow(unsafe_code)]
mod sys;
