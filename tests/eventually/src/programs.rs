// SPDX-License-Identifier: Apache-2.0
//! The shipped programs as tests run them. In: the place of the test itself. Out: the programs beside it, built where they are not yet.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Integration tests of `ktsn`, `ktsn-bench` and `ktsnd`, for which cargo builds these programs.
const TESTS_OF_PROGRAMS: [&str; 6] = ["--test", "talk_listen", "--test", "rt", "--test", "command_line"];

/// The directory with `ktsn`, `ktsn-bench` and `ktsnd` in the profile of the test, built once per test binary.
///
/// `cargo build` would take other features of some dependencies than `cargo test`, and build all that depends on them again.
///
/// # Panics
/// When they do not build.
pub fn programs() -> &'static Path {
    static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        build(&TESTS_OF_PROGRAMS);
        profile_folder()
    })
}

/// ktsnd with these features in a file of the caller's: the one of [`programs`] stays without them.
///
/// # Panics
/// When it does not build or cannot be written.
pub fn build_with(features: &str, file: &Path) {
    build(&["--features", features, "--test", "command_line"]);
    // By a process of its own: what this one writes to, a child that another test starts may have open, and then it does not run.
    let copied = Command::new("cp").arg(profile_folder().join("ktsnd")).arg(file).status();
    assert!(copied.expect("cp").success(), "{}", file.display());
}

/// Builds the programs that these integration tests are of.
fn build(tests: &[&str]) {
    let folder = profile_folder();
    let name = folder.file_name().and_then(|name| name.to_str()).expect("a profile");
    let profile = if name == "debug" { "dev" } else { name };
    cargo(&[&["test", "--no-run", "--profile", profile], tests].concat());
}

/// libktsn.so in its own profile, built once per test binary.
///
/// # Panics
/// When it does not build.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        cargo(&["build", "-p", "libktsn", "--profile", "hook"]);
        profile_folder().with_file_name("hook").join("libktsn.so")
    })
}

/// …/TARGET/PROFILE of …/TARGET/PROFILE/deps/TEST.
fn profile_folder() -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    test.ancestors().nth(2).expect("a target directory").to_path_buf()
}

fn cargo(arguments: &[&str]) {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(arguments).args(["--locked", "--target-dir"]).arg(profile_folder().with_file_name(""));
    let done = command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).output().expect("cargo");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}
