// SPDX-License-Identifier: Apache-2.0
//! Making and mapping regions.
//!
//! In: a layout, or a descriptor of a region. Out: sealed memory, mapped. The daemon maps only descriptors that it
//! made itself; guard pages on both sides of its mapping turn an access outside it into a fault at once.

use core::ffi::c_void;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::Ordering::Relaxed;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use rustix::param::page_size;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use thiserror::Error;

use crate::layout::{Layout, LayoutError, PAGE_OCTETS};
use crate::producer::Producer;
use crate::words::{Mapping, Words};

/// A region could not be made or mapped.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum RegionError {
    /// memfd_create failed.
    #[error("memfd_create: {0}")]
    Create(Errno),
    /// ftruncate or fstat failed.
    #[error("size of the memfd: {0}")]
    Size(Errno),
    /// F_ADD_SEALS failed.
    #[error("seals of the memfd: {0}")]
    Seal(Errno),
    /// The kernel does not know F_SEAL_FUTURE_WRITE.
    #[error("this kernel cannot seal the memfd against holes (F_SEAL_FUTURE_WRITE: Linux 5.1 and later)")]
    TooOld,
    /// Pages of the mapping cannot be made present.
    #[error("pages of the memfd: {0}")]
    Pages(Errno),
    /// mmap failed.
    #[error("mmap: {0}")]
    Map(Errno),
    /// The mapped memory is no region.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

/// A memfd of the region's size that no process can resize. Holes can still be punched into it, until [`seal_memfd`].
pub(crate) fn create_memfd(layout: &Layout) -> Result<OwnedFd, RegionError> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels before 6.3 do not know NOEXEC_SEAL; some are set up to refuse a memfd without it.
    let memfd = match memfd_create("ktsn-ring", flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create("ktsn-ring", flags),
        made => made,
    }
    .map_err(RegionError::Create)?;
    ftruncate(&memfd, layout.shared_octets() as u64).map_err(RegionError::Size)?;
    fcntl_add_seals(&memfd, SealFlags::SHRINK | SealFlags::GROW).map_err(RegionError::Seal)?;
    Ok(memfd)
}

/// Seals a memfd against writes, holes (`fallocate`, `MADV_REMOVE`: EPERM) and further writable mappings. The writable
/// mappings that exist stay writable. The kernel takes the inode's lock, which a program that punches holes may hold for as
/// long as its thread gets no CPU.
pub(crate) fn seal_memfd(memfd: impl AsFd) -> Result<(), RegionError> {
    let wanted = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE;
    match fcntl_add_seals(&memfd, SealFlags::FUTURE_WRITE | SealFlags::SEAL) {
        // The program may have added all seals itself.
        Err(Errno::PERM) if fcntl_get_seals(&memfd).is_ok_and(|seals| seals.contains(wanted)) => Ok(()),
        Err(Errno::INVAL) => Err(RegionError::TooOld),
        sealed => sealed.map_err(RegionError::Seal),
    }
}

/// What the kernel may join into one huge page, octets: at least this on every machine.
const HUGE_OCTETS: usize = 2 << 20;

/// Holds one page of each part of a memfd that could become a huge page. Otherwise its program could have the kernel join the
/// pages (`MADV_COLLAPSE`), which takes them away from every mapping while it copies them, for as long as the program's thread
/// gets no CPU. A page that is in use elsewhere, in a pipe here, cannot be joined. The pages must be present.
pub(crate) fn pin(memfd: impl AsFd, octets: usize) -> Result<OwnedFd, RegionError> {
    let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).map_err(RegionError::Pages)?;
    let parts = octets.div_ceil(HUGE_OCTETS);
    if parts > PIPE_PAGES {
        fcntl_setpipe_size(&theirs, parts * page_size()).map_err(RegionError::Pages)?;
    }
    for part in 0..parts {
        let mut at = (part * HUGE_OCTETS) as u64;
        // It does not wait: the pipe has room, and the page is there.
        let held = splice(&memfd, Some(&mut at), &theirs, None, 1, SpliceFlags::NONBLOCK);
        if held.map_err(RegionError::Pages)? != 1 {
            return Err(RegionError::Pages(Errno::IO));
        }
    }
    Ok(ours)
}

/// Pages that a pipe holds when nothing else is asked.
const PIPE_PAGES: usize = 16;

/// A mapping between two pages that cannot be touched; unmapped when dropped. A page is this kernel's: 4 KiB on x86-64, up to
/// 64 KiB elsewhere. Regions stay multiples of [`PAGE_OCTETS`] everywhere.
#[derive(Debug)]
pub(crate) struct GuardedMapping {
    words: Mapping,
    page: usize,
}

/// Octets of a mapping with its guards.
const fn guarded(octets: usize, page: usize) -> usize {
    octets.next_multiple_of(page) + 2 * page
}

impl GuardedMapping {
    /// Maps `octets` of `memfd`.
    pub(crate) fn new(memfd: impl AsFd, octets: usize) -> Result<Self, RegionError> {
        Self::with_pages(memfd, octets, page_size())
    }

    fn with_pages(memfd: impl AsFd, octets: usize, page: usize) -> Result<Self, RegionError> {
        let whole = guarded(octets, page);
        // SAFETY: a new mapping at an address that the kernel chooses harms nothing.
        let reserved = unsafe { mmap_anonymous(null_mut(), whole, ProtFlags::empty(), MapFlags::PRIVATE) }
            .map_err(RegionError::Map)?;
        let inner: *mut c_void = reserved.cast::<u8>().wrapping_add(page).cast();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the replaced pages are the middle of those just reserved, which no other code knows.
        let mapped = unsafe { mmap(inner, octets, access, MapFlags::SHARED | MapFlags::FIXED, memfd, 0) };
        let base = mapped.map(|base| NonNull::new(base.cast::<u8>()));
        let Ok(Some(base)) = base else {
            // SAFETY: these pages are ours and nothing points into them.
            unsafe { munmap(reserved, whole) }.map_err(RegionError::Map)?;
            return Err(RegionError::Map(base.err().unwrap_or(Errno::FAULT)));
        };
        // SAFETY: page-aligned, and mapped until `self` is dropped; copies of the value stay within this crate's
        // owners of `self`.
        Ok(Self { words: unsafe { Mapping::new(base, octets) }, page })
    }

    /// The memory.
    pub(crate) const fn words(&self) -> Mapping {
        self.words
    }

    /// Makes every page present, so that no access faults as long as no page is taken away.
    pub(crate) fn populate(&self) -> Result<(), RegionError> {
        let (base, octets) = (self.words.base().as_ptr(), self.words.octets());
        loop {
            // SAFETY: the pages of this mapping; that they become present changes none of their octets.
            match unsafe { madvise(base.cast(), octets, Advice::LinuxPopulateWrite) } {
                Ok(()) => return Ok(()),
                Err(Errno::AGAIN | Errno::INTR) => {}
                // Linux before 5.14: a read makes a page of shared memory present, writable as it is mapped.
                Err(Errno::INVAL) => {
                    for at in (0..octets).step_by(PAGE_OCTETS) {
                        let _ = self.words.load64(at, Relaxed);
                    }
                    return Ok(());
                }
                Err(error) => return Err(RegionError::Pages(error)),
            }
        }
    }
}

impl Drop for GuardedMapping {
    fn drop(&mut self) {
        let whole = guarded(self.words.octets(), self.page);
        let reserved = self.words.base().as_ptr().wrapping_sub(self.page).cast();
        // SAFETY: the pages reserved in `new`; `self` is going, so no code uses them any more. It cannot fail for
        // pages that are mapped, and then nothing could be done.
        let _ = unsafe { munmap(reserved, whole) };
    }
}

/// A program's mapping of a region, for tools and tests in std programs: it lends a [`Producer`].
#[derive(Debug)]
pub struct ClientMapping {
    producer: Producer,
    _memory: GuardedMapping,
}

impl ClientMapping {
    /// Maps a region's descriptor as a program does.
    ///
    /// # Errors
    /// A system call failed, or the memory is no region.
    pub fn open(memfd: impl AsFd) -> Result<Self, RegionError> {
        let size = fstat(&memfd).map_err(RegionError::Size)?.st_size;
        let octets = usize::try_from(size).unwrap_or(0) & !(PAGE_OCTETS - 1);
        let memory = GuardedMapping::new(memfd, octets)?;
        // SAFETY: mapped as long as `_memory`, which lives as long as the producer that `producer()` lends; copies
        // of it must not outlive `self`, as its documentation says.
        let producer = unsafe { Producer::from_mapping(memory.words().base(), octets) }?;
        Ok(Self { producer, _memory: memory })
    }

    /// The producer's side. A copy of it must not be used after this mapping is dropped.
    #[must_use]
    pub const fn producer(&self) -> &Producer {
        &self.producer
    }

    /// Writes a word anywhere, as a hostile program may. `at` is rounded down to a multiple of 8 inside the mapping.
    pub fn poke(&self, at: usize, value: u64) {
        let at = (at % self.producer.words().octets()) & !7;
        self.producer.words().store64(at, value, Relaxed);
    }

    /// Reads the word at `at`, rounded as by [`Self::poke`].
    #[must_use]
    pub fn peek(&self, at: usize) -> u64 {
        let at = (at % self.producer.words().octets()) & !7;
        self.producer.words().load64(at, Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::ToOwned;
    use std::string::String;
    use std::vec::Vec;

    use super::*;

    /// Start, end and rights of this process's mappings between two addresses.
    fn mapped(from: usize, to: usize) -> Vec<(usize, usize, String)> {
        let text = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = |line: &str| {
            let (range, rest) = line.split_once(' ')?;
            let (start, end) = range.split_once('-')?;
            let number = |text| usize::from_str_radix(text, 16).ok();
            Some((number(start)?.max(from), number(end)?.min(to), rest.get(..4)?.to_owned()))
        };
        text.lines().filter_map(line).filter(|(start, end, _)| start < end).collect()
    }

    /// What a program may do to a region's memfd before it is sealed, and no more after; both sides go on writing.
    #[test]
    fn a_sealed_region_has_no_holes() {
        use rustix::fs::{FallocateFlags, fallocate};
        let layout = Layout::new(64, 2048, 4, 8).unwrap();
        let (mut consumer, memfd) = crate::Consumer::create(layout).unwrap();
        let octets = layout.shared_octets();
        let program = ClientMapping::open(&memfd).unwrap();
        let theirs = GuardedMapping::new(&memfd, octets).unwrap();
        let punch = || {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&memfd, hole, 0, octets as u64)
        };
        let remove = || {
            let base = theirs.words().base().as_ptr();
            // SAFETY: pages of a mapping of this test; what they hold becomes zero, which is what is tried.
            unsafe { madvise(base.cast(), octets, Advice::LinuxRemove) }
        };
        program.poke(octets - 8, 7);
        assert_eq!((punch(), remove()), (Ok(()), Ok(())), "before the seal");
        assert_eq!(program.peek(octets - 8), 0);
        consumer.seal(&memfd).unwrap();
        assert_eq!((punch(), remove()), (Err(Errno::PERM), Err(Errno::PERM)), "after it");
        assert!(GuardedMapping::new(&memfd, octets).is_err(), "no further writable mapping");
        program.poke(octets - 8, 9);
        assert_eq!(theirs.words().load64(octets - 8, Relaxed), 9);
        consumer.set_state(crate::RegionState::Retired);
        assert_eq!(program.producer().state(), crate::RegionState::Retired);
        consumer.seal(&memfd).unwrap();
    }

    /// linux/mman.h; Linux 6.1.
    const MADV_COLLAPSE: libc::c_int = 25;

    /// A program cannot have the pages of a sealed region joined into a huge one: that takes them away from the daemon for a
    /// while, as a hole does.
    #[test]
    fn pages_of_a_sealed_region_stay_where_they_are() {
        for slots in [64, 1024, 4096] {
            let layout = Layout::new(slots, 2048, 1024, 64).unwrap();
            let octets = layout.shared_octets();
            let (mut consumer, memfd) = crate::Consumer::create(layout).unwrap();
            let whole = octets.next_multiple_of(HUGE_OCTETS) + HUGE_OCTETS;
            let access = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a new mapping at an address that the kernel chooses; it stays until the test's process ends.
            let reserved =
                unsafe { mmap_anonymous(null_mut(), whole, ProtFlags::empty(), MapFlags::PRIVATE) }.unwrap();
            let padding = reserved.addr().next_multiple_of(HUGE_OCTETS) - reserved.addr();
            let base: *mut c_void = reserved.cast::<u8>().wrapping_add(padding).cast();
            // SAFETY: the replaced pages are among those just reserved.
            unsafe { mmap(base, whole - HUGE_OCTETS, access, MapFlags::SHARED | MapFlags::FIXED, &memfd, 0) }
                .unwrap();
            consumer.seal(&memfd).unwrap();
            for part in 0..octets.div_ceil(HUGE_OCTETS) {
                let at: *mut c_void = base.cast::<u8>().wrapping_add(part * HUGE_OCTETS).cast();
                // SAFETY: pages of the mapping above; joining them changes none of their octets.
                let joined = unsafe { libc::madvise(at, HUGE_OCTETS, MADV_COLLAPSE) };
                assert_eq!(joined, -1, "{slots} slots, part {part}");
            }
        }
    }

    /// A program that maps the region alone, as its identity line suggests, has no receive area, and its ring works.
    #[test]
    fn an_older_library_does_without_the_receive_area() {
        let layout = Layout::new(64, 2048, 4, 8).unwrap();
        let (mut consumer, memfd) = crate::Consumer::create(layout).unwrap();
        let memory = GuardedMapping::new(&memfd, layout.region_octets()).unwrap();
        // SAFETY: mapped as long as `memory` lives, which is longer than the producer.
        let producer =
            unsafe { Producer::from_mapping(memory.words().base(), layout.region_octets()) }.unwrap();
        assert!(producer.receive().is_none());
        producer.publish(producer.claim().unwrap());
        assert_eq!(consumer.collect(1), Ok(1));
        assert!(ClientMapping::open(&memfd).unwrap().producer().receive().is_some());
    }

    /// Every page is there when a region is sealed, whatever was punched before.
    #[test]
    fn a_sealed_region_is_resident() {
        let layout = Layout::new(64, 2048, 4, 8).unwrap();
        let memfd = create_memfd(&layout).unwrap();
        let memory = GuardedMapping::new(&memfd, layout.shared_octets()).unwrap();
        let blocks = || fstat(&memfd).unwrap().st_blocks;
        assert_eq!(blocks(), 0);
        seal_memfd(&memfd).unwrap();
        memory.populate().unwrap();
        assert_eq!(blocks() * 512, layout.shared_octets().next_multiple_of(page_size()) as i64);
    }

    /// A program that seals the seals keeps the daemon from sealing: the daemon refuses it.
    #[test]
    fn a_memfd_whose_seals_are_sealed_is_refused() {
        let memfd = create_memfd(&Layout::new(4, 256, 1, 2).unwrap()).unwrap();
        fcntl_add_seals(&memfd, SealFlags::SEAL).unwrap();
        assert_eq!(seal_memfd(&memfd), Err(RegionError::Seal(Errno::PERM)));
    }

    /// On a kernel with pages of 64 KiB as on this one: guards are whole pages, and the end is rounded up to one.
    #[test]
    fn guards_are_pages_of_the_kernel() {
        let layout = Layout::new(4, 256, 1, 2).unwrap();
        let octets = layout.shared_octets();
        for page in [page_size(), 1 << 16] {
            // The stack of another test's thread may come to lie at the addresses that are free again, but not each time.
            let leaves_nothing = || {
                let memory =
                    GuardedMapping::with_pages(create_memfd(&layout).unwrap(), octets, page).unwrap();
                memory.words().store64(octets - 8, 7, Relaxed);
                assert_eq!(memory.words().load64(octets - 8, Relaxed), 7);
                let base = memory.words().base().as_ptr().addr();
                let (from, to) = (base - page, base + octets.next_multiple_of(page) + page);
                let seen = mapped(from, to);
                let rights: Vec<_> = seen.iter().map(|(.., rights)| rights.as_str()).collect();
                assert_eq!(rights, ["---p", "rw-s", "---p"], "{seen:x?}");
                assert_eq!((seen[0].0, seen[0].1, seen[2].1), (from, base, to));
                assert!(seen[2].0 >= base + octets);
                drop(memory);
                mapped(from, to).iter().all(|(.., rights)| rights != "---p" && rights != "rw-s")
            };
            assert!((0..100).any(|_| leaves_nothing()), "pages of {page} octets");
        }
    }
}
