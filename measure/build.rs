// SPDX-License-Identifier: Apache-2.0
//! Compresses plotly.js, which the reports embed, into `OUT_DIR/plotly.js.zst`.
//!
//! In: the script element that the crate `plotly` ships. Out: the same, compressed. MathJax, which the crate ships too, is left out: no
//! report needs it.
#![allow(missing_docs)]

use std::path::PathBuf;

const END: &str = "</script>";
const LEVEL: i32 = 19;

fn main() -> std::io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    let mut script = plotly::Plot::offline_js_sources();
    let end = script.find(END).map_or(script.len(), |at| at + END.len());
    script.truncate(end);
    let place = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("plotly.js.zst");
    std::fs::write(place, zstd::encode_all(script.as_bytes(), LEVEL)?)
}
