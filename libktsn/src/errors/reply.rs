// SPDX-License-Identifier: Apache-2.0
//! A program's `struct msghdr` to be filled: data over its segments, control messages, flags.
//!
//! In: the program's header, and an entry. Out: the program's memory as the kernel would have left it,
//! with its rules for what does not fit (MSG_TRUNC, MSG_CTRUNC, a control message cut short) and for what cannot be
//! written: data make EFAULT, control messages are left out. Every address is asked about before it is used ([`memory`]).

use core::ffi::c_int;

use crate::call::memory;
use crate::process::abi::{MSG_CTRUNC, MSG_ERRQUEUE, MSG_TRUNC, MessageHeader, Segment};

/// Segments of a program's header that are used; an error queue's entry in more is cut short.
pub(crate) const SEGMENTS: usize = 31;
/// `sizeof(struct cmsghdr)`.
const CONTROL_HEADER: usize = 16;

/// The program's header, read once.
pub(crate) struct Reply {
    header: *mut MessageHeader,
    /// The buffer's segments.
    pub(crate) segments: [Segment; SEGMENTS],
    /// How many of them there are.
    pub(crate) count: usize,
    /// Room for data, octets.
    pub(crate) room: usize,
    /// Where the control messages go.
    control: *mut u8,
    control_octets: usize,
    control_used: usize,
    is_truncated: bool,
    is_control_truncated: bool,
    /// Data belong where nothing can be written.
    is_faulty: bool,
    /// The program's header as it was.
    pub(crate) program: MessageHeader,
}

impl Reply {
    /// Reads a header; `None` when only the kernel can judge it.
    ///
    /// # Safety
    /// `header` is what a program passed to `recvmsg`. What can be written of it stays so for the lifetime of the
    /// result.
    pub(crate) unsafe fn new(header: *mut MessageHeader, is_musl: bool) -> Option<Self> {
        // Where a kernel does not say what is writable, memory that is not even readable is found all the same.
        let octets = size_of::<MessageHeader>();
        if !memory::is_readable(header as usize, octets) || !memory::is_writable(header as usize, octets) {
            return None;
        }
        // SAFETY: readable, as the kernel has found; it need not be aligned.
        let mut program = unsafe { header.read_unaligned() };
        if is_musl {
            program.segments_count &= u32::MAX as usize;
            program.control_octets &= u32::MAX as usize;
        }
        let segments_octets = program.segments_count.min(SEGMENTS).wrapping_mul(size_of::<Segment>());
        if program.segments_count > crate::process::abi::SEGMENTS_MAX
            || !memory::is_readable(program.segments as usize, segments_octets)
        {
            return None;
        }
        let nothing = Segment { base: core::ptr::null(), octets: 0 };
        let mut reply = Self {
            header,
            segments: [nothing; SEGMENTS],
            count: program.segments_count.min(SEGMENTS),
            room: 0,
            control: program.control.cast_mut().cast(),
            control_octets: if program.control.is_null() { 0 } else { program.control_octets },
            control_used: 0,
            is_truncated: false,
            is_control_truncated: false,
            is_faulty: false,
            program,
        };
        for (index, segment) in (0..reply.count).zip(&mut reply.segments) {
            // SAFETY: within the program's array of `segments_count` segments, readable as just found.
            *segment = unsafe { program.segments.wrapping_add(index).read_unaligned() };
            reply.room = reply.room.saturating_add(segment.octets);
        }
        Some(reply)
    }

    /// Begins again: another reader has taken the entry that was written.
    pub(crate) fn restart(&mut self) {
        self.control_used = 0;
        self.is_truncated = false;
        self.is_control_truncated = false;
        self.is_faulty = false;
    }

    /// Whether the program's memory takes the first `octets` of an entry's data; if not, none are written, and the call
    /// fails.
    pub(crate) fn takes(&mut self, octets: usize) -> bool {
        let mut left = octets;
        for segment in self.segments.iter().take(self.count) {
            let part = segment.octets.min(left);
            self.is_faulty |= !memory::is_writable(segment.base as usize, part);
            left = left.wrapping_sub(part);
        }
        !self.is_faulty
    }

    /// Whether the entry could not be written: EFAULT.
    pub(crate) const fn is_faulty(&self) -> bool {
        self.is_faulty
    }

    /// Writes data from octet `at` of the entry on, where [`Self::takes`] found room; what does not fit is left out.
    pub(crate) fn data(&mut self, at: usize, octets: &[u8]) {
        let (mut begin, mut at, mut octets) = (0usize, at, octets);
        for segment in self.segments.iter().take(self.count) {
            let end = begin.saturating_add(segment.octets);
            if at < end {
                let part = octets.len().min(end.wrapping_sub(at));
                let to = segment.base.cast_mut().cast::<u8>().wrapping_add(at.wrapping_sub(begin));
                for (index, octet) in (0..part).zip(octets) {
                    // SAFETY: within the program's segment; whole writes to plain octets.
                    unsafe { to.wrapping_add(index).write(*octet) };
                }
                octets = octets.get(part..).unwrap_or(&[]);
                at = at.wrapping_add(part);
            }
            begin = end;
        }
        self.is_truncated |= !octets.is_empty();
    }

    /// Where octet `at` of the data lies.
    fn place(&self, at: usize) -> Option<*mut u8> {
        let mut begin = 0usize;
        for segment in self.segments.iter().take(self.count) {
            let end = begin.saturating_add(segment.octets);
            if at < end {
                return Some(segment.base.cast_mut().cast::<u8>().wrapping_add(at.wrapping_sub(begin)));
            }
            begin = end;
        }
        None
    }

    /// The kernel wrote data after its first `head.len()` octets from octet 0 on: moves it behind them, and writes
    /// them where they belong. `octets`: all together, as [`Self::takes`] found room for.
    pub(crate) fn put_in_front(&mut self, head: &[u8], octets: usize) {
        let shift = head.len();
        let mut at = octets.min(self.room);
        while at > shift {
            at = at.wrapping_sub(1);
            if let (Some(to), Some(from)) = (self.place(at), self.place(at.wrapping_sub(shift))) {
                // SAFETY: both lie within the program's segments.
                unsafe { to.write(from.read()) };
            }
        }
        self.data(0, head);
        self.is_truncated |= octets > self.room;
    }

    /// Adds a control message, as the kernel's `put_cmsg` does.
    pub(crate) fn control(&mut self, level: c_int, kind: c_int, value: &[u8]) {
        let left = self.control_octets.saturating_sub(self.control_used);
        if left < CONTROL_HEADER {
            self.is_control_truncated = true;
            return;
        }
        let whole = CONTROL_HEADER.wrapping_add(value.len());
        self.is_control_truncated |= left < whole;
        let octets = whole.min(left);
        let to = self.control.wrapping_add(self.control_used);
        if !memory::is_writable(to as usize, octets) {
            return; // so does the kernel
        }
        let [a, b, c, d] = level.to_ne_bytes();
        let [e, f, g, h] = kind.to_ne_bytes();
        let head = octets.to_ne_bytes().into_iter().chain([a, b, c, d, e, f, g, h]);
        for (index, octet) in (0..octets).zip(head.chain(value.iter().copied())) {
            // SAFETY: within the program's control buffer, of which `octets` are left.
            unsafe { to.wrapping_add(index).write(octet) };
        }
        let padded = whole.wrapping_add(7) & !7;
        self.control_used = self.control_used.wrapping_add(padded.min(left));
    }

    /// Completes the header of an entry with `octets` octets of data; what `recvmsg` returns. `flags` are what the
    /// kernel said, `name_octets` the length of the name that it wrote.
    pub(crate) fn finish(&mut self, octets: usize, flags: c_int, name_octets: u32) -> usize {
        let truncated = if self.is_truncated || octets > self.room { MSG_TRUNC } else { 0 };
        let control_truncated = if self.is_control_truncated { MSG_CTRUNC } else { 0 };
        let flags = flags | MSG_ERRQUEUE | truncated | control_truncated;
        // SAFETY: the program's header, writable as `new` found; it need not be aligned.
        unsafe {
            if !self.program.name.is_null() {
                (&raw mut (*self.header).name_octets).write_unaligned(name_octets);
            }
            (&raw mut (*self.header).control_octets).write_unaligned(self.control_used);
            (&raw mut (*self.header).flags).write_unaligned(flags);
        }
        octets.min(self.room)
    }
}

#[cfg(test)]
#[path = "reply_tests.rs"]
mod tests;
