// SPDX-License-Identifier: Apache-2.0
//! libFuzzer's entry point for every target: `KTSN_FUZZ_TARGET` names the one to run.
#![no_main]

use std::sync::OnceLock;

use ktsn_fuzz::targets::{Target, find};

/// The target, looked up once.
fn target() -> Target {
    static TARGET: OnceLock<Target> = OnceLock::new();
    *TARGET.get_or_init(|| {
        let name = std::env::var("KTSN_FUZZ_TARGET").unwrap_or_default();
        find(&name).unwrap_or_else(|| panic!("KTSN_FUZZ_TARGET={name}: no such target"))
    })
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| target()(data));
