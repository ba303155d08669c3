// SPDX-License-Identifier: Apache-2.0
//! The built programs, started as a user starts them.
//!
//! In: arguments. Out: exit status and what was printed. Every command here gets a run directory of its own, so that a
//! ktsnd of this machine is never met.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Builds the command line and the daemon once for each test binary, and returns the folder they lie in.
pub(crate) fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let own = std::env::current_exe().expect("test binary");
        // …/TARGET/PROFILE/deps/test
        let target = own.ancestors().nth(3).expect("target directory").to_path_buf();
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let built = Command::new(cargo)
            .args(["build", "--locked", "-p", "ktsn", "-p", "ktsnd", "--target-dir"])
            .arg(&target)
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
            .output()
            .expect("cargo");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let folder = target.join("debug");
        assert!(folder.join("ktsn").is_file() && folder.join("ktsnd").is_file());
        folder
    })
}

/// `ktsn` with the real library and a run directory that does not exist.
#[must_use]
pub(crate) fn ktsn() -> Command {
    let mut command = Command::new(folder().join("ktsn"));
    command
        .env("KTSN_LIB", ktsn_tests::hook::library())
        .env("KTSN_RUN_DIR", "/nonexistent/ktsn")
        .env_remove("LD_PRELOAD")
        .env_remove("KTSN_POLICY")
        .env_remove("KTSN_LOG");
    command
}

/// Runs `ktsn` with these arguments.
#[must_use]
pub(crate) fn run(arguments: &[&str]) -> Output {
    ktsn().args(arguments).output().expect("ktsn starts")
}

/// Standard output.
#[must_use]
pub(crate) fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Standard error.
#[must_use]
pub(crate) fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
