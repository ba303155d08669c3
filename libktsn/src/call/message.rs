// SPDX-License-Identifier: Apache-2.0
//! A program's `struct msghdr`, looked at once.
//!
//! In: a pointer that the program gave to `sendmsg`. Out: what the send core may look at, or nothing, and then the
//! kernel judges. Every address is asked about before it is followed ([`memory`]). Other threads of the program may
//! write to the memory meanwhile, as they may during the kernel's own copy; every length is read once and then used.

use core::hint::cold_path;
use core::slice;

use crate::call::memory;
use crate::process::abi::{CONTROL_MAX, DATAGRAM_MAX, MessageHeader, NAME_MAX, SEGMENTS_MAX, Segment};

/// Bits of a program's addresses, on kernels with the usual page tables.
const ADDRESS_BITS: u32 = 47;

/// Control data that the kernel refuses whatever its settings are (`net.core.optmem_max`).
const CONTROL_OF_KERNEL_MAX: usize = i32::MAX as usize;

/// One message to be sent.
#[derive(Clone, Copy)]
pub(crate) struct Message<'a> {
    /// The destination's socket address; empty when there is none.
    pub(crate) name: &'a [u8],
    /// The control data.
    pub(crate) control: &'a [u8],
    /// The payload's pieces.
    segments: &'a [Segment],
    /// Length of the payload.
    pub(crate) octets: usize,
    /// Only the kernel has the errno for this payload: too long, or not to be read.
    pub(crate) is_for_kernel: bool,
}

impl<'a> Message<'a> {
    /// Reads a header; `None` when only the kernel can judge it, whatever the control data say.
    ///
    /// # Safety
    /// `header` is what a program passed to `sendmsg`. What can be read of it stays readable for the lifetime of the
    /// result.
    #[inline(always)] // into the one place that reads messages to be taken: the result stays in registers
    pub(crate) unsafe fn read(header: *const MessageHeader, is_musl: bool) -> Option<Self> {
        if !memory::is_readable(header as usize, size_of::<MessageHeader>()) {
            cold_path();
            return None;
        }
        // SAFETY: readable, as the kernel has just found; it need not be aligned.
        let mut header = unsafe { header.read_unaligned() };
        if is_musl {
            cold_path();
            header.segments_count &= u32::MAX as usize;
            header.control_octets &= u32::MAX as usize;
        }
        let name_octets = usize::try_from(header.name_octets.cast_signed()).ok()?.min(NAME_MAX);
        let name_octets = if header.name.is_null() { 0 } else { name_octets };
        if header.segments_count > SEGMENTS_MAX
            || header.control_octets > CONTROL_MAX
            || (header.segments_count != 0 && !header.segments.is_aligned())
        {
            cold_path();
            return None;
        }
        let segments_octets = header.segments_count.wrapping_mul(size_of::<Segment>());
        // SAFETY: the segments are aligned, the other two are octets.
        let (name, control, segments) = unsafe {
            (
                readable(header.name.cast(), name_octets, name_octets)?,
                readable(header.control.cast(), header.control_octets, header.control_octets)?,
                readable(header.segments, segments_octets, header.segments_count)?,
            )
        };
        let mut sum = 0usize;
        let mut is_for_kernel = false;
        for segment in segments {
            let octets = segment.octets;
            sum = sum.saturating_add(octets);
            is_for_kernel |= sum > DATAGRAM_MAX || !memory::is_readable(segment.base as usize, octets);
            // Nothing is read there, and yet the kernel refuses an address that no program has.
            is_for_kernel |= octets == 0 && segment.base as usize >> ADDRESS_BITS != 0;
            if is_for_kernel {
                cold_path();
                break;
            }
        }
        Some(Message { name, control, segments, octets: sum, is_for_kernel })
    }

    /// [`Self::read`] where it is not urgent.
    ///
    /// # Safety
    /// `header` is what a program passed to `sendmsg`.
    #[inline(never)]
    pub(crate) unsafe fn read_cold(header: *const MessageHeader, is_musl: bool) -> Option<Self> {
        // SAFETY: the caller's promise.
        unsafe { Self::read(header, is_musl) }
    }

    /// The control data of a message that [`Self::read`] does not read, of any length, where the kernel may take it all the same: its
    /// segments lie at an odd address, or the control data is long.
    ///
    /// # Safety
    /// `header` is what a program passed to `sendmsg`.
    pub(crate) unsafe fn control_alone(header: *const MessageHeader, is_musl: bool) -> Option<&'a [u8]> {
        if !memory::is_readable(header as usize, size_of::<MessageHeader>()) {
            return None;
        }
        // SAFETY: readable, as the kernel has just found; it need not be aligned.
        let header = unsafe { header.read_unaligned() };
        let mask = if is_musl { u32::MAX as usize } else { usize::MAX };
        let octets = header.control_octets & mask;
        if header.segments_count & mask > SEGMENTS_MAX || octets > CONTROL_OF_KERNEL_MAX {
            return None;
        }
        // SAFETY: octets.
        unsafe { readable(header.control.cast(), octets, octets) }
    }

    /// The payload from its beginning on.
    pub(crate) const fn pieces(&self) -> Pieces<'a> {
        Pieces { segments: self.segments, at: 0, left: 0 }
    }
}

/// A walk over a payload, in frames of any length: [`Self::begin`], then its pieces.
pub(crate) struct Pieces<'a> {
    segments: &'a [Segment],
    /// How much of the first of `segments` is behind us.
    at: usize,
    /// Octets of the frame that are not copied yet.
    left: usize,
}

impl Pieces<'_> {
    /// Begins the next frame: so many octets, fewer if the program has shortened its segments meanwhile.
    pub(crate) const fn begin(&mut self, octets: usize) {
        self.left = octets;
    }
}

impl Iterator for Pieces<'_> {
    type Item = (*const u8, usize);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.left == 0 {
                return None;
            }
            let (first, others) = self.segments.split_first()?;
            let octets = first.octets.saturating_sub(self.at).min(self.left);
            if octets == 0 {
                (self.segments, self.at) = (others, 0);
                continue;
            }
            let from = first.base.cast::<u8>().wrapping_add(self.at);
            self.at = self.at.wrapping_add(octets);
            self.left = self.left.wrapping_sub(octets);
            return Some((from, octets));
        }
    }
}

/// A slice of the program's memory, where it is one; empty for none.
///
/// # Safety
/// `base` is aligned for `T` where there is anything to read, any bits are a `T`, and `octets` is the size of `count`
/// of them.
#[inline]
unsafe fn readable<'a, T>(base: *const T, octets: usize, count: usize) -> Option<&'a [T]> {
    if count == 0 {
        return Some(&[]);
    }
    // SAFETY: readable, as the kernel has found, so not null; aligned by the caller's promise.
    memory::is_readable(base as usize, octets).then(|| unsafe { slice::from_raw_parts(base, count) })
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::{Message, Pieces};
    use crate::process::abi::{MessageHeader, Segment};
    use std::vec::Vec;

    fn header(segments: &[Segment]) -> MessageHeader {
        MessageHeader {
            name: core::ptr::null(),
            name_octets: 0,
            segments: segments.as_ptr(),
            segments_count: segments.len(),
            control: core::ptr::null(),
            control_octets: 0,
            flags: 0,
        }
    }

    fn frame(pieces: &mut Pieces<'_>, octets: usize) -> Vec<u8> {
        pieces.begin(octets);
        // SAFETY: the pieces of the tests' own text.
        pieces.flat_map(|(at, octets)| unsafe { core::slice::from_raw_parts(at, octets) }).copied().collect()
    }

    #[test]
    fn a_payload_is_cut_across_its_pieces() {
        let text = b"abcdefghij";
        let cuts = [0..3, 3..3, 3..4, 4..10].map(|cut| &text[cut]);
        let segments = cuts.map(|cut| Segment { base: cut.as_ptr().cast(), octets: cut.len() });
        let header = header(&segments);
        // SAFETY: all of it is the test's own.
        let message = unsafe { Message::read(&raw const header, false) }.expect("readable");
        assert!((message.octets, message.is_for_kernel) == (10, false));
        for octets in 1..12 {
            let mut pieces = message.pieces();
            let frames: Vec<u8> = (0..10).flat_map(|_| frame(&mut pieces, octets)).collect();
            assert_eq!(frames, text[..], "{octets}");
        }
        assert!(frame(&mut message.pieces(), 0).is_empty());
    }

    #[test]
    fn what_cannot_be_read_is_the_kernels() {
        let read = |header: &MessageHeader| {
            // SAFETY: bad pointers are what it is about; nothing else is passed.
            unsafe { Message::read(header, false) }.map(|message| message.is_for_kernel)
        };
        let bad = 16 as *const core::ffi::c_void;
        let good = Segment { base: b"x".as_ptr().cast(), octets: 1 };
        assert_eq!(read(&header(&[good])), Some(false));
        assert_eq!(read(&header(&[good, Segment { base: bad, octets: 1 }])), Some(true));
        assert_eq!(read(&header(&[good, Segment { base: bad, octets: 0 }])), Some(false));
        assert_eq!(read(&header(&[good, Segment { base: good.base, octets: usize::MAX }])), Some(true));
        assert_eq!(read(&MessageHeader { segments: bad.cast(), ..header(&[good]) }), None);
        assert_eq!(read(&MessageHeader { control: bad, control_octets: 16, ..header(&[good]) }), None);
        assert_eq!(read(&MessageHeader { name: bad, name_octets: 16, ..header(&[good]) }), None);
        assert_eq!(read(&MessageHeader { name: bad, name_octets: 0, ..header(&[good]) }), Some(false));
        // SAFETY: as above.
        assert!(unsafe { Message::read(bad.cast(), false) }.is_none());
    }
}
