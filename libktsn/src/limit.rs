// SPDX-License-Identifier: Apache-2.0
//! Our two descriptors lie above the program's limit of open files, so that they never cost it one.
//!
//! In: nothing. Out: a guard under which descriptors may be made, and the number from which on they belong. The soft
//! limit (RLIMIT_NOFILE) counts only where a descriptor is made: what lies above it stays open and usable. So it is
//! raised for the few calls of an attachment's step and put back. Where the hard limit leaves no room, ours lie among
//! the program's, from 512 on if the limit allows that.
//!
//! A process that another thread forks off in these microseconds keeps the raised limit. Another thread that changes the same limit in these microseconds wins: its value is noticed and restored.

use core::ffi::c_int;

use rustix::process::{Resource, Rlimit, getrlimit, prlimit};

/// Descriptors that an attachment's step has at a time: two connections, two that are just being received, one copy.
const ROOM: u64 = 8;
/// Above this limit nothing is raised: the kernel's table of descriptors would have to grow with the number.
const LIMIT_MAX: u64 = 65_536;
/// Where programs do not count on finding free numbers.
const MIN: c_int = 512;

/// The raised limit; dropped, it is what it was.
pub(crate) struct Raised {
    before: Option<Rlimit>,
    after: Rlimit,
}

/// Raises the soft limit, where the hard one lets it.
pub(crate) fn raise() -> Raised {
    let before = getrlimit(Resource::Nofile);
    let kept = Raised { before: None, after: before };
    let Some(soft) = before.current.filter(|soft| *soft <= LIMIT_MAX) else { return kept };
    let after = Rlimit { current: Some(soft.saturating_add(ROOM)), maximum: before.maximum };
    if before.maximum.is_some_and(|hard| hard < soft.saturating_add(ROOM)) {
        return kept;
    }
    match prlimit(None, Resource::Nofile, after) {
        Ok(before) => Raised { before: Some(before), after },
        Err(_) => kept,
    }
}

impl Raised {
    /// The number from which on our descriptors belong.
    pub(crate) fn descriptor_min(&self) -> c_int {
        let soft = self.before.as_ref().and_then(|before| before.current);
        soft.and_then(|soft| c_int::try_from(soft).ok()).unwrap_or(MIN)
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        let Some(before) = self.before.take() else { return };
        if let Ok(found) = prlimit(None, Resource::Nofile, before)
            && (found.current, found.maximum) != (self.after.current, self.after.maximum)
        {
            let _ = prlimit(None, Resource::Nofile, found);
        }
    }
}
