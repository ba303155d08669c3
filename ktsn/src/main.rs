// SPDX-License-Identifier: Apache-2.0
//! ktsn
fn main() {}
