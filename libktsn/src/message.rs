// SPDX-License-Identifier: Apache-2.0
//! A program's `struct msghdr`, looked at once.
//!
//! In: a pointer that the program gave to `sendmsg`. Out: what the send core may look at, or nothing, and then the
//! kernel judges. The memory is read directly: a wild pointer faults here, in the program's own call, where the
//! kernel would have answered EFAULT (null pointers go to the kernel). Other threads of the program may write to it
//! meanwhile, as they may during the kernel's own copy; every length is read once and then used.

use core::slice;

use crate::abi::{DATAGRAM_MAX, MessageHeader, NAME_MAX, SEGMENTS_MAX, Segment};

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
}

impl Message<'_> {
    /// Reads a header; `None` when only the kernel can judge it.
    ///
    /// # Safety
    /// `header` is what a program passed to `sendmsg`: null, or readable with everything it points to, for the
    /// lifetime of the result.
    pub(crate) unsafe fn read(header: *const MessageHeader, is_musl: bool) -> Option<Self> {
        if header.is_null() {
            return None;
        }
        // SAFETY: not null, so readable by the caller's promise; it need not be aligned.
        let mut header = unsafe { header.read_unaligned() };
        if is_musl {
            header.segments_count &= u32::MAX as usize;
            header.control_octets &= u32::MAX as usize;
        }
        let name_octets = usize::try_from(header.name_octets.cast_signed()).ok()?.min(NAME_MAX);
        let has_name = !header.name.is_null() && name_octets != 0;
        if header.segments_count > SEGMENTS_MAX || header.control_octets > i32::MAX as usize {
            return None;
        }
        if header.control_octets != 0 && header.control.is_null() {
            return None;
        }
        if header.segments_count != 0 && (header.segments.is_null() || !header.segments.is_aligned()) {
            return None;
        }
        // SAFETY: each pointer is not null where its length is not 0, and readable by the caller's promise; the
        // segments are aligned, the other two are octets.
        let (name, control, segments) = unsafe {
            (
                if has_name { slice::from_raw_parts(header.name.cast(), name_octets) } else { &[] },
                octets(header.control.cast(), header.control_octets),
                if header.segments_count == 0 {
                    &[]
                } else {
                    slice::from_raw_parts(header.segments, header.segments_count)
                },
            )
        };
        let mut sum = 0usize;
        for segment in segments {
            if segment.base.is_null() && segment.octets != 0 {
                return None;
            }
            sum = sum.checked_add(segment.octets).filter(|sum| *sum <= DATAGRAM_MAX)?;
        }
        Some(Message { name, control, segments, octets: sum })
    }

    /// The payload's pieces, in order, at most [`Self::octets`] together even if the program changes them now.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (*const u8, usize)> {
        let mut left = self.octets;
        self.segments.iter().map(move |segment| {
            let octets = segment.octets.min(left);
            left = left.saturating_sub(octets);
            (segment.base.cast(), octets)
        })
    }
}

/// # Safety
/// `base` is readable for `octets` when that is not 0.
unsafe fn octets<'a>(base: *const u8, octets: usize) -> &'a [u8] {
    // SAFETY: the caller's promise.
    if octets == 0 { &[] } else { unsafe { slice::from_raw_parts(base, octets) } }
}
