// SPDX-License-Identifier: Apache-2.0
//! What killed processes leave of their switches: directories, mounts, reserved huge pages.

use super::pages::{HUGE_FILES, PAGES, give_back};
use crate::remote::GUARDED;
use crate::sys;
use rustix::mount::{UnmountFlags, unmount};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// How the names of the switches' directories begin; the number of the process follows.
pub(super) const PREFIX: &str = "ktsn-ovs-";
/// In such a directory: how many huge pages were reserved.
pub(super) const NOTED_PAGES: &str = "pages";

/// Removes what killed processes left of their switches: directories, mounts, and the huge pages that they had reserved. It looks into the
/// directories of commands that ran for another host, too. The removed directories.
pub fn sweep() -> Vec<PathBuf> {
    let place = std::env::temp_dir();
    let guarded = entries(&place).filter(|(name, path)| name.starts_with(GUARDED) && is_own(path));
    let places = guarded.map(|(_, path)| path).chain([place.clone()]);
    places.flat_map(|place| sweep_in(&place)).collect()
}

/// The same in one directory.
pub(crate) fn sweep_in(place: &Path) -> Vec<PathBuf> {
    let mut removed = Vec::new();
    for (pid, place) in switches(place) {
        if sys::exists(pid) || !is_own(&place) {
            continue;
        }
        let _is_no_mount = unmount(place.join(HUGE_FILES), UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        let noted = std::fs::read_to_string(place.join(NOTED_PAGES)).ok();
        // Another process may remove the same directory at this moment: then it gives the pages back.
        if std::fs::remove_dir_all(&place).is_ok() {
            if let Some(count) = noted.and_then(|text| text.trim().parse().ok()) {
                give_back(Path::new(PAGES), count);
            }
            removed.push(place);
        }
    }
    removed
}

/// Whether a process that lives has a switch in this directory.
pub(crate) fn is_used(place: &Path) -> bool {
    switches(place).any(|(pid, _)| sys::exists(pid))
}

/// Directories of switches in this one, with the number of their process.
fn switches(place: &Path) -> impl Iterator<Item = (u32, PathBuf)> + use<> {
    let pid = |name: &str| name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok();
    entries(place).filter_map(move |(name, path)| Some((pid(&name)?, path)))
}

fn entries(place: &Path) -> impl Iterator<Item = (String, PathBuf)> + use<> {
    let found = std::fs::read_dir(place).into_iter().flatten().flatten();
    found.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path()))
}

/// Whether a directory is this user's: the place of all of them may be written to by every user.
fn is_own(place: &Path) -> bool {
    std::fs::symlink_metadata(place)
        .is_ok_and(|found| found.is_dir() && found.uid() == rustix::process::geteuid().as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without pages: the machine's own number stays as it is.
    #[test]
    fn directories_of_killed_processes_are_removed() {
        let killed = std::process::Command::new("true").spawn().unwrap();
        let pid = killed.id();
        killed.wait_with_output().unwrap();
        let make = |pid: u32| {
            let directory = tempfile::Builder::new().prefix(&format!("{PREFIX}{pid}-")).tempdir().unwrap();
            std::fs::write(directory.path().join(NOTED_PAGES), "0").unwrap();
            directory
        };
        let (left, living) = (make(pid), make(std::process::id()));
        // Another user's may lie about pages, and lead to another mount.
        let foreign = rustix::process::geteuid().is_root().then(|| {
            let foreign = make(pid);
            std::os::unix::fs::chown(foreign.path(), Some(65_534), None).unwrap();
            foreign
        });
        let removed = sweep();
        assert!(!left.path().exists() && living.path().exists(), "{removed:?}");
        assert!(foreign.is_none_or(|foreign| foreign.path().exists()), "{removed:?}");
    }
}
