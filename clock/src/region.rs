// SPDX-License-Identifier: Apache-2.0
//! Mapped memory of the page and of the exchange area.
//!
//! In: a file (shared memory, or a PCI device's resource). Out: words.

use crate::seqlock::Memory;
use crate::sys::Mapping;
use crate::{exchange, page};
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::atomic::{Ordering, fence};

/// Octets of each of the two areas: a power of two, as PCI has it, and a multiple of every page size of Linux.
pub const OCTETS: u32 = 64 << 10;
/// How much of an area is mapped, at least.
const USED: u64 = 4096;

/// A page or an exchange area, mapped.
#[derive(Debug)]
pub struct Region {
    words: Mapping,
    /// Keeps other publishers out.
    _lock: Option<File>,
}

impl Region {
    /// Maps an area of a file that has [`OCTETS`].
    ///
    /// # Errors
    /// The kernel's; `UnexpectedEof` if the file is too short.
    pub fn of(file: &File, is_writable: bool) -> io::Result<Self> {
        let octets = file.metadata()?.len();
        if octets < USED {
            let problem = format!("{octets} octets, expected at least {USED}");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, problem));
        }
        Mapping::new(file, USED as usize, is_writable).map(|words| Self { words, _lock: None })
    }

    /// Opens and maps an area that another process made.
    ///
    /// # Errors
    /// As [`Region::of`].
    pub fn open(path: &Path, is_writable: bool) -> io::Result<Self> {
        Self::of(&OpenOptions::new().read(true).write(is_writable).open(path)?, is_writable)
    }

    /// The page and the exchange area of a guest, as [`Region::create`] makes them. Beside a page that is one already, an exchange area may
    /// hold anything of its length: the guest writes there.
    ///
    /// # Errors
    /// As [`Region::create`], with the path.
    pub fn create_both<'p>(
        page: &'p Path,
        exchange: &'p Path,
    ) -> Result<(Self, Self), (&'p Path, io::Error)> {
        let first = Self::create(page).map_err(|error| (page, error))?;
        let second = Self::create_if(exchange, !page::is_page(&first.load(0).to_le_bytes()));
        second.map(|second| (first, second)).map_err(|error| (exchange, error))
    }

    /// Makes the file unless it is there, gives it its length, and maps it. Other callers are kept out of it until the value ends.
    ///
    /// # Errors
    /// As [`Region::of`]; a full disk; a file that is another user's, a symbolic link, in use, or neither empty nor an area.
    pub fn create(path: &Path) -> io::Result<Self> {
        Self::create_if(path, true)
    }

    fn create_if(path: &Path, is_content_checked: bool) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        // In a directory that others may write, a link could lead elsewhere.
        options.read(true).write(true).create(true).truncate(false).custom_flags(libc::O_NOFOLLOW);
        let file = options.open(path)?;
        check_area(&file, is_content_checked)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            let problem = "another publisher has this file, or page and exchange area are one file";
            io::Error::new(io::ErrorKind::ResourceBusy, problem)
        })?;
        file.set_len(u64::from(OCTETS))?;
        // On a full disk the first store would end the process by SIGBUS.
        match fallocate(&file, FallocateFlags::empty(), 0, u64::from(OCTETS)) {
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => {}
            Err(error) => return Err(error.into()),
        }
        let region = Self::of(&file, true)?;
        Ok(Self { _lock: Some(file), ..region })
    }
}

/// Refuses a file that would be damaged, or that another user could cut while it is mapped.
fn check_area(file: &File, is_content_checked: bool) -> io::Result<()> {
    let (found, user) = (file.metadata()?, rustix::process::geteuid().as_raw());
    let problem = if found.uid() != user {
        format!("it belongs to user {}, expected {user}", found.uid())
    } else if found.len() != 0 && found.len() != u64::from(OCTETS) {
        format!("it has {} octets, expected none or {OCTETS}", found.len())
    } else {
        let mut octets = [0; USED as usize];
        if is_content_checked && found.len() > 0 {
            file.read_exact_at(&mut octets, 0)?;
        }
        if octets == [0; USED as usize] || page::is_page(&octets) || exchange::is_area_of(&octets) {
            return Ok(());
        }
        "it holds something else than a clock's page or exchange area".to_owned()
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, problem))
}

impl Memory for Region {
    fn load(&self, word: usize) -> u64 {
        self.words.load(word)
    }

    fn store(&self, word: usize, value: u64) {
        self.words.store(word, value);
    }

    fn fence(&self, order: Ordering) {
        fence(order);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ktsn_eventually::eventually;
    use std::process::Command;
    use std::time::Duration;

    fn refusal(path: &Path) -> String {
        Region::create(path).expect_err("refused").to_string()
    }

    /// What `create` makes once its lock is free. A child that another test starts keeps all files open until it runs its program, and the
    /// locks of those that are closed here.
    fn once_free<T>(create: impl Fn() -> io::Result<T>) -> T {
        eventually("its lock is free", Duration::from_secs(20), || match create() {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => None,
            made => Some(made.unwrap()),
        })
    }

    #[test]
    fn a_file_that_is_no_area_is_left_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        for (name, content) in
            [("root", b"root:x:0".to_vec()), ("disk", [vec![0; 1080], vec![0x53; 65_536 - 1080]].concat())]
        {
            let path = directory.path().join(name);
            std::fs::write(&path, &content).unwrap();
            let problem = refusal(&path);
            assert!(
                problem.contains("8 octets, expected none") || problem.contains("something else"),
                "{problem}"
            );
            assert_eq!(std::fs::read(&path).unwrap(), content);
        }
        // What a publisher that was killed left is taken over.
        let path = directory.path().join("page");
        Region::create(&path).unwrap().store(0, u64::from_le_bytes(*b"KTSNexch"));
        once_free(|| Region::create(&path));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), u64::from(OCTETS));
    }

    #[test]
    fn a_link_and_a_second_publisher_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let (page, link) = (directory.path().join("page"), directory.path().join("link"));
        std::os::unix::fs::symlink(&page, &link).unwrap();
        assert!(refusal(&link).contains("symbolic link"), "{}", refusal(&link));
        let first = Region::create(&page).unwrap();
        assert!(refusal(&page).contains("another publisher"), "{}", refusal(&page));
        drop(first);
        once_free(|| Region::create(&page));
    }

    /// A guest that fills its area keeps no publisher from starting again.
    #[test]
    fn what_a_guest_wrote_is_taken_over_beside_a_page() {
        let directory = tempfile::tempdir().unwrap();
        let (page, exchange) = (directory.path().join("page"), directory.path().join("exchange"));
        std::fs::write(&exchange, [0xff; 65_536]).unwrap();
        let (path, error) = Region::create_both(&page, &exchange).expect_err("no page yet");
        assert!(path == exchange && error.to_string().contains("something else"), "{error}");
        once_free(|| Region::create(&page)).store(0, u64::from_le_bytes(*b"VCLK\0\0\0\x01"));
        drop(once_free(|| Region::create_both(&page, &exchange).map_err(|(_, error)| error)));
        let (path, error) = Region::create_both(&page, &page).expect_err("one file");
        assert!(path == page && error.to_string().contains("one file"), "{error}");
    }

    /// Runs itself in a mount namespace with a disk of two pages.
    #[test]
    fn a_full_disk_is_an_error_and_no_signal() {
        const DISK: &str = "KTSN_TEST_DISK";
        if let Some(disk) = std::env::var_os(DISK) {
            let error = Region::create(&Path::new(&disk).join("page")).expect_err("full");
            return assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        }
        let directory = tempfile::tempdir().unwrap();
        let script =
            format!("mount -t tmpfs -o size=8k none \"${DISK}\" && exec \"$0\" a_full_disk_is_an_error");
        let mut inner = Command::new("unshare");
        inner.args(["--mount", "sh", "-c", &script]).arg(std::env::current_exe().unwrap());
        let output = inner.env(DISK, directory.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
    }
}
