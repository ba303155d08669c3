// SPDX-License-Identifier: Apache-2.0
//! Whether the program's pointers point to something: asked before they are followed, as the kernel's own copy would
//! find out.
//!
//! In: addresses and lengths from a program. Out: yes or no; on a no the kernel gets the call and has the EFAULT. A
//! page that the kernel could read (or write) once is remembered in a small table, so that a usual send asks nothing:
//! a program that gives such a page back and then sends from it faults (a documented exception). Nothing here
//! changes a program's memory, and nothing waits.

use core::hint::cold_path;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::process::sys;

/// The unit of the table: the smallest page of the supported architectures.
const PAGE_OCTETS: usize = 4096;
/// Pages remembered as readable: a burst of 64 from as many buffers, and some.
const READABLE_COUNT: usize = 256;
/// Pages remembered as writable: those that hold the lengths of a burst.
const WRITABLE_COUNT: usize = 16;

/// Page addresses with bit 0 set; page `n` has its place at `n` modulo the size.
static READABLE: [AtomicUsize; READABLE_COUNT] = [const { AtomicUsize::new(0) }; READABLE_COUNT];
static WRITABLE: [AtomicUsize; WRITABLE_COUNT] = [const { AtomicUsize::new(0) }; WRITABLE_COUNT];

fn knows(table: &[AtomicUsize], page: usize, ask: fn(usize) -> bool) -> bool {
    let Some(place) = table.get((page / PAGE_OCTETS) % table.len().max(1)) else { return false };
    if place.load(Relaxed) == page | 1 {
        return true;
    }
    cold_path();
    let is_there = ask(page);
    if is_there {
        place.store(page | 1, Relaxed);
    }
    is_there
}

#[inline]
fn all(table: &[AtomicUsize], base: usize, octets: usize, ask: fn(usize) -> bool) -> bool {
    let Some(beyond) = octets.checked_sub(1) else { return true };
    let Some(last) = base.checked_add(beyond) else { return false };
    let (mut page, last) = (base & !(PAGE_OCTETS - 1), last & !(PAGE_OCTETS - 1));
    while knows(table, page, ask) {
        if page == last {
            return true;
        }
        cold_path();
        page = page.wrapping_add(PAGE_OCTETS);
    }
    false
}

/// Whether `octets` from `base` on can be read; of none: yes.
#[inline]
pub(crate) fn is_readable(base: usize, octets: usize) -> bool {
    all(&READABLE, base, octets, sys::is_page_readable)
}

/// Whether `octets` from `base` on can be written; of none: yes.
#[inline]
pub(crate) fn is_writable(base: usize, octets: usize) -> bool {
    all(&WRITABLE, base, octets, sys::is_page_writable)
}

#[cfg(test)]
mod tests {
    use super::{PAGE_OCTETS, READABLE, is_readable, is_writable};
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

    /// Three pages, of which the middle one allows `access`, where no other test has had any.
    fn pages(at: usize, access: MprotectFlags, test: impl FnOnce(usize)) {
        let (octets, private) = (3 * PAGE_OCTETS, MapFlags::PRIVATE);
        // SAFETY: a new mapping; only its own pages are changed and given back, and no other code knows them.
        unsafe {
            let base = mmap_anonymous(at as *mut _, octets, ProtFlags::empty(), private).unwrap();
            mprotect(base.wrapping_byte_add(PAGE_OCTETS), PAGE_OCTETS, access).unwrap();
            test(base as usize + PAGE_OCTETS);
            munmap(base, octets).unwrap();
        }
    }

    #[test]
    fn the_kernel_says_what_can_be_read_and_written() {
        crate::process::env::make_ready();
        pages(0x6000_0000_0000, MprotectFlags::READ, |page| {
            assert!(is_readable(page, PAGE_OCTETS) && is_readable(page + 7, 1) && is_readable(page, 0));
            assert!(!is_readable(page, PAGE_OCTETS + 1) && !is_readable(page - 1, 2));
            assert!(!is_writable(page, 4));
        });
        pages(0x6100_0000_0000, MprotectFlags::READ | MprotectFlags::WRITE, |page| {
            assert!(is_writable(page, PAGE_OCTETS) && !is_writable(page, PAGE_OCTETS + 1));
        });
        assert!(is_readable(0, 0) && !is_readable(0, 1));
        assert!(!is_readable(usize::MAX, 2) && !is_readable(1 << 63, 1) && !is_readable(usize::MAX, 1));
    }

    #[test]
    fn pages_that_share_a_place_are_told_apart() {
        let octets = (READABLE.len() + 1) * PAGE_OCTETS;
        let memory = std::vec![1u8; octets];
        let base = memory.as_ptr() as usize;
        for _ in 0..2 {
            assert!(is_readable(base, octets));
            assert!(!is_readable(base.wrapping_add(1 << 62), 1));
        }
    }

    extern crate std;
}
