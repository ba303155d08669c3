// SPDX-License-Identifier: Apache-2.0
//! Our descriptors lie above the program's limit of open files, so that they never cost it one.
//!
//! In: nothing. Out: a guard under which descriptors may be made, and the number from which on they belong. The soft
//! limit (RLIMIT_NOFILE) counts only where a descriptor is made: what lies above it stays open and usable. So it is
//! raised for the few calls of an attachment's step and put back. Where the hard limit leaves no room, ours lie among
//! the program's, from 512 on, or below a lower limit at its end.
//!
//! A process that another thread forks off in these microseconds finds the limit as it was ([`in_child`]); one made by
//! vfork, posix_spawn or clone keeps the raised one. Another thread that changes the same limit in these microseconds
//! wins: its value is noticed and restored.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::process::{Resource, Rlimit, getrlimit, prlimit};

/// Sockets that hold a port for a socket without one, at a time.
pub(crate) const RESERVED_MAX: u16 = 16;
/// Descriptors that an attachment's step has at a time: two connections, two that are just being received, one copy.
const ATTACH_ROOM: u16 = 8;
/// Above this limit nothing is raised: the kernel's table of descriptors would have to grow with the number.
const LIMIT_MAX: u64 = 65_536;
/// A limit of which [`RESERVED_MAX`] are few.
const MANY: u64 = 4_096;
/// Where programs do not count on finding free numbers.
const MIN: c_int = 512;
/// So many numbers below a lower limit are ours first.
const LAST: c_int = 16;
/// The first number that is no standard stream's.
pub(crate) const AFTER_STREAMS: c_int = 3;

/// The soft limit that is raised right now, plus 1, in the low half, and by how much in the high one; 0 = none is. A fork's child has a
/// copy.
static RAISED: AtomicU64 = AtomicU64::new(0);

/// The raised limit; dropped, it is what it was.
pub(crate) struct Raised {
    before: Option<Rlimit>,
    after: Rlimit,
    /// Our descriptors of this kind lie so far above the limit.
    offset: u16,
}

/// Raises the soft limit for an attachment's step, where the hard one lets it.
pub(crate) fn raise() -> Raised {
    raise_by(ATTACH_ROOM, 0)
}

/// Raises the soft limit for a socket that holds a port. Such sockets lie above what an attachment's step needs.
pub(crate) fn raise_for_port() -> Raised {
    raise_by(ATTACH_ROOM.saturating_add(RESERVED_MAX), ATTACH_ROOM)
}

fn raise_by(room: u16, offset: u16) -> Raised {
    let before = getrlimit(Resource::Nofile);
    let kept = Raised { before: None, after: before, offset };
    let room = u64::from(room);
    let Some(soft) = before.current.filter(|soft| *soft <= LIMIT_MAX) else { return kept };
    let after = Rlimit { current: Some(soft.saturating_add(room)), maximum: before.maximum };
    if before.maximum.is_some_and(|hard| hard < soft.saturating_add(room)) {
        return kept;
    }
    RAISED.store(soft.saturating_add(1) | room << 32, Relaxed);
    match prlimit(None, Resource::Nofile, after) {
        Ok(before) => Raised { before: Some(before), after, offset },
        Err(_) => {
            RAISED.store(0, Relaxed);
            kept
        }
    }
}

/// In a fork's child: what another thread of its parent had raised is lowered again.
pub(crate) fn in_child() {
    let raised = RAISED.swap(0, Relaxed);
    let Some(soft) = u64::from(raised as u32).checked_sub(1) else { return };
    let found = getrlimit(Resource::Nofile);
    if found.current == Some(soft.saturating_add(raised >> 32)) {
        let _ = prlimit(None, Resource::Nofile, Rlimit { current: Some(soft), ..found });
    }
}

impl Raised {
    /// The number from which on our descriptors belong.
    pub(crate) fn descriptor_min(&self) -> c_int {
        let number = |limit: &Rlimit| limit.current.and_then(|soft| c_int::try_from(soft).ok());
        let min = match &self.before {
            Some(before) => number(before).unwrap_or(MIN),
            None => {
                number(&self.after).map_or(MIN, |soft| soft.saturating_sub(LAST).clamp(AFTER_STREAMS, MIN))
            }
        };
        min.saturating_add(self.offset.into())
    }

    /// Whether [`RESERVED_MAX`] descriptors from there on cost the program none, or few of many.
    pub(crate) fn has_room(&self) -> bool {
        self.before.is_some() || self.after.current.is_none_or(|soft| soft >= MANY)
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
        RAISED.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::{Rlimit, in_child, raise};
    use rustix::process::{Resource, getrlimit, prlimit};

    #[test]
    fn a_child_finds_the_limit_as_it_was() {
        let first =
            prlimit(None, Resource::Nofile, Rlimit { current: Some(900), ..getrlimit(Resource::Nofile) });
        let soft = || getrlimit(Resource::Nofile).current;
        let raised = raise();
        assert!(soft() > Some(900));
        in_child(); // the same memory, and its own limit: what a child finds
        assert_eq!(soft(), Some(900));
        in_child();
        assert_eq!(soft(), Some(900));
        drop(raised);
        assert_eq!(soft(), Some(900));
        drop(raise());
        in_child();
        assert_eq!(soft(), Some(900), "nothing is raised");
        let _ = prlimit(None, Resource::Nofile, first.unwrap());
    }
}
