// SPDX-License-Identifier: Apache-2.0
//! The control API of ktsnd, generated from `ktsn/v1/node.proto`: messages, client and server.
#![forbid(unsafe_code)]

/// `ktsn.v1`.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
pub mod v1 {
    tonic::include_proto!("ktsn.v1");
}
