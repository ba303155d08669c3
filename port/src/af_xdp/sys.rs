// SPDX-License-Identifier: Apache-2.0
//! Memory shared with the kernel: mapped here, reached only through the two types below.
//!
//! In: a socket's ring or a size. Out: bounds-checked atomics ([`RingMemory`]) and octets ([`FrameMemory`]).
//! No reference into memory that the kernel writes ever leaves this file except as an atomic.

use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// A mapping of this process, unmapped when dropped.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    octets: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and this value is its only owner.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference only gives atomics (ring memory) or read access that `&mut` excludes (frames).
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(start: *mut c_void, octets: usize) -> Result<Self, Errno> {
        Ok(Self { start: NonNull::new(start.cast()).ok_or(Errno::NOMEM)?, octets })
    }

    fn anonymous(octets: usize) -> Result<Self, Errno> {
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        // SAFETY: no address is asked for, so the kernel picks a free range and nothing existing is replaced.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), octets, ProtFlags::READ | ProtFlags::WRITE, flags)?
        };
        Self::new(start, octets)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `start` and `octets` are what mmap returned, and every reference into the mapping borrows from
        // its owner, which is being dropped.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.octets) };
        debug_assert!(unmapped.is_ok(), "a mapping of our own is unmapped");
    }
}

/// One ring, shared with the kernel: every access is an atomic within bounds. A clone is the same memory.
#[derive(Debug, Clone)]
pub(super) struct RingMemory(Arc<Mapping>);

impl RingMemory {
    /// Maps a ring of an AF_XDP socket (`offset` is `XDP_PGOFF_*` or `XDP_UMEM_PGOFF_*`).
    pub(super) fn of_socket(socket: BorrowedFd<'_>, octets: usize, offset: u64) -> Result<Self, Errno> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: no address is asked for, so the kernel picks a free range and nothing existing is replaced.
        let start = unsafe {
            mmap(std::ptr::null_mut(), octets, ProtFlags::READ | ProtFlags::WRITE, flags, socket, offset)?
        };
        Mapping::new(start, octets).map(|mapping| Self(Arc::new(mapping)))
    }

    /// Plain memory instead of a socket's: what the ring arithmetic is tested on.
    #[cfg(test)]
    pub(super) fn plain(octets: usize) -> Self {
        Self(Arc::new(Mapping::anonymous(octets).expect("anonymous memory")))
    }

    /// The address of a `T` at `offset`, when it lies inside and is aligned.
    fn place<T>(&self, offset: usize) -> Option<NonNull<T>> {
        let end = offset.checked_add(size_of::<T>())?;
        if end > self.0.octets || !offset.is_multiple_of(align_of::<T>()) {
            return None;
        }
        // SAFETY: `offset` was just checked to lie inside the mapping.
        Some(unsafe { self.0.start.byte_add(offset) }.cast())
    }

    /// The 32-bit word at `offset`.
    #[inline]
    pub(super) fn word32(&self, offset: usize) -> Option<&AtomicU32> {
        // SAFETY: `place` checked bounds and alignment (mappings start on a page); the memory is mapped as long
        // as `self` lives, any bits are a valid u32, and both sides touch it by atomic operations only.
        Some(unsafe { self.place::<AtomicU32>(offset)?.as_ref() })
    }

    /// The 64-bit word at `offset`.
    #[inline]
    pub(super) fn word64(&self, offset: usize) -> Option<&AtomicU64> {
        // SAFETY: as in `word32`, for a u64.
        Some(unsafe { self.place::<AtomicU64>(offset)?.as_ref() })
    }
}

/// The transmit buffers (umem). The kernel reads them and never writes: there is no receive ring, the fill ring
/// stays empty, and no metadata area is asked for. It reads a buffer only while that buffer is in flight, and
/// the port hands out only buffers that are not.
#[derive(Debug)]
pub(super) struct FrameMemory(Mapping);

impl FrameMemory {
    /// Zeroed, prefaulted memory.
    pub(super) fn new(octets: usize) -> Result<Self, Errno> {
        Mapping::anonymous(octets).map(Self)
    }

    /// Where it lies, for the kernel.
    pub(super) fn address(&self) -> u64 {
        self.0.start.as_ptr() as u64
    }

    /// Its size in octets.
    pub(super) fn octets(&self) -> usize {
        self.0.octets
    }

    fn inside(&self, offset: usize, octets: usize) -> bool {
        offset.checked_add(octets).is_some_and(|end| end <= self.0.octets)
    }

    /// Part of the buffers for reading.
    #[inline]
    pub(super) fn slice(&self, offset: usize, octets: usize) -> Option<&[u8]> {
        if !self.inside(offset, octets) {
            return None;
        }
        // SAFETY: inside the mapping, initialised by the kernel's zeroing, and not written while `self`
        // is borrowed (the kernel only reads).
        Some(unsafe { std::slice::from_raw_parts(self.0.start.as_ptr().add(offset), octets) })
    }

    /// Part of the buffers for writing; the caller passes buffers that are not in flight.
    #[inline]
    pub(super) fn slice_mut(&mut self, offset: usize, octets: usize) -> Option<&mut [u8]> {
        if !self.inside(offset, octets) {
            return None;
        }
        // SAFETY: as in `slice`, and `&mut self` makes it the only reference of this process. The kernel reads
        // in-flight buffers only; should a caller break that rule the frame is garbled, no memory is.
        Some(unsafe { std::slice::from_raw_parts_mut(self.0.start.as_ptr().add(offset), octets) })
    }
}
