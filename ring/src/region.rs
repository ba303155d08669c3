// SPDX-License-Identifier: Apache-2.0
//! Making and mapping regions.
//!
//! In: a layout, or a descriptor of a region. Out: sealed memory, mapped. The daemon maps only descriptors that it
//! made itself; guard pages on both sides of its mapping turn an access outside it into a fault at once.

use core::ffi::c_void;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::Ordering::Relaxed;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use rustix::param::page_size;
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
    /// mmap failed.
    #[error("mmap: {0}")]
    Map(Errno),
    /// The mapped memory is no region.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

/// A memfd of the region's size that nobody can resize.
pub(crate) fn create_memfd(layout: &Layout) -> Result<OwnedFd, RegionError> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels before 6.3 do not know NOEXEC_SEAL; some are set up to refuse a memfd without it.
    let memfd = match memfd_create("ktsn-ring", flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create("ktsn-ring", flags),
        made => made,
    }
    .map_err(RegionError::Create)?;
    ftruncate(&memfd, layout.region_octets() as u64).map_err(RegionError::Size)?;
    fcntl_add_seals(&memfd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .map_err(RegionError::Seal)?;
    Ok(memfd)
}

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
        // SAFETY: the replaced pages are the middle of those just reserved, which nobody else knows.
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
}

impl Drop for GuardedMapping {
    fn drop(&mut self) {
        let whole = guarded(self.words.octets(), self.page);
        let reserved = self.words.base().as_ptr().wrapping_sub(self.page).cast();
        // SAFETY: the pages reserved in `new`; `self` is going, so nobody uses them any more. It cannot fail for
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

    /// Writes a word anywhere, as a hostile program may. `at` is rounded down to a multiple of 8 inside the region.
    pub fn poke(&self, at: usize, value: u64) {
        let at = (at % self.producer.layout().region_octets()) & !7;
        self.producer.words().store64(at, value, Relaxed);
    }

    /// Reads the word at `at`, rounded as by [`Self::poke`].
    #[must_use]
    pub fn peek(&self, at: usize) -> u64 {
        let at = (at % self.producer.layout().region_octets()) & !7;
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

    /// On a kernel with pages of 64 KiB as on this one: guards are whole pages, and the end is rounded up to one.
    #[test]
    fn guards_are_pages_of_the_kernel() {
        let layout = Layout::new(4, 256, 1, 2).unwrap();
        let octets = layout.region_octets();
        for page in [page_size(), 1 << 16] {
            let memory = GuardedMapping::with_pages(create_memfd(&layout).unwrap(), octets, page).unwrap();
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
            let left = mapped(from, to);
            assert!(left.iter().all(|(.., rights)| rights != "---p" && rights != "rw-s"), "{left:x?}");
        }
    }
}
