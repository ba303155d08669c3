// SPDX-License-Identifier: Apache-2.0
//! Measuring transmit times: talker, listener, wire tap, statistics, results.
//!
//! In: a plan of frames to send or a port to hear. Out: records (one per frame, every point of the time line
//! under one name), exact statistics over them, and the document `ktsn.results/1`.
//! Talker and listener are ordinary programs: they use only what libc offers and run with or without KTSN.
//! Nothing in here may leave a frame out of a distribution, and nothing may compare instants of two clocks,
//! except where the results state how far they may differ ([`hosts`]).
//!
//! ```text
//!  tx_time      called_at   handed_at        wire_at              kernel_at          received_at
//!  asked        talker      the port's call  tap on the receiving listener's kernel  recvmsg has
//!               calls send  begins           host's uplink        stamp              returned
//! ```

pub mod clock;
pub mod control;
pub mod datapaths;
pub mod environment;
pub mod gates;
pub mod hosts;
pub mod listener;
pub mod payload;
pub mod plain;
pub mod records;
pub mod report;
pub mod results;
pub mod series;
pub mod socket;
pub mod stats;
pub mod table;
pub mod talker;
pub mod tap;
pub mod watchdog;
