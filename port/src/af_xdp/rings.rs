// SPDX-License-Identifier: Apache-2.0
//! The two rings of a transmit-only AF_XDP socket: descriptors out, completions back.
//!
//! In: buffer addresses and lengths, and where the kernel put the ring's parts. Out: published descriptors, and
//! the addresses that the kernel has finished with. Indices are free-running u32 counters; the slot is the index
//! masked by the (power-of-two) size, so only wrapping differences have a meaning.
//! Nothing here makes a system call.

use std::sync::atomic::Ordering;

use super::sys::RingMemory;

/// `struct xdp_desc`: address, then length and options.
pub(super) const TX_DESCRIPTOR_OCTETS: usize = 16;
/// A completion is the address alone.
pub(super) const COMPLETION_OCTETS: usize = 8;

/// Where the parts of a ring lie in its mapping, in octets, and its size in entries (a power of two).
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    pub(super) producer: usize,
    pub(super) consumer: usize,
    pub(super) entries: usize,
    pub(super) entry_count: u32,
}

impl Layout {
    /// How much must be mapped for entries of `entry_octets`.
    pub(super) fn octets(&self, entry_octets: usize) -> usize {
        self.entries + self.entry_count as usize * entry_octets
    }

    /// Whether everything lies inside `memory` and is aligned: afterwards no access can miss.
    fn fits(&self, memory: &RingMemory, entry_octets: usize) -> bool {
        self.entry_count.is_power_of_two()
            && memory.word32(self.producer).is_some()
            && memory.word32(self.consumer).is_some()
            && memory.word64(self.entries).is_some()
            && memory.word64(self.octets(entry_octets) - size_of::<u64>()).is_some()
    }
}

/// We produce, the kernel consumes.
#[derive(Debug)]
pub(super) struct TxRing {
    memory: RingMemory,
    layout: Layout,
    /// Index after the last descriptor written, published or not.
    head: u32,
}

impl TxRing {
    /// Takes over a ring whose indices may be anything (equal, when it is fresh). `None` when the layout does
    /// not fit the mapping.
    pub(super) fn new(memory: RingMemory, layout: Layout) -> Option<Self> {
        if !layout.fits(&memory, TX_DESCRIPTOR_OCTETS) {
            return None;
        }
        let head = memory.word32(layout.producer)?.load(Ordering::Relaxed);
        Some(Self { memory, layout, head })
    }

    fn entry(&self, index: u32) -> usize {
        self.layout.entries + (index & (self.layout.entry_count - 1)) as usize * TX_DESCRIPTOR_OCTETS
    }

    /// Descriptors, published or not, that the kernel has not reported as consumed. May count too many (kernels
    /// report late), never too few.
    pub(super) fn occupied(&self) -> u32 {
        let consumer =
            self.memory.word32(self.layout.consumer).map_or(0, |word| word.load(Ordering::Acquire));
        self.head.wrapping_sub(consumer)
    }

    /// Writes a descriptor behind the last one without publishing it. `false` when the ring is full.
    #[inline]
    pub(super) fn push(&mut self, address: u64, octets: u32) -> bool {
        if self.occupied() >= self.layout.entry_count {
            return false;
        }
        let at = self.entry(self.head);
        let (Some(first), Some(second)) = (self.memory.word64(at), self.memory.word64(at + 8)) else {
            return false;
        };
        first.store(address, Ordering::Relaxed);
        // The length is the lower half in memory, the options (none) the upper: little or big endian.
        second.store(length_word(octets), Ordering::Relaxed);
        self.head = self.head.wrapping_add(1);
        true
    }

    /// Shows the kernel every descriptor written so far. The store releases the descriptors and the frames.
    #[inline]
    pub(super) fn publish(&mut self) {
        if let Some(producer) = self.memory.word32(self.layout.producer) {
            producer.store(self.head, Ordering::Release);
        }
    }

    /// Takes the newest descriptor back and returns its address. Only right while the kernel has not looked at
    /// the ring since that descriptor was published, or if it left that one alone: then another has to be written before it
    /// looks again.
    pub(super) fn take_back(&mut self) -> Option<u64> {
        let index = self.head.wrapping_sub(1);
        let address = self.memory.word64(self.entry(index))?.load(Ordering::Relaxed);
        self.head = index;
        self.publish();
        Some(address)
    }
}

/// `len` and `options` (0) of a descriptor as one 64-bit word.
const fn length_word(octets: u32) -> u64 {
    let bytes = octets.to_ne_bytes();
    u64::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3], 0, 0, 0, 0])
}

/// The kernel produces, we consume.
#[derive(Debug)]
pub(super) struct CompletionRing {
    memory: RingMemory,
    layout: Layout,
    tail: u32,
}

impl CompletionRing {
    /// Takes over a ring with any indices. `None` when the layout does not fit the mapping.
    pub(super) fn new(memory: RingMemory, layout: Layout) -> Option<Self> {
        if !layout.fits(&memory, COMPLETION_OCTETS) {
            return None;
        }
        let tail = memory.word32(layout.consumer)?.load(Ordering::Relaxed);
        Some(Self { memory, layout, tail })
    }

    /// Hands every completed address to `each`, at most one ring full, and returns how many there were.
    #[inline]
    pub(super) fn drain(&mut self, mut each: impl FnMut(u64)) -> u32 {
        let Some(producer) = self.memory.word32(self.layout.producer) else { return 0 };
        // A distance over the size would be the kernel's nonsense: bounded, so that this always ends.
        let count = producer.load(Ordering::Acquire).wrapping_sub(self.tail).min(self.layout.entry_count);
        if count == 0 {
            return 0;
        }
        for _ in 0..count {
            let slot = (self.tail & (self.layout.entry_count - 1)) as usize;
            if let Some(entry) = self.memory.word64(self.layout.entries + slot * COMPLETION_OCTETS) {
                each(entry.load(Ordering::Relaxed));
            }
            self.tail = self.tail.wrapping_add(1);
        }
        if let Some(consumer) = self.memory.word32(self.layout.consumer) {
            consumer.store(self.tail, Ordering::Release);
        }
        count
    }
}
