// SPDX-License-Identifier: Apache-2.0
//! What measurements come to: series, statistics, reports, and the document `ktsn.results/1`.
//!
//! In: records of timed traffic ([`ktsn_traffic`], whose modules have the same names here). Out: series, tables, HTML. Nothing in here may
//! leave a frame out of a distribution, and nothing may compare instants of two clocks, except where the results state how far they may
//! differ ([`hosts`]).

pub mod datapaths;
pub mod environment;
pub mod gates;
pub mod hosts;
pub mod report;
pub mod results;
pub mod series;
pub mod table;
pub mod watchdog;

pub use ktsn_traffic::{clock, control, listener, payload, plain, records, socket, stats, talker, tap};
