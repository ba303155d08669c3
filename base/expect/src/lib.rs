// SPDX-License-Identifier: Apache-2.0
//! When the next event of a periodic stream comes, and how to be awake by then.
//!
//! In: instants of events (arrivals, transmit times), how late wake-ups were, how long spins took. Out: the next expected event
//! with its spread, the margin to wake ahead of it, and whether a spin is within its budget.
//! The worker of ktsnd uses this crate for the transmit times of a stream, and libktsn for the arrivals at a socket.
//!
//! ```text
//!        sleep                        spin
//! ───────────────────────┬─margin─┬─spread─┬─spread─┬──►
//!                     wake at             expected
//! ```
//!
//! It reads no clock, allocates nothing, uses no float, and takes constant time in every call.
#![no_std]
#![forbid(unsafe_code)]

pub mod duty;
pub mod margin;
pub mod predictor;

pub use duty::SpinBudget;
pub use margin::{Margin, Margins};
pub use predictor::{Expected, Predictor, Seen};
