// SPDX-License-Identifier: Apache-2.0
//! Declares `cfg(loom)`, under which `tests/loom.rs` explores the algorithms; nothing else depends on it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(loom)");
}
