// SPDX-License-Identifier: Apache-2.0
//! Hints that a namespace's path may lead elsewhere now.
//!
//! In: directories. Out: "something in one of them went away", from inotify. It only makes the look at the paths come
//! sooner: some file systems (/proc) never report anything, so the paths are looked at anyway.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::task::{Context, Poll};

use rustix::fs::inotify;
use tokio::io::unix::AsyncFd;

use crate::sys;

/// The directories that are watched.
#[derive(Debug)]
pub(crate) struct Watch {
    inotify: AsyncFd<OwnedFd>,
    directories: BTreeMap<PathBuf, i32>,
}

impl Watch {
    pub(crate) fn new() -> io::Result<Self> {
        let inotify = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        Ok(Self { inotify: sys::readiness(inotify)?, directories: BTreeMap::new() })
    }

    /// Watches exactly the directories of these paths.
    pub(crate) fn set<'a>(&mut self, paths: impl Iterator<Item = &'a Path>) {
        let flags =
            inotify::WatchFlags::DELETE | inotify::WatchFlags::MOVED_FROM | inotify::WatchFlags::ONLYDIR;
        let inotify = self.inotify.get_ref();
        // A directory that is watched already keeps its watch.
        let watch = |directory: &Path| {
            Some((directory.to_path_buf(), inotify::add_watch(inotify, directory, flags).ok()?))
        };
        let wanted: BTreeMap<PathBuf, i32> = paths.filter_map(Path::parent).filter_map(watch).collect();
        for (_, old) in self.directories.iter().filter(|(directory, _)| !wanted.contains_key(*directory)) {
            // The directory may be gone, and its watch with it.
            let _ = inotify::remove_watch(inotify, *old);
        }
        self.directories = wanted;
    }

    /// Ready when something went away in one of the directories.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut is_gone = false;
        while let Poll::Ready(Ok(mut guard)) = self.inotify.poll_read_ready(context) {
            let mut buffer = [MaybeUninit::uninit(); 4096];
            let mut reader = inotify::Reader::new(self.inotify.get_ref(), &mut buffer);
            while reader.next().is_ok() {
                is_gone = true;
            }
            guard.clear_ready();
        }
        if is_gone { Poll::Ready(()) } else { Poll::Pending }
    }
}
