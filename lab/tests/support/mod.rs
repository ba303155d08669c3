// SPDX-License-Identifier: Apache-2.0
//! What tests of whole experiments share. In: nothing. Out: the shipped programs, built once; the namespaces that this
//! process has made and not removed.

use ktsn_lab::{Setup, Tools};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The programs, built once: the binaries in the tests' own profile, the library in its own.
pub(crate) fn tools() -> &'static Tools {
    static TOOLS: OnceLock<Tools> = OnceLock::new();
    TOOLS.get_or_init(|| {
        let test = std::env::current_exe().unwrap();
        // …/TARGET/PROFILE/deps/test
        let (target, profile) = (test.ancestors().nth(3).unwrap(), test.ancestors().nth(2).unwrap());
        let profile_name = profile.file_name().unwrap().to_str().unwrap();
        let cargo_name = if profile_name == "debug" { "dev" } else { profile_name };
        build(target, &["-p", "ktsn", "-p", "ktsn-bench", "-p", "ktsnd", "--bins", "--profile", cargo_name]);
        build(target, &["-p", "libktsn", "--profile", "hook"]);
        Tools {
            ktsn: profile.join("ktsn"),
            bench: profile.join("ktsn-bench"),
            ktsnd: profile.join("ktsnd"),
            libktsn: target.join("hook/libktsn.so"),
        }
    })
}

/// A functional run of the shipped programs, under a lock of its own below `directory`.
pub(crate) fn setup(directory: &Path) -> Setup {
    let lock = Some(directory.join("out/.measure.lock"));
    Setup { tools: tools().clone(), lock, command: vec!["test".to_owned()], functional: true }
}

fn build(target: &Path, what: &[&str]) {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--locked", "--target-dir"])
        .arg(target)
        .args(what)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}

/// Those of this process that still exist.
pub(crate) fn namespaces() -> Vec<PathBuf> {
    let ours = format!("ktsnlab-{}-", std::process::id());
    let entries = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&ours))
        .map(|entry| entry.path())
        .collect()
}
