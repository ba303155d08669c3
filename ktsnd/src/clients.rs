// SPDX-License-Identifier: Apache-2.0
//! Clients: who they are, which sockets they show, what they may do.

mod answer;
mod budget;
mod connection;
mod credit;
mod directory;
mod examiner;
mod following;
mod granted;
mod hangs;
mod kept;
mod later;
mod marker;
mod notifier;
mod pace;
mod passed;
mod receivers;
mod registrar;
mod socket;
mod streams;
#[allow(unsafe_code)]
mod sys;
mod threads;
mod turns;

#[cfg(test)]
mod tests;

pub use budget::RefusedBy;
pub use directory::{ClientView, Directory, ServedAttachment};
pub use receivers::{Receivers, Receiving};
pub(crate) use registrar::fuzzing;
pub use registrar::{RegistrarError, RegistrarHandle};
pub use socket::{NotASocket, SocketFacts, examine};
pub use streams::Streams;
