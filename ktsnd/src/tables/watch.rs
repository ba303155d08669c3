// SPDX-License-Identifier: Apache-2.0
//! Hints that a namespace's path may lead elsewhere now.
//!
//! In: directories. Out: "something in one of them went away", from inotify. It only makes the look at the paths come
//! sooner: some file systems (/proc) never report anything, so the paths are looked at anyway.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::task::{Context, Poll};

use rustix::fs::inotify;
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

use super::sys;

/// See the module.
#[derive(Debug)]
pub(super) struct Watch {
    inotify: AsyncFd<OwnedFd>,
    directories: BTreeMap<PathBuf, i32>,
}

impl Watch {
    pub(super) fn new() -> io::Result<Self> {
        let inotify = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        Ok(Self { inotify: sys::readiness(inotify)?, directories: BTreeMap::new() })
    }

    /// Watches exactly the directories of these paths.
    pub(super) fn set<'a>(&mut self, paths: impl Iterator<Item = &'a Path>) {
        let wanted: BTreeSet<PathBuf> = paths.filter_map(Path::parent).map(Path::to_path_buf).collect();
        let inotify = self.inotify.get_ref();
        self.directories.retain(|directory, watch| {
            let keep = wanted.contains(directory);
            if !keep {
                // The directory may be gone, and its watch with it.
                let _ = inotify::remove_watch(inotify, *watch);
            }
            keep
        });
        for directory in wanted {
            let flags =
                inotify::WatchFlags::DELETE | inotify::WatchFlags::MOVED_FROM | inotify::WatchFlags::ONLYDIR;
            if let Ok(watch) = inotify::add_watch(inotify, &directory, flags) {
                self.directories.insert(directory, watch);
            }
        }
    }

    /// Ready when something went away in one of the directories.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let Poll::Ready(Ok(mut guard)) = self.inotify.poll_read_ready(context) else {
                return Poll::Pending;
            };
            let mut buffer = [MaybeUninit::uninit(); 4096];
            let mut reader = inotify::Reader::new(self.inotify.get_ref(), &mut buffer);
            let mut seen = false;
            let ended = loop {
                match reader.next() {
                    Ok(_) => seen = true,
                    Err(error) => break error,
                }
            };
            if ended == Errno::AGAIN {
                guard.clear_ready();
            }
            if seen || ended != Errno::AGAIN {
                return Poll::Ready(());
            }
        }
    }
}
