// SPDX-License-Identifier: Apache-2.0
//! The process and ktsnd: the handshake, the registration of streams, and the options that only the daemon grants.
//!
//! In: sockets of the program, and the time. Out: regions in use, streams that the daemon knows, and the program's answers.

pub(crate) mod handshake;
pub(crate) mod hwtstamp;
pub(crate) mod register;
pub(crate) mod txtime;
