// SPDX-License-Identifier: BSD-2-Clause
//! Compiles the driver's core and its port to Linux.

use std::path::PathBuf;

const SOURCES: [&str; 2] = ["../src", "../ports/linux"];

fn main() {
    for folder in SOURCES.into_iter().chain(["../include"]) {
        println!("cargo:rerun-if-changed={folder}");
    }
    cc::Build::new()
        .files(SOURCES.into_iter().flat_map(programs))
        .include("../include")
        .include("../src")
        .std("gnu11")
        .flag("-Wextra")
        .flag("-Wshadow")
        .warnings_into_errors(true)
        // A frame costs some dozens of instructions; a debug build of these would judge no rate.
        .opt_level(2)
        .compile("ktsn_virtio_net");
}

/// The C files of a folder.
fn programs(folder: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{folder}: {error}"));
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "c"));
    files.sort();
    files
}
