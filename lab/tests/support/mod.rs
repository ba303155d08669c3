// SPDX-License-Identifier: Apache-2.0
//! What tests of whole experiments share. In: nothing. Out: the shipped programs; the namespaces that this
//! process has made and not removed.

use ktsn_lab::{Setup, Tools};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The shipped programs.
pub(crate) fn tools() -> &'static Tools {
    static TOOLS: OnceLock<Tools> = OnceLock::new();
    TOOLS.get_or_init(|| {
        let programs = ktsn_eventually::programs();
        Tools {
            ktsn: programs.join("ktsn"),
            bench: programs.join("ktsn-bench"),
            ktsnd: programs.join("ktsnd"),
            libktsn: ktsn_eventually::library().to_path_buf(),
        }
    })
}

/// A functional run of the shipped programs, under a lock of its own below `directory`.
pub(crate) fn setup(directory: &Path) -> Setup {
    let lock = Some(directory.join("out/.measure.lock"));
    Setup { tools: tools().clone(), lock, command: vec!["test".to_owned()], functional: true }
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
