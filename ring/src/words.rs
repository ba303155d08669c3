// SPDX-License-Identifier: Apache-2.0
//! The only way to a region's memory: single atomic words at offsets in octets.
//!
//! In: an offset and a value. Out: a value. An offset outside the memory, or not aligned, reads as zero and writes
//! nothing: no access of this crate can leave the region, whatever the caller computed. There is no reference to
//! shared bytes.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Shared words of 32 and 64 bits. A given word is always used with one of the two sizes.
pub trait Words {
    /// Reads a u32.
    fn load32(&self, at: usize, order: Ordering) -> u32;
    /// Writes a u32.
    fn store32(&self, at: usize, value: u32, order: Ordering);
    /// Replaces a u32 and returns what was there.
    fn swap32(&self, at: usize, value: u32, order: Ordering) -> u32;
    /// Replaces a u32 if it is `current`; says what was there. `success` is the order when it was replaced.
    ///
    /// # Errors
    /// The word had another value (returned), or the exchange failed for no reason.
    fn exchange32(&self, at: usize, current: u32, new: u32, success: Ordering) -> Result<u32, u32>;
    /// Reads a u64.
    fn load64(&self, at: usize, order: Ordering) -> u64;
    /// Writes a u64.
    fn store64(&self, at: usize, value: u64, order: Ordering);
    /// Replaces a u64 if it is `current`; says what was there. `success` is the order when it was replaced.
    ///
    /// # Errors
    /// The word had another value (returned), or the exchange failed for no reason.
    fn exchange64(&self, at: usize, current: u64, new: u64, success: Ordering) -> Result<u64, u64>;
    /// Sets bits of a u64.
    fn set_bits64(&self, at: usize, bits: u64, order: Ordering);
    /// Adds to a u64, relaxed, wrapping.
    fn add64(&self, at: usize, count: u64);
    /// A fence between all words.
    fn fence(&self, order: Ordering);

    /// Copies octets out, word by word, relaxed. `at` is a multiple of 8, and whole words are read.
    #[inline]
    fn read_octets(&self, at: usize, out: &mut [u8]) {
        let mut at = at;
        for chunk in out.chunks_mut(8) {
            let word = self.load64(at, Ordering::Relaxed).to_ne_bytes();
            for (octet, value) in chunk.iter_mut().zip(word) {
                *octet = value;
            }
            at = at.wrapping_add(8);
        }
    }
}

/// Mapped memory. A plain value: copies of it name the same memory.
#[derive(Clone, Copy, Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    octets: usize,
}

// SAFETY: the memory is only reached through atomics, so any thread may use it at any time; that it stays mapped is
// what the caller of `Mapping::new` promised.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Names `octets` of mapped memory from `base` on.
    ///
    /// # Safety
    /// `base` is aligned to 8, and the memory stays mapped readable and writable as long as the value or a copy of
    /// it is used. This process reaches it only through atomics; other processes may do what they like.
    #[must_use]
    pub const unsafe fn new(base: NonNull<u8>, octets: usize) -> Self {
        Self { base, octets }
    }

    /// Octets of the memory.
    #[must_use]
    pub const fn octets(&self) -> usize {
        self.octets
    }

    /// Where the memory begins.
    #[must_use]
    pub const fn base(&self) -> NonNull<u8> {
        self.base
    }

    #[inline(always)]
    const fn inside(&self, at: usize, octets: usize, align: usize) -> bool {
        match self.octets.checked_sub(octets) {
            Some(last) => at <= last && at & align.wrapping_sub(1) == 0,
            None => false,
        }
    }

    #[inline(always)]
    fn word32(&self, at: usize) -> Option<&AtomicU32> {
        let inside = self.inside(at, 4, 4);
        debug_assert!(inside, "u32 at {at} is not in the region");
        // SAFETY: `at` and the three octets after it lie in memory that `new`'s caller keeps mapped and `at` is
        // aligned to 4 from a base aligned to 8; the word is only used atomically.
        inside.then(|| unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(at).cast()) })
    }

    #[inline(always)]
    fn word64(&self, at: usize) -> Option<&AtomicU64> {
        let inside = self.inside(at, 8, 8);
        debug_assert!(inside, "u64 at {at} is not in the region");
        // SAFETY: as in `word32`, with eight octets and alignment to 8.
        inside.then(|| unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at).cast()) })
    }

    /// Writes words one after the other from `at` on, relaxed; nothing when one of them is not in the memory.
    #[inline]
    pub fn store_words<const N: usize>(&self, at: usize, words: &[u64; N]) {
        if !self.inside(at, N.wrapping_mul(8), 8) {
            debug_assert!(false, "{N} words at {at} are not in the region");
            return;
        }
        for (index, word) in words.iter().enumerate() {
            // SAFETY: `at` and the N words from there on lie in the mapping, and `at` is aligned to 8.
            unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at).cast::<u64>().add(index)) }
                .store(*word, Ordering::Relaxed);
        }
    }

    /// Asks for the cache line at `at`, which is about to be written: another processor had it last. A hint; nothing
    /// is read or written.
    #[inline(always)]
    pub fn expect_write(&self, at: usize) {
        if !self.inside(at, 8, 8) {
            return;
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint that cannot fault, and a no-operation on processors of this architecture that lack it.
        unsafe {
            let address = self.base.as_ptr().add(at);
            core::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: a hint that cannot fault.
        unsafe {
            let address = self.base.as_ptr().add(at);
            core::arch::asm!("prfm pstl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
        }
    }

    /// Asks for the cache line at `at`, which is about to be read. A hint, as [`Self::expect_write`].
    #[inline(always)]
    pub fn expect_read(&self, at: usize) {
        if !self.inside(at, 8, 8) {
            return;
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint that cannot fault.
        unsafe {
            let address = self.base.as_ptr().add(at);
            core::arch::asm!("prefetcht0 [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: a hint that cannot fault.
        unsafe {
            let address = self.base.as_ptr().add(at);
            core::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
        }
    }

    /// Copies segments (address, octets) into the memory at `at`, one after the other, word by word; the last word
    /// is filled up with zeros. Returns the octets copied, or `None` when they are more than `capacity` (or leave
    /// the memory): then nothing that was copied means anything.
    ///
    /// # Safety
    /// Each segment is readable for its length. Its octets may change meanwhile; it must not lie in this mapping.
    #[inline]
    pub unsafe fn write_segments(
        &self,
        at: usize,
        capacity: usize,
        segments: impl Iterator<Item = (*const u8, usize)>,
    ) -> Option<usize> {
        let capacity = capacity & !7;
        if !self.inside(at, capacity, 8) {
            return None;
        }
        let mut room = capacity;
        // SAFETY: `at` lies inside the mapping.
        let mut to = unsafe { self.base.as_ptr().add(at) };
        let (mut word, mut held) = (0u64, 0u32);
        let mut put = |word: u64| {
            // SAFETY: `room` counts what is left of `capacity` octets that `inside` found in the memory, and words are
            // completed only by octets that were subtracted from it; `to` stays aligned to 8.
            unsafe { AtomicU64::from_ptr(to.cast()) }.store(word, Ordering::Relaxed);
            to = to.wrapping_add(8);
        };
        for (mut from, mut octets) in segments {
            room = room.checked_sub(octets)?;
            while octets > 0 {
                if held == 0 && octets >= 8 {
                    // SAFETY: eight octets of the segment are left.
                    put(unsafe { from.cast::<u64>().read_unaligned() });
                    from = from.wrapping_add(8);
                    octets = octets.wrapping_sub(8);
                    continue;
                }
                // SAFETY: one octet of the segment is left.
                word |= u64::from(unsafe { from.read() }).wrapping_shl(held);
                held = held.wrapping_add(8);
                from = from.wrapping_add(1);
                octets = octets.wrapping_sub(1);
                if held == 64 {
                    put(word);
                    (word, held) = (0, 0);
                }
            }
        }
        if held > 0 {
            put(word);
        }
        Some(capacity.wrapping_sub(room))
    }
}

impl Words for Mapping {
    #[inline(always)]
    fn load32(&self, at: usize, order: Ordering) -> u32 {
        self.word32(at).map_or(0, |word| word.load(order))
    }
    #[inline(always)]
    fn store32(&self, at: usize, value: u32, order: Ordering) {
        if let Some(word) = self.word32(at) {
            word.store(value, order);
        }
    }
    #[inline(always)]
    fn swap32(&self, at: usize, value: u32, order: Ordering) -> u32 {
        self.word32(at).map_or(0, |word| word.swap(value, order))
    }
    #[inline(always)]
    fn exchange32(&self, at: usize, current: u32, new: u32, success: Ordering) -> Result<u32, u32> {
        match self.word32(at) {
            Some(word) => word.compare_exchange_weak(current, new, success, Ordering::Relaxed),
            None => Ok(current),
        }
    }
    #[inline(always)]
    fn load64(&self, at: usize, order: Ordering) -> u64 {
        self.word64(at).map_or(0, |word| word.load(order))
    }
    #[inline(always)]
    fn store64(&self, at: usize, value: u64, order: Ordering) {
        if let Some(word) = self.word64(at) {
            word.store(value, order);
        }
    }
    #[inline(always)]
    fn exchange64(&self, at: usize, current: u64, new: u64, success: Ordering) -> Result<u64, u64> {
        match self.word64(at) {
            Some(word) => word.compare_exchange_weak(current, new, success, Ordering::Relaxed),
            None => Ok(current),
        }
    }
    #[inline(always)]
    fn set_bits64(&self, at: usize, bits: u64, order: Ordering) {
        if let Some(word) = self.word64(at) {
            word.fetch_or(bits, order);
        }
    }
    #[inline(always)]
    fn add64(&self, at: usize, count: u64) {
        if let Some(word) = self.word64(at) {
            word.fetch_add(count, Ordering::Relaxed);
        }
    }
    #[inline(always)]
    fn fence(&self, order: Ordering) {
        fence(order);
    }

    #[inline]
    fn read_octets(&self, at: usize, out: &mut [u8]) {
        let words = out.len().div_ceil(8);
        if !self.inside(at, words.wrapping_mul(8), 8) {
            out.fill(0);
            return;
        }
        // SAFETY: `at` lies inside the mapping.
        let mut from = unsafe { self.base.as_ptr().add(at) };
        let mut get = || {
            // SAFETY: called once for each of the `words` words that `inside` found in the memory.
            let word = unsafe { AtomicU64::from_ptr(from.cast()) }.load(Ordering::Relaxed);
            from = from.wrapping_add(8);
            word.to_ne_bytes()
        };
        let (whole, rest) = out.as_chunks_mut::<8>();
        for chunk in whole {
            *chunk = get();
        }
        if !rest.is_empty() {
            for (octet, value) in rest.iter_mut().zip(get()) {
                *octet = value;
            }
        }
    }
}
