// SPDX-License-Identifier: Apache-2.0
//! What a call of the program says: message, control messages, destination, options, headers of packet sockets.

pub(crate) mod control_messages;
pub(crate) mod destination;
pub(crate) mod memory;
pub(crate) mod message;
pub(crate) mod options;
