// SPDX-License-Identifier: BSD-2-Clause
//! The memory that a front end shares, as a backend sees it: numbers at offsets, read and written one by one.

use std::os::fd::OwnedFd;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A mapping of the front end's file.
pub(crate) struct Memory {
    start: *mut u8,
    octets: usize,
}

// SAFETY: the mapping belongs to no thread; all accesses are volatile and of numbers for which every value is valid.
unsafe impl Send for Memory {}

impl Memory {
    /// Maps all of the file.
    pub(crate) fn of(file: &OwnedFd) -> Self {
        let octets = rustix::fs::fstat(file).expect("fstat").st_size as usize;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping of a file that cannot shrink.
        let start = unsafe { mmap(std::ptr::null_mut(), octets, prot, MapFlags::SHARED, file, 0) };
        Self { start: start.expect("mmap").cast(), octets }
    }

    pub(crate) fn octets(&self) -> usize {
        self.octets
    }

    /// Reads a number of any size.
    pub(crate) fn get<T: Copy + Default>(&self, offset: usize) -> T {
        assert!(offset + size_of::<T>() <= self.octets && offset.is_multiple_of(align_of::<T>()));
        // SAFETY: inside of the mapping and aligned (checked above).
        unsafe { self.start.add(offset).cast::<T>().read_volatile() }
    }

    /// Writes a number of any size.
    pub(crate) fn put<T: Copy + Default>(&self, offset: usize, value: T) {
        assert!(offset + size_of::<T>() <= self.octets && offset.is_multiple_of(align_of::<T>()));
        // SAFETY: as in `get`.
        unsafe { self.start.add(offset).cast::<T>().write_volatile(value) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own.
        let _unmapped = unsafe { munmap(self.start.cast(), self.octets) };
    }
}
