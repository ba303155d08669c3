// SPDX-License-Identifier: Apache-2.0
//! Timed traffic, observed: talker, listener, wire tap, the two ends of a control loop.
//!
//! In: a plan of frames to send or a port to hear. Out: records (one per frame, every point of the time line under one name), and exact
//! statistics over them. Talker and listener are ordinary programs: they use only what libc offers and run with or without KTSN.
//! Never: a frame left out of a distribution.
//!
//! ```text
//!  tx_time      called_at   handed_at        wire_at              kernel_at          received_at
//!  asked        talker      the port's call  tap on the receiving listener's kernel  recvmsg has
//!               calls send  begins           host's uplink        stamp              returned
//! ```

pub mod clock;
pub mod control;
pub mod listener;
pub mod payload;
pub mod plain;
pub mod records;
pub mod saved;
pub mod socket;
pub mod stats;
pub mod talker;
pub mod tap;
