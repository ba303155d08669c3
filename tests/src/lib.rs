// SPDX-License-Identifier: Apache-2.0
//! What the tests across crates share.
//!
//! In: nothing of its own. Out: a peer that plays the daemon's client side ([`peer`]), and ways to run ordinary
//! programs under libktsn.so ([`hook`]), the shipped daemon on a testbed ([`faults`]), and pods that attack it ([`hostile`]).
//! Only tests use it.

pub mod cli;
pub mod faults;
pub mod hook;
pub mod hostile;
pub mod peer;
pub mod two_hosts;
