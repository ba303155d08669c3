// SPDX-License-Identifier: Apache-2.0
//! A page that one writer changes while others read it.
//!
//! In: 64-bit words of shared memory. Out: the words as one write left them, or [`Busy`]. The reader never waits: it tries a bounded number of
//! times. Plain loads and stores only, because memory of a device need not allow more.

use std::cell::Cell;
use std::sync::atomic::Ordering;

/// How often a reader tries before it gives up.
pub const TRIES: u32 = 8;

/// Shared memory in words of 64 bits, little-endian in memory.
pub trait Memory {
    /// The word's value; relaxed.
    fn load(&self, word: usize) -> u64;
    /// Changes the word; relaxed.
    fn store(&self, word: usize, value: u64);
    /// An ordering fence.
    fn fence(&self, order: Ordering);
}

/// Words of one thread: they stay as they are written.
impl<const WORDS: usize> Memory for [Cell<u64>; WORDS] {
    fn load(&self, word: usize) -> u64 {
        self[word].get()
    }

    fn store(&self, word: usize, value: u64) {
        self[word].set(value);
    }

    fn fence(&self, _: Ordering) {}
}

/// The reader met a write each time, or a writer that ended within one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy {
    /// The count at the last try; odd while a write is under way.
    pub count: u32,
}

/// The count is the upper half of its word; the lower half is constant.
const fn count_of(word: u64) -> u32 {
    (word >> 32) as u32
}

/// Changes the words of `values` (index and value) as one. There is one writer at a time.
pub fn write(
    memory: &impl Memory,
    count_word: usize,
    constant: u32,
    values: impl Iterator<Item = (usize, u64)>,
) {
    // A writer before this one may have ended within a write.
    let odd = count_of(memory.load(count_word)).wrapping_add(1) | 1;
    let word = |count: u32| u64::from(count) << 32 | u64::from(constant);
    memory.store(count_word, word(odd));
    memory.fence(Ordering::Release);
    for (index, value) in values {
        memory.store(index, value);
    }
    memory.fence(Ordering::Release);
    memory.store(count_word, word(odd.wrapping_add(1)));
}

/// Reads the words of `indices` as one write left them, with the count.
///
/// # Errors
/// [`Busy`] after [`TRIES`].
pub fn read<const N: usize>(
    memory: &impl Memory,
    count_word: usize,
    indices: [usize; N],
) -> Result<([u64; N], u32), Busy> {
    let mut count = 0;
    for _ in 0..TRIES {
        count = count_of(memory.load(count_word));
        if count & 1 == 0 {
            memory.fence(Ordering::Acquire);
            let values = indices.map(|index| memory.load(index));
            memory.fence(Ordering::Acquire);
            if count_of(memory.load(count_word)) == count {
                return Ok((values, count));
            }
        }
        std::hint::spin_loop();
    }
    Err(Busy { count })
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, fence};

    /// Two words of data behind the count, in loom's memory.
    struct Small([AtomicU64; 3]);

    impl Memory for Small {
        fn load(&self, word: usize) -> u64 {
            self.0[word].load(Ordering::Relaxed)
        }
        fn store(&self, word: usize, value: u64) {
            self.0[word].store(value, Ordering::Relaxed);
        }
        fn fence(&self, order: Ordering) {
            fence(order);
        }
    }

    /// Every order of accesses that the memory model allows: what is read was written as one.
    #[test]
    fn a_reader_sees_whole_writes_in_every_order() {
        let mut explored = loom::model::Builder::new();
        explored.preemption_bound = Some(2);
        explored.check(|| {
            let memory = Arc::new(Small([AtomicU64::new(7), AtomicU64::new(0), AtomicU64::new(0)]));
            let writers = Arc::clone(&memory);
            let writer = loom::thread::spawn(move || {
                for value in 1..=2 {
                    write(&*writers, 0, 7, [(1, value), (2, value)].into_iter());
                }
            });
            if let Ok(([first, second], count)) = read(&*memory, 0, [1, 2]) {
                assert_eq!((first, u64::from(count)), (second, 2 * first));
            }
            writer.join().unwrap();
            assert_eq!(read(&*memory, 0, [1, 2]), Ok(([2, 2], 4)));
            assert_eq!(memory.load(0), 4 << 32 | 7);
        });
    }

    /// A writer that ended within its write leaves an odd count: readers give up, and the next writer mends it.
    #[test]
    fn an_odd_count_is_given_up_and_mended() {
        loom::model(|| {
            let memory = Small([AtomicU64::new(5 << 32), AtomicU64::new(1), AtomicU64::new(2)]);
            assert_eq!(read(&memory, 0, [1, 2]), Err(Busy { count: 5 }));
            write(&memory, 0, 0, [(1, 3), (2, 3)].into_iter());
            assert_eq!(read(&memory, 0, [1, 2]), Ok(([3, 3], 8)));
        });
    }
}
