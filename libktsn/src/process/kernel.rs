// SPDX-License-Identifier: Apache-2.0
//! What the running kernel knows, by its version.
//!
//! In: the version, once. Out: answers of one load. An unknown version knows nothing.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The kernel's version, major in the upper half; 0 = unknown.
static VERSION: AtomicU32 = AtomicU32::new(0);

/// Remembers the kernel's version, major and minor.
pub(crate) fn set_version((major, minor): (u32, u32)) {
    VERSION.store(major.min(0xffff) << 16 | minor.min(0xffff), Relaxed);
}

/// Whether the kernel is at least of this version.
fn is_at_least(major: u32, minor: u32) -> bool {
    VERSION.load(Relaxed) >= (major << 16 | minor)
}

/// Whether the kernel takes SO_PRIORITY as a control message; an older one refuses it.
pub(crate) fn knows_priority_messages() -> bool {
    is_at_least(6, 14)
}

/// Whether the kernel takes SCM_TS_OPT_ID; an older one refuses it.
pub(crate) fn knows_key_messages() -> bool {
    is_at_least(6, 13)
}

/// Whether the kernel says by MADV_POPULATE_WRITE that a page cannot be written.
pub(crate) fn knows_populate() -> bool {
    is_at_least(5, 14)
}

/// The most segments of one datagram (UDP_MAX_SEGMENTS).
pub(crate) fn segments_max() -> usize {
    if is_at_least(6, 9) { 128 } else { 64 }
}

/// Whether a datagram may be short where UDP_SEGMENT is over the MTU.
pub(crate) fn takes_short_of_long_segments() -> bool {
    is_at_least(6, 14)
}
