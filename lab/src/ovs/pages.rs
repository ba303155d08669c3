// SPDX-License-Identifier: Apache-2.0
//! Huge pages of a switch, and the hugetlbfs that it takes them from.
//!
//! In: how many. Out: values that give back on drop.

use super::LabError;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::path::{Path, PathBuf};

/// How many huge pages the machine has reserved.
pub(super) const PAGES: &str = "/proc/sys/vm/nr_hugepages";
/// MiB of one.
pub(super) const PAGE_MIB: u32 = 2;
/// The hugetlbfs in a switch's directory.
pub(super) const HUGE_FILES: &str = "huge";

/// Huge pages that were reserved for one user; given back with the value. Others may reserve and give back meanwhile.
#[derive(Debug)]
pub(super) struct Pages {
    file: PathBuf,
    count: u32,
}

impl Pages {
    pub(super) fn reserve(count: u32) -> Result<Self, LabError> {
        Self::reserve_in(Path::new(PAGES), count)
    }

    fn reserve_in(file: &Path, count: u32) -> Result<Self, LabError> {
        let before = number(file)?;
        std::fs::write(file, before.saturating_add(count).to_string()).map_err(LabError::file(file))?;
        let found = number(file)?.saturating_sub(before);
        // The kernel gives what it has.
        let pages = Self { file: file.to_owned(), count: found.min(count) };
        if found < count {
            return Err(LabError::Impossible {
                what: format!("{count} huge pages of {PAGE_MIB} MiB: the kernel has {found}"),
                remedy: format!(
                    "free memory, or reserve them at boot: vm.nr_hugepages={}",
                    before.saturating_add(count)
                ),
            });
        }
        Ok(pages)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        give_back(&self.file, self.count);
    }
}

fn number(file: &Path) -> Result<u32, LabError> {
    let text = std::fs::read_to_string(file).map_err(LabError::file(file))?;
    let odd =
        |error: std::num::ParseIntError| LabError::Contents { path: file.into(), problem: error.to_string() };
    text.trim().parse().map_err(odd)
}

/// Gives so many reserved pages back: what others have reserved stays.
pub(super) fn give_back(file: &Path, count: u32) {
    if let Ok(now) = number(file) {
        let _stay_reserved = std::fs::write(file, now.saturating_sub(count).to_string());
    }
}

/// A hugetlbfs of the switch's own.
#[derive(Debug)]
pub(super) struct HugeFiles(PathBuf);

impl HugeFiles {
    pub(super) fn mount(directory: PathBuf) -> Result<Self, LabError> {
        std::fs::create_dir(&directory).map_err(LabError::file(&directory))?;
        mount("nodev", &directory, "hugetlbfs", MountFlags::empty(), Some(c"pagesize=2M"))
            .map_err(|errno| LabError::system("mount(hugetlbfs)")(errno.into()))?;
        Ok(Self(directory))
    }
}

impl Drop for HugeFiles {
    fn drop(&mut self) {
        let _is_busy = unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's file is the machine's own: an ordinary one shows what is written.
    #[test]
    fn pages_are_given_back_in_any_order() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("nr_hugepages");
        let now = || std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, "5\n").unwrap();
        let (one, other) = (Pages::reserve_in(&file, 2).unwrap(), Pages::reserve_in(&file, 3).unwrap());
        assert_eq!(now(), "10");
        drop(one);
        assert_eq!(now(), "8");
        drop(other);
        assert_eq!(now(), "5");
        give_back(&file, 9);
        assert_eq!(now(), "0");
    }
}
