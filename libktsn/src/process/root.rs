// SPDX-License-Identifier: Apache-2.0
//! Whether the program has changed its root directory, so that it no longer finds ktsnd's socket.
//!
//! In: the root directory at the program's start. Out: whether it is another one now.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The root directory at the program's start: file system and inode, 0 if not known.
static DEVICE: AtomicU64 = AtomicU64::new(0);
static INODE: AtomicU64 = AtomicU64::new(0);

/// Notes the root directory (by the constructor): a program that changes it no longer finds ktsnd's socket.
pub(crate) fn note() {
    if let Some((device, inode)) = identity() {
        DEVICE.store(device, Relaxed);
        INODE.store(inode, Relaxed);
    }
}

/// The file system and inode of the root directory, which chroot(2) and pivot_root(2) change.
fn identity() -> Option<(u64, u64)> {
    rustix::fs::stat(c"/").ok().map(|about| (about.st_dev, about.st_ino))
}

/// Whether the root directory is another one than at the start.
pub(crate) fn has_changed() -> bool {
    let noted = (DEVICE.load(Relaxed), INODE.load(Relaxed));
    noted != (0, 0) && identity().is_some_and(|now| now != noted)
}
