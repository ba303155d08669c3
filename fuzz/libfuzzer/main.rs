// SPDX-License-Identifier: Apache-2.0
//! libFuzzer's entry point for every target: `KTSN_FUZZ_TARGET` names the one to run. `--targets` prints their names instead.
#![no_main]

use std::sync::OnceLock;

use ktsn_fuzz::targets::{TARGETS, Target, find};

/// The target, looked up once.
fn target() -> Target {
    static TARGET: OnceLock<Target> = OnceLock::new();
    *TARGET.get_or_init(|| {
        let name = std::env::var("KTSN_FUZZ_TARGET").unwrap_or_default();
        find(&name).unwrap_or_else(|| panic!("KTSN_FUZZ_TARGET={name}: no such target"))
    })
}

libfuzzer_sys::fuzz_target!(
    init: {
        if std::env::args().any(|argument| argument == "--targets") {
            TARGETS.iter().for_each(|(name, _)| println!("{name}"));
            std::process::exit(0);
        }
    },
    |data: &[u8]| target()(data)
);
