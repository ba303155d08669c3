// SPDX-License-Identifier: Apache-2.0
//! The counter's instructions, mapped memory, and the calls on the kernel's clock.
//!
//! In: plain values. Out: plain values or the kernel's error. Nothing here decides anything.

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// The processor's counter, not read before the accesses that stand before it in the program. A store behind it is not seen earlier:
/// x86-64 makes stores visible only when all instructions before them have ended.
#[cfg(target_arch = "x86_64")]
pub(crate) fn counter() -> u64 {
    // SAFETY: both instructions exist on every x86-64 processor.
    unsafe {
        core::arch::x86_64::_mm_lfence();
        core::arch::x86_64::_rdtsc()
    }
}

/// The processor's counter, not read before the accesses that stand before it in the program, nor after those behind it. Without the
/// second barrier a request could be on its way before the time stamp that it is sent with.
#[cfg(target_arch = "aarch64")]
pub(crate) fn counter() -> u64 {
    let value: u64;
    // SAFETY: Linux lets programs read the virtual counter; none of the instructions touches memory.
    unsafe { core::arch::asm!("isb", "mrs {}, cntvct_el0", "isb", out(reg) value, options(nostack)) };
    value
}

/// Memory of a file, shared with other processes that map it.
#[derive(Debug)]
pub(crate) struct Mapping {
    address: NonNull<AtomicU64>,
    octets: usize,
}

// SAFETY: the memory is reached through atomic words only, and belongs to the value.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `octets` of the file from its beginning. The file has that many, and keeps them: it is a device's memory or was sized by us.
    pub(crate) fn new(file: &File, octets: usize, is_writable: bool) -> io::Result<Self> {
        let access = if is_writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address of the kernel's choice.
        let address = unsafe { mmap(std::ptr::null_mut(), octets, access, MapFlags::SHARED, file, 0)? };
        let address = NonNull::new(address.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { address, octets })
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.octets / 8, "word {index} of {} octets", self.octets);
        // SAFETY: the word lies in the mapping, which lives as long as `self`; mappings are aligned to pages.
        unsafe { self.address.add(index).as_ref() }
    }

    pub(crate) fn load(&self, index: usize) -> u64 {
        u64::from_le(self.word(index).load(Ordering::Relaxed))
    }

    pub(crate) fn store(&self, index: usize, value: u64) {
        self.word(index).store(value.to_le(), Ordering::Relaxed);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no reference into it outlives the value.
        let _ = unsafe { munmap(self.address.as_ptr().cast(), self.octets) };
    }
}

/// Reads or changes the state of `CLOCK_REALTIME`; returns the kernel's verdict about the clock.
pub(crate) fn adjust(state: &mut libc::timex) -> io::Result<i32> {
    // SAFETY: the structure lives across the call.
    let verdict = unsafe { libc::clock_adjtime(libc::CLOCK_REALTIME, state) };
    if verdict < 0 { Err(io::Error::last_os_error()) } else { Ok(verdict) }
}

/// A structure for [`adjust`] that changes nothing.
pub(crate) fn unchanged() -> libc::timex {
    // SAFETY: every field is a number, and none is a reference.
    unsafe { std::mem::zeroed() }
}
