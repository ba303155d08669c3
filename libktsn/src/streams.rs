// SPDX-License-Identifier: Apache-2.0
//! The timed sockets of this process, called streams.
//!
//! In: what the hooks learned about a socket. Out: what a send needs to know, and what the daemon knows of it.

mod port;
mod registration;
mod reserved;
mod socket;
mod table;

pub(crate) use registration::{Registration, forget_registrations, release};
pub(crate) use table::{STREAMS_COUNT, Shape, Stream, count, create, get, retain};
