// SPDX-License-Identifier: Apache-2.0
//! The timed sockets of this process, called streams.
//!
//! In: what the hooks learned about a socket. Out: what a send needs to know, and what the daemon knows of it.

pub(crate) mod buffer;
pub(crate) mod fds;
pub(crate) mod packet;
mod port;
mod registration;
pub(crate) mod reports;
mod reserved;
mod socket;
pub(crate) mod stamps;
mod table;
pub(crate) mod wanted_interface;

pub(crate) use registration::{Registration, forget_registrations, release};
pub(crate) use table::{STREAMS_COUNT, Shape, Stream, count, create, get, retain};
