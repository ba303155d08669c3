// SPDX-License-Identifier: Apache-2.0
//! A pod's namespace as long as one of its interfaces is attached.
//!
//! In: a path. Out: the namespace's snapshot, its identity, and its number among those that the daemon's namespace knows.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::tables::error::TablesError;
use crate::tables::kernel::device::namespace_number;
use crate::tables::kernel::namespace::{self, Entered, Identity};
use crate::tables::kernel::space::Space;
use crate::tables::spec::AttachmentSpec;

/// A pod's namespace.
pub(super) struct Pod {
    pub(super) space: Space,
    pub(super) identity: Identity,
    pub(super) cookie: u64,
    /// The number that the daemon's namespace has for the pod's namespace.
    pub(super) number: Option<i32>,
}

impl Pod {
    /// Finds the number, where an attachment needs its host end found among the daemon's devices. It never changes.
    pub(super) fn find_number(&mut self, spec: &AttachmentSpec, host: &mut Space) {
        if spec.attachment.is_short() && self.number.is_none() {
            // A namespace that is gone is seen to elsewhere.
            self.number = namespace_number(&mut host.socket.netlink, &spec.attachment.netns).ok().flatten();
        }
    }
}

/// The namespace at `path` as it is now, opened unless it is held or was entered already.
pub(super) fn open<'a>(
    pods: &'a mut BTreeMap<PathBuf, Pod>,
    path: &Path,
    entered: Option<Entered>,
) -> Result<&'a mut Pod, TablesError> {
    if !pods.contains_key(path) {
        // The path may lead elsewhere by now.
        let found = entered.filter(|entered| Identity::of(path).ok() == Some(entered.identity));
        let opened = found.map_or_else(|| namespace::open(path), Ok);
        let Entered { identity, netlink, cookie } =
            opened.map_err(|source| TablesError::Namespace { path: path.to_path_buf(), source })?;
        pods.insert(path.to_path_buf(), Pod { space: Space::new(netlink)?, identity, cookie, number: None });
    }
    let pod = pods.get_mut(path).ok_or(TablesError::Ended)?;
    // A device that was made a moment ago is not in what was dumped before.
    pod.space.catch_up()?;
    Ok(pod)
}
