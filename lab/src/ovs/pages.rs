// SPDX-License-Identifier: Apache-2.0
//! Huge pages of a switch, and the hugetlbfs that it takes them from.
//!
//! In: how many. Out: values that give back on drop.

use super::LabError;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::path::PathBuf;

/// How many huge pages the machine has reserved.
pub(super) const PAGES: &str = "/proc/sys/vm/nr_hugepages";
/// MiB of one.
pub(super) const PAGE_MIB: u32 = 2;
/// The hugetlbfs in a switch's directory.
pub(super) const HUGE_FILES: &str = "huge";

/// Huge pages that were reserved for one user; given back with the value.
#[derive(Debug)]
pub(super) struct Pages {
    before: u32,
}

impl Pages {
    pub(super) fn reserve(count: u32) -> Result<Self, LabError> {
        let read = || {
            let text = std::fs::read_to_string(PAGES).map_err(LabError::file(PAGES))?;
            text.trim()
                .parse::<u32>()
                .map_err(|error| LabError::Contents { path: PAGES.into(), problem: error.to_string() })
        };
        let before = read()?;
        std::fs::write(PAGES, (before + count).to_string()).map_err(LabError::file(PAGES))?;
        let pages = Self { before };
        let found = read()?;
        if found < before + count {
            return Err(LabError::Impossible {
                what: format!(
                    "{count} huge pages of {PAGE_MIB} MiB: the kernel has {}",
                    found - before.min(found)
                ),
                remedy: format!("free memory, or reserve them at boot: vm.nr_hugepages={}", before + count),
            });
        }
        Ok(pages)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let _stay_reserved = std::fs::write(PAGES, self.before.to_string());
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
